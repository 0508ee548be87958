#include "tutti/sync/detail/sum_mover.h"

#include <algorithm>
#include <memory>

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
    in_flight = !under_way_.empty() || !waiting_.empty();
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
    if (std::ssize(under_way_) < group_.engine().sums_at_a_time()) group_.engine().wake();
  }
  changed_.notify_all();
}

// Called with the mutex held.
bool SumMover::owes_then() const {
  const auto has_then = [](const Sum& sum) { return static_cast<bool>(sum.then); };
  return then_ || std::ranges::any_of(under_way_, has_then, &UnderWay::sum) ||
         std::ranges::any_of(waiting_, has_then, &std::pair<Sum, Deadline>::first);
}

std::vector<Work> SumMover::take_back(Millis limit) {
  std::unique_lock lock(mutex_);
  const bool waits = owes_then(), moved = lent_;
  lets_go_ = lent_ && !waits;
  const std::shared_ptr<void> at_end(nullptr, [&](void*) {
    if (!lock.owns_lock()) lock.lock();
    lets_go_ = false;
    changed_.notify_all();
  });
  if (lets_go_) group_.engine().wake();
  settle(lock, limit, [this, waits] { return waits ? is_through() : !moves_; });
  if (under_way_.empty()) counted_ = Clock::now();
  const auto begun = std::exchange(under_way_, {});
  const auto waiting = std::exchange(waiting_, {});
  if (moved) taken_back_ = bytes_of(begun, waiting);
  lock.unlock();
  std::vector<Work> works;
  for (const UnderWay& one : begun) works.push_back(one.work);
  try {
    for (const auto& [sum, deadline] : waiting) works.push_back(sum.start(limit));
  } catch (...) {
    lock.lock();
    failure_ = std::current_exception();
    lock.unlock();
    if (!works.empty()) group_.abort("a sum could not begin in the middle of a step");
    throw;
  }
  return works;
}

double SumMover::bytes_of(const std::deque<UnderWay>& begun,
                          const std::deque<std::pair<Sum, Deadline>>& waiting) {
  int64_t bytes = 0;
  for (const UnderWay& one : begun) bytes += one.sum.num_bytes;
  for (const auto& [sum, deadline] : waiting) bytes += sum.num_bytes;
  return static_cast<double>(bytes);
}

void SumMover::count_taken_back() {
  const std::lock_guard lock(mutex_);
  if (!taken_back_) return;
  const TimePoint now = Clock::now();
  seconds_ += std::chrono::duration<double>(now - std::exchange(counted_, now)).count();
  bytes_ += *std::exchange(taken_back_, std::nullopt);
}

void SumMover::drain(Millis limit) {
  std::unique_lock lock(mutex_);
  settle(lock, limit, [this] { return is_through(); });
}

// Called with the mutex held.
void SumMover::settle(std::unique_lock<std::mutex>& lock, Millis limit,
                      const std::function<bool()>& settled) {
  // The engine may be lent to another mover, of another optimizer.
  if (lent_) {
    if (!until_) until_.emplace(limit);  // the mover reads it until it is through
    group_.engine().end_lent_by(&*until_);
    while (!changed_.wait_for(lock, kLook, [&] { return failure_ != nullptr || settled(); })) {
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
  std::unique_lock lock(mutex_);
  const auto has_work = [this] {
    return ends_ || (!lets_go_ && !(waiting_.empty() && under_way_.empty()));
  };
  try {
    while (true) {
      if (waiting_.empty() && under_way_.empty() && then_) {
        const auto then = std::exchange(then_, nullptr);
        lock.unlock();
        then();
        lock.lock();
      }
      moves_ = false;
      changed_.notify_all();
      changed_.wait(lock, has_work);
      if (ends_) return;
      moves_ = true;
      while (!waiting_.empty() && std::ssize(under_way_) < group_.engine().sums_at_a_time())
        begin_next(lock);
      finish_first(lock);
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    failure_ = std::current_exception();
    moves_ = false;
    under_way_.clear();
    changed_.notify_all();
  }
}

void SumMover::begin_next(std::unique_lock<std::mutex>& lock) {
  auto [sum, deadline] = std::move(waiting_.front());
  waiting_.pop_front();
  if (under_way_.empty()) counted_ = Clock::now();
  UnderWay& one = under_way_.emplace_back(UnderWay{.work = {}, .sum = std::move(sum)});
  lock.unlock();
  one.work = one.sum.start(std::max(Millis{1}, deadline.left()));
  lock.lock();
}

// Or until there may be more to begin, or to let go of.
void SumMover::finish_first(std::unique_lock<std::mutex>& lock) {
  Work work = under_way_.front().work;
  const auto then = std::exchange(then_, nullptr);
  lock.unlock();
  if (then) then();  // the wire has the next
  const bool done = work.wait_until_woken();
  lock.lock();
  if (!done) return;
  const TimePoint now = Clock::now();
  seconds_ += std::chrono::duration<double>(now - std::exchange(counted_, now)).count();
  bytes_ += static_cast<double>(under_way_.front().sum.num_bytes);
  then_ = std::move(under_way_.front().sum.then);
  under_way_.pop_front();
}

}  // namespace tutti::detail
