/// Lane: the way of one group's calls into its engine, shared by the threads of a process.
///
/// An Engine takes one thread at a time and moves only when somebody polls it. A lane puts a lock
/// around it, so that any thread may submit while another polls: the thread that waits for a
/// result, or the progress thread when nobody does.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/comm/group/group.h"

#include "call.h"

namespace tutti::python {

/// Thread rule: every function may be called from any thread. None waits for a peer, but drain().
class Lane {
 public:
  explicit Lane(Group group) : group_(std::move(group)) {}

  const Engine& engine() const noexcept { return group_.engine(); }
  /// The most ranks of the group that are on one host.
  int ranks_here() const {
    return std::ranges::max(engine().reduction_shape().replicas_per_host());
  }

  /// Starts `call`, or queues it behind others; moves what can move. After a failure every call ends
  /// with it.
  void submit(CallPointer call);

  /// Moves what can move; true when a call came to its end.
  bool advance();
  /// The same unless another thread is at it.
  bool try_advance();

  /// The oldest call that is over and that nobody has taken. One at a time: its callbacks may wait
  /// for the next, which another thread then finishes.
  std::optional<Ended> take_ended();
  bool has_ended() const noexcept { return ended_calls_.load(std::memory_order_acquire) > 0; }
  /// Takes and finishes all.
  void finish_ended();

  /// Whether a call has been submitted that nobody has taken as ended.
  bool busy() const noexcept { return open_calls_.load(std::memory_order_acquire) > 0; }
  bool busy_with_several() const noexcept {
    return open_calls_.load(std::memory_order_acquire) > 1;
  }

  /// Fails the group, here and at its other members.
  void abort(FailureKind kind, const std::string& text) noexcept {
    group_.engine().abort(kind, text);
  }

  /// Why the group failed, if it did and a call has met it.
  std::optional<FailureKind> failure_kind();

  /// Waits until no call is open; false when `deadline` passed before.
  bool drain(const Deadline& deadline);

  /// Threads that wait and poll this lane themselves; the progress thread leaves it to them.
  std::atomic<int> drivers{0};

 private:
  struct InFlight {
    CallPointer call;
    Ticket ticket = 0;  ///< of the operations [.., next) that the engine has seen
    size_t next = 0;    ///< the first operation of the stage that it has not
    size_t in_engine = 0;
    FlightMark mark = {};  ///< of the last of them
  };

  bool move_all();
  bool move_collectives();
  bool move_messages();
  void start_waiting();
  void start_messages();
  bool may_start() const;
  bool is_ready(Call& call);
  void give_some(InFlight& flying);
  bool goes_on(InFlight& flying);
  FlightMark note(const Call& call, std::span<const Operation> operations);
  void note_done(const InFlight& flying) const;
  bool poll(const InFlight& flying);
  void fail(const std::exception& error);
  void end(CallPointer call, std::exception_ptr failure);
  void fail_all();

  const Group group_;  // its engine: all but abort() under mutex_
  std::mutex mutex_;
  std::deque<CallPointer> waiting_;           // collectives that the engine has not seen yet
  std::deque<CallPointer> waiting_messages_;  // the same
  std::deque<InFlight> collectives_;          // in the engine, oldest first
  std::list<InFlight> messages_;              // in the engine
  std::deque<Ended> ended_;           // that nobody has taken
  size_t in_engine_ = 0;              // collectives that the engine has not finished
  std::exception_ptr failure_;        // of the group; set once
  FlightMark at_work_;        // what the engine was asked for last
  std::atomic<int> open_calls_{0};
  std::atomic<int> ended_calls_{0};  // of them, in ended_
};

}  // namespace tutti::python
