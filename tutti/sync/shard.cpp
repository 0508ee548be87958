#include "tutti/sync/shard.h"

#include <array>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"

namespace tutti {

namespace {

const std::array<std::string, 3> kNames{"state", "gradients", "parameters"};

}  // namespace

std::string_view name_of(Shard shard) noexcept { return kNames[static_cast<size_t>(shard)]; }

Shard shard_by_name(std::string_view word) {
  for (const Shard shard : {Shard::state, Shard::gradients, Shard::parameters})
    if (word == name_of(shard)) return shard;
  throw UsageError(unknown_message("shard", word, kNames));
}

}  // namespace tutti
