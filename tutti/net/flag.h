/// Flag: a 32-bit counter that one member writes and others wait for, in memory that they share.
///
/// Values only grow; they are compared by difference, so that a counter may wrap. A reader that saw
/// a value sees everything its writer wrote before. Works between threads and between processes.
/// Thread rule: one thread calls set(); all other functions may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tutti {

/// How long to poll before sleeping: in pauses, then in yields.
struct WaitPolicy {
  int spin_pauses = 0;
  int yields = 0;
};

/// All zero bytes are a valid flag of value 0: fresh shared memory needs no construction.
class Flag {
 public:
  /// Publishes `value` and wakes whoever sleeps on the flag; no system call when nobody does.
  void set(uint32_t value) noexcept {
    // Both sides order (own store, then load of the other's word) sequentially: either set() sees
    // the sleeper, or the kernel sees the new value and does not let it sleep.
    value_.exchange(value, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
      wake();
  }

  /// Adds one and wakes sleepers: for flags of which all threads of all members are writers, and
  /// that nobody calls set() on.
  void add_one() noexcept {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
      wake();
  }

  /// Publishes `value` where nobody can be asleep waiting for it: a plain store.
  void set_unwatched(uint32_t value) noexcept { value_.store(value, std::memory_order_release); }

  uint32_t value() const noexcept { return value_.load(std::memory_order_acquire); }

  /// True when the counter stands at `target` or beyond.
  bool reached(uint32_t target) const noexcept {
    return static_cast<int32_t>(value() - target) >= 0;
  }

  /// Polls as long as `policy` says; true when reached. Reads no clock.
  bool spin_until(uint32_t target, const WaitPolicy& policy) const noexcept;

  /// Sleeps until the flag moves, is woken, or `limit` passes; at once when reached. May return
  /// early.
  void sleep_until(uint32_t target, std::chrono::milliseconds limit) noexcept;

  /// Wakes all sleepers without a change, so that they look at what else may have happened.
  void wake() noexcept;
  bool has_sleepers() const noexcept { return sleepers_.load(std::memory_order_relaxed) != 0; }

 private:
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleepers_;
};

/// A flag that has a cache line to itself.
struct alignas(64) FlagLine {
  Flag flag;
};

/// Polls for about 100 us when every member has a core of its own to spin on (`pinned`, and members
/// <= cores). Else 100 pauses, or 5 with more members than cores, since a spinner would hold the
/// core that its peer needs, and a few yields, which give it to the peer.
WaitPolicy choose_wait_policy(int members, int usable_cores, bool pinned);

}  // namespace tutti
