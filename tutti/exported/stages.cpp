// A program's calls as those who cut it see them, plans of its parts, and modules that have them.
#include "tutti/exported/stages.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/exported/detail/loaded.h"
#include "tutti/exported/detail/module_runner.h"
#include "tutti/exported/detail/served.h"

namespace tutti::exported::detail {
namespace {

using pt2::InputSpec;

CutValue::Origin origin_of(const InputSpec& spec) {
  switch (spec.kind) {
    case InputSpec::Kind::parameter: return CutValue::Origin::parameter;
    case InputSpec::Kind::buffer:
      return spec.persistent ? CutValue::Origin::buffer : CutValue::Origin::fixed;
    case InputSpec::Kind::user: return CutValue::Origin::user;
    default: return CutValue::Origin::fixed;
  }
}

/// What gives no gradient back to what it reads.
bool stops_gradients(const Call& call, const pt2::Node& node) {
  if (call.region == Region::set_grad) return !call.inputs[0].value.toBool();
  static const std::set<std::string_view> kNames = {"detach",    "zeros_like", "ones_like",
                                                    "full_like", "empty_like", "new_zeros",
                                                    "new_ones",  "new_full",   "new_empty"};
  return kNames.contains(operator_words(node.target).name);
}

/// The size that sym_size asks a tensor for.
std::optional<pt2::Size> size_asked(const pt2::Graph& graph, const pt2::Node& node) {
  if (operator_words(node.target).name != "sym_size" || node.inputs.size() != 2) return {};
  const auto* of = std::get_if<pt2::ValueName>(&node.inputs[0].argument.value);
  const auto* dim = std::get_if<int64_t>(&node.inputs[1].argument.value);
  if (of == nullptr || dim == nullptr) return {};
  const auto found = graph.tensors.find(of->name);
  if (found == graph.tensors.end()) return {};
  const auto& sizes = found->second.sizes;
  const int64_t d = *dim < 0 ? *dim + std::ssize(sizes) : *dim;
  if (d < 0 || d >= std::ssize(sizes)) return {};
  return sizes[static_cast<size_t>(d)];
}

}  // namespace

CutGraph cut_graph_of(const ProgramFile& file, std::map<std::string, int64_t> sizes) {
  const pt2::Program& program = file.program;
  const CallPlan& plan = *file.plan;
  std::vector<CutValue> values(static_cast<size_t>(plan.num_slots));
  for (size_t v = 0; v < values.size(); ++v) {
    const auto meta = program.graph.tensors.find(plan.names[v]);
    values[v].name = plan.names[v];
    values[v].memory.assign(plan.memory[v].perhaps.begin(), plan.memory[v].perhaps.end());
    if (meta != program.graph.tensors.end()) values[v].meta = &meta->second;
  }
  std::map<std::string, int> tensors;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (plan.inputs[i] < 0) continue;
    const InputSpec& spec = program.inputs[i];
    CutValue& value = values[static_cast<size_t>(plan.inputs[i])];
    value.origin = origin_of(spec);
    const auto found = program.tensors.find(spec.target);
    if (spec.kind == InputSpec::Kind::user || found == program.tensors.end()) continue;
    const pt2::StoredTensor& stored = found->second;
    value.name = spec.target;
    value.trained = stored.is_parameter && stored.meta.requires_grad;
    value.tensor = tensors.try_emplace(place_words(stored), plan.inputs[i]).first->second;
  }
  std::vector<CutCall> calls;
  for (size_t c = 0; c < plan.calls.size(); ++c) {
    const Call& call = plan.calls[c];
    const pt2::Node& node = program.graph.nodes[plan.nodes[c]];
    CutCall& cut = calls.emplace_back(CutCall{.words = call.words,
                                              .module = node.module,
                                              .reads = call.reads,
                                              .makes = {},
                                              .writes = call.writes,
                                              .draws = call.draws,
                                              .stops_gradients = stops_gradients(call, node),
                                              .size_of = size_asked(program.graph, node)});
    for (const CallOutput& output : call.outputs)
      for (const int slot : output.slots)
        if (slot >= 0) cut.makes.push_back(slot);
  }
  std::vector<int> outputs;
  for (const Operand& output : plan.outputs)
    if (output.slot >= 0) outputs.push_back(output.slot);
  return {std::move(values), std::move(calls), std::move(outputs), std::move(sizes)};
}

