#include "tutti/sync/detail/updater_state.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"

namespace tutti {

UpdaterState Updater::state() const {
  throw UsageError(
      "the parameters are on servers, which keep snapshots of them (--snapshots); checkpoints of "
      "fit are for the other strategies");
}

void Updater::restore(const UpdaterState&, const NamedTensors&) { state(); }

namespace detail {
namespace {

constexpr int64_t kNumbersOfScalars = 5;

bool alike(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

std::string shape_words(const at::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), " ", tensor.sizes());
}

}  // namespace

std::string state_tensor_name(std::string_view state, std::string_view parameter) {
  return fmt::format("{}/{}", state, parameter);
}

at::Tensor tensor_of_scalars(const std::vector<optim::StepScalars>& scalars) {
  at::Tensor tensor = at::empty({std::ssize(scalars), kNumbersOfScalars}, at::kDouble);
  auto* to = tensor.data_ptr<double>();
  for (const optim::StepScalars& one : scalars)
    for (const double number : {one.learning_rate, one.beta1_power, one.beta2_power,
                                one.decay_power, static_cast<double>(one.count)})
      *to++ = number;
  return tensor;
}

void require_kind(const UpdaterState& state, std::string_view kind) {
  if (state.kind != kind)
    throw UsageError(
        fmt::format("the state is that of optimizer {}; compile() was given {}", state.kind, kind));
}

const at::Tensor& tensor_named(const UpdaterState& state, std::string_view name) {
  for (const auto& [known, tensor] : state.tensors)
    if (known == name) return tensor;
  throw UsageError(fmt::format("the state of optimizer {} lacks \"{}\"", state.kind, name));
}

void require_parameters(const Layout& layout, const NamedTensors& parameters) {
  if (parameters.size() != layout.slots.size())
    throw UsageError(
        fmt::format("{} parameters, the model has {}", parameters.size(), layout.slots.size()));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, tensor] = parameters[i];
    const ParameterSlot& slot = layout.slots[i];
    if (name != slot.name || dtype_of(tensor.scalar_type()) != slot.dtype ||
        tensor.sizes() != at::IntArrayRef(slot.shape))
      throw UsageError(fmt::format("parameter \"{}\", {}: the model has \"{}\" there", name,
                                   shape_words(tensor), slot.name));
  }
}

std::vector<optim::StepScalars> scalars_of(const UpdaterState& state, std::string_view kind,
                                           const Layout& layout, const NamedTensors& parameters,
                                           const NamedTensors& own) {
  require_kind(state, kind);
  require_parameters(layout, parameters);
  for (const auto& [name, tensor] : own)
    if (const at::Tensor& theirs = tensor_named(state, name); !alike(theirs, tensor))
      throw UsageError(fmt::format("the optimizer's \"{}\": got {}, expected {}", name,
                                   shape_words(theirs), shape_words(tensor)));
  const at::Tensor& numbers = tensor_named(state, kScalarsName);
  const auto count = std::ssize(layout.slots);
  if (numbers.scalar_type() != at::kDouble ||
      numbers.sizes() != at::IntArrayRef{count, kNumbersOfScalars})
    throw UsageError(fmt::format("the optimizer's \"{}\": got {}, expected Double [{}, {}]",
                                 kScalarsName, shape_words(numbers), count, kNumbersOfScalars));
  const at::Tensor rows = numbers.contiguous();
  const auto* from = rows.data_ptr<double>();
  std::vector<optim::StepScalars> scalars;
  for (int64_t i = 0; i < count; ++i, from += kNumbersOfScalars)
    scalars.push_back({from[0], from[1], from[2], from[3], static_cast<int64_t>(from[4])});
  return scalars;
}

void copy_states(const UpdaterState& state, NamedTensors& own) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : own) tensor.copy_(tensor_named(state, name));
}

}  // namespace detail
}  // namespace tutti
