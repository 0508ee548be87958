// Checkpoints as trainings go on from them: which one, whether it fits, and what is put back.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/log.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/cluster/join/join.h"
#include "tutti/train/checkpointing/detail/checkpointing.h"

namespace tutti::detail {

namespace fs = std::filesystem;

namespace {

std::set<std::string> parts_of_either(const CheckpointManifest& a, const CheckpointManifest& b) {
  std::set<std::string> names;
  for (const auto* const manifest : {&a, &b})
    for (const auto& [name, words] : manifest->kept) names.insert(name);
  return names;
}

// "loss scale" of "loss_scale".
std::string spoken(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

// What of a loop of one's own the other has not, or is something else there.
void add_differences(const CheckpointManifest& then, const CheckpointManifest& now,
                     std::vector<std::string>& found) {
  const auto kind_in = [](const CheckpointManifest& manifest, const std::string& name) {
    const auto there = manifest.loop.find(name);
    return there == manifest.loop.end() ? "none" : there->second;
  };
  std::set<std::string> names;
  for (const auto* const manifest : {&then, &now})
    for (const auto& [name, kind] : manifest->loop) names.insert(name);
  for (const std::string& name : names)
    if (kind_in(then, name) != kind_in(now, name))
      found.push_back(fmt::format("\"{}\": {} in the checkpoint, {} here", name,
                                  kind_in(then, name), kind_in(now, name)));
  if (then.replicas != now.replicas)
    found.push_back(
        fmt::format("replicas: {} in the checkpoint, {} here", then.replicas, now.replicas));
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
  const bool loops = !then.loop.empty() || !now.loop.empty();
  if (loops) add_differences(then, now, found);
  if (!loops)
    for (const std::string& part : parts_of_either(then, now))
      same(spoken(part).c_str(), then.kept.contains(part), now.kept.contains(part));
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
int64_t newest_whole_in(const std::string& who, const fs::path& folder) {
  auto all = trainings_in(folder);
  for (auto path = all.rbegin(); path != all.rend(); ++path) {
    try {
      const TrainingCheckpoint checkpoint(*path);
      checkpoint.verify();
      return checkpoint.manifest().step + 1;
    } catch (const IoError& error) {
      throw IoError(
          fmt::format("{}: checkpoint {} is left as it is: {}", who, path->string(), error.what()));
    } catch (const DataError& error) {
      log(LogLevel::warning, "{}; it becomes {}; {}", error.what(),
          set_aside(*path).filename().string(),
          std::next(path) == all.rend() ? "there is none before it" : "the one before it is used");
    }
  }
  const auto damaged = damaged_trainings_in(folder);
  if (!damaged.empty())
    throw DataError(
        fmt::format("{}: none of the {} checkpoints in {} is whole; move them away to begin anew",
                    who, damaged.size(), folder.string()));
  log(LogLevel::info, "{}: no checkpoint in {} yet: the training begins", who, folder.string());
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

std::optional<CheckpointManifest> Checkpointing::resume(CheckpointManifest now) {
  if (!options_.resume && !started_again()) return std::nullopt;
  const auto together = [&](auto&& part) {
    std::exception_ptr failure;
    try {
      part();
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    agree_on_failure(failure);
  };
  const auto together_on_disk = [&](const std::string& what, std::function<void()> work) {
    agree_on_failure(on_disk(what, std::move(work)));
  };
  const auto newest = std::make_shared<int64_t>(0);
  const auto look = [newest, who = place_.who, folder = options_.folder] {
    *newest = newest_whole_in(who, folder);
  };
  together_on_disk("looking for a checkpoint",
                   place_.world.chief ? std::function<void()>(look) : nullptr);
  const double chosen = sum_over_workers(static_cast<double>(*newest));
  if (chosen == 0) return std::nullopt;
  const fs::path path = options_.folder / name_of_checkpoint(static_cast<int64_t>(chosen) - 1);
  const auto found = std::make_shared<CheckpointRead>();
  const bool was_read = place_.world.chief;
  together_on_disk("reading " + path.filename().string(), [found, path, was_read] {
    const TrainingCheckpoint checkpoint(path);
    if (!was_read)
      checkpoint.verify();  // a disk that fails here is an error, in a mapping a signal
    *found = {"checkpoint " + path.string(), checkpoint.manifest(), checkpoint.tensors()};
    read_all(found->tensors);
  });
  together([&] {
    add_words(now);
    check(*found, now);
  });
  together([&] {
    for (const auto& part : parts_) part->load(*found);
  });
  last_step_ = found->manifest.step;
  return found->manifest;
}

// Whether it is of this training and model: nothing is changed before that is clear, on any worker.
void Checkpointing::check(const CheckpointRead& read, const CheckpointManifest& now) const {
  if (const auto found = differences(read.manifest, now); !found.empty())
    throw UsageError(fmt::format("{}: {} is of another {}\n  {}", place_.who, read.what,
                                 now.loop.empty() ? "training" : "loop", fmt::join(found, "\n  ")));
  for (const auto& part : parts_) part->check(read);
}

}  // namespace tutti::detail
