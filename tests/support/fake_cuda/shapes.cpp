#include "tests/support/fake_cuda/shapes.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <bit>

#include "tests/support/fake_cuda/kernels.h"
#include "tests/support/fake_cuda/queues.h"

namespace tutti::test::fake_cuda {
namespace {

// Shapes of a training are few; where each step has others, old ones are forgotten.
constexpr size_t kMostRehearsals = 4096;

bool is_number(c10::TypePtr type) {
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

bool is_generator(c10::TypePtr type) {
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::GeneratorType;
}

bool is_tensors(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::TensorType::get()) ||
         type->isSubtypeOf(*c10::ListType::ofTensors());
}

int argument_of(const c10::FunctionSchema& schema, const c10::AliasInfo& returned) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* const alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == returned.beforeSets())
      return static_cast<int>(i);
  }
  return -1;
}

using Words = std::vector<int64_t>;

void add_tensor(Words& words, const at::Tensor& t) {
  if (!t.defined()) return words.push_back(-1);
  const auto wrapped = t.unsafeGetTensorImpl()->is_wrapped_number() ? 2 : 0;
  words.push_back(t.dim() * 4 + wrapped + (t.is_cuda() ? 1 : 0));
  words.push_back(static_cast<int64_t>(t.scalar_type()));
  words.insert(words.end(), t.sizes().begin(), t.sizes().end());
  words.insert(words.end(), t.strides().begin(), t.strides().end());
}

void add_value(Words& words, const c10::IValue& value, bool counts) {
  if (value.isTensor()) return add_tensor(words, value.toTensor());
  words.push_back(value.isNone() ? -2 : value.isInt() ? -3 : value.isDouble() ? -4 : -5);
  if (value.isInt()) {
    words.push_back(counts ? value.toInt() : 0);
  } else if (value.isDouble()) {
    words.push_back(counts ? std::bit_cast<int64_t>(value.toDouble()) : 0);
  } else if (value.isBool()) {
    words.push_back(value.toBool() ? 1 : 0);
  } else if (value.isString()) {
    words.push_back(static_cast<int64_t>(std::hash<std::string_view>{}(value.toStringView())));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    words.push_back(static_cast<int64_t>(list.size()));
    for (const auto& each : list) add_value(words, each, true);
  }
}

// Ints are most of the lists: without a copy into values.
void add_argument(Words& words, const c10::IValue& value, bool counts) {
  if (!value.isIntList()) return add_value(words, value, counts);
  const auto list = value.toIntVector();
  words.push_back(static_cast<int64_t>(list.size()));
  words.insert(words.end(), list.begin(), list.end());
}

at::Tensor zeros_like(const at::Tensor& t) {
  if (!is_ours(t)) return t;
  auto zeros = at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCPU)).zero_();
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    zeros.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return zeros;
}

// Throws c10::NotImplementedError for tensors that are not strided.
Shape shape_of(const at::Tensor& t) {
  if (!t.defined()) return {};
  return {.defined = true,
          .sizes = t.sizes().vec(),
          .strides = t.strides().vec(),
          .dtype = t.scalar_type()};
}

Rehearsal rehearse(const c10::OperatorHandle& op, const Facts& facts,
                   std::span<const c10::IValue> args) {
  const KernelScope kernels;
  torch::jit::Stack stack;
  for (const auto& arg : args) stack.push_back(map_tensors(arg, zeros_like));
  if (facts.generator >= 0) stack[facts.generator] = at::detail::createCPUGenerator();
  const torch::jit::Stack before(stack);
  op.callBoxed(&stack);

  Rehearsal found;
  for (const auto& value : stack) {
    ReturnShapes shapes{.is_list = value.isTensorList(), .tensors = {}};
    for_each_tensor(value, [&](const at::Tensor& t) { shapes.tensors.push_back(shape_of(t)); });
    found.returns.push_back(std::move(shapes));
  }
  for (size_t i = 0; i < args.size(); ++i) {
    if (!facts.is_written[i] || !args[i].isTensor()) continue;
    const auto& now = before[i].toTensor();
    if (now.sizes() != args[i].toTensor().sizes()) found.resized.emplace_back(i, shape_of(now));
  }
  return found;
}

}  // namespace

size_t WordsHash::operator()(const std::vector<int64_t>& words) const noexcept {
  uint64_t hash = words.size();
  for (const int64_t word : words) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

Facts::Facts(const c10::OperatorHandle& op) : name(c10::toString(op.operator_name())) {
  const auto& schema = op.schema();
  arguments = schema.arguments().size();
  const bool by_values = name.find("range") != std::string::npos;  // arange, range
  for (size_t i = 0; i < arguments; ++i) {
    const auto& argument = schema.arguments()[i];
    const auto* const alias = argument.alias_info();
    is_written.push_back(alias != nullptr && alias->isWrite());
    if (is_written[i] && argument.is_out()) outputs.push_back(i);
    value_counts.push_back(by_values || !is_number(argument.type()));
    if (is_generator(argument.type())) generator = static_cast<int>(i);
  }
  for (const auto& returned : schema.returns()) {
    const auto* const alias = returned.alias_info();
    returns_tensors = returns_tensors && is_tensors(returned.type());
    returns_view = returns_view || (alias != nullptr && !alias->isWrite());
    same_as.push_back(alias == nullptr ? -1 : argument_of(schema, *alias));
  }
  takes_indices = name.starts_with("aten::index.") || name.starts_with("aten::_index_put_impl_");
  shapes_depend_on_values = !takes_indices && op.hasTag(at::Tag::dynamic_output_shape);
}

const Facts& facts_of(const c10::OperatorHandle& op) {
  static auto& all = *std::make_unique<std::unordered_map<c10::OperatorHandle, Facts>>().release();
  const Lock lock(lock_of_all());
  const auto found = all.find(op);
  return found != all.end() ? found->second : all.emplace(op, Facts(op)).first->second;
}

std::shared_ptr<const Rehearsal> rehearsal_of(const c10::OperatorHandle& op, const Facts& facts,
                                              std::span<const c10::IValue> args) {
  thread_local Words words;
  words.clear();
  for (size_t i = 0; i < args.size(); ++i) add_argument(words, args[i], facts.value_counts[i]);
  {
    const Lock lock(lock_of_all());
    const auto found = facts.rehearsals.find(words);
    if (found != facts.rehearsals.end()) return found->second;
  }
  const Words key = words;  // a kernel may call operators of ours
  std::shared_ptr<const Rehearsal> made;
  try {
    made = std::make_shared<const Rehearsal>(rehearse(op, facts, args));
  } catch (const std::exception&) {
    return nullptr;  // it runs at once, where the same kernel says what is wrong
  }
  const Lock lock(lock_of_all());
  if (facts.rehearsals.size() > kMostRehearsals) facts.rehearsals.clear();
  facts.rehearsals.emplace(key, made);
  return made;
}

}  // namespace tutti::test::fake_cuda
