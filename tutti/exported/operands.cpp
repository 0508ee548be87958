#include "tutti/exported/detail/operands.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/base/error.h"

namespace tutti::exported::detail {
namespace {

using c10::IValue;
using c10::TypeKind;
using pt2::ValueName;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

Operand constant(IValue value) {
  return {.kind = Operand::Kind::constant, .value = std::move(value)};
}

at::MemoryFormat memory_format_of(pt2::MemoryFormat format) {
  switch (format) {
    case pt2::MemoryFormat::channels_last: return at::MemoryFormat::ChannelsLast;
    case pt2::MemoryFormat::channels_last_3d: return at::MemoryFormat::ChannelsLast3d;
    case pt2::MemoryFormat::preserve: return at::MemoryFormat::Preserve;
    default: return at::MemoryFormat::Contiguous;
  }
}

c10::TypePtr without_optional(c10::TypePtr type) {
  while (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type;
}

[[noreturn]] void refuse(const c10::Argument& argument) {
  throw DataError(
      fmt::format("argument \"{}\" is no {}", argument.name(), argument.real_type()->str()));
}

/// A number or text of the file; none for what is no plain constant.
std::optional<IValue> plain_value(const pt2::Argument& given) {
  using Value = std::optional<IValue>;
  return std::visit(
      Overloaded{
          [](pt2::None) -> Value { return IValue(); }, [](bool value) -> Value { return value; },
          [](int64_t value) -> Value { return value; }, [](double value) -> Value { return value; },
          [](const std::complex<double>& value) -> Value {
            return c10::complex<double>(value.real(), value.imag());
          },
          [](const std::string& value) -> Value { return value; },
          [](pt2::Element value) -> Value { return scalar_type_of(value); },
          [](pt2::MemoryFormat value) -> Value { return memory_format_of(value); },
          [](pt2::Strided) -> Value { return at::kStrided; },
          [](const auto&) -> Value { return std::nullopt; }},
      given.value);
}

template <class T>
IValue constant_list(const std::vector<Operand>& items) {
  c10::List<T> list;
  for (const Operand& item : items) {
    if constexpr (std::is_same_v<T, double>)
      list.push_back(item.value.toScalar().toDouble());
    else if constexpr (std::is_same_v<T, bool>)
      list.push_back(item.value.toBool());
    else
      list.push_back(item.value.toInt());
  }
  return list;
}

/// A list whose numbers are all known is one constant.
Operand numbers_of(std::vector<Operand> items, TypeKind kind) {
  const bool known = std::ranges::all_of(
      items, [](const Operand& item) { return item.kind == Operand::Kind::constant; });
  if (kind == TypeKind::FloatType) {
    if (known) return constant(constant_list<double>(items));
    return {.kind = Operand::Kind::reals, .items = std::move(items)};
  }
  if (kind == TypeKind::BoolType) {
    if (!known) throw DataError("a list of truth values that the graph computes");
    return constant(constant_list<bool>(items));
  }
  if (known) return constant(constant_list<int64_t>(items));
  return {.kind = Operand::Kind::integers, .items = std::move(items)};
}

/// Of a dtype, layout or memory format, which LibTorch takes as numbers that it does not check: the
/// file says them by their own kinds.
void require_word(const pt2::Argument& given, const c10::Argument& argument) {
  const auto is = [&]<class T>(std::type_identity<T>) {
    return std::holds_alternative<T>(given.value) || std::holds_alternative<pt2::None>(given.value);
  };
  bool sound = true;
  switch (without_optional(argument.real_type())->kind()) {
    case TypeKind::ScalarTypeType: sound = is(std::type_identity<pt2::Element>()); break;
    case TypeKind::LayoutType: sound = is(std::type_identity<pt2::Strided>()); break;
    case TypeKind::MemoryFormatType: sound = is(std::type_identity<pt2::MemoryFormat>()); break;
    default: break;
  }
  if (!sound) refuse(argument);
}

Operand scalar_of(const pt2::Argument& given, const c10::TypePtr& type,
                  const c10::Argument& argument, const SlotOf& slot) {
  const TypeKind kind = type->kind();
  require_word(given, argument);
  if (const auto* name = std::get_if<ValueName>(&given.value))
    return {.kind = kind == TypeKind::TensorType ? Operand::Kind::tensor_or_number
                                                 : Operand::Kind::slot,
            .slot = slot(name->name)};
  if (std::holds_alternative<pt2::DeviceName>(given.value) && kind == TypeKind::DeviceObjType)
    return {.kind = Operand::Kind::device};
  const std::optional<IValue> value = plain_value(given);
  if (!value) refuse(argument);
  if (value->isNone()) {
    if (argument.type()->kind() != TypeKind::OptionalType) refuse(argument);
    return constant(IValue());
  }
  const bool is_number = value->isInt() || value->isDouble() || value->isBool();
  const bool is_scalar = is_number || value->isComplexDouble();
  switch (kind) {
    case TypeKind::TensorType:
      if (!is_scalar) refuse(argument);
      return constant(wrapped_number(*value));
    case TypeKind::NumberType:
      if (!is_scalar) refuse(argument);
      return constant(*value);
    case TypeKind::FloatType:
      if (!is_number) refuse(argument);
      return constant(value->toScalar().toDouble());
    case TypeKind::IntType:
      if (!value->isInt() && !value->isBool()) refuse(argument);
      return constant(value->toScalar().toLong());
    case TypeKind::BoolType:
      if (!value->isInt() && !value->isBool()) refuse(argument);
      return constant(value->toScalar().toLong() != 0);
    case TypeKind::StringType:
      if (!value->isString()) refuse(argument);
      return constant(*value);
    default: refuse(argument);
  }
}

Operand list_operand(const pt2::List& given, const c10::TypePtr& element,
                     const c10::Argument& argument, const SlotOf& slot) {
  const c10::TypePtr inner = without_optional(element);
  const bool optional = element->kind() == TypeKind::OptionalType;
  std::vector<Operand> items;
  for (const pt2::Argument& one : given) {
    if (inner->kind() == TypeKind::TensorType) {
      const auto* name = std::get_if<ValueName>(&one.value);
      const bool none = std::holds_alternative<pt2::None>(one.value);
      if (name == nullptr && !(none && optional)) refuse(argument);
      items.push_back(name != nullptr
                          ? Operand{.kind = Operand::Kind::slot, .slot = slot(name->name)}
                          : Operand{});
    } else {
      if (std::holds_alternative<pt2::None>(one.value)) refuse(argument);
      items.push_back(scalar_of(one, inner, argument, slot));
    }
  }
  switch (inner->kind()) {
    case TypeKind::TensorType:
      return {.kind = optional ? Operand::Kind::optional_tensors : Operand::Kind::tensors,
              .items = std::move(items)};
    case TypeKind::IntType:
    case TypeKind::FloatType:
    case TypeKind::BoolType: return numbers_of(std::move(items), inner->kind());
    default: refuse(argument);
  }
}

/// Operators with a kernel of their own that do the same, on some device.
bool shares_memory(std::string_view name) {
  static constexpr std::string_view kShares[] = {"pixel_shuffle", "pixel_unshuffle", "unsafe_split",
                                                 "unsafe_split_with_sizes"};
  return std::ranges::find(kShares, name) != std::end(kShares);
}

/// Composite operators may give back what they are given, or a view of it, without a word of it in
/// their schemas (dropout in evaluation, type_as, einsum): all do, but these.
bool computes_anew(std::string_view name) {
  static constexpr std::string_view kAnew[] = {"adaptive_avg_pool1d",
                                               "adaptive_avg_pool2d",
                                               "adaptive_avg_pool3d",
                                               "batch_norm",
                                               "conv1d",
                                               "conv2d",
                                               "conv3d",
                                               "conv_transpose1d",
                                               "conv_transpose2d",
                                               "conv_transpose3d",
                                               "embedding_bag",
                                               "group_norm",
                                               "gru",
                                               "instance_norm",
                                               "layer_norm",
                                               "linear",
                                               "log_softmax",
                                               "lstm",
                                               "matmul",
                                               "max_pool1d",
                                               "max_pool2d",
                                               "max_pool3d",
                                               "rms_norm",
                                               "scaled_dot_product_attention",
                                               "softmax"};
  return std::ranges::find(kAnew, name) != std::end(kAnew);
}

}  // namespace

at::Tensor wrapped_number(const IValue& number) {
  at::Tensor tensor = at::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

at::ScalarType scalar_type_of(pt2::Element element) {
  switch (element) {
    case pt2::Element::uint8: return at::kByte;
    case pt2::Element::int8: return at::kChar;
    case pt2::Element::int16: return at::kShort;
    case pt2::Element::int32: return at::kInt;
    case pt2::Element::int64: return at::kLong;
    case pt2::Element::float16: return at::kHalf;
    case pt2::Element::float32: return at::kFloat;
    case pt2::Element::float64: return at::kDouble;
    case pt2::Element::complex64: return at::kComplexFloat;
    case pt2::Element::complex128: return at::kComplexDouble;
    case pt2::Element::boolean: return at::kBool;
    case pt2::Element::bfloat16: return at::kBFloat16;
  }
  return at::kFloat;
}

Operand operand_of(const pt2::Argument& given, const c10::Argument& argument, const SlotOf& slot) {
  const c10::TypePtr type = without_optional(argument.type());
  const auto list_type = type->cast<c10::ListType>();
  if (!list_type || std::holds_alternative<pt2::None>(given.value))
    return scalar_of(given, type, argument, slot);
  if (const auto* list = std::get_if<pt2::List>(&given.value))
    return list_operand(*list, list_type->getElementType(), argument, slot);
  // int[2] may be given as one number, for both.
  const auto times = static_cast<size_t>(argument.N().value_or(1));
  return list_operand(pt2::List(times, given), list_type->getElementType(), argument, slot);
}

Operand operand_of(const pt2::Argument& given, const SlotOf& slot) {
  if (const auto* name = std::get_if<ValueName>(&given.value))
    return {.kind = Operand::Kind::slot, .slot = slot(name->name)};
  if (const auto* list = std::get_if<pt2::List>(&given.value)) {
    Operand operand{.kind = Operand::Kind::tensors};
    for (const pt2::Argument& one : *list) {
      if (!std::holds_alternative<ValueName>(one.value))
        throw DataError("a list of other things than values");
      operand.items.push_back(operand_of(one, slot));
    }
    return operand;
  }
  if (const auto value = plain_value(given)) return constant(*value);
  if (const auto* unread = std::get_if<pt2::Unread>(&given.value))
    throw DataError(fmt::format("an argument of kind {}", unread->kind));
  throw DataError("an argument that is no value");
}

bool may_give_back(const c10::OperatorHandle& op) {
  const std::string_view whole = op.schema().name(), name = whole.substr(whole.find("::") + 2);
  if (shares_memory(name)) return true;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !computes_anew(name);
}

std::optional<c10::IValue> constant_of(const Call& call, std::string_view name) {
  const auto& arguments = call.op->schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == name && call.inputs[i].kind == Operand::Kind::constant)
      return call.inputs[i].value;
  return std::nullopt;
}

bool draws(const Call& call) {
  if (!call.op || call.inputs.size() != call.op->schema().arguments().size()) return false;
  bool drops = false;  // numbers of LSTMs' dropout are drawn within them
  for (const std::string_view name : {"training", "train"})
    if (const auto mode = constant_of(call, name); mode && mode->isBool()) {
      if (!mode->toBool()) return false;
      drops = true;
    }
  for (const std::string_view name : {"p", "dropout", "dropout_p"}) {
    const auto rate = constant_of(call, name);
    if (!rate || !rate->isDouble()) continue;
    if (rate->toDouble() == 0) return false;
    if (drops || name == "dropout_p") return true;
  }
  return call.op->hasTag(at::Tag::nondeterministic_seeded);
}

}  // namespace tutti::exported::detail
