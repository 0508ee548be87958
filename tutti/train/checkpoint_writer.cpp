#include "tutti/train/detail/checkpoint_writer.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/log.h"

namespace tutti::detail {
namespace {

constexpr Millis kFarewell{60'000};  // for what is still being written after an error

// Of this thread, as Linux has it. Without it whoever wakes up from a write to the disk goes before
// a replica, and the others wait for that one.
void run_when_cores_are_idle() {
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);
}

double millis_since(TimePoint begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

}  // namespace

struct Checkpointing::Writer::Shared {
  std::filesystem::path folder;
  CheckpointRetention retention;
  Millis time_limit;
  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  bool busy = false;
  bool whole = true;  // the last one is on disk
  int written = 0;
  double waited_ms = 0, most_waited_ms = 0, writing_ms = 0;  // of all
  int64_t last_bytes = 0;

  void count(double waited, double writing, int64_t bytes) {
    const std::lock_guard lock(mutex);
    ++written;
    waited_ms += waited;
    most_waited_ms = std::max(most_waited_ms, waited);
    writing_ms += writing;
    last_bytes = bytes;
  }

  // Returns whether it is on disk.
  bool write(const CheckpointPart& part, CheckpointManifest manifest, double waited) {
    const TimePoint begin = Clock::now();
    try {
      write_part(part);
      if (part.worker > 0) return true;
      const int64_t bytes = complete_checkpoint(part, std::move(manifest), Deadline(time_limit));
      count(waited, millis_since(begin), bytes);
    } catch (const std::exception& error) {
      log(LogLevel::warning, "checkpoint {} in {} is not written: {}; the one before stays",
          name_of_checkpoint(part.step), folder.string(), error.what());
      if (part.worker == 0) give_up_checkpoint(folder, part.step);
      return false;
    }
    try {
      remove_old_checkpoints(folder, retention);
    } catch (const std::exception& error) {
      log(LogLevel::warning, "old checkpoints in {} stay: {}", folder.string(), error.what());
    }
    return true;
  }
};

Checkpointing::Writer::Writer(std::filesystem::path folder, CheckpointRetention retention,
                              Millis time_limit)
    : shared_(std::make_shared<Shared>()) {
  shared_->folder = std::move(folder);
  shared_->retention = std::move(retention);
  shared_->time_limit = time_limit;
}

Checkpointing::Writer::~Writer() {
  if (!late_) wait(Deadline(kFarewell));
}

void Checkpointing::Writer::start(CheckpointPart part, CheckpointManifest manifest, TimePoint begin,
                                  Priority priority) {
  shared_->busy = true;
  const double waited = millis_since(begin);
  std::thread([shared = shared_, part = std::move(part), manifest = std::move(manifest), waited,
               priority] {
    if (priority == Priority::idle) run_when_cores_are_idle();
    const bool whole = shared->write(part, manifest, waited);
    const std::lock_guard lock(shared->mutex);
    shared->busy = false;
    shared->whole = whole;
    shared->changed.notify_all();
  }).detach();
}

std::string Checkpointing::Writer::summary() const {
  const std::lock_guard lock(shared_->mutex);
  const Shared& all = *shared_;
  if (all.written == 0) return "";
  return fmt::format(
      "{} checkpoint{} in {}, the last of {:.1f} MB; the training waited {:.1f} ms for each "
      "({:.1f} "
      "at most), written beside it in {:.0f} ms",
      all.written, all.written == 1 ? "" : "s", all.folder.string(),
      static_cast<double>(all.last_bytes) / 1e6, all.waited_ms / all.written, all.most_waited_ms,
      all.writing_ms / all.written);
}

bool Checkpointing::Writer::wait(const Deadline& deadline) {
  std::unique_lock lock(shared_->mutex);
  late_ = !shared_->changed.wait_until(lock, deadline.at(), [this] { return !shared_->busy; });
  return !late_;
}

bool Checkpointing::Writer::last_is_whole() const {
  const std::lock_guard lock(shared_->mutex);
  return !shared_->busy && shared_->whole;
}

}  // namespace tutti::detail
