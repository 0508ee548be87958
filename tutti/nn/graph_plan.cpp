#include "tutti/nn/detail/graph_plan.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/nn/detail/batch_norm.h"
#include "tutti/nn/detail/layers.h"
#include "tutti/nn/detail/operators.h"
#include "tutti/nn/precision.h"
#include "tutti/sync/detail/gradient_listener.h"

namespace tutti::nn::detail {
namespace {

Tensors parameters_of(const GraphStep& step) {
  const LayerPlan& plan = operator_of(step.op).plan;
  return plan.parameters == nullptr ? Tensors() : plan.parameters(step);
}

bool is_trained(const at::Tensor& parameter) {
  return parameter.defined() && parameter.requires_grad();
}

bool is_ours_alone(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.use_count() == 1 &&
         tensor.storage().use_count() == 1 && tensor.is_non_overlapping_and_dense();
}

// As autograd adds what comes later; `sum` is undefined where nothing has come yet, `gradient`
// where none flows, as of a mask.
void add_to(at::Tensor& sum, at::Tensor gradient) {
  if (!gradient.defined()) return;
  if (!sum.defined())
    sum = std::move(gradient);
  else if (is_ours_alone(sum) && sum.scalar_type() == gradient.scalar_type())
    sum.add_(gradient);
  else
    sum = sum + gradient;
}

bool takes_precision() {
  return !at::autocast::is_autocast_enabled(at::kCPU) ||
         at::autocast::get_autocast_dtype(at::kCPU) == at::kBFloat16;
}

bool is_any(const c10::SmallVector<bool, 4>& all) {
  return std::find(all.begin(), all.end(), true) != all.end();
}

// Version counters are how autograd finds that a value which a backward pass needs was written to.
struct Guarded {
  at::Tensor tensor;
  int64_t version;
};

}  // namespace

bool KeptOfLayer::needs_any_input() const { return is_any(needs_inputs); }
bool KeptOfLayer::needs_any() const { return needs_any_input() || is_any(needs_parameters); }

at::Tensor keep_input(const PlannedLayer& layer, GraphStep::Values& values, KeptOfLayer& kept) {
  kept.x = values[0];
  return layer.step->run(values);
}

at::Tensor keep_output(const PlannedLayer& layer, GraphStep::Values& values, KeptOfLayer& kept) {
  return kept.y = layer.step->run(values);
}

at::Tensor keep_sizes(const PlannedLayer& layer, GraphStep::Values& values, KeptOfLayer& kept) {
  kept.sizes.assign(values[0].sizes().begin(), values[0].sizes().end());
  return layer.step->run(values);
}

at::Tensor GraphPlan::forward(const Layer& layer, GraphStep::Values& values, Kept& kept) {
  return layer.passes ? values[0] : operator_of(layer.op).plan.forward(layer, values, kept);
}

void GraphPlan::cast(const Layer& layer, GraphStep::Values& values, Kept& kept) {
  const InBfloat16 how = operator_of(layer.op).plan.bfloat16;
  if (layer.passes || how == InBfloat16::as_given) return;
  const bool lower = how == InBfloat16::yes;
  for (at::Tensor& value : values)
    if (value.is_floating_point()) value = value.to(lower ? at::kBFloat16 : at::kFloat);
  if (!lower) return;
  kept.masters = kept.parameters;
  for (at::Tensor& parameter : kept.parameters)
    if (parameter.defined()) parameter = parameter.to(at::kBFloat16);
}

LayerGradients GraphPlan::backward(const Layer& layer, const Kept& kept, const at::Tensor& gradient,
                                   bool weights_first) {
  if (layer.passes) return {.inputs = {gradient}};
  return operator_of(layer.op).plan.backward(layer, kept, gradient, weights_first);
}

at::Tensor GraphPlan::input_gradient(const Kept& kept, const at::Tensor& gradient,
                                     const at::Tensor& of_sum) {
  return shaped_as(gradient, dense_input_gradient(of_sum, kept.parameters[0]));
}

GraphPlan::GraphPlan(const Graph& graph, const std::vector<GraphStep>& steps) {
  const auto& nodes = graph.nodes();
  std::vector<int> readers(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    Layer layer{.step = &steps[i],
                .op = steps[i].op,
                .activation = steps[i].activation,
                .passes = steps[i].passes};
    for (const auto& input : steps[i].inputs) {
      layer.inputs.push_back(input.node);
      ++readers[static_cast<size_t>(input.node)];
    }
    const LayerPlan& plan = operator_of(layer.op).plan;
    const bool known = plan.backward != nullptr && (plan.takes == nullptr || plan.takes(layer.op));
    if (!known && unknown_.empty())
      unknown_ = fmt::format("{} \"{}\"", kind_of(nodes[i].op), nodes[i].name);
    layers_.push_back(std::move(layer));
  }
  for (const Port& port : graph.inputs()) inputs_.push_back(port.node);
  for (const Port& port : graph.outputs()) {
    outputs_.push_back(port.node);
    ++readers[static_cast<size_t>(port.node)];
  }
  if (!unknown_.empty()) return;
  place_parameters(graph);
  fuse_relus(readers);
  fuse_norms(readers);
  note_what_is_read_again(readers);
}

void GraphPlan::place_parameters(const Graph& graph) {
  std::map<std::string, size_t> slots;  // of the first use of a layer, by its name
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    layer.parameters = parameters_of(*layer.step).size();
    if (layer.parameters == 0) continue;
    const auto [place, fresh] = slots.try_emplace(graph.nodes()[i].name, slots_);
    layer.slot = place->second;
    layer.is_first_use = fresh;
    if (fresh) slots_ += layer.parameters;
  }
}

