/// ReplicatedOptions: how gradients of replicas that each update their own parameters are added.
///
/// Without LibTorch. Thread rule: plain values.
#pragma once

#include <cstdint>

#include "tutti/comm/compression/compression.h"
#include "tutti/comm/group/cross_device.h"

namespace tutti {

struct ReplicatedOptions {
  int64_t bucket_bytes = 4 << 20;        ///< gradients of this size are reduced at once
  int64_t first_bucket_bytes = 1 << 20;  ///< small, so that reduction starts early
  Compression compression{};             ///< of what replicas exchange
  /// How sums are made; empty: all_reduce. Not with top_k and one_bit, whose parts are gathered.
  CrossDeviceFactory reduction{};
};

/// UsageError when the options contradict each other.
void check_replicated(const ReplicatedOptions& options);

}  // namespace tutti
