#include "tutti/strategy/optimizer/detail/stale_reads.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

// Of one thread.
struct Watch {
  int replica = 0;
  std::unordered_map<const c10::StorageImpl*, std::string> names;  // of parameters, by storage
  std::string found;                                               // what has read which
};

Watch& watch() {
  thread_local Watch own;
  return own;
}

// What has no schema (LibTorch's "detach") is said once more by the operator itself.
bool reads(const at::RecordFunction& function) {
  const auto schema = function.operator_schema();
  return schema && std::ranges::none_of(schema->returns(), [](const c10::Argument& made) {
           return made.alias_info() != nullptr && !made.alias_info()->isWrite();  // a view
         });
}

// The parameter that lies where an input does; null: none.
const std::string* parameter_in(const c10::IValue& input) {
  if (input.isTensor()) {
    const at::Tensor& tensor = input.toTensor();
    if (!tensor.defined() || !tensor.has_storage()) return nullptr;
    const auto found = watch().names.find(tensor.storage().unsafeGetStorageImpl());
    return found == watch().names.end() ? nullptr : &found->second;
  }
  if (input.isList())
    for (const c10::IValue& element : input.toListRef())
      if (const std::string* const name = parameter_in(element)) return name;
  return nullptr;
}

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  if (!watch().found.empty()) return nullptr;
  for (const c10::IValue& input : function.inputs())
    if (const std::string* const name = parameter_in(input); name && reads(function)) {
      watch().found = fmt::format("{} reads parameter \"{}\"", function.name(), *name);
      break;
    }
  return nullptr;
}

// This thread's observers travel with its state; only LibTorch knows whether ours is among them.
bool is_own(const at::RecordFunctionCallbacksEntry& entry) {
  return entry.callback_.start() == &on_operator;
}

}  // namespace

void watch_for_stale_reads(int replica, const Slots& layout,
                           const std::vector<at::Tensor>& parameters) {
  watch().replica = replica;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (layout.slots[i].trained)
      watch().names.emplace(parameters[i].storage().unsafeGetStorageImpl(), layout.slots[i].name);
  const auto& all = at::get_record_function_tls_().sorted_tls_callbacks_;
  if (std::ranges::none_of(all, is_own))
    at::addThreadLocalCallback(at::RecordFunctionCallback(&on_operator)
                                   .needsInputs(true)
                                   .scopes({at::RecordScope::FUNCTION}));
}

void note_stale_read(const std::string& found) {
  if (watch().found.empty()) watch().found = found;
}

void end_watch_for_stale_reads() {
  watch() = {};
  const auto& all = at::get_record_function_tls_().sorted_tls_callbacks_;
  if (const auto own = std::ranges::find_if(all, is_own); own != all.end())
    at::removeCallback(own->handle_);
}

void require_no_stale_read() {
  if (watch().found.empty()) return;
  throw UsageError(fmt::format(
      "replica {}: {} after a step of the same run() that has yet to change it: under one_device "
      "the replicas take turns on one thread, and the update comes once all have had theirs; give "
      "each step, and what follows from it, a run() of its own",
      watch().replica, watch().found));
}

}  // namespace tutti::detail
