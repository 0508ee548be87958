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

  /// The engine is its owner's again, and so is what was put and is not done: returned in order,
  /// all of it begun, the rest within `limit`. Where some of it has a `then` that is waited for
  /// instead, no longer than `limit`. Looks after what else the engine's waits do. Throws what the
  /// mover threw, as Work::wait(): then and ever after.
  std::vector<Work> take_back(Millis limit);
  /// What take_back() gave is done: of seconds_a_byte(), too.
  void count_taken_back();

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
  struct UnderWay {
    Work work;
    Sum sum;
  };

  void move();
  void begin_next(std::unique_lock<std::mutex>& lock);
  void finish_first(std::unique_lock<std::mutex>& lock);
  void add(Sum sum, std::function<void()> recall);
  bool owes_then() const;
  static double bytes_of(const std::deque<UnderWay>& begun,
                         const std::deque<std::pair<Sum, Deadline>>& waiting);
  bool is_through() const { return !moves_ && waiting_.empty() && under_way_.empty(); }
  void settle(std::unique_lock<std::mutex>& lock, Millis limit,
              const std::function<bool()>& settled);
  void give_back();

  Group group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Sum, Deadline>> waiting_;
  std::exception_ptr failure_;
  std::optional<Deadline> until_;  // of the wait for all; while it is lent
  bool lent_ = false;
  bool moves_ = false;    // its thread has the engine
  bool lets_go_ = false;  // it is to give it up
  bool ends_ = false;
  double seconds_ = 0, bytes_ = 0;    // that it has moved
  TimePoint counted_{};               // until when
  std::optional<double> taken_back_;  // bytes, until they are counted
  std::deque<UnderWay> under_way_;    // in order: one has gone when those before have
  std::function<void()> then_;        // of the last that was done, its own thread's
  std::thread thread_;
};

}  // namespace tutti::detail
