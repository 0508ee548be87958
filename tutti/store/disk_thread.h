/// DiskThread: does in a thread of its own what waits for a disk, one thing after another, for an
/// owner that must not wait.
///
/// Thread rule: one thread, beside its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "tutti/base/deadline.h"

namespace tutti::store {

class DiskThread {
 public:
  /// What its owner does with what has come of some work; empty: nothing.
  using Then = std::function<void()>;

  /// what  whom the thread is for, where it cannot be started (start_thread())
  /// wake  called in that thread when process() has something
  explicit DiskThread(std::string_view what, std::function<void()> wake = [] {});
  /// Waits for nothing, see wait(): what has not begun is given up, and what is under way keeps
  /// that thread, which calls nobody any more.
  ~DiskThread();
  DiskThread(const DiskThread&) = delete;

  /// Behind what was added before. `work` owns what it needs; what it throws, process() does.
  void add(std::function<void()> work);
  void add_with_then(std::function<Then()> work);
  /// What has not begun is given up.
  void forget_waiting();
  /// Calls what has come of the work that is done; whether there was any. Throws what the first of
  /// it threw, once all is called.
  bool process();
  /// Whether all work is done by then.
  bool wait(const Deadline& deadline);

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

/// Calls `work`, which owns what it needs, in a thread of its own, and waits for it; the log says
/// so after a second. Throws what it throws; Timeout, which begins with `what`, and leaves that
/// thread to its disk.
void wait_for_disk(const std::string& what, const std::function<void()>& work, Millis limit);

}  // namespace tutti::store
