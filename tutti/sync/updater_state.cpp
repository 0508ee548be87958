#include "tutti/sync/detail/updater_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <map>

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

void require_parameters(const Slots& layout, const NamedTensors& parameters) {
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
                                           const Slots& layout, const NamedTensors& parameters,
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

namespace {

constexpr const char* kSteps = "steps";
constexpr const char* kResidual = "residual";
constexpr const char* kFactor = "factor";

Array copy_of_kept(const std::string& name, const at::Tensor& tensor, std::vector<int64_t> shape) {
  if (tensor.scalar_type() != at::kFloat || tensor.sizes() != at::IntArrayRef(shape))
    throw UsageError(fmt::format("compression's \"{}\": got {}, expected Float [{}]", name,
                                 shape_words(tensor), fmt::join(shape, ", ")));
  const at::Tensor from = tensor.contiguous();
  Array copy = Array::zeros(DType::float32, std::move(shape));
  std::memcpy(copy.data(), from.data_ptr(), static_cast<size_t>(copy.num_bytes()));
  return copy;
}

at::Tensor view_of(const Array& array) {
  return at::from_blob(array.data(), array.shape(), at::kFloat);
}

}  // namespace

NamedTensors tensors_of(const BucketState& state, const Slots& layout) {
  NamedTensors tensors{{kSteps, at::scalar_tensor(state.step, at::kLong)}};
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    const auto& [residual, factor] = state.tensors[i];
    const std::string& name = layout.slots[i].name;
    if (residual.num_elements() > 0)
      tensors.emplace_back(state_tensor_name(kResidual, name), view_of(residual));
    if (factor.num_elements() > 0)
      tensors.emplace_back(state_tensor_name(kFactor, name), view_of(factor));
  }
  return tensors;
}

BucketState bucket_state_of(const NamedTensors& tensors, const Slots& layout,
                            const Compression& compression) {
  std::map<std::string, at::Tensor> rest(tensors.begin(), tensors.end());
  const auto take = [&](const std::string& name, std::vector<int64_t> shape) {
    const auto node = rest.extract(name);
    return node ? copy_of_kept(name, node.mapped(), std::move(shape)) : Array();
  };
  BucketState state;
  for (const ParameterSlot& slot : layout.slots) {
    CodedState& kept = state.tensors.emplace_back();
    if (!compresses(compression, slot.dtype, slot.shape)) continue;
    const auto [rows, columns] = matrix_of(slot.shape);
    kept.residual = take(state_tensor_name(kResidual, slot.name), {slot.num_elements});
    kept.factor = take(state_tensor_name(kFactor, slot.name),
                       {factor_rank(compression, rows, columns), columns});
  }
  if (const auto steps = rest.extract(kSteps)) state.step = steps.mapped().item<int64_t>();
  if (!rest.empty())
    throw UsageError(fmt::format("compression {} keeps no \"{}\" of this model",
                                 to_string(compression), rest.begin()->first));
  return state;
}

void copy_states(const UpdaterState& state, NamedTensors& own) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : own) tensor.copy_(tensor_named(state, name));
}

}  // namespace detail
}  // namespace tutti
