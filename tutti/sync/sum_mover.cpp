#include "tutti/sync/detail/sum_mover.h"

#include "tutti/base/threads.h"

namespace tutti::detail {
namespace {

// How often who waits looks after the rest, as often as in a wait of an engine's.
constexpr Millis kLook{1};

}  // namespace

SumMover::~SumMover() {
  if (!thread_.joinable()) return;
  bool in_flight = false;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    in_flight = in_flight_ || !waiting_.empty();
  }
  changed_.notify_all();
  if (in_flight) group_.abort("its replica was given up in the middle of a step");
  thread_.join();
  if (lent_) give_back();
}

void SumMover::give_back() {
  group_.engine().end_lent_by(nullptr);
  group_.engine().lend({});
  lent_ = false;
  until_.reset();
}

void SumMover::put(Sum sum) { add(std::move(sum), {}); }

void SumMover::put_late(Sum sum, Millis limit) {
  add(std::move(sum), [this, limit] { drain(limit); });
}

void SumMover::add(Sum sum, std::function<void()> recall) {
  if (!lent_) group_.engine().require_own();
  if (!thread_.joinable()) thread_ = start_thread("the sums between hosts", [this] { move(); });
  {
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) return;  // whoever waits says so
    if (!lent_) group_.engine().lend(thread_.get_id(), std::move(recall));
    lent_ = true;
    const Deadline deadline(sum.limit);
    waiting_.emplace_back(std::move(sum), deadline);
  }
  changed_.notify_all();
}

std::vector<SumMover::Sum> SumMover::take_back(Millis limit) {
  std::unique_lock lock(mutex_);
  std::vector<Sum> left;
  for (auto& [sum, deadline] : waiting_) left.push_back(std::move(sum));
  waiting_.clear();
  settle(lock, limit);
  return left;
}

void SumMover::drain(Millis limit) {
  std::unique_lock lock(mutex_);
  settle(lock, limit);
}

// Called with the mutex held.
void SumMover::settle(std::unique_lock<std::mutex>& lock, Millis limit) {
  // The engine may be lent to another mover, of another optimizer.
  if (lent_) {
    if (!until_) until_.emplace(limit);  // the mover reads it until it is through
    const auto through = [this] {
      return failure_ != nullptr || (!under_way_ && waiting_.empty());
    };
    group_.engine().end_lent_by(&*until_);
    while (!changed_.wait_for(lock, kLook, through)) {
      lock.unlock();
      group_.engine().look_after();
      lock.lock();
    }
    give_back();
  }
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void SumMover::rethrow_failure() {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

double SumMover::seconds_a_byte() {
  const std::lock_guard lock(mutex_);
  const double bytes = std::exchange(bytes_, 0);
  return std::exchange(seconds_, 0) / std::max(bytes, 1.0);
}

void SumMover::move() {
  std::function<void()> then;  // of the last: called while the wire has the next
  std::unique_lock lock(mutex_);
  try {
    while (true) {
      if (waiting_.empty() && then) {
        lock.unlock();
        std::exchange(then, nullptr)();
        lock.lock();
      }
      under_way_ = false;
      changed_.notify_all();
      changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
      if (ends_) return;
      auto [sum, deadline] = std::move(waiting_.front());
      waiting_.pop_front();
      under_way_ = in_flight_ = true;
      lock.unlock();
      const TimePoint begin = Clock::now();
      Work work = sum.start(std::max(Millis{1}, deadline.left()));
      if (then) std::exchange(then, nullptr)();
      work.wait();
      then = std::move(sum.then);
      const std::chrono::duration<double> taken = Clock::now() - begin;
      lock.lock();
      in_flight_ = false;
      seconds_ += taken.count();
      bytes_ += static_cast<double>(sum.num_bytes);
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    failure_ = std::current_exception();
    under_way_ = in_flight_ = false;
    changed_.notify_all();
  }
}

}  // namespace tutti::detail
