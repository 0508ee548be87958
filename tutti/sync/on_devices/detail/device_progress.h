/// DeviceProgress: how far the devices of all ranks have come, so that a wait which ends without
/// success says on whom: NCCL does not tell. Hosts, which do not wait for devices, tell each other
/// once a step. Not for users.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "tutti/queues/queue.h"

namespace tutti::detail {

/// Of one rank: how many of its backward passes its device has done. Thread rule: the replica's.
class PassesDone {
 public:
  /// A pass has been queued.
  void queued(const DeviceQueue& queue);
  /// Asks the device, without waiting.
  uint32_t count();

 private:
  std::deque<DeviceMark> on_their_way_;
  std::vector<DeviceMark> spare_;  // making an event costs a microsecond
  uint32_t done_ = 0;
};

/// Of all ranks. Thread rule: any thread.
class DeviceProgress {
 public:
  explicit DeviceProgress(int ranks) : done_(static_cast<size_t>(ranks)) {}

  void note(std::span<const uint32_t> done);
  /// "the device of replica 2 has done 12 backward passes, others 14"; "" where all are equal.
  std::string behind() const;

 private:
  std::vector<std::atomic<uint32_t>> done_;  // by rank
};

}  // namespace tutti::detail
