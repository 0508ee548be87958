/// Losses whose labels the host has to read; not for users.
#pragma once

namespace tutti::detail {

/// Beside LossKernel. per_sample() reads labels on the host, for which a device has to be waited,
/// and no device adds its gradient in one order: compile() refuses it with step_graph, and where
/// algorithms of devices are to be deterministic.
class ReadsLabels {
 public:
  virtual ~ReadsLabels() = default;
};

}  // namespace tutti::detail
