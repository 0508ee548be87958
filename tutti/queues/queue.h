/// DeviceQueue: a replica's queue of work on its device, and the marks by which queues wait for
/// each other.
///
/// A queue is a stream. What a replica's thread does under an OnQueue is queued and runs later; a
/// thread waits for it only in wait(), which asks again and again until its deadline, so that a
/// device that hangs is an error. Between queues waits are queued too: after().
///
/// On the CPU a queue is nothing: work is done when the call returns, and marks have been passed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/stream.h"

namespace tutti {

/// A place in a queue. Recorded again and again: a wait is for what was recorded last when it was
/// asked for. Thread rule: recorded by its queue's thread; others may wait for it once they know,
/// by other means, that it was recorded.
class DeviceMark {
 public:
  DeviceMark() = default;
  /// True when all that was queued before it has run; of one never recorded too.
  bool passed() const { return !event_ || event_->query(); }

 private:
  friend class DeviceQueue;
  std::optional<c10::Event> event_;
};

/// Thread rule: one thread at a time.
class DeviceQueue {
 public:
  /// On the CPU: nothing is ever queued.
  DeviceQueue() = default;
  /// A queue on that device. `owner` is who waits, in words: "replica 1 (cuda:0)". LibTorch has 32
  /// streams a device, which it gives in turn: the 33rd queue is the first one again.
  DeviceQueue(at::Device device, std::string owner);
  /// The queue for what goes on beside the replicas' work: one a device for the whole process.
  /// Several threads may use it at once, each by a copy that it has asked for here. It may have to
  /// wait for the replicas of the world that was made last.
  static DeviceQueue beside(at::Device device, std::string owner);
  /// The queue that is current on this thread.
  static DeviceQueue current(at::Device device, std::string owner);

  at::Device device() const noexcept { return device_; }
  bool on_device() const noexcept { return stream_.has_value(); }
  const c10::Stream& stream() const { return stream_.value(); }
  Stream handle() const;  ///< as floors 0 to 2 hand it on; 0 on the CPU
  const std::string& owner() const noexcept { return owner_; }

  /// From here on.
  void mark(DeviceMark& mark) const;

  /// What is queued from now on waits for `mark`. `wait` names this wait.
  void after(const DeviceMark& mark, const char* wait) const;

  /// `tensor`, made on another queue, is used by this one: its memory is kept until that has run.
  void uses(const at::Tensor& tensor) const;

  /// Tells the queue whose work it may have to wait for, itself among them: the replicas of a
  /// world.
  void belongs_to(std::shared_ptr<const std::vector<DeviceQueue>> all);

  /// Has a wait that ends without success ask, where the devices here answer, who else is behind:
  /// in words, or "". All copies of this queue do. Before the first wait; `who` from any thread.
  void ask_of_others(const std::function<std::string()>& who) const { *others_ = who; }

  /// Until `mark` has been passed. Throws Timeout that names the replica whose device does nothing
  /// any more: "replica 1 (cuda:1) hangs: ...".
  void wait(const DeviceMark& mark, const Deadline& deadline, const std::string& what) const;

  /// The same for all that is queued now.
  void drain(const Deadline& deadline, const std::string& what) const;

 private:
  bool answers(Millis limit) const;
  [[noreturn]] void give_up(const Deadline& deadline, const std::string& what) const;

  at::Device device_{at::kCPU};
  std::optional<c10::Stream> stream_;
  std::string owner_;
  at::Tensor probe_;  // one element there
  std::shared_ptr<const std::vector<DeviceQueue>> all_;
  std::shared_ptr<std::function<std::string()>> others_ =
      std::make_shared<std::function<std::string()>>();
};

/// Makes the queue the one of this thread until it goes out of scope. Nothing for a CPU's.
class OnQueue {
 public:
  explicit OnQueue(const DeviceQueue& queue) {
    if (queue.on_device()) guard_.emplace(queue.stream());
  }

 private:
  std::optional<c10::StreamGuard> guard_;
};

/// How long a replica waits for its own device where others wait `limit` for the replica: it knows
/// what hangs, and is to say so before their patience ends.
inline Millis patience_with_device(Millis limit) { return std::max(limit / 2, Millis{1}); }

}  // namespace tutti
