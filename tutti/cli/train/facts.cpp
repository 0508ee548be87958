#include "tutti/cli/train/facts.h"

#include "tutti/cli/train/files.h"
#include "tutti/cli/train/options.h"
#include "tutti/cli/train/whole_flags.h"

namespace tutti::cli {

RecipeFacts recipe_facts(const TrainFlags& flags) {
  const auto large = large_batch_from(flags);
  RecipeFacts optimizer = optimizer_facts(flags.job.optimizer);
  return {.torch_optimizer = optimizer.torch_optimizer,
          .more_than_a_rule = std::move(optimizer.more_than_a_rule),
          .clips_or_groups = optimizer.clips_or_groups,
          .precision = flags.precision,
          .steps_per_execution = flags.steps_per_execution,
          .scales_losses = !flags.loss_scaling.empty(),
          .measures = flags.measures,
          .large_batch = large.has_value(),
          .rate_of_base = large && large->base_rate > 0,
          .rate_given = flags.job.optimizer.learning_rate.has_value(),
          .schedule = flags.schedule,
          .warms_up = flags.warm_up > 0,
          .rate_on_plateau = !flags.reduce_on_plateau.empty()};
}

FitFacts fit_facts(const TrainFlags& flags) {
  return {.accumulate = flags.accumulate,
          .microbatches = flags.microbatches,
          .slows = !flags.slow_worker.empty(),
          .decides = deciding_flag(flags),
          .checkpoints = keeps_checkpoints(flags),
          .best_kept = flags.keep_best > 0,
          .loads_ahead = flags.loader.workers != "0",
          .recomputes_part = flags.recompute != "full"};
}

Machine machine_of(const JobFlags& flags) {
  return {.workers = workers_of_job(flags),
          .launched = behind_a_launcher(),
          .snapshots = flags.served.snapshots.folder};
}

}  // namespace tutti::cli
