/// DiskThread: does in a thread of its own what waits for a disk, one thing after another, for an
/// owner that must not wait.
///
/// Thread rule: one thread, beside its own.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "tutti/base/deadline.h"

namespace tutti::ps {

class DiskThread {
 public:
  /// What its owner does with what has come of some work.
  using Then = std::function<void()>;
  using Work = std::function<Then()>;

  /// `wake` is called in the thread of this when process() has something.
  explicit DiskThread(std::function<void()> wake);
  /// Waits for nothing, see wait(): what has not begun is given up, and what is under way keeps
  /// that thread, which calls nobody any more.
  ~DiskThread();
  DiskThread(const DiskThread&) = delete;

  /// Behind what was added before. `work` owns what it needs; what it throws, process() does.
  void add(Work work);
  /// Calls what has come of the work that is done; whether there was any.
  bool process();
  /// Whether all work is done by then.
  bool wait(const Deadline& deadline);

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace tutti::ps