void GraphPlan::fuse_relus(const std::vector<int>& readers) {
  for (Layer& relu : layers_) {
    if (!std::holds_alternative<op::Relu>(relu.op) || relu.passes) continue;
    const auto input = static_cast<size_t>(relu.inputs[0]);
    const auto takes_relu = operator_of(layers_[input].op).plan.takes_relu;
    if (takes_relu == nullptr || !takes_relu(layers_[input].op) || readers[input] != 1) continue;
    layers_[input].activation = Activation::relu;
    relu.passes = true;
  }
}

void GraphPlan::fuse_norms(const std::vector<int>& readers) {
  for (Layer& sum : layers_) {
    if (!std::holds_alternative<op::Add>(sum.op)) continue;
    for (int k = 0; k < 2 && sum.norm < 0; ++k) {
      const auto input = static_cast<size_t>(sum.inputs[static_cast<size_t>(k)]);
      Layer& norm = layers_[input];
      if (!std::holds_alternative<op::BatchNorm2d>(norm.op) || readers[input] != 1 ||
          norm.activation != Activation::none)
        continue;
      norm.is_put_off = true;
      sum.norm = k;
    }
  }
}

void GraphPlan::note_what_is_read_again(const std::vector<int>& readers) {
  for (Layer& layer : layers_) {
    const LayerPlan& plan = operator_of(layer.op).plan;
    layer.keeps_output = plan.from_output || layer.activation != Activation::none;
    // What gives its input's memory gives what others may read of that.
    if (layer.passes || plan.gives_a_view) {
      const auto input = static_cast<size_t>(layer.inputs[0]);
      layer.keeps_output = layers_[input].keeps_output || readers[input] > 1;
    }
  }
  for (size_t i = 0; i < layers_.size(); ++i)
    for (const int input : layers_[i].inputs)
      layers_[static_cast<size_t>(input)].keeps_output = true;
}

bool GraphPlan::takes(at::TensorList inputs) const {
  if (!unknown_.empty() || !takes_precision()) return false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    const auto& port = std::get<op::Input>(layers_[static_cast<size_t>(inputs_[i])].op);
    const bool is_number = is_floating(port.dtype);
    if (!input.is_cpu() || input.scalar_type() != (is_number ? at::kFloat : at::kLong) ||
        input.layout() != at::kStrided || input.requires_grad() || input.is_inference() ||
        input.numel() == 0 || input.size(0) != inputs[0].size(0))
      return false;
  }
  return takes_parameters();
}

bool GraphPlan::takes_parameters() const {
  bool trained = false;
  c10::SmallVector<const at::TensorImpl*, 64> seen;  // each has one slot
  for (const Layer& layer : layers_) {
    if (!layer.is_first_use || layer.parameters == 0) continue;
    if (std::holds_alternative<op::BatchNorm2d>(layer.op) &&
        !has_plain_state(*static_cast<const torch::nn::BatchNorm2dImpl*>(layer.step->module)))
      return false;
    for (const at::Tensor& parameter : parameters_of(*layer.step)) {
      if (!parameter.defined()) continue;
      if (!parameter.is_cpu() || parameter.scalar_type() != at::kFloat || !parameter.is_leaf() ||
          parameter.layout() != at::kStrided)
        return false;
      if (std::holds_alternative<op::Linear>(layer.op) && !parameter.is_contiguous()) return false;
      trained |= parameter.requires_grad();
      const auto* const known = parameter.unsafeGetTensorImpl();
      if (std::find(seen.begin(), seen.end(), known) != seen.end()) return false;
      seen.push_back(known);
    }
  }
  return trained;
}

