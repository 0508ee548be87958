#include "tutti/strategy/run/detail/replica_meeting.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/strategy/run/detail/replica_threads.h"

namespace tutti::detail {

ReplicaMeeting::ReplicaMeeting(int first_rank, int local, Millis limit)
    : first_rank_(first_rank),
      limit_(limit),
      values_(static_cast<size_t>(local)),
      here_(static_cast<size_t>(local)),
      at_work_(static_cast<size_t>(local)) {}

void ReplicaMeeting::await(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready,
                           const std::function<std::string()>& late) {
  const auto done = [&] { return ready() || !failure_.empty(); };
  const Deadline deadline(limit_);
  if (!changed_.wait_until(lock, deadline.at(), done)) {
    failure_ = late();
    late_ = true;
    changed_.notify_all();
  }
  if (!ready()) throw_failure();
}

// The same error, whichever replica is the first to see it.
void ReplicaMeeting::throw_failure() const {
  if (late_) throw Timeout(failure_);
  throw PeerLost("merge: " + failure_);
}

std::string ReplicaMeeting::absent() const {
  std::vector<int> missing;
  for (size_t local = 0; local < here_.size(); ++local)
    if (!here_[local]) missing.push_back(first_rank_ + static_cast<int>(local));
  return fmt::format("merge: waited {} ms for replica {}, which has not called it", limit_.count(),
                     fmt::join(missing, ", "));
}

ReplicaMeeting::Value ReplicaMeeting::meet(int local, Value value, const Lead& lead) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty()) throw_failure();
  const int64_t meeting = meetings_;
  values_[static_cast<size_t>(local)] = std::move(value);
  here_[static_cast<size_t>(local)] = 1;
  changed_.notify_all();
  const auto complete = [&] {
    return meetings_ > meeting || std::ranges::all_of(here_, [](uint8_t one) { return one != 0; });
  };
  await(lock, complete, [&] { return absent(); });
  if (local == 0) return lead_all(lock, lead);
  follow(lock, local, meeting);
  if (error_) std::rethrow_exception(error_);
  return result_;
}

ReplicaMeeting::Value ReplicaMeeting::lead_all(std::unique_lock<std::mutex>& lock,
                                               const Lead& lead) {
  const std::vector<Value> values = std::move(values_);
  values_.assign(values.size(), nullptr);
  leading_ = true;
  lock.unlock();
  Value result;
  std::exception_ptr error;
  try {
    result = lead(values);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  leading_ = false;
  result_ = result;
  error_ = error;
  std::ranges::fill(here_, uint8_t{0});
  ++meetings_;
  changed_.notify_all();
  if (error) std::rethrow_exception(error);
  return result;
}

// Until the meeting is over, carries out what replica 0 gives to all.
void ReplicaMeeting::follow(std::unique_lock<std::mutex>& lock, int local, int64_t meeting) {
  for (int64_t done = jobs_ - (job_ != nullptr ? 1 : 0); meetings_ == meeting;) {
    await(
        lock, [&] { return meetings_ > meeting || (job_ != nullptr && jobs_ > done); },
        [&] {
          return fmt::format("merge: replica {} is still in the function after {} ms", first_rank_,
                             limit_.count());
        });
    if (meetings_ > meeting) return;
    done = jobs_;
    const auto& body = *job_;
    lock.unlock();
    std::exception_ptr error;
    try {
      body(local);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !job_error_) job_error_ = error;
    at_work_[static_cast<size_t>(local)] = 0;
    changed_.notify_all();
  }
}

void ReplicaMeeting::on_all(const std::function<void(int)>& body) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty()) throw_failure();
  job_ = &body;
  job_error_ = nullptr;
  std::fill(at_work_.begin() + 1, at_work_.end(), uint8_t{1});
  ++jobs_;
  changed_.notify_all();
  lock.unlock();
  std::exception_ptr error;
  try {
    body(0);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  const auto busy = [&] { return std::ranges::find(at_work_, 1); };
  const Deadline patience(2 * limit_);
  if (!changed_.wait_until(lock, patience.at(), [&] { return busy() == at_work_.end(); }))
    end_stuck(first_rank_ + static_cast<int>(busy() - at_work_.begin()), "merge()",
              patience.limit(), first_rank_);
  job_ = nullptr;
  if (!error) error = job_error_;
  if (error) std::rethrow_exception(error);
}

void ReplicaMeeting::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = reason;
  changed_.notify_all();
}

}  // namespace tutti::detail
