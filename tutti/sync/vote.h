/// Vote and Verdict: what a replica says of a step as it hands in its gradients (Updater::step),
/// and what all have said. They meet there anyway, so that nothing else needs a meeting of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace tutti {

/// Of several replicas the largest counts.
enum PartInStep : uint8_t {
  kAbstains = 0,   ///< it had no samples: its gradients are left out
  kComputes = 1,   ///< its gradients count
  kLeavesOut = 2,  ///< all replicas leave the step out, and no version is made; not with servers
};

struct Vote {
  PartInStep part = kComputes;
  /// Its scaled gradients were not finite, and are not handed in: those of no replica count, but
  /// the version does.
  bool overflows = false;
  uint8_t signal = 0;  ///< that asks its training to end; 0: none
  /// It has more to say once the step is made: all are to meet after it.
  bool meets = false;
  /// On a device, where the host does not wait for what it would need to know: one element there.
  /// Where that of any replica is not 0 all leave this step out, and all later ones, until
  /// DeviceDecisions::forget_left_out(); versions count on. Undefined: the host knows, and has said
  /// it by `part`.
  at::Tensor bad{};
};

/// The same on all replicas; where they take turns, from the last of them alone.
struct Verdict {
  bool left_out = false;
  bool overflowed = false;
  uint8_t signal = 0;  ///< the largest; not where `meets`
  /// Some replica has more to say; or they do not all meet in the updater, as with servers.
  bool meets = true;
};

}  // namespace tutti
