// Checkpoints as trainings go on from them: which one, whether it fits, and what is put back.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/strategy/worlds.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/checkpointing.h"
#include "tutti/train/detail/checkpoint_format.h"
#include "tutti/train/weights.h"

namespace tutti::detail {
namespace {

std::vector<std::vector<double>> rows_of_tensor(const at::Tensor& tensor) {
  std::vector<std::vector<double>> rows;
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    const at::Tensor row = tensor[i].contiguous();
    rows.emplace_back(row.data_ptr<double>(), row.data_ptr<double>() + row.numel());
  }
  return rows;
}

NamedTensors kept_back(const std::map<std::string, Array>& tensors, int rank) {
  const std::string prefix = kept_back_name(rank, "");
  NamedTensors kept;
  for (auto at = tensors.lower_bound(prefix); at != tensors.end() && at->first.starts_with(prefix);
       ++at)
    kept.emplace_back(at->first.substr(prefix.size()), tensor_of(at->second));
  return kept;
}

// Each field in which a training differs from the one that it is to go on from.
std::vector<std::string> differences(const CheckpointManifest& then,
                                     const CheckpointManifest& now) {
  std::vector<std::string> found;
  const auto same = [&](const char* what, const auto& a, const auto& b, const char* advice = "") {
    if (a != b)
      found.push_back(fmt::format("{}: {} in the checkpoint, {} here{}", what, a, b, advice));
  };
  same("seed", then.seed, now.seed);
  same("global batch", then.global_batch, now.global_batch);
  same("batches an update (accumulate)", then.accumulate, now.accumulate);
  same("precision", then.precision, now.precision);
  same("loss scaling", !then.loss_scale.empty(), !now.loss_scale.empty());
  same("samples", then.num_samples, now.num_samples);
  if (then.num_samples == now.num_samples && then.seed == now.seed &&
      then.global_batch == now.global_batch)
    same("first samples, sha256", then.samples_sha256, now.samples_sha256);
  same("steps an epoch", then.steps_per_epoch, now.steps_per_epoch);
  same("optimizer", then.optimizer, now.optimizer);
  if (then.optimizer == now.optimizer)
    same("options of the optimizer", then.optimizer_options, now.optimizer_options);
  same("compression", then.compression, now.compression);
  same("schedule", then.schedule, now.schedule);
  if (then.schedule == now.schedule)
    same("rates of the schedule", fmt::format("{:.6g}", fmt::join(then.schedule_rates, " ")),
         fmt::format("{:.6g}", fmt::join(now.schedule_rates, " ")));
  same("losses", then.losses, now.losses);
  same("metrics", fmt::format("{}", fmt::join(then.metrics, ", ")),
       fmt::format("{}", fmt::join(now.metrics, ", ")));
  same("columns of History", fmt::format("{}", fmt::join(then.columns, ", ")),
       fmt::format("{}", fmt::join(now.columns, ", ")));
  // With another number of replicas bits differ anyway.
  if (then.replicas == now.replicas) {
    same("threads a replica", then.threads_per_replica, now.threads_per_replica,
         "; give it (--threads): on others sums round differently");
    if (!ReductionShape::parse(then.reduction_shape)
             .adds_like(ReductionShape::parse(now.reduction_shape)))
      same("reduction shape", then.reduction_shape, now.reduction_shape);
  }
  return found;
}

}  // namespace

// On the chief: the newest that is whole, as its step + 1; 0: there is none.
int64_t Checkpointing::choose() const {
  auto all = trainings_in(options_.folder);
  for (auto path = all.rbegin(); path != all.rend(); ++path) {
    try {
      const TrainingCheckpoint checkpoint(*path);
      checkpoint.verify();
      return checkpoint.manifest().step + 1;
    } catch (const DataError& error) {
      log(LogLevel::warning, "{}; it becomes {}; {}", error.what(),
          set_aside(*path).filename().string(),
          std::next(path) == all.rend() ? "there is none before it" : "the one before it is used");
    }
  }
  const auto damaged = damaged_trainings_in(options_.folder);
  if (!damaged.empty())
    throw DataError(
        fmt::format("fit: none of the {} checkpoints in {} is whole; move them away to begin anew",
                    damaged.size(), options_.folder.string()));
  log(LogLevel::info, "fit: no checkpoint in {} yet: the training begins",
      options_.folder.string());
  return 0;
}

