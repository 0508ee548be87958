/// The wait between two queues of devices that a thread is about to queue, by name: a test's device
/// leaves one out by it. Not for users.
#pragma once

namespace tutti::detail {

inline thread_local const char* wait_of_this_thread = nullptr;

/// What wait this thread is queueing, or null.
inline const char* wait_being_queued() noexcept { return wait_of_this_thread; }

/// Gives a wait its name while it is queued. `name` is of static duration.
class QueuedWait {
 public:
  explicit QueuedWait(const char* name) noexcept { wait_of_this_thread = name; }
  ~QueuedWait() { wait_of_this_thread = nullptr; }
  QueuedWait(const QueuedWait&) = delete;
  QueuedWait& operator=(const QueuedWait&) = delete;
};

}  // namespace tutti::detail
