/// A graph that runs planned beside the same one by autograd.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "tutti/nn/graph_module.h"

namespace tutti::test {

/// All outputs, gradients, parameters and statistics of three steps of plain gradient descent, and
/// of one more in evaluation: the same bits, but for the sign of zeros. Parameters whose name
/// begins with `frozen` are not trained.
inline void expect_planned_is_by_autograd(const nn::Graph& graph,
                                          const std::vector<at::Tensor>& inputs,
                                          const std::string& frozen = "none") {
  torch::manual_seed(11);
  const auto planned = nn::make_module(graph);
  torch::manual_seed(11);
  const auto by_autograd = nn::make_module(graph);
  by_autograd->set_planned(false);
  for (const auto& module : {planned, by_autograd})
    for (auto& parameter : module->named_parameters())
      if (parameter.key().starts_with(frozen)) parameter->set_requires_grad(false);
  for (int step = 0; step < 4; ++step) {
    for (const auto& module : {planned, by_autograd}) module->train(step < 3);
    const auto got = planned->forward_all(inputs), expected = by_autograd->forward_all(inputs);
    ASSERT_EQ(got.size(), expected.size());
    auto loss = torch::zeros({}), loss_by_autograd = torch::zeros({});
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(torch::equal(got[i], expected[i])) << "step " << step << ", output " << i;
      ASSERT_EQ(got[i].requires_grad(), expected[i].requires_grad()) << "output " << i;
      const auto weights = torch::linspace(-1, 1, got[i].numel()).view(got[i].sizes());
      loss = loss + (got[i] * weights).sum();
      loss_by_autograd = loss_by_autograd + (expected[i] * weights).sum();
    }
    loss.backward();
    loss_by_autograd.backward();
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
    const auto statistics = by_autograd->named_buffers();
    for (const auto& buffer : planned->named_buffers())
      EXPECT_TRUE(torch::equal(buffer.value(), statistics[buffer.key()])) << buffer.key();
  }
  const auto node = [&](const auto& module) {
    return module->forward_all(inputs)[0].grad_fn()->name();
  };
  EXPECT_EQ(node(planned) != node(by_autograd), planned->why_not_planned().empty());
}
inline void expect_planned_is_by_autograd(const nn::Graph& graph, const at::Tensor& x) {
  expect_planned_is_by_autograd(graph, std::vector{x});
}

}  // namespace tutti::test