using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

// Another tensor of the same memory and version: a node must not hold what holds it.
at::Tensor same_memory(const at::Tensor& value) {
  return at::Tensor(value.unsafeGetTensorImpl()->shallow_copy_and_detach(
      value.unsafeGetTensorImpl()->version_counter(), /*allow_tensor_metadata_change=*/true));
}

// Nodes are counted by std::shared_ptr or by c10::intrusive_ptr, as LibTorch's version has it.
using NodePointer = decltype(torch::autograd::Edge::function);

template <class Made, class Pointer>
auto make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>)
    return std::make_shared<Made>();
  else
    return c10::make_intrusive<Made>();
}

}  // namespace

/// The backward pass of one forward pass.
struct PlannedBackward final : tutti::detail::TellingNode {
  std::shared_ptr<const GraphPlan> plan;
  std::vector<GraphPlan::Kept> kept;  // by layer
  std::vector<Guarded> guarded;
  std::vector<int> edges;  // by slot: where a parameter's gradient goes; -1: it gets none
  std::vector<int> ends;   // whose gradient comes, by number
  bool is_over = false;    // it was made, and is not to be made again

  void release_variables() override {
    is_over = true;
    kept.clear();
    guarded.clear();
  }

  variable_list apply(variable_list&& of_outputs) override {
    require_unchanged();
    const Autocast off(Precision::float32);
    const bool again = torch::autograd::get_current_graph_task_keep_graph();
    is_over = !again;
    if (!again) guarded.clear();
    std::vector<at::Tensor> of_values(plan->layers_.size());
    std::vector<at::Tensor> of_slots(plan->slots_);
    for (size_t i = 0; i < of_outputs.size(); ++i)
      if (of_outputs[i].defined())
        add_to(of_values[static_cast<size_t>(ends[i])], std::move(of_outputs[i]));
    variable_list of_parameters(num_outputs());
    const bool sends = listener != nullptr && listener->sends();
    for (size_t i = plan->layers_.size(); i-- > 0;) {
      const GraphPlan::Layer& layer = plan->layers_[i];
      GraphPlan::Kept& own = kept[i];
      at::Tensor gradient = std::move(of_values[i]);
      LayerGradients of;
      const bool comes = gradient.defined() && own.needs_any();
      if (comes) {
        if (listener != nullptr) listener->go_on();
        gradient = gradient.to(own.type);
        of = GraphPlan::backward(layer, own, gradient, sends);
        add_parameters(layer, own, of, of_slots);
      }
      if (layer.is_first_use) hand_on(layer, own, of_slots, of_parameters);
      if (comes) {
        if (of.sum.defined()) of.inputs = {GraphPlan::input_gradient(own, gradient, of.sum)};
        gradient.reset();
        add_inputs(layer, own, of, of_values);
      }
      if (!again) own = {};
    }
    return of_parameters;
  }

  static void add_parameters(const GraphPlan::Layer& layer, const GraphPlan::Kept& own,
                             LayerGradients& of, std::vector<at::Tensor>& of_slots) {
    for (size_t p = 0; p < layer.parameters; ++p) {
      if (!own.needs_parameter(p)) continue;
      at::Tensor gradient = std::move(of.parameters[p]);  // one owner: it may be added to in place
      if (gradient.scalar_type() != at::kFloat) gradient = gradient.to(at::kFloat);
      add_to(of_slots[layer.slot + p], std::move(gradient));
    }
  }

  // No layer that is still to come adds to the gradients of this one's parameters.
  void hand_on(const GraphPlan::Layer& layer, const GraphPlan::Kept& own,
               std::vector<at::Tensor>& of_slots, variable_list& of_parameters) const {
    for (size_t slot = layer.slot; slot < layer.slot + layer.parameters; ++slot) {
      at::Tensor gradient = std::move(of_slots[slot]);
      if (gradient.defined() && !was_told(own.trained(slot - layer.slot), gradient))
        of_parameters[static_cast<size_t>(edges[slot])] = std::move(gradient);
    }
  }

  static void add_inputs(const GraphPlan::Layer& layer, const GraphPlan::Kept& own,
                         LayerGradients& of, std::vector<at::Tensor>& of_values) {
    const bool one_for_all = of.inputs.size() < layer.inputs.size();
    for (size_t k = 0; k < layer.inputs.size(); ++k)
      if (own.needs_input(k)) {
        const at::Tensor& gradient = of.inputs[one_for_all ? 0 : k];
        add_to(of_values[static_cast<size_t>(layer.inputs[k])], gradient);
      }
  }