namespace {

/// Another tensor of the batch is asked, or nobody where the size is known.
void ask_otherwise(Call& call, const CutGraph& graph, const pt2::Size& size, const CutPart& part) {
  if (graph.is_batch(size)) {
    call.inputs = {{.kind = Operand::Kind::slot, .slot = part.inputs.at(0)},
                   {.kind = Operand::Kind::constant, .value = int64_t{0}}};
    call.reads = {part.inputs[0]};
    return;
  }
  call.op.reset();
  call.number = number_operator("torch.sym_int");
  call.inputs = {{.kind = Operand::Kind::constant, .value = *graph.known(size)}};
  call.reads.clear();
}

void end_lives(CallPlan& plan) {
  std::map<int, size_t> last;  // call that uses it
  for (size_t c = 0; c < plan.calls.size(); ++c) {
    plan.calls[c].dead.clear();
    for (const int read : plan.calls[c].reads) last[read] = c;
    for (const CallOutput& output : plan.calls[c].outputs)
      for (const int slot : output.slots)
        if (slot >= 0) last.emplace(slot, c);
  }
  for (const Operand& output : plan.outputs) last.erase(output.slot);
  for (const auto& [slot, call] : last) plan.calls[call].dead.push_back(slot);
}

}  // namespace

std::shared_ptr<const CallPlan> plan_of(const ProgramFile& file, const CutGraph& graph,
                                        const CutPart& part, bool is_last) {
  auto plan = std::make_shared<CallPlan>();
  plan->num_slots = file.plan->num_slots;
  plan->inputs = part.inputs;
  plan->inputs.insert(plan->inputs.end(), part.held.begin(), part.held.end());
  std::set<int> there(plan->inputs.begin(), plan->inputs.end());
  for (const size_t c : part.calls) {
    Call& call = plan->calls.emplace_back(file.plan->calls[c]);
    const CutCall& cut = graph.calls()[c];
    if (cut.size_of && !there.contains(cut.reads.at(0)))
      ask_otherwise(call, graph, *cut.size_of, part);
    there.insert(cut.makes.begin(), cut.makes.end());
  }
  if (is_last)
    plan->outputs = file.plan->outputs;
  else
    for (const int slot : part.outputs)
      plan->outputs.push_back({.kind = Operand::Kind::slot, .slot = slot});
  end_lives(*plan);
  return plan;
}

}  // namespace tutti::exported::detail

