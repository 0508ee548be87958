#include "tutti/cluster/launch/detail/ending.h"

#include <algorithm>
#include <csignal>

namespace tutti::detail {

void Ending::on_failure(TimePoint now) {
  if (options_.end_on_failure) on_lead_ended(now);
}

void Ending::on_lead_ended(TimePoint now) {
  if (failed_) return;
  failed_ = true;
  if (first_signal_ != 0) return;  // the end is on its way already
  polite_signal_ = SIGTERM;
  polite_at_ = now + options_.failure_grace;
  kill_at_ = *polite_at_ + options_.signal_grace;
}

void Ending::on_signal(int signal, TimePoint now) {
  if (first_signal_ != 0) {
    polite_at_.reset();
    kill_at_ = now;
    return;
  }
  first_signal_ = signal;
  polite_signal_ = signal;
  polite_at_ = now;
  const TimePoint kill_at = now + options_.signal_grace;
  kill_at_ = kill_at_ ? std::min(*kill_at_, kill_at) : kill_at;
}

std::optional<int> Ending::due(TimePoint now) {
  if (polite_at_ && now >= *polite_at_) {
    polite_at_.reset();
    return polite_signal_;
  }
  if (kill_at_ && now >= *kill_at_) {
    kill_at_.reset();
    over_ = true;
    return SIGKILL;
  }
  return std::nullopt;
}

std::optional<TimePoint> Ending::next() const { return polite_at_ ? polite_at_ : kill_at_; }

}  // namespace tutti::detail
