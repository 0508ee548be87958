#include "tutti/sync/shard.h"

#include <array>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"

namespace tutti {

std::string_view name_of(Shard shard) noexcept {
  return shard == Shard::state ? "state" : "gradients";
}

Shard shard_by_name(std::string_view word) {
  for (const Shard shard : {Shard::state, Shard::gradients})
    if (word == name_of(shard)) return shard;
  const std::array<std::string, 2> known{"state", "gradients"};
  throw UsageError(unknown_message("shard", std::string(word), known));
}

}  // namespace tutti
