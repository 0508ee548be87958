#include "tutti/strategy/detail/own_random_numbers.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
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

bool elsewhere(const c10::IValue& argument) {
  if (argument.isTensor())
    return argument.toTensor().defined() && !argument.toTensor().device().is_cpu();
  return argument.isDevice() && !argument.toDevice().is_cpu();
}

void draw(const OperatorHandle& op, Stack* stack) {
  ReplicaContext* const replica = ReplicaContext::current();
  const auto& arguments = op.schema().arguments();
  const auto given = std::span(*stack).last(arguments.size());
  if (replica != nullptr && std::ranges::none_of(given, elsewhere))
    for (size_t i = 0; i < given.size(); ++i)
      if (given[i].isNone() && is_generator(arguments[i])) given[i] = replica->generator();
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
