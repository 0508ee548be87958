#include "tutti/strategy/detail/own_random_numbers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "tutti/base/log.h"
#include "tutti/strategy/replica_context.h"

namespace tutti::detail {
namespace {

using c10::OperatorHandle;
using torch::jit::Stack;

// A mode for libraries outside of LibTorch, whose own operators have nothing at it: that of
// torchdistx, which has come to its end.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

thread_local at::Generator* of_key = nullptr;  // the innermost NumbersOfKey's

bool is_generator(const c10::Argument& argument) {
  return *argument.type() == *c10::OptionalType::create(c10::GeneratorType::get());
}

/// Where an operator with this argument draws; none: it does not tell.
std::optional<at::Device> place_of(const c10::IValue& argument) {
  if (argument.isDevice()) return argument.toDevice();
  if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().device();
  return std::nullopt;
}

/// The generator of this replica, or of the key that is set, for what is drawn; null for the
/// default one: where a key has seeded it, and on a device that is not the replica's.
at::Generator* own_generator(std::span<const c10::IValue> given) {
  at::Device where(at::kCPU);
  for (const c10::IValue& argument : given)
    if (const auto place = place_of(argument); place && !place->is_cpu()) where = *place;
  if (of_key != nullptr) return where.is_cpu() ? of_key : nullptr;
  ReplicaContext* const replica = ReplicaContext::current();
  if (replica == nullptr) return nullptr;
  if (!where.is_cpu() && !where.has_index()) where.set_index(replica->device().index());
  if (!where.is_cpu() && where != replica->device()) return nullptr;
  return &replica->generator(where);
}

void draw(const OperatorHandle& op, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto given = std::span(*stack).last(arguments.size());
  if (at::Generator* const own = own_generator(given))
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

// Replicas may share a device.
static std::recursive_mutex& turns_on(at::Device device) {
  static std::mutex of_all;
  static std::map<std::pair<at::DeviceType, at::DeviceIndex>, std::recursive_mutex> by_device;
  const std::scoped_lock lock(of_all);
  return by_device[{device.type(), device.index()}];
}

NumbersOfKey::NumbersOfKey(uint64_t key, at::Device device)
    : guard_(tutti::detail::key()), own_(at::make_generator<at::CPUGeneratorImpl>(key)) {
  if (!device.is_cpu() && !device.is_meta()) lend(key, device);
  outer_ = std::exchange(of_key, &own_);
}

void NumbersOfKey::lend(uint64_t key, at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  turn_ = std::unique_lock(turns_on(generator.device()));
  state_ = generator.get_state();
  try {
    generator.set_current_seed(key);
  } catch (...) {
    generator.set_state(state_);
    throw;
  }
  lent_ = generator;
}

NumbersOfKey::~NumbersOfKey() {
  of_key = outer_;
  if (!lent_.defined()) return;
  try {
    lent_.set_state(state_);
  } catch (const std::exception& error) {
    log(LogLevel::warning, "the generator of {} goes on from a key's numbers: {}",
        lent_.device().str(), error.what());
  }
}

at::Generator generator_of_operators() {
  if (of_key != nullptr) return *of_key;
  ReplicaContext* const replica = ReplicaContext::current();
  if (replica != nullptr && c10::impl::tls_is_dispatch_key_included(kKey))
    return replica->generator(at::kCPU);
  return at::detail::getDefaultCPUGenerator();
}

}  // namespace tutti::detail
