// Waiting for disks: workers do it together. Whoever waited alone, for a disk or for a core, would
// be missed in the next operation of the training, whose limit has nothing to do with disks; and
// whoever gave up alone would leave the others with a checkpoint that lacks a part.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/store/disk_thread.h"
#include "tutti/train/checkpointing/detail/checkpointing.h"
#include "tutti/train/checkpointing/detail/writer.h"

namespace tutti::detail {
namespace {

// From one meeting to the next: at first for a disk that is about to be ready, then for a slow one.
constexpr Millis kFirstLook{1}, kLook{50};
constexpr Millis kSilently{1'000};  // a wait that is longer is told
// Before the first step there is nothing to go on with: less than this is no reason to end.
constexpr Millis kLeastBeforeSteps{600'000};

}  // namespace

// The same on all workers.
Checkpointing::Meeting Checkpointing::meet(const Meeting& own) {
  Meeting all = own;
  for (const Meeting& one : place_.members.all_of(own)) {
    all.busy_worker = std::max(all.busy_worker, one.busy_worker);
    all.failed_worker = std::max(all.failed_worker, one.failed_worker);
    all.asked = all.asked || one.asked;
    all.late = all.late || one.late;
  }
  return all;
}

Checkpointing::Waited Checkpointing::wait_together(const std::function<bool(Millis)>& ready,
                                                   Deadline deadline, WhenAsked when_asked,
                                                   const std::string& what) {
  const TimePoint begin = Clock::now();
  bool told = false;
  for (Millis look{0};; look = std::clamp(2 * look, kFirstLook, kLook)) {
    const bool busy = !ready(look);
    const Meeting all = meet({busy ? worker() : -1, has_failed() ? worker() : -1,
                              place_.asked_to_end(), deadline.passed()});
    if (writer_ && all.failed_worker > 0) writer_->told_of_failure(all.failed_worker);
    busy_worker_ = all.busy_worker;
    if (all.busy_worker < 0) return Waited::ready;
    if (all.asked) grace();
    if (all.late) return Waited::late;
    if (all.asked && when_asked == WhenAsked::give_way) return Waited::asked;
    if (all.asked && when_asked == WhenAsked::grace && grace().at() < deadline.at())
      deadline = grace();
    if (writer_) writer_->hurry();
    if (place_.world.chief && Clock::now() - begin > kSilently && !std::exchange(told, true))
      log(LogLevel::warning, "{}: the training waits for {}, on worker {}", place_.who, what,
          busy_worker_);
  }
}

Deadline Checkpointing::grace() {
  if (!grace_) grace_.emplace(options_.grace);
  return *grace_;
}

bool Checkpointing::has_failed() const {
  return writer_ && !writer_->busy() && !writer_->last_is_whole();
}

Checkpointing::Waited Checkpointing::wait_for_writers(const Deadline& deadline,
                                                      WhenAsked when_asked) {
  busy_worker_ = -1;
  const auto ready = [this](Millis look) {
    if (busy_worker_ == 0) writer_->told_of_all_parts();  // it is the largest of the busy ones
    return writer_->wait(Deadline(look));
  };
  return wait_together(ready, deadline, when_asked,
                       fmt::format("the checkpoint of step {}", last_step_));
}

std::exception_ptr Checkpointing::on_disk(const std::string& what, std::function<void()> work) {
  store::DiskThread disk("checkpoints");
  if (work) disk.add(std::move(work));
  const auto ready = [&](Millis look) { return disk.wait(Deadline(look)); };
  const Millis limit = std::max(options_.disk_limit, kLeastBeforeSteps);
  if (wait_together(ready, Deadline(limit), WhenAsked::go_on, what) == Waited::late)
    throw Timeout(fmt::format(
        "{}: checkpoints in {}: {} was not done after {} ms: the disk of worker {} does not "
        "answer, or needs a larger disk_limit",
        place_.who, options_.folder.string(), what, limit.count(), busy_worker_));
  try {
    disk.process();
  } catch (const std::exception&) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace tutti::detail
