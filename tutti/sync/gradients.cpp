#include "tutti/sync/detail/gradients.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/nn/module.h>

#include <unordered_map>
#include <unordered_set>

#include "tutti/sync/tensors.h"

namespace tutti::detail {
namespace {

class ReadyHook : public torch::autograd::FunctionPostHook {
 public:
  ReadyHook(std::weak_ptr<std::function<void(int)>> ready, int index)
      : ready_(std::move(ready)), index_(index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& got) override {
    // A branch of the graph that the loss does not use has none.
    if (const auto ready = ready_.lock(); ready && !got.empty() && got[0].defined())
      (*ready)(index_);
    return outputs;
  }

 private:
  std::weak_ptr<std::function<void(int)>> ready_;
  int index_;
};

class ReadyListener final : public GradientListener {
 public:
  ReadyListener(const std::vector<at::Tensor>& parameters,
                std::weak_ptr<std::function<void(int)>> ready, bool sends)
      : ready_(std::move(ready)), sends_(sends) {
    for (int i = 0; i < static_cast<int>(parameters.size()); ++i)
      places_.emplace(parameters[i].unsafeGetTensorImpl(), i);
  }

  bool take(const at::Tensor& parameter, const at::Tensor& gradient) override {
    const auto found = places_.find(parameter.unsafeGetTensorImpl());
    const auto ready = ready_.lock();
    // What autograd would add to, change, or lay out in another way is autograd's.
    if (found == places_.end() || !ready || !parameter.requires_grad() || has_hooks(parameter) ||
        parameter.grad().defined() || gradient.strides() != parameter.strides())
      return false;
    parameter.mutable_grad() = gradient;
    (*ready)(found->second);
    return true;
  }

  bool sends() const override { return sends_; }
  void go_on() override {}

 private:
  std::unordered_map<const at::TensorImpl*, int> places_;
  std::weak_ptr<std::function<void(int)>> ready_;
  bool sends_;
};

}  // namespace

bool has_hooks(const at::Tensor& parameter) {
  if (!parameter.requires_grad()) return false;
  return !torch::autograd::impl::hooks(parameter).empty() ||
         torch::autograd::impl::post_acc_grad_hooks(parameter) != nullptr;
}

std::vector<ParameterSlot> slots_of(const NamedTensors& parameters) {
  std::vector<ParameterSlot> slots;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.layout() != at::kStrided)
      throw UsageError(
          fmt::format("parameter \"{}\" is not dense; sparse parameters belong on a "
                      "parameter server",
                      name));
    ParameterSlot slot;
    slot.name = name;
    slot.shape = tensor.sizes().vec();
    slot.dtype = dtype_of(tensor.scalar_type());
    slot.num_elements = tensor.numel();
    slot.trained = tensor.requires_grad();
    slots.push_back(std::move(slot));
  }
  return slots;
}

void check_gradient(const ParameterSlot& slot, const at::Tensor& gradient, at::Device device) {
  const auto fail = [&](const std::string& what) {
    throw UsageError(fmt::format("gradient of parameter \"{}\": {}", slot.name, what));
  };
  if (gradient.layout() != at::kStrided)
    fail("it is sparse; build the embedding with sparse(false)");
  if (gradient.requires_grad())
    fail("it is part of a graph (backward with create_graph); double backward needs its own loop");
  if (!slot.trained) fail("the parameter was frozen when the optimizer was made; make a new one");
  if (gradient.scalar_type() != scalar_type_of(slot.dtype))
    fail(fmt::format("its dtype is {}, the parameter's {}", c10::toString(gradient.scalar_type()),
                     name_of(slot.dtype)));
  if (gradient.sizes() != at::IntArrayRef(slot.shape))
    fail(fmt::format("its shape is {}, the parameter's {}", c10::str(gradient.sizes()),
                     c10::str(at::IntArrayRef(slot.shape))));
  if (gradient.device() != device)
    fail(fmt::format("it is on {}, the parameter on {}", gradient.device().str(), device.str()));
}

VoteWords vote_words(const Vote& vote) {
  return {vote.part, vote.overflows, vote.signal, vote.meets};
}

Verdict verdict_of(const VoteWords& largest) {
  const auto [part, overflows, signal, meets] = largest;
  return {.left_out = part == kLeavesOut,
          .overflowed = overflows != 0,
          .signal = signal,
          .meets = meets != 0};
}

void require_any_gradient(const Slots& layout, PartInStep largest, bool any_gradient) {
  if (largest != kComputes || any_gradient) return;
  const auto first = std::ranges::find(layout.slots, true, &ParameterSlot::trained);
  if (first == layout.slots.end()) return;
  throw NothingTrained(fmt::format(
      "no parameter of the optimizer has a gradient on any replica, so that the step would train "
      "nothing: not \"{}\", the first of {}",
      first->name, std::ranges::count(layout.slots, true, &ParameterSlot::trained)));
}

at::Tensor other_leaf_of(const at::Tensor& loss, const std::vector<at::Tensor>& parameters) {
  using torch::autograd::Node;
  std::vector<Node*> open{loss.grad_fn().get()};
  std::unordered_set<Node*> seen;
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const auto* const leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      const auto own = [&](const at::Tensor& one) { return one.is_same(leaf->variable); };
      return std::ranges::any_of(parameters, own) ? at::Tensor() : leaf->variable;
    }
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return {};
}

void throw_took_part_twice(int rank) {
  throw UsageError(
      fmt::format("replica {} took part twice in one step; call minimize() or abstain() once a "
                  "step on each replica",
                  rank));
}

void require_cleared(const Slots& layout, const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].grad().defined())
      throw UsageError(fmt::format(
          "parameter \"{}\" already has a gradient before the step's backward(): a "
          "second backward() in one step, or that of another optimizer's loss; clear it "
          "with this optimizer's zero_grad(replica)",
          layout.slots[i].name));
}

ReadyHooks::ReadyHooks(const std::vector<at::Tensor>& parameters, std::function<void(int)> ready,
                       bool sends)
    : ready_(std::make_shared<std::function<void(int)>>(std::move(ready))),
      listener_(std::make_shared<ReadyListener>(parameters, ready_, sends)) {
  for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
    if (!parameters[i].requires_grad()) continue;
    auto node = torch::autograd::impl::grad_accumulator(parameters[i]);
    node->add_post_hook(std::make_unique<ReadyHook>(ready_, i));
    nodes_.push_back(std::make_shared<decltype(node)>(node));
  }
}

void bump_versions(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) parameter.unsafeGetTensorImpl()->bump_version();
}

at::Tensor view_memory(void* data, const ParameterSlot& slot, std::shared_ptr<const void> owner) {
  return at::from_blob(
      data, slot.shape, [owner = std::move(owner)](void*) {},
      at::TensorOptions().dtype(scalar_type_of(slot.dtype)));
}

}  // namespace tutti::detail
