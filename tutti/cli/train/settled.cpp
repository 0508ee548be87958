#include "tutti/cli/train/settled.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/data/reading.h"
#include "tutti/cli/run/server_flags.h"
#include "tutti/cli/train/facts.h"
#include "tutti/cli/train/files.h"
#include "tutti/cli/train/job.h"
#include "tutti/cli/train/optimizer_flags.h"
#include "tutti/cli/train/options.h"
#include "tutti/cli/train/text_models.h"
#include "tutti/cli/train/whole_flags.h"
#include "tutti/cluster/join/join.h"
#include "tutti/device/devices.h"
#include "tutti/nn/precision.h"
#include "tutti/queues/config.h"
#include "tutti/sync/replicated/whole_rules.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::cli {
namespace {

// Where workers are not in step, each takes its share of the global batch alone.
int64_t batch_of_worker(const TrainFlags& flags) {
  const bool alone =
      flags.job.uses_servers() && !served_options(flags.job.served).staleness.synchronous();
  const auto job = job_of_this_process();
  return alone && job ? std::max<int64_t>(1, flags.job.global_batch / job->num_workers)
                      : flags.job.global_batch;
}

// "1:4:0.2": worker 1 takes 4 times as long in a step with probability 0.2.
std::optional<SlowWorker> slow_worker_from(const TrainFlags& flags) {
  const std::string& text = flags.slow_worker;
  if (text.empty()) return std::nullopt;
  const auto wrong = [&] {
    return UsageError(fmt::format(
        "--slow-worker {}: expected WORKER:FACTOR or WORKER:FACTOR:PROBABILITY, as 1:4:0.2", text));
  };
  std::vector<double> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (numbers.size() < 3) {
    double number = 0;
    const auto [stop, failure] = std::from_chars(at, end, number);
    if (failure != std::errc{}) throw wrong();
    numbers.push_back(number);
    if (stop == end) break;
    if (*stop != ':') throw wrong();
    at = stop + 1;
  }
  numbers.resize(std::max<size_t>(numbers.size(), 2), 0);
  const double probability = numbers.size() > 2 ? numbers[2] : 1;
  const bool known = numbers[0] >= 0 && numbers[0] == std::floor(numbers[0]);
  if (!known || !(numbers[1] >= 1 && numbers[1] <= 1000) || !(probability >= 0 && probability <= 1))
    throw wrong();
  const int workers = workers_of_job(flags.job);
  if (numbers[0] >= workers)
    throw UsageError(fmt::format("--slow-worker {}: there is no such worker; expected {}", text,
                                 workers == 1 ? "0" : fmt::format("0 to {}", workers - 1)));
  const auto job = job_of_this_process();
  if (numbers[0] != (job ? job->worker : 0)) return std::nullopt;
  return SlowWorker{.factor = numbers[1], .probability = probability};
}

// The same few samples in every epoch and under every strategy, of all classes.
data::Dataset taken(const TrainFlags& flags, const data::Dataset& all) {
  if (flags.take == 0) return all;
  if (flags.take > all.num_samples())
    throw UsageError(fmt::format("--take {}: there are {} training samples in {}", flags.take,
                                 all.num_samples(), flags.job.data));
  return all.shuffle({.seed = flags.job.seed, .each_epoch = false}).take(flags.take);
}

// Of the devices that are here, which choose() does not look at.
void check_precision(const TrainFlags& flags, const StrategyOptions& strategy) {
  try {
    const bool on_gpus = std::ranges::all_of(
        devices_from(strategy.device),
        [](const DeviceSpec& device) { return device.kind == DeviceKind::cuda; });
    require_precision(precision_by_name(flags.precision), on_gpus ? "cuda" : "cpu");
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("--precision: {}", error.what()));
  }
}

CompileOptions compile_options(const TrainFlags& flags, const DataSpec& spec,
                               const data::Dataset& train) {
  const int64_t all = detail::updates_of(train.num_batches(), flags.accumulate);
  if (flags.steps_per_epoch > all)
    throw UsageError(fmt::format("--steps-per-epoch {}: an epoch has {} step{}",
                                 flags.steps_per_epoch, all, all == 1 ? "" : "s"));
  int64_t steps = flags.epochs * (flags.steps_per_epoch > 0 ? flags.steps_per_epoch : all);
  if (flags.max_steps > 0) steps = std::min(steps, flags.max_steps);
  const auto whole = whole_rule_from(flags.job.optimizer);
  return {.optimizer = whole ? OptimizerChoice(factory_of(*whole))
                             : OptimizerChoice(recipe_from(flags.job.optimizer)),
          .loss = loss_for(spec),
          .metrics = metrics_from(flags),
          .learning_rate = schedule_from(flags, steps),
          .precision = precision_by_name(flags.precision),
          .loss_scaling = loss_scaling_from(flags),
          .large_batch = large_batch_from(flags),
          .measures = flags.measures,
          .steps_per_execution = flags.steps_per_execution};
}

FitOptions fit_options(const TrainFlags& flags, const data::Dataset& train,
                       const data::Dataset& test) {
  return {.epochs = flags.epochs,
          .validation = test,
          .callbacks = callbacks_from(flags),
          .max_steps = flags.max_steps,
          .verbose = static_cast<int>(flags.verbose),
          .on_nan = flags.nan == "stop"  ? OnNan::stop
                    : flags.nan == "end" ? OnNan::end
                                         : OnNan::go_on,
          .slow = slow_worker_from(flags),
          .steps_per_epoch = flags.steps_per_epoch,
          .validation_freq = flags.validation_freq,
          .class_weight = class_weight_from(flags, train.classes()),
          .accumulate = flags.accumulate,
          .microbatches = static_cast<int>(flags.microbatches),
          .checkpoints = checkpoint_options(flags),
          .stop_after = millis_of(flags.stop_after_s),
          .loader = loader_options(flags.loader)};
}

