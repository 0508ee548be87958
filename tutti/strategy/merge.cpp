// merge(): one function called once with what all local replicas bring, while they wait.
#include <c10/util/Type.h>
#include <fmt/format.h>

#include <memory>
#include <typeinfo>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/strategy/strategy_state.h"

namespace tutti {
namespace {

/// What a replica brings to merge(), and the type of the function that it wants to be called:
/// who calls casts what it is given to its own.
struct MergeCall {
  std::shared_ptr<void> value;
  const std::type_info* signature;
};

std::vector<std::shared_ptr<void>> values_of(const std::vector<std::shared_ptr<void>>& calls) {
  std::vector<std::shared_ptr<void>> values;
  const auto& first = *static_cast<const MergeCall*>(calls[0].get());
  for (const auto& one : calls) {
    const auto& call = *static_cast<const MergeCall*>(one.get());
    if (*call.signature != *first.signature)
      throw Mismatch(fmt::format(
          "merge: local replica {} wants {} (result and values), local replica 0 {}; expected one "
          "function with values of one type on all replicas",
          values.size(), c10::demangle(call.signature->name()),
          c10::demangle(first.signature->name())));
    values.push_back(call.value);
  }
  return values;
}

}  // namespace

std::shared_ptr<void> Strategy::merge_all(ReplicaContext& replica, std::shared_ptr<void> value,
                                          const std::type_info& signature, const Lead& lead) {
  if (ReplicaContext::current() == nullptr)
    throw UsageError(
        "merge: called outside of run(); there is nothing to merge, call the function");
  require_own(replica, "merge");
  if (const std::string& why = replica.state_->in_turn; !why.empty())
    throw UsageError(
        fmt::format("merge on replica {} of {}: {}; end run() and go on with what it returned",
                    replica.rank(), world().size, why));
  const auto call = std::make_shared<MergeCall>(std::move(value), &signature);
  // Who leads works on replica 0's queue, which is to come after what each brings; and they go on
  // after what it made.
  DeviceMark& brought = state_->brought.at(static_cast<size_t>(replica.local_rank()));
  replica.queue().mark(brought);
  const auto result = state_->meeting->meet(replica.local_rank(), call, [&](const auto& calls) {
    const detail::CurrentReplica nobody(nullptr);
    for (const DeviceMark& mark : state_->brought) replica.queue().after(mark, "what merge() gets");
    auto made = lead(values_of(calls));
    replica.queue().mark(brought);
    return made;
  });
  replica.queue().after(state_->brought[0], "what merge() made");
  return result;
}

}  // namespace tutti
