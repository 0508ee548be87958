/// Gradients of weights that are computed later than those of what flows through the layers: the
/// backward pass in two, as schedules without idle time want it (Qi et al. 2023, arXiv 2401.10241).
///
///   nn::WeightGradients later(outputs);
///   {
///     const nn::WeightGradients::Active active(later);
///     gradients = torch::autograd::grad(outputs, inputs_and_weights, ..., /*allow_unused=*/true);
///   }
///   ...                                   // what waits for the gradients of the inputs goes on
///   for (auto& [weight, gradient] : later.take()) ...
///
/// Layers that do so: dense(), hence nn::Linear, with the product that gives the gradient of its
/// weight; what it does for the bias is part of its pass over the gradient of the outputs. All
/// others (norms, embeddings, convolutions, a planned GraphModule) give theirs at once.
///
/// Thread rule: one thread, that of the backward pass; CPU tensors.
#pragma once

#include <torch/types.h>

#include <functional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tutti::nn {

/// The bits are those of autograd: a weight is put off only where every use of it behind the
/// outputs puts off, and its uses are added in the order in which the backward pass comes to them.
class WeightGradients {
 public:
  /// Looks through the graph behind `outputs` for such weights. A weight that is no leaf (a view, a
  /// block of a parameter) is none.
  explicit WeightGradients(at::TensorList outputs);

  /// In this thread, until it goes out of scope, backward passes put off into `store`. They nest.
  class Active {
   public:
    explicit Active(WeightGradients& store) noexcept;
    ~Active();
    Active(const Active&) = delete;
    Active& operator=(const Active&) = delete;

   private:
    WeightGradients* outer_;
  };
  /// The innermost one of this thread, or null.
  static WeightGradients* current() noexcept;

  /// Whether that weight's gradient may be put off.
  bool takes(const at::Tensor& weight) const;
  /// For a layer's backward pass: `gradient` will be called once, by take(), and gives new memory.
  void put_off(const at::Tensor& weight, std::function<at::Tensor()> gradient);

  /// Computes what was put off: a gradient for each weight, which autograd then gave none
  /// (undefined). Leaves nothing behind.
  std::vector<std::pair<at::Tensor, at::Tensor>> take();

 private:
  struct Late {
    at::Tensor weight;
    std::function<at::Tensor()> gradient;
  };
  std::unordered_set<const at::TensorImpl*> weights_;
  std::vector<Late> late_;  // in the order of the backward pass
};

}  // namespace tutti::nn
