/// DeviceWay: how the tensors of a call get from a GPU to engines of the host's memory, and back.
///
///   the caller's queue   what the program has queued | mark
///   to_host              waits for that mark, copies the tensors to pinned memory | mark
///   the host             polls that mark, never waits for it; then the engine works
///   from_host            copies results back | mark
///   whoever waits        its queue waits for that mark, which is then there to be waited for
///
/// Results need no wait for the caller's queue: the host has seen that all of it, up to the call,
/// had run before the engine began. docs/design/devices.md says why.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tutti/queues/queue.h"

namespace tutti::python {

/// Of a group on one device. Two, so that results need not wait behind what the next call copies,
/// which waits for what its caller computes.
struct HostQueues {
  DeviceQueue to_host;
  DeviceQueue from_host;
};

/// The queues of a group on every device that it is given tensors of.
/// Thread rule: any thread.
class DevicesOfGroup {
 public:
  /// `rank` is who waits, in words: "rank 1".
  explicit DevicesOfGroup(std::string rank) : rank_(std::move(rank)) {}

  /// Made when a device is first asked for.
  HostQueues queues_on(at::Device device);

 private:
  const std::string rank_;
  std::mutex mutex_;
  std::vector<HostQueues> queues_;  // guarded by mutex_
};

/// Of one call. Thread rule: one thread at a time.
class DeviceWay {
 public:
  /// Behind what is queued on the current queue of this thread. `what` is copied, in words; for so
  /// long the host waits for the copies: half of `limit`, since others wait `limit` for this rank.
  DeviceWay(HostQueues queues, Millis limit, std::string what);

  /// Under which copies to the host are made, and then marked.
  const DeviceQueue& to_host() const noexcept { return queues_.to_host; }
  void mark_copies() { to_host().mark(copied_); }

  /// Whether the copies have been made. Throws Timeout that names the device when it is too late;
  /// only then it waits: for a sign of life, a second at most.
  bool arrived() const;

  /// Under which results are copied back.
  const DeviceQueue& from_host() const noexcept { return queues_.from_host; }

  /// Waits of queues, by name.
  static constexpr const char* kWaitForCaller = "copies to the host, for what the caller has queued";
  static constexpr const char* kWaitForResults = "whoever waits for a call, for its results";

 private:
  const HostQueues queues_;
  const Deadline patience_;
  const std::string what_;
  DeviceMark copied_;
};

}  // namespace tutti::python
