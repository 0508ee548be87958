#include "tutti/ps/snapshot/snapshot_series.h"

#include <fmt/ranges.h>

#include <utility>

#include "tutti/ps/snapshot/detail/snapshot_format.h"

namespace tutti::ps {
namespace {

// A worker that trains no more but does not leave never marks; a disk may hang.
constexpr Millis kMostTime{600'000};
constexpr Millis kFarewell{10'000};

std::shared_ptr<SnapshotFolder> open_folder(const SnapshotOptions& options) {
  const auto folder = std::make_shared<std::shared_ptr<SnapshotFolder>>();
  store::wait_for_disk(
      "--snapshots " + options.folder.string(),
      [folder, options] { *folder = std::make_shared<SnapshotFolder>(options); },
      options.disk_limit);
  return *folder;
}

}  // namespace

SnapshotSeries::SnapshotSeries(const SnapshotOptions& options, std::function<void()> wake)
    : every_(options.every),
      folder_(open_folder(options)),
      next_number_(folder_->first_number()),
      newest_(folder_->newest_of_before()),
      disk_("snapshots", std::move(wake)) {}

SnapshotSeries::~SnapshotSeries() {
  try {
    settle(Deadline(kFarewell));
  } catch (const std::exception& error) {
    log(LogLevel::warning, "the last work on snapshots failed: {}", error.what());
  }
}

bool SnapshotSeries::due(TimePoint now) const {
  return !busy() && every_.count() > 0 && next_ != TimePoint{} && now >= next_;
}

// What fails ends the cut that is in progress now, and no later one.
template <class Work, class Then>
void SnapshotSeries::on_disk(Work work, Then then) {
  disk_.add_with_then([this, number = next_number_, folder = folder_, work = std::move(work),
                       then = std::move(then)]() -> store::DiskThread::Then {
    try {
      return [number, then, result = work(*folder)] { then(number, result); };
    } catch (const std::exception& error) {
      return [this, number, why = std::string(error.what())] {
        if (in_progress(number)) give_up(why, Clock::now());
      };
    }
  });
}

void SnapshotSeries::begin(const View& view, TimePoint now) {
  begun_at_ = now;
  cut_.emplace(next_number_, view);
  stage_ = Stage::gets_folder;
  wanted_ = std::make_shared<std::atomic<bool>>(true);
  on_disk([number = next_number_](SnapshotFolder& folder) { return folder.make(number); },
          [this, view = view.number](int64_t number, const std::string& folder) {
            if (!in_progress(number)) return;
            stage_ = Stage::is_written;
            told_ = {.kind = Message::Kind::cut, .view = view, .sequence = number, .text = folder};
            to_tell_ = true;
          });
}

std::optional<Message> SnapshotSeries::process() {
  disk_.process();
  return std::exchange(to_tell_, false) ? told_ : std::nullopt;
}

bool SnapshotSeries::settle(const Deadline& deadline) {
  while (disk_.wait(deadline))
    if (!disk_.process()) return true;
  return false;
}

void SnapshotSeries::on_written(const Message& message, TimePoint now) {
  if (!cut_ || stage_ == Stage::is_shown) return;
  cut_->on_written(message);
  end_if_over(now);
}

void SnapshotSeries::on_view(const View& view, TimePoint now) {
  if (!cut_ || stage_ == Stage::is_shown) return;
  cut_->on_view(view);
  end_if_over(now);
}

void SnapshotSeries::look_after(TimePoint now) {
  if (next_ == TimePoint{}) next_ = now + every_;
  if (cut_ && now - begun_at_ >= kMostTime)
    give_up(fmt::format("after {} s {}", kMostTime.count() / 1000, what_is_missing()), now);
}

std::string SnapshotSeries::what_is_missing() const {
  switch (stage_) {
    case Stage::gets_folder: return "its folder was not made: the disk does not answer";
    case Stage::is_written:
      return fmt::format("there was nothing of partition {}", fmt::join(cut_->missing(), ", "));
    case Stage::is_shown: return "its manifest was not written: the disk does not answer";
  }
  return "";
}

void SnapshotSeries::end_if_over(TimePoint now) {
  if (!cut_->failure().empty())
    give_up(cut_->failure(), now, cut_->in_order() ? LogLevel::info : LogLevel::warning);
  else if (cut_->complete())
    show();
}

void SnapshotSeries::show() {
  stage_ = Stage::is_shown;
  on_disk(
      [number = next_number_, step = cut_->step(), written = cut_->written(),
       wanted = wanted_](SnapshotFolder& folder) {
        return folder.show(number, step, written, [&] { return wanted->load(); });
      },
      [this](int64_t number, int64_t bytes) { on_shown(number, bytes); });
}

void SnapshotSeries::on_shown(int64_t number, int64_t bytes) {
  const TimePoint now = Clock::now();
  newest_ = detail::name_of_cut(number);
  if (in_progress(number)) {
    const std::string remark = cut_->remark();
    log(remark.empty() ? LogLevel::info : LogLevel::warning,
        "snapshot {}: step {}, {} partitions, {:.1f} MB in {:.2f} s{}{}", newest_, cut_->step(),
        cut_->written().size(), static_cast<double>(bytes) / 1e6,
        std::chrono::duration<double>(now - begun_at_).count(), remark.empty() ? "" : "; ", remark);
    end_cut(now);
  } else {
    log(LogLevel::info, "snapshot {} is there after all", newest_);
  }
  tidy_up([](const SnapshotFolder& folder) { folder.remove_old(); });
}

// What stays is no harm.
void SnapshotSeries::tidy_up(std::function<void(const SnapshotFolder&)> work) {
  disk_.add([folder = folder_, work = std::move(work)] {
    try {
      work(*folder);
    } catch (const std::exception& error) {
      log(LogLevel::warning, "snapshots that nobody needs stay for now: {}", error.what());
    }
  });
}

void SnapshotSeries::give_up(const std::string& why, TimePoint now, LogLevel level) {
  if (!cut_) return;
  log(level, "snapshot {} was given up: {}; {}", detail::name_of_cut(next_number_), why,
      newest_.empty() ? "there is none yet" : newest_ + " stays");
  wanted_->store(false);
  tidy_up([number = next_number_](const SnapshotFolder& folder) { folder.remove(number); });
  end_cut(now);
}

void SnapshotSeries::end_cut(TimePoint now) {
  ++next_number_;
  cut_.reset();
  told_.reset();
  to_tell_ = false;
  next_ = now + every_;
}

}  // namespace tutti::ps
