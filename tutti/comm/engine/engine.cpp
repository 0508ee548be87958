#include "tutti/comm/engine/engine.h"

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti {

std::string_view name_of(ReduceOp op) noexcept {
  constexpr std::string_view kNames[] = {"sum",         "mean",       "min",        "max",
                                         "product",     "bit_and",    "bit_or",     "bit_xor",
                                         "logical_and", "logical_or", "logical_xor"};
  return kNames[static_cast<size_t>(op)];
}

std::string_view name_of(Collective collective) noexcept {
  constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                         "barrier",    "reduce",         "scatter",    "gather",
                                         "all_to_all", "send",           "recv"};
  return kNames[static_cast<size_t>(collective)];
}

void Engine::require_own() const {
  if (!is_lent() || lent_to_.load() == std::this_thread::get_id()) return;
  if (const auto recall = recall_) return recall();
  throw UsageError(fmt::format(
      "rank {} of {}, engine {}: its group adds up gradients while this backward pass goes on; who "
      "talks to other ranks in backward says so before it: ReplicaContext::meets_in_backward()",
      rank(), size(), name()));
}

void Engine::wait_on(Ticket ticket, Stream /*stream*/) {
  if (!poll(ticket)) progress(ticket, Deadline(kLongestLimit));
}

}  // namespace tutti
