#include "tutti/train/checkpointing/detail/checkpointing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

#include "tutti/base/detail/failed_elsewhere.h"
#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/detail/names.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/checkpoint/parts.h"
#include "tutti/checkpoint/retention.h"
#include "tutti/cluster/join/join.h"
#include "tutti/queues/host_copies.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/checkpointing/detail/writer.h"

namespace tutti::detail {
namespace {

constexpr Millis kToEnd{2'000};  // after the last checkpoint is written

void copy_to(const at::Tensor& place, const at::Tensor& tensor) {
  // Nothing aligns a place in a file: memcpy minds that less than LibTorch's own copy.
  if (tensor.is_cpu() && tensor.is_contiguous() && tensor.numel() > 0)
    std::memcpy(place.data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  else
    place.copy_(tensor);
}

// Copies them to where they are written from. Returns what is left to do where some are on devices,
// whose copies are on their way: for the thread that writes.
std::function<void()> copy_to(data::SafetensorsImage& image, const NamedTensors& tensors,
                              Millis limit) {
  std::vector<data::NamedArray> forms;
  for (const auto& [name, tensor] : tensors)
    forms.push_back({name, Array::view(nullptr, dtype_of(tensor.scalar_type()),
                                       tensor.sizes().vec(), nullptr)});
  const std::vector<Array> places = image.lay_out(forms);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> late;
  std::vector<at::Tensor> places_of_late;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].second.is_cpu()) {
      copy_to(tensor_of(places[i]), tensors[i].second);
    } else {
      late.push_back(tensors[i].second);
      places_of_late.push_back(tensor_of(places[i]));
    }
  }
  if (late.empty()) return {};
  return [copies = std::make_shared<const HostCopies>(late), places = std::move(places_of_late),
          limit] {
    copies->wait(Deadline(limit), "the copies for a checkpoint");
    for (size_t i = 0; i < places.size(); ++i) copy_to(places[i], copies->tensors()[i]);
  };
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

// Whether a life of this job before this one has written them: the newest that says by whom.
bool are_of_this_job(const std::vector<std::filesystem::path>& trainings) {
  const std::string lives = id_of_all_lives();
  if (!started_again() || lives.empty()) return false;
  for (auto path = trainings.rbegin(); path != trainings.rend(); ++path) try {
      return TrainingCheckpoint(*path).manifest().lives == lives;
    } catch (const DataError&) {  // resume() sets it aside, and says so
    }
  return false;
}

// The newest ones stay: those of an earlier training would take the place of this one's.
void require_unused(const std::string& who, const CheckpointOptions& options) {
  auto before = trainings_in(options.folder);
  if (before.empty()) before = damaged_trainings_in(options.folder);
  if (options.resume || before.empty() || are_of_this_job(before)) return;
  throw UsageError(fmt::format(
      "{}: checkpoints in {}: an earlier training has left {} there ({} the newest); resume goes "
      "on from it, else move them away or take another folder",
      who, options.folder.string(), before.size(), before.back().filename().string()));
}

// What stays is no failure of the training, which is done.
void remove_all_in(const std::string& who, const std::filesystem::path& folder,
                   int64_t lock_number) {
  try {
    if (FolderLock::number_in(folder) != lock_number) return;  // they are another job's
    for (const auto& path : trainings_in(folder)) std::filesystem::remove_all(path);
  } catch (const std::exception& error) {
    log(LogLevel::warning, "{}: checkpoints in {} stay: {}", who, folder.string(), error.what());
  }
}

}  // namespace

// ---- the folder ----

Checkpointing::Checkpointing(TrainingPlace place, CheckpointOptions options, KeptParts parts)
    : place_(std::move(place)), options_(std::move(options)), parts_(std::move(parts)) {
  take_folder();
  writer_ = std::make_unique<Writer>(
      options_.folder,
      CheckpointRetention{.newest = options_.newest_kept,
                          .best = options_.best_kept,
                          .monitor = options_.monitor,
                          .higher_is_better = higher_is_better(options_.better, options_.monitor)},
      options_.disk_limit, place_.world.time_limit);
  ask_for_grace(options_.grace + kToEnd);
}

Checkpointing::~Checkpointing() { ask_for_grace(Millis{0}); }

void Checkpointing::agree_on_failure(const std::exception_ptr& own) const {
  place_.members.agree_on_failure(own, place_.who + ": checkpoints");
}

double Checkpointing::sum_over_workers(double own) const {
  const std::vector<double> all = place_.members.all_of(own);
  return std::accumulate(all.begin(), all.end(), 0.0);
}

// The chief's failure is everybody's; and all must see the folder that it has taken.
void Checkpointing::take_folder() {
  auto lock = std::make_shared<std::shared_ptr<FolderLock>>();
  const auto take = [lock, options = options_, who = place_.who] {
    const store::NumberedFolder checkpoints = checkpoint_folder(options.folder);
    *lock = std::make_shared<FolderLock>(checkpoints.take("checkpoints in"));
    checkpoints.remove_unfinished();
    require_unused(who, options);
  };
  const bool takes = place_.world.chief;
  const auto failure = on_disk("taking the folder", takes ? std::function(take) : nullptr);
  if (takes && !failure) lock_ = std::move(*lock);
  lock->reset();  // the thread may still hold it
  const double number = lock_ ? static_cast<double>(lock_->number()) : 0;
  const double taken = sum_over_workers(number);
  if (failure) std::rethrow_exception(failure);
  if (taken == 0)
    throw FailedElsewhere(
        place_.who +
        ": checkpoints: the chief's worker could not take the folder; its own message says why");
  const auto found = std::make_shared<int64_t>(0);
  const auto look = [found, folder = options_.folder] { *found = FolderLock::number_in(folder); };
  agree_on_failure(on_disk("looking at the folder", look));
  const double seen = static_cast<double>(*found);
  const double strangers = sum_over_workers(seen == taken ? 0 : 1);
  if (seen != taken)
    throw UsageError(fmt::format(
        "{}: checkpoints in {}: this worker does not see the folder that the chief's writes to; "
        "give one that all hosts share",
        place_.who, options_.folder.string()));
  if (strangers > 0)
    throw FailedElsewhere(
        place_.who + ": checkpoints: not all workers see the same folder; their messages say so");
  lock_number_ = static_cast<int64_t>(taken);
}

void Checkpointing::lay_beside() {
  std::function<void()> work;
  if (lock_)
    work = [folder = options_.folder, lay_beside = place_.lay_beside] { lay_beside(folder); };
  agree_on_failure(on_disk("writing what lies beside", std::move(work)));
}

int64_t Checkpointing::next_pause(int64_t step) const noexcept {
  return options_.every_steps > 0 ? options_.every_steps - step % options_.every_steps
                                  : std::numeric_limits<int64_t>::max();
}

// ---- saving ----

void Checkpointing::add_words(CheckpointManifest& manifest) const {
  for (const auto& part : parts_)
    if (std::string words = part->words(); !words.empty())
      manifest.kept[part->name()] = std::move(words);
}

// What this worker writes: its share of what all have, and what it alone has.
NamedTensors Checkpointing::own_tensors() const {
  NamedTensors common, own;
  for (const auto& part : parts_) {
    KeptTensors kept = part->tensors();
    std::ranges::move(kept.common, std::back_inserter(common));
    std::ranges::move(kept.own, std::back_inserter(own));
  }
  std::vector<int64_t> bytes;
  for (const auto& [name, tensor] : common) bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
  const std::vector<int> writers = writers_of(bytes, num_workers());
  for (size_t i = 0; i < common.size(); ++i)
    if (writers[i] == worker()) own.push_back(std::move(common[i]));
  return own;
}

Deadline Checkpointing::disk_deadline() const {
  return Deadline(options_.disk_limit - std::chrono::ceil<Millis>(Clock::now() - last_begin_));
}

bool Checkpointing::save(CheckpointManifest manifest, Priority priority) {
  wanted_step_ = manifest.step;
  if (wanted_step_ == last_step_) return true;
  const TimePoint begin = Clock::now();
  const bool last = priority == Priority::normal;
  switch (wait_for_writers(disk_deadline(), last ? WhenAsked::grace : WhenAsked::give_way)) {
    case Waited::ready: start(std::move(manifest), begin, priority); return true;
    case Waited::asked: return false;
    case Waited::late: break;
  }
  writer_->abandon();
  if (place_.world.chief)
    log(LogLevel::warning,
        "{}: there will be no checkpoint of step {} in {}: worker {} is still writing that of "
        "step {}, begun {} s ago; the training goes on",
        place_.who, wanted_step_, options_.folder.string(), busy_worker_, last_step_,
        std::chrono::floor<std::chrono::seconds>(Clock::now() - last_begin_).count());
  return false;
}

// Nothing is being written, on no worker.
void Checkpointing::start(CheckpointManifest manifest, TimePoint begin, Priority priority) {
  const int64_t step = manifest.step;
  if (step == last_step_) return;  // in the grace, which then waits for it
  place_.require_whole();
  last_step_ = step;
  last_begin_ = Clock::now();
  CheckpointPart part{options_.folder, step,  worker(),    num_workers(), {},
                      image_,          lock_, lock_number_};
  add_words(manifest);
  const NamedTensors tensors = own_tensors();
  for (const auto& [name, tensor] : tensors) part.tensors.push_back(name);
  auto arrive = copy_to(*image_, tensors, place_.world.time_limit);
  writer_->start(std::move(part), std::move(manifest), begin, priority, std::move(arrive));
}

bool Checkpointing::save_in_grace(CheckpointManifest manifest) {
  const Deadline deadline = grace();
  const TimePoint begin = Clock::now();
  const int64_t step = manifest.step;
  if (wait_for_writers(deadline, WhenAsked::go_on) == Waited::ready) {
    start(std::move(manifest), begin, Priority::normal);
    if (wait_for_writers(deadline, WhenAsked::go_on) == Waited::ready)
      return writer_->last_is_whole();
  }
  writer_->abandon();
  if (place_.world.chief || writer_->busy())
    log(LogLevel::error,
        "{}: the checkpoint of step {} was not written within the grace of {} ms; worker {} was "
        "still writing that of step {}",
        place_.who, step, options_.grace.count(), busy_worker_, last_step_);
  return false;
}

std::string Checkpointing::summary() const { return writer_->summary(); }

std::string Checkpointing::end() {
  const bool written = wait_for_writers(disk_deadline(), WhenAsked::grace) == Waited::ready;
  if (!written) writer_->abandon();
  const std::string why = why_lost(written);
  if (!why.empty()) log(LogLevel::error, "{}", why);
  if (options_.remove_at_end) {
    if (written) remove_at_end();
    return "";  // there would be none now
  }
  return place_.world.chief ? why : "";
}

std::string Checkpointing::why_lost(bool written) const {
  const std::string which =
      fmt::format("{}: the last checkpoint in {}, of step {}, was not written", place_.who,
                  options_.folder.string(), wanted_step_);
  if (!written)
    return fmt::format("{} after {} s; worker {} was still at that of step {}", which,
                       std::chrono::floor<std::chrono::seconds>(Clock::now() - last_begin_).count(),
                       busy_worker_, last_step_);
  if (wanted_step_ > last_step_ || !writer_->last_is_whole()) return which + "; the log says why";
  return "";
}

// What is still being written would come after that; and a disk that hangs keeps nobody.
void Checkpointing::remove_at_end() {
  std::function<void()> work;
  if (lock_)
    work = [who = place_.who, folder = options_.folder, number = lock_number_] {
      remove_all_in(who, folder, number);
    };
  try {
    on_disk("removing the checkpoints", std::move(work));
  } catch (const Timeout& error) {
    log(LogLevel::warning, "{}", error.what());
  }
}

}  // namespace tutti::detail
