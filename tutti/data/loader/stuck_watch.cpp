#include "tutti/data/loader/detail/stuck_watch.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "tutti/base/standard_streams.h"
#include "tutti/base/threads.h"

namespace tutti::data::detail {
namespace {

constexpr Millis kBetweenLooks{100};

}  // namespace

StuckWatch::Visit::Visit(StuckWatch& watch, std::shared_ptr<const EpochState> epoch, int64_t batch,
                         Millis patience)
    : watch_(watch), epoch_(std::move(epoch)), batch_(batch), patience_(patience) {
  const std::scoped_lock lock(watch_.mutex_);
  if (!watch_.thread_.joinable())
    watch_.thread_ = start_thread("the watch over the input", [&watch] { watch.watch(); });
  place_ = watch_.visits_.insert(watch_.visits_.end(), this);
}

StuckWatch::Visit::~Visit() {
  const std::scoped_lock lock(watch_.mutex_);
  watch_.visits_.erase(place_);
}

// Since the last look.
bool StuckWatch::Visit::moved() {
  const int64_t row = seen_.row;
  const std::string* const stage = seen_.stage;
  return std::exchange(row_, row) != row || std::exchange(stage_, stage) != stage;
}

void StuckWatch::Visit::give_up() const {
  std::string where;  // not known of rows that are read at once
  if (row_ >= 0) {
    const auto place = static_cast<size_t>(epoch_->places(batch_).begin + row_);
    where = fmt::format("{}, sample {} of ", epoch_->content->where(epoch_->order.at(place).id),
                        row_ + 1);
  }
  say_to(stderr,
         "tutti: input: {}batch {} of epoch {}, in {}: it has not returned for {} ms\n"
         "  a replica is stuck there; the process ends\n",
         where, batch_ + 1, epoch_->pass.epoch + 1, stage_ == nullptr ? "read" : *stage_,
         patience_.count());
  std::_Exit(1);
}

void StuckWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!end_.wait_for(lock, kBetweenLooks, [this] { return ending_; })) {
    const TimePoint now = Clock::now();
    for (Visit* const visit : visits_) {
      if (visit->moved())
        visit->since_ = now;
      else if (now - visit->since_ > visit->patience_)
        visit->give_up();
    }
  }
}

StuckWatch::~StuckWatch() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  end_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace tutti::data::detail
