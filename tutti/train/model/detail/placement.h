/// Where the tensors of a model are; not for users. Thread rule: that of the module.
#pragma once

#include <torch/nn/module.h>

#include "tutti/strategy/replica_context.h"

namespace tutti::detail {

/// That of its first parameter; the CPU where it has none.
at::Device device_of(const torch::nn::Module& module);

/// Throws UsageError naming the first parameter that is elsewhere than the first one.
void require_one_device(const torch::nn::Module& module);

/// Throws UsageError naming the first parameter or buffer that is not on the replica's device, and
/// both devices. Nothing for a replica on the CPU.
void require_here(const torch::nn::Module& module, const ReplicaContext& replica);

}  // namespace tutti::detail
