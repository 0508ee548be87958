/// Shard: what of a training is cut over its ranks (sharded_updater.h), as flags say it.
///
/// Without LibTorch. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

enum class Shard : uint8_t {
  state,       ///< optimizer state
  gradients,   ///< that, and the sums of gradients
  parameters,  ///< those, and parameters, which are gathered before each use
};

/// "state", "gradients" or "parameters".
std::string_view name_of(Shard shard) noexcept;

/// Throws UsageError for any other word, with those that there are.
Shard shard_by_name(std::string_view word);

}  // namespace tutti
