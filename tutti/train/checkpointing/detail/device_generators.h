/// What LibTorch's random operators draw from on a device, as checkpoints keep it; not for users.
#pragma once

#include <torch/types.h>

#include "tutti/strategy/replica_context.h"

namespace tutti::detail {

/// The state of the generator from which operators on the replica's device draw, [bytes] of uint8;
/// undefined on the CPU, and where nothing was drawn since it was seeded.
at::Tensor device_generator_state(ReplicaContext& replica);

/// Puts it back; nothing on the CPU. Throws c10::Error where it is no state of such a generator.
void restore_device_generator(ReplicaContext& replica, const at::Tensor& state);

}  // namespace tutti::detail
