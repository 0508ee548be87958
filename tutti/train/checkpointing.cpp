#include "tutti/train/checkpointing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/stop.h"
#include "tutti/strategy/worlds.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/detail/checkpoint_format.h"
#include "tutti/train/detail/checkpoint_writer.h"
#include "tutti/train/weights.h"

namespace tutti::detail {
namespace {

constexpr Millis kLook{50};            // for a signal, while the disk is slow
constexpr Millis kDiskLimit{600'000};  // for the one before, and for the last

void copy_to(const at::Tensor& place, const at::Tensor& tensor) {
  // Nothing aligns a place in a file: memcpy minds that less than LibTorch's own copy.
  if (tensor.is_cpu() && tensor.is_contiguous() && tensor.numel() > 0)
    std::memcpy(place.data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  else
    place.copy_(tensor);
}

// Copies them to where they are written from.
void copy_to(data::SafetensorsImage& image, const NamedTensors& tensors) {
  std::vector<data::NamedArray> forms;
  for (const auto& [name, tensor] : tensors)
    forms.push_back({name, Array::view(nullptr, dtype_of(tensor.scalar_type()),
                                       tensor.sizes().vec(), nullptr)});
  const std::vector<Array> places = image.lay_out(forms);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) copy_to(tensor_of(places[i]), tensors[i].second);
}

at::Tensor tensor_of_rows(const std::vector<std::vector<double>>& rows, size_t columns) {
  at::Tensor tensor = at::empty({std::ssize(rows), static_cast<int64_t>(columns)}, at::kDouble);
  auto* to = tensor.data_ptr<double>();
  for (const auto& row : rows) to = std::copy(row.begin(), row.end(), to);
  return tensor;
}

std::vector<std::vector<double>> rows_of_tensor(const at::Tensor& tensor) {
  std::vector<std::vector<double>> rows;
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    const at::Tensor row = tensor[i].contiguous();
    rows.emplace_back(row.data_ptr<double>(), row.data_ptr<double>() + row.numel());
  }
  return rows;
}

// Which worker writes which tensor: the largest first, each to whoever has least.
std::vector<int> writers_of(const std::vector<int64_t>& bytes, int workers) {
  std::vector<size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  std::vector<int64_t> load(static_cast<size_t>(workers));
  std::vector<int> writers(bytes.size());
  for (const size_t tensor : order) {
    const auto least = std::ranges::min_element(load);
    *least += bytes[tensor];
    writers[tensor] = static_cast<int>(least - load.begin());
  }
  return writers;
}

void require_no_tables(const torch::nn::Module& module) {
  const auto tables = tables_of(table_layers_of(module));
  if (tables.empty()) return;
  throw UsageError(fmt::format(
      "fit: checkpoints: rows of embedding table \"{}\" would not be in them; parameter servers "
      "keep snapshots of theirs (--snapshots)",
      tables[0].name));
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

// ---- the folder ----

Checkpointing::Checkpointing(Model::State& model, CheckpointOptions options)
    : model_(model), options_(std::move(options)) {
  require_no_tables(*model_.modules.module(0));
  model_.compiled->optimizer.updater().state();  // throws where it cannot be saved
  take_folder();
  writer_ = std::make_unique<Writer>(
      options_.folder,
      CheckpointRetention{.newest = options_.newest_kept,
                          .best = options_.best_kept,
                          .monitor = options_.monitor,
                          .higher_is_better = higher_is_better(options_.better, options_.monitor)},
      model_.strategy.world().time_limit);
}

Checkpointing::~Checkpointing() = default;

int Checkpointing::worker() const {
  const World& world = model_.strategy.world();
  return world.first_rank / world.local;
}
int Checkpointing::num_workers() const {
  const World& world = model_.strategy.world();
  return world.size / world.local;
}

// The chief's failure is everybody's; and all must see the folder that it has taken.
void Checkpointing::take_folder() {
  std::exception_ptr failure;
  double number = 0;
  if (model_.strategy.world().chief) {
    try {
      lock_.emplace(options_.folder);
      require_unused();
      number = static_cast<double>(lock_->number());
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  }
  const double taken = sum_over_workers(model_.strategy, number);
  if (failure) std::rethrow_exception(failure);
  if (taken == 0)
    throw UsageError("fit: checkpoints: the chief's worker could not take the folder");
  const double seen = static_cast<double>(CheckpointLock::number_in(options_.folder));
  const double strangers = sum_over_workers(model_.strategy, seen == taken ? 0 : 1);
  if (seen != taken)
    throw UsageError(fmt::format(
        "fit: checkpoints in {}: this worker does not see the folder that the chief's writes to; "
        "give one that all hosts share",
        options_.folder.string()));
  if (strangers > 0)
    throw UsageError(
        "fit: checkpoints: not all workers see the same folder; their messages say so");
}

// The newest ones stay: those of an earlier training would take the place of this one's.
void Checkpointing::require_unused() const {
  auto before = trainings_in(options_.folder);
  if (before.empty()) before = damaged_trainings_in(options_.folder);
  if (options_.resume || before.empty()) return;
  throw UsageError(fmt::format(
      "fit: checkpoints in {}: an earlier training has left {} there ({} the newest); resume goes "
      "on from it, else move them away or take another folder",
      options_.folder.string(), before.size(), before.back().filename().string()));
}

int64_t Checkpointing::next_pause(int64_t step) const noexcept {
  return options_.every_steps > 0 ? options_.every_steps - step % options_.every_steps
                                  : std::numeric_limits<int64_t>::max();
}

// ---- saving ----

// What this worker writes: its share of what all have, and what it alone has.
NamedTensors Checkpointing::own_tensors(const TrainingState& state) const {
  const World& world = model_.strategy.world();
  NamedTensors common;
  for (const auto& [name, tensor] : unique_parameters(*model_.modules.module(0)))
    common.emplace_back(kParameters + name, tensor);
  const UpdaterState optimizer = model_.compiled->optimizer.updater().state();
  for (const auto& [name, tensor] : optimizer.tensors)
    common.emplace_back(kOptimizer + name, tensor);
  common.emplace_back(kHistoryRows, tensor_of_rows(state.rows, state.manifest.columns.size()));
  for (const auto& [name, tensor] : state.kept.parameters)
    common.emplace_back(kKeptParameters + name, tensor);
  std::vector<int64_t> bytes;
  for (const auto& [name, tensor] : common) bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
  const std::vector<int> writers = writers_of(bytes, num_workers());

  std::vector<at::Tensor> generators(static_cast<size_t>(world.local));
  model_.strategy.run([&](ReplicaContext& replica) {
    generators[static_cast<size_t>(replica.local_rank())] = replica.generator().get_state();
  });

  NamedTensors own;
  for (size_t i = 0; i < common.size(); ++i)
    if (writers[i] == worker()) own.push_back(common[i]);
  const Goals& goals = model_.compiled->goals;
  for (int local = 0; local < world.local; ++local) {
    const int rank = world.first_rank + local;
    for (const auto& [name, buffer] : unique_buffers(*model_.modules.module(local)))
      own.emplace_back(buffer_name(rank, name), buffer);
    if (!state.kept.parameters.empty())
      for (const auto& [name, buffer] : state.kept.buffers.at(static_cast<size_t>(local)))
        own.emplace_back(buffer_name(rank, name, kKeptBuffers), buffer);
    own.push_back({replica_generator_name(rank), generators[static_cast<size_t>(local)]});
    if (!optimizer.replicas.empty())
      for (const auto& [name, tensor] : optimizer.replicas.at(static_cast<size_t>(local)))
        own.emplace_back(kept_back_name(rank, name), tensor);
    Totals totals = state.totals.empty() ? Totals{} : state.totals[static_cast<size_t>(local)];
    totals.signal = 0;
    const auto numbers = totals.packed(goals, totals.widths(goals));
    own.emplace_back(totals_name(rank), at::tensor(numbers, at::kDouble));
  }
  own.push_back({generator_name(worker()), at::detail::getDefaultCPUGenerator().get_state()});
  return own;
}

// Who is asked to end while the one before is being written saves at the step that all agree on.
void Checkpointing::save(TrainingState state, Priority priority) {
  const Deadline deadline(kDiskLimit);
  while (!writer_->wait(Deadline(kLook)) && !deadline.passed())
    if (stop_requested() != 0) return;
  if (!start(std::move(state), Deadline(kLook), priority))
    throw Timeout(fmt::format("fit: the checkpoint of step {} in {} was not written after {} s",
                              last_step_, options_.folder.string(), kDiskLimit.count() / 1000));
}

// Returns false where the one before is still being written then.
bool Checkpointing::start(TrainingState state, const Deadline& deadline, Priority priority) {
  const TimePoint begin = Clock::now();
  const int64_t step = state.manifest.step;
  if (step == last_step_) return true;
  if (!writer_->wait(deadline)) return false;
  model_.require_whole();
  last_step_ = step;
  CheckpointPart part{options_.folder, step, worker(), num_workers(), {}, image_};
  const NamedTensors tensors = own_tensors(state);
  for (const auto& [name, tensor] : tensors) part.tensors.push_back(name);
  copy_to(*image_, tensors);
  writer_->start(std::move(part), std::move(state.manifest), begin, priority);
  return true;
}

bool Checkpointing::save_in_grace(TrainingState state) {
  const Deadline deadline(options_.grace);
  const int64_t step = state.manifest.step;
  if (start(std::move(state), deadline, Priority::normal) && writer_->wait(deadline))
    return writer_->last_is_whole();
  log(LogLevel::error, "fit: the checkpoint of step {} was not written within the grace of {} ms",
      step, options_.grace.count());
  return false;
}

std::string Checkpointing::summary() const { return writer_->summary(); }

void Checkpointing::end() {
  if (!writer_->wait(Deadline(kDiskLimit)))
    log(LogLevel::error, "fit: the last checkpoint in {} was not written after {} s",
        options_.folder.string(), kDiskLimit.count() / 1000);
  else if (!writer_->last_is_whole())
    log(LogLevel::error, "fit: the last checkpoint in {} was not written; the log says why",
        options_.folder.string());
  if (!options_.remove_at_end || !model_.strategy.world().chief) return;
  for (const auto& path : trainings_in(options_.folder)) {
    std::error_code failure;
    std::filesystem::remove_all(path, failure);
    if (failure)
      log(LogLevel::warning, "{} cannot be removed: {}", path.string(), failure.message());
  }
}

// ---- going on ----

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
