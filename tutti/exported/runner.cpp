#include "tutti/exported/detail/runner.h"

#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/random.h"
#include "tutti/exported/detail/operands.h"
#include "tutti/nn/sample_context.h"
#include "tutti/strategy/detail/own_random_numbers.h"
#include "tutti/sync/on_devices/detail/captured_steps.h"

namespace tutti::exported::detail {
namespace {

using c10::IValue;
using Values = std::vector<IValue>;

/// As torch.autocast: on, off and cache as they were once it goes.
class Autocast {
 public:
  Autocast(at::DeviceType type, const IValue& dtype, bool on, const IValue& cache)
      : type_(type),
        was_on_(at::autocast::is_autocast_enabled(type)),
        had_cache_(at::autocast::is_autocast_cache_enabled()),
        had_dtype_(at::autocast::get_autocast_dtype(type)) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(type, on);
    if (!dtype.isNone()) at::autocast::set_autocast_dtype(type, dtype.toScalarType());
    if (!cache.isNone()) at::autocast::set_autocast_cache_enabled(cache.toBool());
  }
  Autocast(const Autocast&) = delete;
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type_, was_on_);
    at::autocast::set_autocast_dtype(type_, had_dtype_);
    at::autocast::set_autocast_cache_enabled(had_cache_);
  }

 private:
  at::DeviceType type_;
  bool was_on_, had_cache_;
  at::ScalarType had_dtype_;
};

uint64_t key_within(uint64_t key, std::initializer_list<uint64_t> parts) {
  return random_key(key, RandomPurpose::operators, parts);
}

/// Of what is drawn here; none: from generators. A step that is captured would have it for ever.
std::optional<uint64_t> key_of_place() {
  const nn::SampleContext* const context = nn::SampleContext::current();
  if (context == nullptr || tutti::detail::captures_step()) return std::nullopt;
  const nn::SamplePlace& place = context->place();
  return key_within(place.seed,
                    {static_cast<uint64_t>(place.step), static_cast<uint64_t>(place.first_row)});
}

class Run {
 public:
  Run(const CallPlan& plan, c10::Device device, std::optional<uint64_t> key)
      : plan_(plan), device_(device), key_(key), slots_(static_cast<size_t>(plan.num_slots)) {}

  Values operator()(Values values) {
    for (size_t i = 0; i < plan_.inputs.size(); ++i)
      if (plan_.inputs[i] >= 0) at(plan_.inputs[i]) = std::move(values[i]);
    values.clear();
    for (const Call& call : plan_.calls) {
      stack_.clear();
      compute(call);
      keep(call);
      for (const int dead : call.dead) at(dead) = IValue();
    }
    Values outputs;
    for (const Operand& output : plan_.outputs) add_flat(value_of(output), outputs);
    return outputs;
  }

 private:
  IValue& at(int slot) { return slots_[static_cast<size_t>(slot)]; }

  template <class T, class Get>
  IValue list_of(const Operand& operand, Get get) {
    c10::List<T> list;
    list.reserve(operand.items.size());
    for (const Operand& item : operand.items) list.push_back(get(value_of(item)));
    return list;
  }

  IValue value_of(const Operand& operand) {
    using Kind = Operand::Kind;
    switch (operand.kind) {
      case Kind::constant: return operand.value;
      case Kind::slot: return at(operand.slot);
      case Kind::tensor_or_number: {
        const IValue& value = at(operand.slot);
        return value.isTensor() || value.isNone() ? value : IValue(wrapped_number(value));
      }
      case Kind::device: return device_;
      case Kind::tensors:
        return list_of<at::Tensor>(operand, [](const IValue& v) { return v.toTensor(); });
      case Kind::optional_tensors:
        return list_of<std::optional<at::Tensor>>(
            operand, [](const IValue& v) { return v.toOptional<at::Tensor>(); });
      case Kind::integers:
        return list_of<int64_t>(operand, [](const IValue& v) { return v.toInt(); });
      case Kind::reals:
        return list_of<double>(operand, [](const IValue& v) { return v.toScalar().toDouble(); });
      case Kind::plan: break;
    }
    throw Error("a graph where a value is needed");
  }

  static void add_flat(const IValue& value, Values& values) {
    if (!value.isTensorList()) return values.push_back(value);
    for (const at::Tensor& tensor : value.toTensorVector()) values.emplace_back(tensor);
  }

  void compute(const Call& call) try {
    if (call.region != Region::none) {
      stack_ = region(call);
      return;
    }
    for (const Operand& input : call.inputs) stack_.push_back(value_of(input));
    if (!call.op) {
      stack_ = {call.number->compute(stack_)};
      return;
    }
    std::optional<tutti::detail::NumbersOfKey> numbers;
    if (call.draws && key_) numbers.emplace(key_within(*key_, {call.draw}), device_);
    call.op->callBoxed(stack_);
  } catch (c10::Error& error) {
    error.add_context("in " + call.words);
    throw;
  }

  /// The graph within, with what is set around it.
  Values region(const Call& call) {
    const auto within = [&](size_t graph, size_t first) {
      Values values;
      for (size_t i = first; i < call.inputs.size(); ++i)
        add_flat(value_of(call.inputs[i]), values);
      std::optional<uint64_t> key;
      if (key_) key = key_within(*key_, {call.draw, graph});
      return Run(*call.inputs[graph].plan, device_, key)(std::move(values));
    };
    switch (call.region) {
      case Region::cond: {
        const IValue chosen = value_of(call.inputs[0]);
        const bool yes = chosen.isTensor() ? chosen.toTensor().item<bool>() : chosen.toBool();
        return within(yes ? 1 : 2, 3);
      }
      case Region::set_grad: {
        const c10::AutoGradMode mode(value_of(call.inputs[0]).toBool());
        return within(1, 2);
      }
      default: {
        const Autocast autocast(device_.type(), value_of(call.inputs[1]),
                                value_of(call.inputs[2]).toBool(), value_of(call.inputs[3]));
        return within(4, 5);
      }
    }
  }

  void keep(const Call& call) {
    size_t next = 0;
    for (const CallOutput& output : call.outputs) {
      if (!output.is_list || call.region != Region::none) {
        for (const int slot : output.slots) {
          if (slot >= 0) at(slot) = stack_.at(next);
          ++next;
        }
        continue;
      }
      const auto made = stack_.at(next++).toTensorVector();
      if (made.size() != output.slots.size())
        throw UsageError(fmt::format(
            "forward: {} gave a list of {}, at export of {}: what its length depends on must not "
            "change",
            call.words, made.size(), output.slots.size()));
      for (size_t i = 0; i < made.size(); ++i)
        if (output.slots[i] >= 0) at(output.slots[i]) = made[i];
    }
  }

  const CallPlan& plan_;
  c10::Device device_;
  std::optional<uint64_t> key_;  // of random numbers
  Values slots_, stack_;
};

}  // namespace

std::vector<IValue> run_calls(const CallPlan& plan, std::vector<IValue> values,
                              c10::Device device) {
  return Run(plan, device, key_of_place())(std::move(values));
}

}  // namespace tutti::exported::detail