// Of MODEL, where it is a file; what the data is to be like is then the file's to say.
std::optional<FromExport> exported_by(TrainFlags& flags) {
  if (!is_exported(flags.job.model)) {
    if (!flags.eval_model.empty())
      throw UsageError(
          fmt::format("--eval-model {}: is for a model of a .pt2 file; the model is {}",
                      flags.eval_model, flags.job.model));
    return std::nullopt;
  }
  FromExport exported = exported_from(
      flags.job.model, {.eval = flags.eval_model, .freeze = frozen_patterns(flags)}, flags.lora);
  const ExportedSamples samples = samples_of(exported);
  flags.data.as_text = samples.of_text;
  if (samples.of_text && flags.data.context == 0 && samples.shape[0] > 0)
    flags.data.context = samples.shape[0];
  if (samples.shape.size() == 3 && flags.data.image_size == 0 && samples.shape[1] > 0 &&
      samples.shape[0] == 3)
    flags.data.image_size = samples.shape[1];
  return exported;
}

// What has no adapters, before anything is read.
void check_lora(const TrainFlags& flags) {
  if (flags.lora.empty()) return;
  const auto refuse = [&](const std::string& other, const char* why) {
    throw UsageError(fmt::format("--lora {} with {}: {}", flags.lora.front(), other, why));
  };
  if (flags.job.strategy == "tpu")
    refuse("--strategy tpu", "a compiled step has the graph's own weights alone");
  if (!flags.freeze.empty())
    refuse("--freeze " + flags.freeze, "beside adapters all other parameters stay as they are");
  const char* const whole =
      "layers are dealt out with their own weights; adapters are of whole ones";
  if (num_ranks_of(flags.job) != num_replicas_of(flags.job))
    refuse("--mesh " + flags.job.mesh, whole);
  if (flags.job.tensor_blocks.value_or(1) > 1) refuse("--tensor-blocks", whole);
  const bool all_again = flags.recompute == "full" && is_exported(flags.job.model);
  if (flags.recompute != "none" && !all_again)
    refuse("--recompute " + flags.recompute,
           "parts of a graph are computed again with its weights");
}

}  // namespace

parallel::ModelLayout model_layout(const TrainFlags& flags) {
  const size_t colon = flags.pipeline.find(':');
  const auto chunks = colon == std::string::npos
                          ? std::optional(0)
                          : number_in<int>(std::string_view(flags.pipeline).substr(colon + 1));
  if (!chunks || (colon != std::string::npos && *chunks < 1))
    throw UsageError(
        fmt::format("--pipeline {}: expected NAME or interleaved:CHUNKS", flags.pipeline));
  parallel::ModelLayout layout{
      .schedule = parallel::schedule_choice(flags.pipeline.substr(0, colon), *chunks),
      .recompute = parallel::recompute_choice(flags.recompute)};
  for (const std::string_view layer : parts_of(flags.cut, ','))
    if (!layer.empty()) layout.cut.before.emplace_back(layer);
  return layout;
}

TrainPlan settle(TrainFlags& flags) {
  StrategyOptions strategy = strategy_options(flags.job);
  strategy.step_graph = flags.step_graph;
  require_together(strategy, recipe_facts(flags), fit_facts(flags), machine_of(flags.job));
  check_precision(flags, strategy);
  loader_options(flags.loader);  // what it refuses is refused here
  check_gpt_flags(flags.job.model, flags.gpt);
  check_lora(flags);
  model_layout(flags);
  Network network;
  if (auto exported = exported_by(flags)) network.exported = std::move(exported);
  flags.data.as_text = flags.data.as_text || flags.job.model == kGpt;
  TrainData data = open_train_data(flags.job.data, flags.data);
  data.spec.model = network.exported ? kExportFile : flags.job.model;
  data.spec.lora = flags.lora;
  if (data.spec.predicts_number()) flags.number_scale = data.spec.target().deviation;
  if (data.spec.of_text() && !network.exported) data.spec.gpt = gpt_options(flags.gpt, data.spec);
  const auto all = taken(flags, data.train);
  const auto test = data.validation.batch(kTestBatch);
  if (network.exported)
    check_exported(*network.exported, data.spec);
  else
    network = adapted_graph(frozen_by(flags, model_for_spec(flags.job.model, data.spec)),
                            flags.job.model, flags.lora);
  check_groups(flags.job, network.variables());
  if (std::string words = fit_default_batch(flags.job, all); !words.empty())
    data.sentences.push_back(std::move(words));
  check_from(flags, data.spec);
  check_batch(flags.job, all);
  check_given_shares(flags.job);
  check_placement(flags.job, network.variables());
  const int64_t steps =
      flags.max_steps > 0 ? flags.max_steps * flags.accumulate : all.num_samples();
  if (network.graph) check_batch_norm(flags.job, *network.graph, all, steps);
  const auto train = all.shuffle().batch(batch_of_worker(flags));
  CompileOptions compile = compile_options(flags, data.spec, train);
  FitOptions fit = fit_options(flags, train, test);
  check_outputs(flags);
  return {std::move(strategy),
          train,
          test,
          std::move(data.spec),
          std::move(data.sentences),
          std::move(network),
          std::move(compile),
          std::move(fit),
          OutputFolder(flags.out)};
}

}  // namespace tutti::cli
