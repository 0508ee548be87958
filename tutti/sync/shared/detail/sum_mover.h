/// SumMover: adds buffers up over a group in a thread of its own, while its owner computes. Not for
/// users.
///
/// Nobody drives an engine while a backward pass goes on, and gradients come too seldom to do it
/// between them. So the engine is lent to a thread (Engine::lend), which takes what is put here, in
/// order, and sleeps while the wire works.
/// Thread rule: one thread, beside its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tutti/comm/group/group.h"

namespace tutti::detail {

class SumMover {
 public:
  /// The group's engine can be lent. `site`: whose sums these are, for records.
  SumMover(Group group, const CallSite& site) : group_(std::move(group)), site_(site) {}
  /// Ends the group for all where they would wait for what was put and is not done.
  ~SumMover();
  SumMover(const SumMover&) = delete;

  /// Adds `data` up over the group, in place, behind what was put before; its owner keeps off it.
  /// The first lends the engine until take_back(). No limit counts until then: others may have a
  /// part only at the end of what they compute.
  void put(MemorySpan data);

  /// Waits until what is under way is done, no longer than `limit`, and looks after what else the
  /// engine's waits do. Returns what has not begun, in order. Throws what it threw, as
  /// Work::wait(): then and ever after.
  std::vector<MemorySpan> take_back(Millis limit);

 private:
  void move();

  Group group_;
  const CallSite site_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<MemorySpan> waiting_;
  std::exception_ptr failure_;
  std::optional<Deadline> until_;  // its owner waits
  bool lent_ = false;
  bool under_way_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace tutti::detail
