/// Vote: what a replica says of a step as it hands in its gradients (Updater::step).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tutti {

/// Of several replicas the largest counts, or all their bits.
enum PartInStep : uint8_t {
  kAbstains = 0,   ///< it had no samples: its gradients are left out
  kComputes = 1,   ///< its gradients count
  kLeavesOut = 2,  ///< all replicas leave the step out, and no version is made; not with servers
};

struct Vote {
  PartInStep part = kComputes;
  /// On a device, where the host does not wait for what it would need to know: one element there.
  /// Where that of any replica is not 0 all leave this step out, and all later ones, until
  /// DeviceDecisions::forget_left_out(); versions count on. Undefined: the host knows, and has said
  /// it by `part`.
  at::Tensor bad{};
};

}  // namespace tutti
