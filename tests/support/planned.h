/// A graph that runs planned beside the same one by autograd.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

#include "tutti/nn/graph_module.h"

namespace tutti::test {

/// Outputs, gradients and parameters of three steps of plain gradient descent, bit for bit.
inline void expect_planned_is_by_autograd(const nn::Graph& graph, const at::Tensor& x) {
  torch::manual_seed(11);
  const auto planned = nn::make_module(graph);
  torch::manual_seed(11);
  const auto by_autograd = nn::make_module(graph);
  by_autograd->set_planned(false);
  for (int step = 0; step < 3; ++step) {
    const auto got = planned->forward(x), expected = by_autograd->forward(x);
    ASSERT_TRUE(torch::equal(got, expected)) << "step " << step;
    const auto weights = torch::linspace(-1, 1, got.numel()).view(got.sizes());
    (got * weights).sum().backward();
    (expected * weights).sum().backward();
    torch::NoGradGuard no_grad;
    const auto theirs = by_autograd->named_parameters();
    for (const auto& parameter : planned->named_parameters()) {
      const at::Tensor& other = theirs[parameter.key()];
      ASSERT_EQ(parameter->grad().defined(), other.grad().defined()) << parameter.key();
      if (!other.grad().defined()) continue;
      EXPECT_TRUE(torch::equal(parameter->grad(), other.grad())) << parameter.key();
      EXPECT_EQ(parameter->grad().strides(), other.grad().strides()) << parameter.key();
      for (const at::Tensor& each : {parameter.value(), other}) {
        at::Tensor changed = each;
        changed.add_(each.grad(), -1e-3);
        changed.mutable_grad().reset();
      }
    }
  }
  EXPECT_EQ(planned->forward(x).grad_fn()->name() != by_autograd->forward(x).grad_fn()->name(),
            planned->why_not_planned().empty());
}

}  // namespace tutti::test
