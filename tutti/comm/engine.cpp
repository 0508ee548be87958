#include "tutti/comm/engine.h"

namespace tutti {

std::string_view name_of(ReduceOp op) noexcept {
  constexpr std::string_view kNames[] = {"sum", "mean", "min", "max"};
  return kNames[static_cast<size_t>(op)];
}

std::string_view name_of(Collective collective) noexcept {
  constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                         "barrier"};
  return kNames[static_cast<size_t>(collective)];
}

}  // namespace tutti
