#include "tutti/exported/detail/call_plan.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/exported/detail/operands.h"
#include "tutti/exported/detail/served.h"

namespace tutti::exported::detail {
namespace {

using pt2::ValueName;

constexpr int kAtTheEnd = std::numeric_limits<int>::max();

Region region_of(const OperatorWords& words) {
  if (!is_region(words)) return Region::none;
  if (words.name == "cond") return Region::cond;
  return words.name == "wrap_with_autocast" ? Region::autocast : Region::set_grad;
}

/// What export adds so that a program notices when it runs on other types than it saw. Eager has no
/// such check, and in another precision (fit's autocast) the types are others.
bool is_guard(const pt2::Node& node) {
  return node.target == "torch.ops.aten._assert_tensor_metadata.default" &&
         std::ranges::all_of(node.outputs, [](const pt2::NodeOutput& output) {
           return std::ranges::all_of(output.names, &std::string::empty);
         });
}

class Planner {
 public:
  Planner(const pt2::Graph& graph, PlanNotes& notes) : graph_(graph), notes_(notes) {}

  std::shared_ptr<const CallPlan> plan() {
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      const auto* name = std::get_if<ValueName>(&graph_.inputs[i].value);
      plan_->inputs.push_back(name != nullptr ? define(name->name) : -1);
      if (name != nullptr) input_of_.emplace(plan_->inputs.back(), i);
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (is_guard(graph_.nodes[i])) continue;
      now_ = static_cast<int>(plan_->calls.size());
      plan_->calls.push_back(call_of(graph_.nodes[i]));
      plan_->nodes.push_back(i);
    }
    now_ = kAtTheEnd;
    for (const pt2::Argument& output : graph_.outputs) plan_->outputs.push_back(output_of(output));
    end_lives();
    plan_->num_slots = static_cast<int>(last_use_.size());
    plan_->memory = std::move(memory_);
    return std::move(plan_);
  }

 private:
  int define(const std::string& name) {
    const int slot = static_cast<int>(last_use_.size());
    slots_[name] = slot;
    plan_->names.push_back(name);
    last_use_.push_back(-1);
    memory_.push_back({.root = slot, .perhaps = {slot}});
    return slot;
  }

  int use(const std::string& name) {
    const int slot = slots_.at(name);
    last_use_[static_cast<size_t>(slot)] = now_;
    reads_.insert(slot);
    return slot;
  }

  SlotOf slot() {
    return [this](const std::string& name) { return use(name); };
  }

  static std::string name_of(const pt2::Node& node) {
    const OperatorWords words = operator_words(node.target);
    return words.name.empty() ? node.target : words.text();
  }

  void not_served(const pt2::Node& node, std::string reason) {
    notes_.not_served.push_back({name_of(node), std::move(reason), node.line});
  }

  void differs(const pt2::Node& node, std::string reason) {
    notes_.by_mode.push_back({name_of(node), std::move(reason), node.line});
  }

  Call call_of(const pt2::Node& node) {
    Call call;
    reads_.clear();
    changed_.clear();
    region_operands_.clear();
    call.words = name_of(node) + (node.line.empty() ? "" : ", " + node.line);
    try {
      fill(call, node);
    } catch (const DataError& error) {
      not_served(node, error.what());
    }
    for (const pt2::NodeOutput& output : node.outputs) {
      CallOutput& made = call.outputs.emplace_back(CallOutput{.is_list = output.is_list});
      for (const std::string& name : output.names)
        made.slots.push_back(name.empty() ? -1 : define(name));
    }
    follow_memory(call);
    call.reads.assign(reads_.begin(), reads_.end());
    call.writes.assign(changed_.begin(), changed_.end());
    call.draws = call.draws || draws(call);
    if (call.draws) call.draw = draws_++;
    return call;
  }

  void fill(Call& call, const pt2::Node& node) {
    call.number = number_operator(node.target);
    if (call.number != nullptr) return fill_number(call, node);
    const OperatorWords words = operator_words(node.target);
    if (words.name.empty()) return not_served(node, "no operator of LibTorch");
    if (std::string why = why_refused(words); !why.empty()) return not_served(node, std::move(why));
    call.region = region_of(words);
    if (call.region != Region::none) return fill_region(call, node);
    call.op = c10::Dispatcher::singleton().findSchema({"aten::" + words.name, words.overload});
    if (!call.op) return not_served(node, "this LibTorch has no such operator");
    fill_by_schema(call, node);
    note_mode(call, node);
    note_writes(call, node);
  }

