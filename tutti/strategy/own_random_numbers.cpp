#include "tutti/strategy/detail/own_random_numbers.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>

#include "tutti/strategy/replica_context.h"

namespace tutti::detail {
namespace {

using c10::OperatorHandle;
using torch::jit::Stack;

// A mode for libraries outside of LibTorch, whose own operators have nothing at it: that of
// torchdistx, which has come to its end.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

bool is_generator(const c10::Argument& argument) {
  return *argument.type() == *c10::OptionalType::create(c10::GeneratorType::get());
}

/// Where an operator with this argument draws; none: it does not tell.
std::optional<at::Device> place_of(const c10::IValue& argument) {
  if (argument.isDevice()) return argument.toDevice();
  if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().device();
  return std::nullopt;
}

/// The generator of this replica for what is drawn; null where it is drawn on a device that is not
/// the replica's.
at::Generator* own_generator(ReplicaContext& replica, std::span<const c10::IValue> given) {
  at::Device where(at::kCPU);
  for (const c10::IValue& argument : given)
    if (const auto place = place_of(argument); place && !place->is_cpu()) where = *place;
  if (!where.is_cpu() && !where.has_index()) where.set_index(replica.device().index());
  if (!where.is_cpu() && where != replica.device()) return nullptr;
  return &replica.generator(where);
}

void draw(const OperatorHandle& op, Stack* stack) {
  ReplicaContext* const replica = ReplicaContext::current();
  const auto& arguments = op.schema().arguments();
  const auto given = std::span(*stack).last(arguments.size());
  if (replica != nullptr)
    if (at::Generator* const own = own_generator(*replica, given))
      for (size_t i = 0; i < given.size(); ++i)
        if (given[i].isNone() && is_generator(arguments[i])) given[i] = *own;
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  op.callBoxed(stack);
}

// Once in a process, which keeps it.
void take_over_random_operators() {
  const auto library = [](const char* name) {
    return std::make_unique<torch::Library>(torch::Library::IMPL, name, kKey, __FILE__, __LINE__)
        .release();
  };
  static torch::Library* const rest = library("_");
  static torch::Library* const random = library("aten");
  rest->fallback(torch::CppFunction::makeFallthrough());
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (name.getNamespace() == "aten" && op &&
        std::ranges::any_of(op->schema().arguments(), is_generator))
      random->impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&draw>());
  }
}

c10::DispatchKey key() {
  static const bool once = (take_over_random_operators(), true);
  static_cast<void>(once);
  return kKey;
}

}  // namespace

OwnRandomNumbers::OwnRandomNumbers() : guard_(key()) {}

}  // namespace tutti::detail