  bool was_told(const at::Tensor& parameter, const at::Tensor& gradient) const {
    return listener != nullptr && listener->take(parameter, gradient);
  }

  void require_unchanged() const {
    if (is_over)
      throw UsageError(
          "nn::Graph: a second backward() over one forward pass; call backward() with retain_graph "
          "in the first");
    if (at::GradMode::is_enabled())
      throw UsageError(
          "nn::Graph: a backward pass that makes a graph (create_graph) is autograd's: call "
          "set_planned(false) on the module");
    for (const Guarded& guard : guarded)
      if (guard.tensor._version() != guard.version)
        throw UsageError(
            fmt::format("nn::Graph: a tensor of shape {} that backward() needs was modified by an "
                        "inplace operation after the forward pass: it is at version {}, expected "
                        "version {}",
                        c10::str(guard.tensor.sizes()), guard.tensor._version(), guard.version));
  }
};

std::vector<at::Tensor> GraphPlan::run(at::TensorList given) const {
  auto node = make_node<PlannedBackward, NodePointer>();
  node->plan = shared_from_this();
  node->kept.resize(layers_.size());
  node->edges.resize(slots_, -1);
  std::vector<at::Tensor> values(layers_.size());
  torch::autograd::edge_list edges;
  const auto guard = [&](const at::Tensor& tensor) {
    node->guarded.push_back({tensor, tensor._version()});
  };
  std::vector<uint8_t> flows(layers_.size());  // whether a gradient of this value is needed
  {
    const bool in_bfloat16 = at::autocast::is_autocast_enabled(at::kCPU);
    const Autocast off(Precision::float32);  // the plan knows what is cast
    const at::AutoDispatchBelowADInplaceOrView below;
    for (size_t i = 0; i < given.size(); ++i) {
      values[static_cast<size_t>(inputs_[i])] = given[i];
      guard(given[i]);
    }
    GraphStep::Values taken;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      if (layer.inputs.empty()) continue;
      Kept& kept = node->kept[i];
      kept.parameters = parameters_of(*layer.step);
      for (const at::Tensor& parameter : kept.parameters)
        kept.needs_parameters.push_back(is_trained(parameter));
      for (const auto& [input, last_use] : layer.step->inputs) {
        at::Tensor& value = values[static_cast<size_t>(input)];
        kept.needs_inputs.push_back(flows[static_cast<size_t>(input)] != 0);
        taken.push_back(last_use ? std::move(value) : value);
      }
      if (layer.norm >= 0) {
        const auto norm = static_cast<size_t>(layer.inputs[static_cast<size_t>(layer.norm)]);
        for (const at::Tensor& tensor : node->kept[norm].others) taken.push_back(tensor);
        if (flows[norm] == 0) node->kept[norm] = {};
      }
      flows[i] = kept.needs_any();
      if (in_bfloat16) cast(layer, taken, kept);
      values[i] = forward(layer, taken, kept);
      kept.type = values[i].scalar_type();
      taken.clear();
      if (flows[i] == 0) {
        if (!layer.is_put_off) kept = {};
        continue;
      }
      for (size_t p = 0; p < layer.parameters; ++p) {
        if (!kept.needs_parameter(p) || node->edges[layer.slot + p] >= 0) continue;
        node->edges[layer.slot + p] = static_cast<int>(edges.size());
        edges.push_back(torch::autograd::impl::gradient_edge(kept.trained(p)));
      }
      for (const at::Tensor& tensor : kept.read) guard(tensor);
    }
  }
  node->set_next_edges(std::move(edges));
  std::vector<at::Tensor> outputs;
  for (const int output : outputs_) {
    const auto at = static_cast<size_t>(output);
    const auto before = std::find(outputs_.begin(), outputs_.end(), output) - outputs_.begin();
    if (before < std::ssize(outputs)) {
      outputs.push_back(outputs[static_cast<size_t>(before)]);
      continue;
    }
    if (std::holds_alternative<op::Input>(layers_[at].op)) {
      outputs.push_back(values[at]);
      continue;
    }
    if (layers_[at].keeps_output) guard(values[at]);
    outputs.push_back(same_memory(values[at]));
    if (flows[at] == 0) continue;
    node->ends.push_back(output);
    torch::autograd::set_history(outputs.back(), NodePointer(node));
  }
  return outputs;
}

}  // namespace tutti::nn::detail
