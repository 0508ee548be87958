// Checkpoints as trainings go on from them: which one, whether it fits, and what is put back.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/log.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/cluster/join/join.h"
#include "tutti/queues/upload.h"
#include "tutti/strategy/membership/detail/worlds.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/checkpointing/detail/checkpointing.h"
#include "tutti/train/checkpointing/detail/device_generators.h"
#include "tutti/train/model/weights.h"

namespace tutti::detail {

namespace fs = std::filesystem;

namespace {

std::vector<std::vector<double>> history_rows(const Array& array) {
  std::vector<std::vector<double>> rows;
  for (int64_t i = 0; i < array.shape().at(0); ++i) {
    const auto row = array.rows(i, i + 1).as<double>();
    rows.emplace_back(row.begin(), row.end());
  }
  return rows;
}

NamedTensors kept_back(const CheckpointTensors& tensors, int rank) {
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
  const auto same = [&](const char* what, const auto& a, const auto& b,
                        const std::string& advice = "") {
    if (a != b)
      found.push_back(fmt::format("{}: {} in the checkpoint, {} here{}", what, a, b, advice));
  };
  same("seed", then.seed, now.seed);
  same("global batch", then.global_batch, now.global_batch);
  same("batches an update (accumulate)", then.accumulate, now.accumulate);
  same("precision", then.precision, now.precision);
  same("loss scaling", !then.loss_scale.empty(), !now.loss_scale.empty());
  same("noise scale", !then.noise_scale.empty(), !now.noise_scale.empty());
  same("samples", then.num_samples, now.num_samples);
  same("embedding tables", fmt::format("{}", fmt::join(then.tables, "; ")),
       fmt::format("{}", fmt::join(now.tables, "; ")));
  if (then.num_samples == now.num_samples && then.seed == now.seed &&
      then.global_batch == now.global_batch) {
    // The first checkpoints have a digest of the first samples alone.
    if (then.data_sha256.empty())
      same("first samples, sha256", then.samples_sha256, now.samples_sha256);
    else
      same("samples from the first to the last, sha256", then.data_sha256, now.data_sha256);
    if (!then.validation_sha256.empty() && !now.validation_sha256.empty())
      same("validation data, sha256", then.validation_sha256, now.validation_sha256);
  }
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
  // With another number of parts bits differ anyway.
  if (int64_t{then.replicas} * then.microbatches == int64_t{now.replicas} * now.microbatches) {
    same("threads a replica", then.threads_per_replica, now.threads_per_replica,
         "; give it (--threads): on others sums round differently");
    same("dense kernel", then.dense_kernel, now.dense_kernel,
         fmt::format("; give that of the checkpoint (--dense-kernel {}, nn::use_dense_kernel()): "
                     "products of the other round differently",
                     then.dense_kernel));
    if (then.replicas == now.replicas &&
        !ReductionShape::parse(then.reduction_shape)
             .adds_like(ReductionShape::parse(now.reduction_shape)))
      same("reduction shape", then.reduction_shape, now.reduction_shape);
  }
  return found;
}

// On the chief: the newest that is whole, as its step + 1; 0: there is none. Only what is in one
// makes it damaged: one that cannot be read just now stays, and nothing begins without it.
int64_t newest_whole_in(const fs::path& folder) {
  auto all = trainings_in(folder);
  for (auto path = all.rbegin(); path != all.rend(); ++path) {
    try {
      const TrainingCheckpoint checkpoint(*path);
      checkpoint.verify();
      return checkpoint.manifest().step + 1;
    } catch (const IoError& error) {
      throw IoError(
          fmt::format("fit: checkpoint {} is left as it is: {}", path->string(), error.what()));
    } catch (const DataError& error) {
      log(LogLevel::warning, "{}; it becomes {}; {}", error.what(),
          set_aside(*path).filename().string(),
          std::next(path) == all.rend() ? "there is none before it" : "the one before it is used");
    }
  }
  const auto damaged = damaged_trainings_in(folder);
  if (!damaged.empty())
    throw DataError(
        fmt::format("fit: none of the {} checkpoints in {} is whole; move them away to begin anew",
                    damaged.size(), folder.string()));
  log(LogLevel::info, "fit: no checkpoint in {} yet: the training begins", folder.string());
  return 0;
}

// A byte of each page: tensors are mapped, and their file is read where they are touched first.
void read_all(const CheckpointTensors& tensors) {
  constexpr int64_t kPage = 4096;
  for (const auto& [name, array] : tensors) {
    const auto* const bytes = static_cast<const volatile std::byte*>(array.data());
    for (int64_t at = 0; at < array.num_bytes(); at += kPage) (void)bytes[at];
  }
}

}  // namespace

std::optional<TrainingState> Checkpointing::resume(const CheckpointManifest& now) {
  if (!options_.resume && !started_again()) return std::nullopt;
  const auto together = [&](auto&& part) {
    std::exception_ptr failure;
    try {
      part();
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    agree_on_failure(model_.strategy, failure, "fit: checkpoints");
  };
  const auto together_on_disk = [&](const std::string& what, std::function<void()> work) {
    agree_on_failure(model_.strategy, on_disk(what, std::move(work)), "fit: checkpoints");
  };
  const auto newest = std::make_shared<int64_t>(0);
  const auto look = [newest, folder = options_.folder] { *newest = newest_whole_in(folder); };
  together_on_disk("looking for a checkpoint",
                   model_.strategy.world().chief ? std::function<void()>(look) : nullptr);
  const double chosen = sum_over_workers(model_.strategy, static_cast<double>(*newest));
  if (chosen == 0) return std::nullopt;
  const fs::path path = options_.folder / name_of_checkpoint(static_cast<int64_t>(chosen) - 1);
  const auto found = std::make_shared<Found>();
  const bool was_read = model_.strategy.world().chief;
  together_on_disk("reading " + path.filename().string(), [found, path, was_read] {
    const TrainingCheckpoint checkpoint(path);
    if (!was_read)
      checkpoint.verify();  // a disk that fails here is an error, in a mapping a signal
    *found = {"checkpoint " + path.string(), checkpoint.manifest(), checkpoint.tensors()};
    read_all(found->tensors);
  });
  std::optional<Checked> checked;
  together([&] { checked = check(*found, now); });
  together([&] { put_back(*checked); });
  last_step_ = checked->state.manifest.step;
  return std::move(checked->state);
}

// Whether it is of this training and model: nothing is changed before that is clear, on any worker.
Checkpointing::Checked Checkpointing::check(const Found& found_on_disk,
                                            const CheckpointManifest& now) const {
  const std::string& what = found_on_disk.what;
  const CheckpointManifest& then = found_on_disk.manifest;
  const CheckpointTensors& tensors = found_on_disk.tensors;
  if (const auto found = differences(then, now); !found.empty())
    throw UsageError(
        fmt::format("fit: {} is of another training\n  {}", what, fmt::join(found, "\n  ")));
  Checked checked{.what = what, .tensors = tensors};
  data::Safetensors weights;
  checked.optimizer = {then.optimizer, then.version, then.learning_rate};
  const std::string first_buffers = buffer_name(0, "");
  for (const auto& [name, array] : tensors) {
    if (name.starts_with(kParameters))
      weights.arrays.push_back({name.substr(std::string(kParameters).size()), array});
    else if (name.starts_with(first_buffers))
      weights.arrays.push_back({name.substr(first_buffers.size()), array});
    else if (name.starts_with(kOptimizer))
      checked.optimizer.tensors.emplace_back(name.substr(std::string(kOptimizer).size()),
                                             tensor_of(array));
    else if (name.starts_with(kTables))
      checked.tables.emplace(name.substr(std::string(kTables).size()), array);
  }
  for (int rank = 0; rank < then.replicas; ++rank)
    if (auto kept = kept_back(tensors, rank); !kept.empty())
      checked.optimizer.replicas.push_back(std::move(kept));
  const ModelState shapes = model_.shapes();
  require_fit(shapes, weights, all_names(*model_.modules.module(0)), what);
  const auto need = [&](const std::string& name) {
    if (!tensors.contains(name)) throw DataError(fmt::format("{}: lacks \"{}\"", what, name));
    return tensor_of(tensors.at(name));
  };
  for (const auto& [name, buffer] : shapes.buffers) need(buffer_name(0, name));
  for (const auto& [name, tensor] : shapes.parameters)
    checked.parameters.emplace_back(name, need(kParameters + name));
  require_generators(what, tensors);

  checked.state = {.manifest = then,
                   .totals = totals_in(what, tensors, then),
                   .rows = history_rows(tensors.at(kHistoryRows)),
                   .kept = kept_in(tensors, then)};
  return checked;
}

void Checkpointing::put_back(const Checked& checked) {
  const auto does_not_fit = [&](const char* why) {
    return DataError(fmt::format("{}: the state of the optimizer does not fit: {}", checked.what,
                                 plain_words(why)));
  };
  try {
    model_.compiled->optimizer.updater().restore(checked.optimizer, checked.parameters);
  } catch (const UsageError& error) {
    throw does_not_fit(error.what());
  } catch (const c10::Error& error) {
    throw does_not_fit(error.what());
  }
  if (SparseTables* tables = model_.compiled->optimizer.tables()) try {
      tables->restore(checked.tables);
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", checked.what, error.what()));
    }
  model_.laid_out->weights_changed();
  put_back_buffers(checked.tensors, checked.state.manifest);
  put_back_generators(checked.what, checked.tensors, checked.state.manifest);
}

std::vector<Totals> Checkpointing::totals_in(const std::string& what,
                                             const CheckpointTensors& tensors,
                                             const CheckpointManifest& then) const {
  const World& world = model_.strategy.world();
  const Goals& goals = model_.compiled->goals;
  std::vector<Totals> each(static_cast<size_t>(world.local));
  for (int rank = 0; rank < then.replicas; ++rank) {
    const auto numbers = tensors.at(totals_name(rank)).as<double>();
    if (const std::string why = Totals::why_not_packed(goals, numbers); !why.empty())
      throw DataError(fmt::format("{}: tensor \"{}\": got {}", what, totals_name(rank), why));
    // With another number of replicas the first one has what all had.
    const int replica = then.replicas == world.num_replicas() ? rank : 0;
    for (int local = 0; local < world.local; ++local)
      if (world.replica_of(world.first_rank + local) == replica && world.gives_outputs(local))
        each[static_cast<size_t>(local)].add(Totals::unpacked(goals, numbers));
  }
  return each;
}

// What is one only LibTorch knows.
void Checkpointing::require_generators(const std::string& what, const CheckpointTensors& tensors) {
  for (const auto& [name, array] : tensors) {
    if (!name.starts_with(kGenerators) || name.starts_with(kDeviceGenerators)) continue;
    try {
      at::detail::createCPUGenerator().set_state(tensor_of(array).clone());
    } catch (const c10::Error& error) {
      throw DataError(fmt::format("{}: tensor \"{}\" is no state of a generator: {}", what, name,
                                  plain_words(error.what())));
    }
  }
}

// With as many replicas each gets its own, else all get what Model::save() would have written.
void Checkpointing::put_back_buffers(const CheckpointTensors& tensors,
                                     const CheckpointManifest& then) {
  for (int local = 0; local < model_.strategy.world().local; ++local)
    for (const auto& [name, buffer] : unique_buffers(*model_.modules.module(local)))
      copy_queued(buffer, tensor_of(buffer_of(local, name, tensors, then, kBuffers)));
}

Array Checkpointing::buffer_of(int local, const std::string& name, const CheckpointTensors& tensors,
                               const CheckpointManifest& then, const char* which) const {
  const World& world = model_.strategy.world();
  return then.replicas == world.num_replicas()
             ? tensors.at(buffer_name(world.replica_of(world.first_rank + local), name, which))
             : merged_buffer(name, tensors, then, which);
}

KeptWeights Checkpointing::kept_in(const CheckpointTensors& tensors,
                                   const CheckpointManifest& then) const {
  KeptWeights kept;
  for (const auto& [name, parameter] : model_.shapes().parameters) {
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
void Checkpointing::put_back_generators(const std::string& what, const CheckpointTensors& tensors,
                                        const CheckpointManifest& then) {
  if (then.replicas == model_.strategy.num_replicas_in_sync())
    model_.strategy.run([&](ReplicaContext& replica) {
      const Array& state = tensors.at(replica_generator_name(replica.replica()));
      replica.generator().set_state(tensor_of(state).clone());
      const std::string name = device_generator_name(replica.replica());
      if (const auto there = tensors.find(name); there != tensors.end()) try {
          restore_device_generator(replica, tensor_of(there->second).clone());
        } catch (const c10::Error& error) {
          throw DataError(fmt::format("{}: tensor \"{}\" is no state of a generator of {}: {}",
                                      what, name, replica.device().str(),
                                      plain_words(error.what())));
        }
    });
  if (then.workers != num_workers()) return;
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(tensor_of(tensors.at(generator_name(worker()))).clone());
}

}  // namespace tutti::detail
