// Gradients of weights that come later: the bits of autograd, whatever uses a weight.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/nn/dense.h"
#include "tutti/nn/weight_gradients.h"

namespace tutti {
namespace {

using nn::Activation;
using nn::WeightGradients;
using Tensors = std::vector<at::Tensor>;

struct Weights {
  at::Tensor square = at::randn({6, 6}).requires_grad_();
  at::Tensor bias = at::randn({6}).requires_grad_();
  at::Tensor norm = at::randn({6}).requires_grad_();
  at::Tensor blocks = at::randn({12, 6}).requires_grad_();
  Tensors all() const { return {square, bias, norm, blocks}; }
};

struct Case {
  const char* name;
  std::function<at::Tensor(const Weights&, at::Tensor x)> output;
  size_t put_off;  // weights
};

const Case kCases[] = {
    {"a layer", [](const Weights& w, at::Tensor x) { return nn::dense(x, w.square, w.bias); }, 1},
    {"with relu",
     [](const Weights& w, at::Tensor x) {
       return nn::dense(x, w.square, w.bias, Activation::relu) * w.norm;
     },
     1},
    {"three times the same",
     [](const Weights& w, at::Tensor x) {
       for (int i = 0; i < 3; ++i) x = nn::dense(x, w.square, w.bias, Activation::relu) + x;
       return x;
     },
     1},
    {"something else uses it too",
     [](const Weights& w, at::Tensor x) {
       return nn::dense(nn::dense(x, w.square) + w.square[0], w.square, w.bias);
     },
     0},
    {"a block of it",
     [](const Weights& w, at::Tensor x) {
       return nn::dense(x, w.blocks.slice(0, 0, 6)) + nn::dense(x, w.blocks.slice(0, 6, 12));
     },
     0},
    {"not used", [](const Weights& w, at::Tensor x) { return x * w.norm; }, 0},
};

TEST(WeightGradients, HaveTheBitsOfAutograd) {
  at::manual_seed(3);
  const Weights weights;
  const at::Tensor x = at::randn({5, 6}).requires_grad_();
  const at::Tensor gradient = at::randn({5, 6});
  Tensors targets = weights.all();
  targets.push_back(x);
  for (const Case& test : kCases) {
    SCOPED_TRACE(test.name);
    const Tensors expected = torch::autograd::grad({test.output(weights, x)}, targets, {gradient},
                                                   std::nullopt, false, /*allow_unused=*/true);
    const at::Tensor y = test.output(weights, x);
    WeightGradients later(y);
    Tensors got;
    {
      const WeightGradients::Active active(later);
      got = torch::autograd::grad({y}, targets, {gradient}, std::nullopt, false, true);
    }
    EXPECT_EQ(WeightGradients::current(), nullptr);
    const auto taken = later.take();
    EXPECT_EQ(taken.size(), test.put_off);
    for (const auto& [weight, late] : taken)
      for (size_t i = 0; i < targets.size(); ++i)
        if (targets[i].is_same(weight)) {
          EXPECT_FALSE(got[i].defined());
          got[i] = late;
        }
    for (size_t i = 0; i < targets.size(); ++i) {
      ASSERT_EQ(got[i].defined(), expected[i].defined()) << i;
      if (got[i].defined()) {
        EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
      }
    }
    EXPECT_TRUE(later.take().empty());
  }
}

TEST(WeightGradients, AreComputedAtOnceWithoutAStore) {
  const Weights weights;
  nn::dense(at::ones({2, 6}), weights.square, weights.bias).sum().backward();
  EXPECT_TRUE(weights.square.grad().defined());
}

}  // namespace
}  // namespace tutti
