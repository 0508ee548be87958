/// StepGraph: work that a device does again and again without being told each part of it.
///
/// The host queues a training step operator by operator, which for a small network takes it longer
/// than the device takes to do them. A graph is queued as one. It needs LibTorch's CUDA and its
/// headers; without them step_graph_absent.cpp says so. docs/design/devices.md.
#pragma once

#include <functional>
#include <memory>

#include "tutti/queues/queue.h"

namespace tutti {

/// Thread rule: that of its queue.
class StepGraph {
 public:
  virtual ~StepGraph() = default;

  /// Keeps what `work` queues on the queue, which does none of it yet. Once. Memory that it takes
  /// meanwhile stays the graph's: results lie where they are until the next replay(). Throws what
  /// `work` throws; Error where the device refuses something of it, such as a wait of the host.
  virtual void capture(const std::function<void()>& work) = 0;

  /// Queues all of it.
  virtual void replay() = 0;
};

/// Whether this build has graphs.
bool step_graph_available() noexcept;
/// For work on that queue, which must not be the device's default one. UsageError with the cure
/// where this build has none.
std::unique_ptr<StepGraph> make_step_graph(const DeviceQueue& queue);

}  // namespace tutti