std::optional<TrainingState> Checkpointing::resume(const CheckpointManifest& now) {
  if (!options_.resume) return std::nullopt;
  std::exception_ptr failure;
  double chosen = 0;
  try {
    if (model_.strategy.world().chief) chosen = static_cast<double>(choose());
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  agree_on_failure(model_.strategy, failure, "fit: checkpoints");
  chosen = sum_over_workers(model_.strategy, chosen);
  if (chosen == 0) return std::nullopt;
  std::optional<TrainingState> state;
  try {
    const TrainingCheckpoint checkpoint(options_.folder /
                                        name_of_checkpoint(static_cast<int64_t>(chosen) - 1));
    state = put_back(checkpoint, now);
    last_step_ = state->manifest.step;
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  agree_on_failure(model_.strategy, failure, "fit: checkpoints");
  return state;
}

TrainingState Checkpointing::put_back(const TrainingCheckpoint& checkpoint,
                                      const CheckpointManifest& now) {
  const CheckpointManifest& then = checkpoint.manifest();
  if (const auto found = differences(then, now); !found.empty())
    throw UsageError(fmt::format("fit: checkpoint {} is of another training\n  {}",
                                 checkpoint.path().string(), fmt::join(found, "\n  ")));
  const auto tensors = checkpoint.tensors();
  const torch::nn::Module& module = *model_.modules.module(0);
  data::Safetensors weights;
  UpdaterState optimizer{then.optimizer, then.version, then.learning_rate};
  TrainingState state{.manifest = then, .totals = {}, .rows = {}, .kept = {}};
  const std::string first_buffers = buffer_name(0, "");
  for (const auto& [name, array] : tensors) {
    if (name.starts_with(kParameters))
      weights.arrays.push_back({name.substr(std::string(kParameters).size()), array});
    else if (name.starts_with(first_buffers))
      weights.arrays.push_back({name.substr(first_buffers.size()), array});
    else if (name.starts_with(kOptimizer))
      optimizer.tensors.emplace_back(name.substr(std::string(kOptimizer).size()), tensor_of(array));
  }
  for (int rank = 0; rank < then.replicas; ++rank)
    if (auto kept = kept_back(tensors, rank); !kept.empty())
      optimizer.replicas.push_back(std::move(kept));
  require_fit(tutti::state_of(module), weights, all_names(module),
              "checkpoint " + checkpoint.path().string());

  NamedTensors parameters;
  for (const auto& [name, tensor] : unique_parameters(module))
    parameters.emplace_back(name, tensor_of(*weights.find(name)));
  model_.compiled->optimizer.updater().restore(optimizer, parameters);
  put_back_buffers(tensors, then);
  put_back_generators(tensors, then);

  const World& world = model_.strategy.world();
  state.totals.resize(static_cast<size_t>(world.local));
  for (int rank = 0; rank < then.replicas; ++rank) {
    const at::Tensor numbers = tensor_of(tensors.at(totals_name(rank)));
    const Totals totals = Totals::unpacked(
        model_.compiled->goals, {numbers.data_ptr<double>(), static_cast<size_t>(numbers.numel())});
    // With another number of replicas the first one has what all had.
    const int local = (then.replicas == world.size ? rank : 0) - world.first_rank;
    if (local >= 0 && local < world.local) state.totals[static_cast<size_t>(local)].add(totals);
  }
  state.rows = rows_of_tensor(tensor_of(tensors.at(kHistoryRows)));
  state.kept = kept_in(tensors, then);
  return state;
}

// With as many replicas each gets its own, else all get what Model::save() would have written.
void Checkpointing::put_back_buffers(const std::map<std::string, Array>& tensors,
                                     const CheckpointManifest& then) {
  const at::NoGradGuard no_grad;
  for (int local = 0; local < model_.strategy.world().local; ++local)
    for (auto& [name, buffer] : unique_buffers(*model_.modules.module(local)))
      buffer.copy_(tensor_of(buffer_of(local, name, tensors, then, kBuffers)));
}

Array Checkpointing::buffer_of(int local, const std::string& name,
                               const std::map<std::string, Array>& tensors,
                               const CheckpointManifest& then, const char* which) const {
  const World& world = model_.strategy.world();
  return then.replicas == world.size
             ? tensors.at(buffer_name(world.first_rank + local, name, which))
             : merged_buffer(name, tensors, then, which);
}

KeptWeights Checkpointing::kept_in(const std::map<std::string, Array>& tensors,
                                   const CheckpointManifest& then) const {
  KeptWeights kept;
  for (const auto& [name, parameter] : unique_parameters(*model_.modules.module(0))) {
    const auto found = tensors.find(kKeptParameters + name);
    if (found == tensors.end()) return {};
    kept.parameters.emplace_back(name, tensor_of(found->second));
  }
  for (int local = 0; local < model_.strategy.world().local; ++local) {
    NamedTensors& own = kept.buffers.emplace_back();
    for (const auto& [name, buffer] : unique_buffers(*model_.modules.module(local)))
      own.emplace_back(name, tensor_of(buffer_of(local, name, tensors, then, kKeptBuffers)));
  }
  return kept;
}

// Each replica gets its own where there are as many, and each process where there are as many.
void Checkpointing::put_back_generators(const std::map<std::string, Array>& tensors,
                                        const CheckpointManifest& then) {
  if (then.replicas == model_.strategy.world().size)
    model_.strategy.run([&](ReplicaContext& replica) {
      const Array& state = tensors.at(replica_generator_name(replica.rank()));
      replica.generator().set_state(tensor_of(state).clone());
    });
  if (then.workers != num_workers()) return;
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(tensor_of(tensors.at(generator_name(worker()))).clone());
}

}  // namespace tutti::detail
