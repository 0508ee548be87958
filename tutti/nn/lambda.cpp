#include "tutti/nn/lambda.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/nn/detail/operators_lambda.h"
#include "tutti/nn/detail/value_types.h"

namespace tutti::nn {

bool detail::has_parameters_beside(const at::Tensor& y, const GraphStep::Values& inputs) {
  using torch::autograd::Node;
  std::set<const Node*> seen;
  for (const at::Tensor& x : inputs)
    if (x.requires_grad()) seen.insert(x.grad_fn().get());
  if (!y.requires_grad()) return false;
  if (y.is_leaf()) return true;
  std::vector<const Node*> left{y.grad_fn().get()};
  while (!left.empty()) {
    const Node* const node = left.back();
    left.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (dynamic_cast<const torch::autograd::AccumulateGrad*>(node) != nullptr) return true;
    for (const auto& edge : node->next_edges()) left.push_back(edge.function.get());
  }
  return false;
}

DType detail::dtype_of(const LambdaFunction& function) noexcept { return function.dtype; }

Layer lambda(std::string what, Shape shape, std::function<at::Tensor(at::TensorList)> function,
             DType dtype) {
  if (!function) throw UsageError("nn layer lambda: got no function");
  return Layer(op::Lambda{.what = std::move(what),
                          .shape = std::move(shape),
                          .function = std::make_shared<const LambdaFunction>(
                              LambdaFunction{std::move(function), dtype})});
}

}  // namespace tutti::nn