  void fill_number(Call& call, const pt2::Node& node) {
    for (const pt2::NodeInput& input : node.inputs)
      call.inputs.push_back(operand_of(input.argument, slot()));
    if (call.inputs.size() != call.number->arity || node.outputs.size() != 1)
      throw DataError(
          fmt::format("{} numbers, expected {}", call.inputs.size(), call.number->arity));
  }

  void fill_by_schema(Call& call, const pt2::Node& node) {
    std::map<std::string_view, const pt2::Argument*> given;
    for (const pt2::NodeInput& input : node.inputs)
      if (!given.emplace(input.name, &input.argument).second)
        throw DataError(fmt::format("argument \"{}\" is given twice", input.name));
    for (const c10::Argument& argument : call.op->schema().arguments()) {
      const auto found = given.find(argument.name());
      if (found != given.end()) {
        call.inputs.push_back(operand_of(*found->second, argument, slot()));
        given.erase(found);
      } else if (const auto& value = argument.default_value()) {
        call.inputs.push_back({.kind = Operand::Kind::constant, .value = *value});
      } else {
        throw DataError(fmt::format("argument \"{}\" is missing", argument.name()));
      }
    }
    if (!given.empty())
      throw DataError(fmt::format("argument \"{}\" is none of its", given.begin()->first));
    require_returns(call.op->schema().returns(), node);
  }

