#include "tutti/train/checkpointing/detail/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/idle_pace.h"
#include "tutti/base/log.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/checkpoint/parts.h"
#include "tutti/checkpoint/retention.h"

namespace tutti::detail {
namespace {

constexpr Millis kFarewell{30'000};  // for what is still being written after an error
// Longer than the own part took, for those of others: they are as large, begun with it, and yield
// to nobody either once the training has ended. Less than the launcher gives survivors to tell
// their own error.
constexpr Millis kForOthers{1'000};
// For idle cores. What is not on disk by then may be lost with the training.
constexpr Millis kPatience{30'000};

double millis_since(TimePoint begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

}  // namespace

struct Checkpointing::Writer::Shared {
  std::filesystem::path folder;
  CheckpointRetention retention;
  Millis disk_limit;
  Millis limit;
  PartNews news;                    // of the last one
  mutable std::mutex mutex;         // guards what follows
  bool whole = true;                // the last one is on disk
  bool hurried = true;              // the last one yields to nobody
  bool ended = false;               // the training has
  std::optional<Millis> part_took;  // of the one that is being written, without `yielded`
  std::shared_ptr<IdlePace> pace;
  int written = 0;
  double waited_ms = 0, most_waited_ms = 0, writing_ms = 0;  // of all
  int64_t last_bytes = 0;
  Clock::duration yielded{};  // to the training, by the part that is being written; of its thread

  void count(double waited, double writing, int64_t bytes) {
    const std::lock_guard lock(mutex);
    ++written;
    waited_ms += waited;
    most_waited_ms = std::max(most_waited_ms, waited);
    writing_ms += writing;
    last_bytes = bytes;
  }

  void begin(Priority priority) {
    news.without = -1;
    news.all_written = false;
    const std::lock_guard lock(mutex);
    whole = false;
    part_took.reset();
    hurried = priority == Priority::normal;
  }

  // Once the own part is written and the training has ended.
  void limit_wait_for_others() {
    if (ended && part_took) news.until = time_after(std::min(*part_took + kForOthers, limit));
  }

  void end_training() {
    const std::lock_guard lock(mutex);
    ended = true;
    limit_wait_for_others();
  }

  void end_part(Millis took) {
    const std::lock_guard lock(mutex);
    part_took = took;
    limit_wait_for_others();
  }

  void end(bool is_whole) {
    const std::lock_guard lock(mutex);
    whole = is_whole;
    pace.reset();
  }

  // Empty where there is none to wait for.
  std::function<void()> turns() {
    const std::lock_guard lock(mutex);
    if (hurried) return {};
    try {
      pace = std::make_shared<IdlePace>(kPatience);
    } catch (const Error& error) {
      log(LogLevel::warning, "the checkpoint is written beside the training, not at idle times: {}",
          error.what());
      return {};
    }
    return [this, own = pace] {
      const TimePoint asked = Clock::now();
      own->turn();
      yielded += Clock::now() - asked;
    };
  }

  // Returns whether it is on disk.
  bool write(const CheckpointPart& part, CheckpointManifest manifest, double waited,
             const std::function<void()>& arrive) {
    const TimePoint begin = Clock::now();
    std::function<void()> turn;
    try {
      if (arrive) arrive();
      yielded = {};
      turn = turns();
      write_part(part, turn);
      end_part(std::chrono::ceil<Millis>(Clock::now() - begin - yielded));
      if (part.worker > 0) return true;
      const int64_t bytes =
          complete_checkpoint(part, std::move(manifest), Deadline(disk_limit), news);
      count(waited, millis_since(begin), bytes);
    } catch (const std::exception& error) {
      log(LogLevel::warning, "checkpoint {} in {} is not written: {}; the one before stays",
          name_of_checkpoint(part.step), folder.string(), error.what());
      if (part.worker == 0) checkpoint_folder(folder).give_up(part.step, part.lock_number);
      return false;
    }
    try {
      if (turn) turn();
      remove_old_checkpoints(folder, retention);
    } catch (const std::exception& error) {
      log(LogLevel::warning, "old checkpoints in {} stay: {}", folder.string(), error.what());
    }
    return true;
  }
};

Checkpointing::Writer::Writer(std::filesystem::path folder, CheckpointRetention retention,
                              Millis disk_limit, Millis limit)
    : shared_(std::make_shared<Shared>()) {
  shared_->folder = std::move(folder);
  shared_->retention = std::move(retention);
  shared_->disk_limit = disk_limit;
  shared_->limit = limit;
}

Checkpointing::Writer::~Writer() {
  hurry();
  shared_->end_training();
  if (!abandoned_) wait(Deadline(kFarewell));
}

void Checkpointing::Writer::start(CheckpointPart part, CheckpointManifest manifest, TimePoint begin,
                                  Priority priority, std::function<void()> arrive) {
  abandoned_ = false;
  shared_->begin(priority);
  const double waited = millis_since(begin);
  const int64_t step = part.step;
  try {
    if (!disk_) disk_.emplace("it");
    disk_->add([shared = shared_, part = std::move(part), manifest = std::move(manifest), waited,
                arrive = std::move(arrive)] {
      shared->end(shared->write(part, manifest, waited, arrive));
    });
  } catch (const Error& error) {
    log(LogLevel::warning, "checkpoint {} in {} is not written: {}", name_of_checkpoint(step),
        shared_->folder.string(), error.what());
  }
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

bool Checkpointing::Writer::busy() { return !wait(Deadline(Millis{0})); }

void Checkpointing::Writer::hurry() {
  const std::lock_guard lock(shared_->mutex);
  shared_->hurried = true;
  if (shared_->pace) shared_->pace->hurry();
}

bool Checkpointing::Writer::wait(const Deadline& deadline) {
  return !disk_ || disk_->wait(deadline);
}

bool Checkpointing::Writer::last_is_whole() {
  if (busy()) return false;
  const std::lock_guard lock(shared_->mutex);
  return shared_->whole;
}

void Checkpointing::Writer::told_of_failure(int worker) { shared_->news.without = worker; }

void Checkpointing::Writer::told_of_all_parts() { shared_->news.all_written = true; }

void Checkpointing::Writer::abandon() { abandoned_ = true; }

}  // namespace tutti::detail
