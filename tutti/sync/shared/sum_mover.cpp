#include "tutti/sync/shared/detail/sum_mover.h"

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
    in_flight = under_way_ || !waiting_.empty();
  }
  changed_.notify_all();
  if (in_flight) group_.abort("its replica was given up in the middle of a step");
  thread_.join();
  group_.engine().end_lent_by(nullptr);
  group_.engine().lend({});
}

void SumMover::put(MemorySpan data) {
  if (!thread_.joinable()) thread_ = start_thread("the sums between hosts", [this] { move(); });
  {
    const std::lock_guard lock(mutex_);
    if (failure_ != nullptr) return;  // take_back() says so
    if (!lent_) group_.engine().lend(thread_.get_id());
    lent_ = true;
    waiting_.push_back(data);
  }
  changed_.notify_all();
}

std::vector<MemorySpan> SumMover::take_back(Millis limit) {
  Engine& engine = group_.engine();
  std::unique_lock lock(mutex_);
  const std::vector<MemorySpan> left(waiting_.begin(), waiting_.end());
  waiting_.clear();
  if (lent_ && !until_) {
    until_.emplace(limit);
    engine.end_lent_by(&*until_);
  }
  const auto through = [this] { return !under_way_ || failure_ != nullptr; };
  while (!changed_.wait_for(lock, kLook, through)) {
    lock.unlock();
    engine.look_after();
    lock.lock();
  }
  engine.end_lent_by(nullptr);
  engine.lend({});
  lent_ = false;
  until_.reset();
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  return left;
}

void SumMover::move() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    const MemorySpan data = waiting_.front();
    waiting_.pop_front();
    under_way_ = true;
    lock.unlock();
    try {
      group_.all_reduce(data, ReduceOp::sum, kLongestLimit, site_).wait();
      lock.lock();
    } catch (...) {
      lock.lock();
      failure_ = std::current_exception();
    }
    under_way_ = false;
    changed_.notify_all();
    if (failure_ != nullptr) return;
  }
}

}  // namespace tutti::detail