  static void require_returns(const std::vector<c10::Argument>& returns, const pt2::Node& node) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const pt2::NodeOutput& output = node.outputs[i];
      if (i >= returns.size() && !output.is_list && output.names.front().empty()) continue;
      if (i >= returns.size())
        throw DataError(fmt::format("{} outputs, it has {}", node.outputs.size(), returns.size()));
      if (output.is_list != (returns[i].type()->kind() == c10::TypeKind::ListType))
        throw DataError(fmt::format("output {} is a list here or there, and not in the other", i));
    }
  }

  void fill_region(Call& call, const pt2::Node& node) {
    // cond(predicate, if, else, (operands)); set_grad(on, graph, operands...);
    // autocast(device, dtype, on, cache, graph, operands...).
    const std::vector<size_t> graphs = call.region == Region::cond       ? std::vector<size_t>{1, 2}
                                       : call.region == Region::set_grad ? std::vector<size_t>{1}
                                                                         : std::vector<size_t>{4};
    if (node.inputs.size() <= graphs.back()) throw DataError("lacks the graph within it");
    const size_t first_operand = graphs.back() + 1;
    std::vector<int> operands;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (std::ranges::find(graphs, i) != graphs.end()) {
        call.inputs.emplace_back();  // when its operands are known
        continue;
      }
      call.inputs.push_back(operand_of(node.inputs[i].argument, slot()));
      if (i >= first_operand)
        std::ranges::copy(slots_of(call.inputs.back()), std::back_inserter(operands));
    }
    require_settings(call);
    for (const size_t i : graphs) {
      const auto* within =
          std::get_if<std::shared_ptr<const pt2::Graph>>(&node.inputs[i].argument.value);
      if (within == nullptr) throw DataError(fmt::format("input {} is no graph", i));
      call.inputs[i] = {.kind = Operand::Kind::plan, .plan = plan_within(**within)};
      call.draws = call.draws || std::ranges::any_of(call.inputs[i].plan->calls, &Call::draws);
      require_region(*call.inputs[i].plan, operands, node);
    }
    region_operands_ = std::move(operands);
  }

  /// None, or a type that autocast takes, by LibTorch's number.
  static bool is_floating_type(const c10::IValue& type) {
    if (!type.isInt()) return true;
    const auto one = [&](c10::ScalarType known) { return type.toInt() == int64_t(known); };
    return one(c10::kFloat) || one(c10::kDouble) || one(c10::kHalf) || one(c10::kBFloat16);
  }

  /// What is set around a region is known before a run.
  static void require_settings(const Call& call) {
    const auto is = [&](size_t input, auto... kinds) {
      const Operand& given = call.inputs[input];
      return given.kind == Operand::Kind::constant && ((given.value.*kinds)() || ...);
    };
    using c10::IValue;
    const bool sound = call.region == Region::cond ? true
                       : call.region == Region::set_grad
                           ? is(0, &IValue::isBool)
                           : is(1, &IValue::isNone, &IValue::isInt) && is(2, &IValue::isBool) &&
                                 is(3, &IValue::isNone, &IValue::isBool) &&
                                 is_floating_type(call.inputs[1].value);
    if (!sound) throw DataError("what it sets is no constant of its type");
  }

  void require_region(const CallPlan& within, const std::vector<int>& operands,
                      const pt2::Node& node) {
    if (within.inputs.size() != operands.size())
      throw DataError(fmt::format("the graph within takes {} values, it is given {}",
                                  within.inputs.size(), operands.size()));
    size_t outputs = 0;
    for (const pt2::NodeOutput& output : node.outputs) outputs += output.names.size();
    if (within.outputs.size() < outputs)
      throw DataError(fmt::format("the graph within gives {} values, expected {}",
                                  within.outputs.size(), outputs));
    for (const size_t written : within.written_inputs) write_to(operands[written], node);
    for (const size_t written : within.perhaps_written) perhaps_write_to(operands[written]);
    for (const Call& call : within.calls)
      for (const int slot : call.writes) change(operand_at(within, slot, operands));
  }

  Operand output_of(const pt2::Argument& output) {
    try {
      return operand_of(output, slot());
    } catch (const DataError& error) {
      notes_.not_served.push_back({"output", error.what(), ""});
      return {};
    }
  }

  /// -1 for constants; a list's one after another.
  static std::vector<int> slots_of(const Operand& operand) {
    if (operand.kind != Operand::Kind::tensors) return {operand.slot};
    std::vector<int> slots;
    for (const Operand& item : operand.items)
      std::ranges::copy(slots_of(item), std::back_inserter(slots));
    return slots;
  }

  /// The operand of a region that is an input within it; -1: it is no input, or of a constant.
  static int operand_at(const CallPlan& within, int slot, const std::vector<int>& operands) {
    const auto place =
        static_cast<size_t>(std::ranges::find(within.inputs, slot) - within.inputs.begin());
    return slot < 0 || place >= operands.size() ? -1 : operands[place];
  }

  Memory memory_of(int slot) const {
    return slot < 0 ? Memory{} : memory_[static_cast<size_t>(slot)];
  }

  void write_to(int slot, const pt2::Node& node) {
    change(slot);
    perhaps_write_to(slot);
    const auto found = input_of_.find(memory_of(slot).root);
    if (found != input_of_.end() && plan_->written_inputs.insert(found->second).second)
      notes_.writes.push_back(
          {found->second, {name_of(node), "changes a buffer or parameter", node.line}});
  }

  void perhaps_write_to(int slot) {
    for (const int one : memory_of(slot).perhaps)
      if (const auto found = input_of_.find(one); found != input_of_.end())
        plan_->perhaps_written.insert(found->second);
  }

  void change(int slot) { changed_.merge(memory_of(slot).perhaps); }

  std::shared_ptr<const CallPlan> plan_within(const pt2::Graph& graph) {
    PlanNotes notes;
    auto plan = make_call_plan(graph, notes);
    std::ranges::move(notes.not_served, std::back_inserter(notes_.not_served));
    std::ranges::move(notes.by_mode, std::back_inserter(notes_.by_mode));
    return plan;
  }

  void note_writes(const Call& call, const pt2::Node& node) {
    const auto is_on = [&](std::string_view name) {
      const auto mode = constant_of(call, name);
      return mode && mode->isBool() && mode->toBool();
    };
    const bool moves_statistics = is_on("training") || is_on("use_input_stats");
    const auto& arguments = call.op->schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      const bool writes = alias != nullptr && alias->isWrite();
      // Of batch norms, whose schemas do not say it.
      const bool is_statistic = arguments[i].name().starts_with("running_");
      for (const int slot : slots_of(call.inputs[i])) {
        if (writes) write_to(slot, node);
        if (is_statistic) perhaps_write_to(slot);
        if (is_statistic && moves_statistics) change(slot);
      }
    }
  }

  /// Where the memory of what a call gives may be that of what it was given.
  void follow_memory(const Call& call) {
    if (call.region != Region::none)
      follow_region(call);
    else if (call.op && call.inputs.size() == call.op->schema().arguments().size())
      follow_operator(call);
  }

  void follow_operator(const Call& call) {
    const auto& schema = call.op->schema();
    const bool gives_back = may_give_back(*call.op);
    Memory viewed, any;
    for (size_t i = 0; i < call.inputs.size(); ++i)
      for (const int slot : slots_of(call.inputs[i])) {
        const Memory memory = memory_of(slot);
        any.perhaps.insert(memory.perhaps.begin(), memory.perhaps.end());
        if (schema.arguments()[i].alias_info() == nullptr) continue;
        if (viewed.root < 0 ||
            (input_of_.contains(memory.root) && !input_of_.contains(viewed.root)))
          viewed.root = memory.root;
        viewed.perhaps.insert(memory.perhaps.begin(), memory.perhaps.end());
      }
    for (size_t i = 0; i < std::min(call.outputs.size(), schema.returns().size()); ++i) {
      const bool is_view = schema.returns()[i].alias_info() != nullptr;
      for (const int slot : call.outputs[i].slots)
        if (slot >= 0 && (is_view || gives_back)) lies_in(slot, is_view ? viewed : any);
    }
  }

  void lies_in(int slot, const Memory& other) {
    Memory& own = memory_[static_cast<size_t>(slot)];
    if (own.root == slot && other.root >= 0) own.root = other.root;
    own.perhaps.insert(other.perhaps.begin(), other.perhaps.end());
  }

  /// What a graph within gives may be what it was given, or a view of that.
  void follow_region(const Call& call) {
    for (const Operand& input : call.inputs) {
      if (input.kind != Operand::Kind::plan || input.plan == nullptr) continue;
      const CallPlan& within = *input.plan;
      std::vector<int> given;
      for (const Operand& output : within.outputs)
        std::ranges::copy(slots_of(output), std::back_inserter(given));
      size_t next = 0;
      for (const CallOutput& output : call.outputs)
        for (const int slot : output.slots) {
          const size_t place = next++;
          if (slot >= 0 && place < given.size() && given[place] >= 0)
            lies_in(slot, memory_outside(within, given[place]));
        }
    }
  }

  /// Of a value of a graph within, as slots of this one.
  Memory memory_outside(const CallPlan& within, int slot) const {
    const Memory& inner = within.memory[static_cast<size_t>(slot)];
    Memory outside = {.root = memory_of(operand_at(within, inner.root, region_operands_)).root,
                      .perhaps = {}};
    for (const int one : inner.perhaps)
      outside.perhaps.merge(memory_of(operand_at(within, one, region_operands_)).perhaps);
    return outside;
  }

  /// Whether an operator would do something else in evaluation mode.
  void note_mode(const Call& call, const pt2::Node& node) {
    const auto is_zero = [&](std::string_view name) {
      const auto value = constant_of(call, name);
      return value && value->isDouble() && value->toDouble() == 0;
    };
    for (const std::string_view name : {"training", "train"})
      if (const auto mode = constant_of(call, name); mode && mode->isBool()) {
        if (mode->toBool() && !is_zero("p") && !is_zero("dropout"))
          differs(node, "behaves otherwise in training");
        return;
      }
    const auto statistics = constant_of(call, "running_mean");
    const auto own = constant_of(call, "use_input_stats");
    if (own && own->isBool() && own->toBool() && !(statistics && statistics->isNone()))
      return differs(node, "changes its running statistics");
    if (is_zero("dropout_p")) return;
    if (call.op->hasTag(at::Tag::nondeterministic_seeded)) differs(node, "draws random numbers");
  }

  void end_lives() {
    for (size_t i = 0; i < plan_->calls.size(); ++i)
      for (const CallOutput& output : plan_->calls[i].outputs)
        for (const int slot : output.slots)
          if (slot >= 0 && last_use_[static_cast<size_t>(slot)] < 0)
            last_use_[static_cast<size_t>(slot)] = static_cast<int>(i);
    for (size_t slot = 0; slot < last_use_.size(); ++slot)
      if (last_use_[slot] >= 0 && last_use_[slot] != kAtTheEnd)
        plan_->calls[static_cast<size_t>(last_use_[slot])].dead.push_back(static_cast<int>(slot));
  }

  const pt2::Graph& graph_;
  PlanNotes& notes_;
  std::shared_ptr<CallPlan> plan_ = std::make_shared<CallPlan>();
  std::map<std::string, int> slots_;
  std::vector<int> last_use_;         // by slot: the last call that uses it
  std::vector<Memory> memory_;        // by slot
  std::map<int, size_t> input_of_;    // by slot
  std::vector<int> region_operands_;  // slots, of the last region
  std::set<int> reads_, changed_;     // of the call that is being made
  int now_ = 0;
  uint64_t draws_ = 0;  // calls that draw random numbers
};

}  // namespace

std::shared_ptr<const CallPlan> make_call_plan(const pt2::Graph& graph, PlanNotes& notes) {
  return Planner(graph, notes).plan();
}

}  // namespace tutti::exported::detail
