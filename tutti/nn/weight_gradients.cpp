#include "tutti/nn/weight_gradients.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>

#include "tutti/nn/detail/layers.h"

namespace tutti::nn {
namespace {

thread_local WeightGradients* active_store = nullptr;

}  // namespace

WeightGradients::WeightGradients(at::TensorList outputs) {
  std::unordered_set<const at::TensorImpl*> others;
  std::unordered_set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  const auto visit = [&](torch::autograd::Node* node, bool as_weight) {
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node))
      (as_weight ? weights_ : others).insert(leaf->variable.unsafeGetTensorImpl());
    else if (seen.insert(node).second)
      open.push_back(node);
  };
  for (const at::Tensor& output : outputs)
    if (output.requires_grad())
      visit(torch::autograd::impl::gradient_edge(output).function.get(), /*as_weight=*/false);
  while (!open.empty()) {
    const torch::autograd::Node* node = open.back();
    open.pop_back();
    const bool dense = detail::is_dense(*node);
    for (size_t i = 0; i < node->num_outputs(); ++i)
      if (torch::autograd::Node* next = node->next_edge(i).function.get(); next != nullptr)
        visit(next, dense && i == detail::kWeightOfDense);
  }
  for (const at::TensorImpl* other : others) weights_.erase(other);
}

WeightGradients::Active::Active(WeightGradients& store) noexcept : outer_(active_store) {
  active_store = &store;
}

WeightGradients::Active::~Active() { active_store = outer_; }

WeightGradients* WeightGradients::current() noexcept { return active_store; }

bool WeightGradients::takes(const at::Tensor& weight) const {
  return weights_.contains(weight.unsafeGetTensorImpl());
}

void WeightGradients::put_off(const at::Tensor& weight, std::function<at::Tensor()> gradient) {
  late_.push_back({weight, std::move(gradient)});
}

std::vector<std::pair<at::Tensor, at::Tensor>> WeightGradients::take() {
  const at::NoGradGuard no_gradient;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients;
  std::unordered_map<const at::TensorImpl*, size_t> places;
  for (Late& late : late_) {
    const auto [place, first] =
        places.try_emplace(late.weight.unsafeGetTensorImpl(), gradients.size());
    at::Tensor gradient = late.gradient();
    late.gradient = nullptr;  // and with it what the layer has kept
    if (first)
      gradients.emplace_back(late.weight, std::move(gradient));
    else
      gradients[place->second].second.add_(gradient);
  }
  late_.clear();
  return gradients;
}

}  // namespace tutti::nn