namespace tutti {

using exported::CutGraph;
using exported::CutPlace;
using exported::detail::PartRunner;

std::shared_ptr<torch::nn::Module> ExportedStage::clone(
    const std::optional<torch::Device>& /*device*/) const {
  throw UsageError("clone: this module is a part of a network that several ranks compute");
}

namespace {

/// Of each symbol that the first input has behind the batch: what the sample has there.
std::map<std::string, int64_t> sizes_of(const ExportedModule& whole,
                                        const std::optional<std::vector<int64_t>>& sample) {
  std::map<std::string, int64_t> sizes;
  const auto inputs = whole.input_shapes();
  if (inputs.empty() || !sample) return sizes;
  for (size_t d = 0; d < sample->size() && d + 1 < inputs[0].sizes.size(); ++d)
    if (const auto symbol = inputs[0].sizes[d + 1].symbol(); !symbol.empty())
      sizes.emplace(symbol, (*sample)[d]);
  return sizes;
}

std::shared_ptr<const ExportedModule> without_adapters(
    std::shared_ptr<const ExportedModule> whole) {
  if (!whole->adapters().empty())
    throw UsageError(
        "stages: a network with adapters (lora) is not cut, nor computed again by its parts: they "
        "are added to the weights of a whole one; give each replica that");
  return whole;
}

}  // namespace

bool ExportedCuts::needs_sample(const ExportedModule& whole) {
  return std::ranges::any_of(whole.input_shapes(), [](const ExportedInput& input) {
    return std::any_of(input.sizes.begin() + (input.sizes.empty() ? 0 : 1), input.sizes.end(),
                       [](const pt2::Size& size) { return !size.is_known(); });
  });
}

ExportedCuts::ExportedCuts(std::shared_ptr<const ExportedModule> whole,
                           const std::optional<std::vector<int64_t>>& sample)
    : whole_(without_adapters(std::move(whole))),
      training_(
          exported::detail::cut_graph_of(whole_->loaded_->training, sizes_of(*whole_, sample))) {
  if (const auto& other = whole_->loaded_->evaluation)
    evaluation_ = exported::detail::cut_graph_of(*other, sizes_of(*whole_, sample));
  places_ = places_of(training_, evaluation_ ? &*evaluation_ : nullptr);
}

CutPlace ExportedCuts::end() const {
  return {.training = training_.calls().size(),
          .evaluation = (evaluation_ ? *evaluation_ : training_).calls().size(),
          .names = {}};
}

void ExportedCuts::require_certain_evaluation(std::string_view why) const {
  if (!evaluation_) return;  // a graph of training that draws evaluates nothing
  for (const exported::CutCall& call : evaluation_->calls())
    if (call.draws) throw UsageError(fmt::format("{}\n  {}", why, call.words));
}

void ExportedCuts::require_no_writes(const CutPlace& from, const CutPlace& to,
                                     std::string_view why) const {
  for (size_t c = from.training; c < to.training; ++c)
    for (const int root : training_.calls()[c].writes)
      if (const auto origin = training_.values()[static_cast<size_t>(root)].origin;
          origin != exported::CutValue::Origin::call && origin != exported::CutValue::Origin::user)
        throw UsageError(fmt::format("{}\n  {}", why, training_.calls()[c].words));
}

int ExportedCuts::value_of(const at::Tensor& tensor) const {
  const auto& tensors = whole_->training_->tensors();
  const auto found = std::ranges::find_if(
      tensors, [&](const at::Tensor& one) { return one.defined() && one.is_same(tensor); });
  const auto input = static_cast<size_t>(found - tensors.begin());
  const int slot = whole_->loaded_->training.plan->inputs.at(input);
  return training_.values()[static_cast<size_t>(slot)].tensor;
}

void ExportedCuts::take_parameter(ExportedStage& stage, const std::vector<CutPlace>& cuts,
                                  int number, const std::string& name, const at::Tensor& tensor,
                                  bool is_parameter) const {
  const int value = value_of(tensor);
  std::vector<int> users;
  std::vector<int> reads;
  for (size_t s = 0; s + 1 < cuts.size(); ++s) {
    reads.push_back(training_.reads_of(value, cuts[s].training, cuts[s + 1].training));
    if (reads.back() > 0) users.push_back(static_cast<int>(s));
  }
  if (users.empty()) users.push_back(0);
  if (users.size() > 2)
    throw UsageError(fmt::format(
        "stages: parameter {} is read in stages {}; it can be in two at most; cut elsewhere", name,
        fmt::join(users, ", ")));
  if (users.size() == 2 && reads[static_cast<size_t>(users[0])] > 1)
    throw UsageError(fmt::format(
        "stages: parameter {} is read {} times in stage {} and again in stage {}, so that its "
        "gradients would be added in another order; cut elsewhere",
        name, reads[static_cast<size_t>(users[0])], users[0], users[1]));
  if (std::ranges::find(users, number) == users.end()) return;
  at::Tensor own = tensor;
  if (users[0] == number) {
    exported::detail::place(stage, stage.places_, name, tensor, is_parameter);
  } else {
    own = tensor.detach().clone().set_requires_grad(tensor.requires_grad());
    stage.copies_.emplace(tensor.unsafeGetTensorImpl(), own);
  }
  if (users.size() == 2) stage.ties.push_back({name, own, users[0], users[1]});
}

std::shared_ptr<ExportedStage> ExportedCuts::stage(const std::vector<CutPlace>& cuts,
                                                   int number) const {
  const auto stage = std::make_shared<ExportedStage>(ExportedModule::Part(), whole_->loaded_);
  for (const auto& parameter : whole_->named_parameters())
    take_parameter(*stage, cuts, number, parameter.key(), parameter.value(), true);
  for (const auto& buffer : whole_->named_buffers())
    take_parameter(*stage, cuts, number, buffer.key(), buffer.value(), false);
  const auto n = static_cast<size_t>(number);
  if (number > 0) stage->inputs = training_.borders(cuts[n].training);
  if (n + 2 < cuts.size()) stage->outputs = training_.borders(cuts[n + 1].training);
  stage->forward_part = part_of(*stage, cuts[n], cuts[n + 1]);
  stage->train(whole_->is_training());
  return stage;
}

void ExportedCuts::require_own(const ExportedStage& stage,
                               const std::vector<at::Tensor>& held) const {
  const auto has = [](const auto& named, const at::Tensor& tensor) {
    return std::ranges::any_of(named, [&](const auto& one) { return one.value().is_same(tensor); });
  };
  for (const at::Tensor& tensor : held)
    for (const auto& all : {whole_->named_parameters(), whole_->named_buffers()})
      for (const auto& one : all)
        if (one.value().is_same(tensor) && !has(stage.named_parameters(), tensor) &&
            !has(stage.named_buffers(), tensor))
          throw UsageError(fmt::format(
              "stages: {} is of another stage, where training reads it first; cut elsewhere",
              one.key()));
}

ExportedStage::Forward ExportedCuts::part_of(const ExportedStage& stage, const CutPlace& from,
                                             const CutPlace& to) const {
  const auto training = std::make_shared<const PartRunner>(
      *whole_->training_, training_, from.training, to.training, stage.copies_);
  require_own(stage, training->held());
  std::shared_ptr<const PartRunner> evaluation;
  if (evaluation_) {
    evaluation = std::make_shared<const PartRunner>(*whole_->evaluation_, *evaluation_,
                                                    from.evaluation, to.evaluation, stage.copies_);
    require_own(stage, evaluation->held());
  }
  return [&stage, training, evaluation](at::TensorList inputs) {
    if (stage.is_training()) return training->run(inputs);
    stage.require_evaluation();
    return (evaluation ? *evaluation : *training).run(inputs);
  };
}

}  // namespace tutti
