/// SumMover: carries out a group's operations, sums above all, in a thread of its own, while its
/// owner computes. Not for users.
///
/// Nobody drives an engine while a backward pass goes on, and gradients come too seldom to do it
/// between them; nor while the next forward pass does. So the engine is lent to a thread
/// (Engine::lend), which takes what is put here, in order, and sleeps while the wire works.
/// Thread rule: one thread, beside its own; rethrow_failure() from any.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tutti/comm/group/group.h"

namespace tutti::detail {

class SumMover {
 public:
  /// One operation of the group, in the mover's thread or, where its owner takes it back, there.
  struct Sum {
    std::function<Work(Millis limit)> start;
    Millis limit = kLongestLimit;  ///< of the mover's wait, from where it is put
    int64_t num_bytes = 0;
    std::function<void()> then{};  ///< in the mover's thread, once it is done
  };

  /// The group's engine can be lent.
  explicit SumMover(Group group) : group_(std::move(group)) {}
  /// Ends the group for all where they would wait for what was put and is not done.
  ~SumMover();
  SumMover(const SumMover&) = delete;

  /// Carries it out behind what was put before; its owner keeps off what it reads and writes. The
  /// first lends the engine until take_back(); who has it now, another mover, is waited for. Where
  /// others may have a part only at the end of what they compute, no limit counts until then.
  void put(Sum sum);

  /// Waits until what is under way is done, no longer than `limit`, and looks after what else the
  /// engine's waits do. Returns what has not begun, in order. Throws what it threw, as
  /// Work::wait(): then and ever after.
  std::vector<Sum> take_back(Millis limit);

  /// The same as put(), but whoever comes to use the engine before it is taken back gets it: waits
  /// for all that was put, no longer than `limit`. All members put the same.
  void put_late(Sum sum, Millis limit);
  /// Waits for all that was put, as take_back() does.
  void drain(Millis limit);
  /// Throws what has gone wrong: for who waits for some of it by other means.
  void rethrow_failure();

  /// What a byte has taken, waiting for the others included; 0 before there was one. Forgets it.
  double seconds_a_byte();

 private:
  void move();
  void add(Sum sum, std::function<void()> recall);
  void settle(std::unique_lock<std::mutex>& lock, Millis limit);
  void give_back();

  Group group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Sum, Deadline>> waiting_;
  std::exception_ptr failure_;
  std::optional<Deadline> until_;  // of the wait for all; while it is lent
  bool lent_ = false;
  bool under_way_ = false;
  bool in_flight_ = false;  // others would wait for it
  bool ends_ = false;
  double seconds_ = 0, bytes_ = 0;  // that it has moved
  std::thread thread_;
};

}  // namespace tutti::detail
