// The loss of logits in blocks: values and gradients against torch's and finite differences, the
// same bits for any number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "tutti/parallel/tensor/cross_entropy.h"

#include "tests/support/message_of.h"
#include "tests/support/tensor_ranks.h"

namespace tutti::parallel {
namespace {

using test::errors_of_tensor_ranks;
using test::message_of;
using test::on_tensor_ranks;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kWords = 65;

at::Tensor some_logits(at::ScalarType type, double scale = 3) {
  const at::Tensor numbers = at::arange(2 * 5 * kWords, at::kDouble);
  return ((numbers * 1.37 + 0.4).sin() * scale).view({2, 5, kWords}).to(type);
}

/// The first and last words of blocks among them.
at::Tensor some_targets() {
  return torch::tensor({0, 16, 17, 32, 33, 48, 49, 64, 5, 40}, at::kLong).view({2, 5});
}

struct LossAndGradient {
  at::Tensor loss;      // of each row
  at::Tensor gradient;  // of all logits: the ranks' joined
};

/// Of the sum of the losses, each with another factor.
at::Tensor weighted(const at::Tensor& loss) {
  const at::Tensor factors = at::arange(1, loss.numel() + 1, loss.options()).view(loss.sizes());
  return (loss * factors).sum();
}

LossAndGradient of_ranks(int ranks, int blocks, const at::Tensor& logits,
                         const at::Tensor& targets) {
  const auto by_rank = on_tensor_ranks(ranks, blocks, [&](const TensorGroup& group) {
    const auto [begin, size] = group.range(logits.size(-1));
    Blocks own = logits.narrow(-1, begin, size)
                     .split_with_sizes(group.sizes_of(group.rank(), logits.size(-1)), -1);
    for (at::Tensor& block : own) block = block.clone().requires_grad_();
    const at::Tensor loss = cross_entropy(group, own, targets);
    weighted(loss).backward();
    for (at::Tensor& block : own) block = block.grad();
    return LossAndGradient{loss.detach(), at::cat(own, -1)};
  });
  Blocks gradients;
  for (const LossAndGradient& rank : by_rank) {
    EXPECT_TRUE(at::allclose(rank.loss, by_rank[0].loss, 0, 0, /*equal_nan=*/true));
    gradients.push_back(rank.gradient);
  }
  return {by_rank[0].loss, at::cat(gradients, -1)};
}

LossAndGradient of_torch(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor leaf = logits.clone().requires_grad_();
  const at::Tensor loss = at::cross_entropy_loss(leaf.view({-1, leaf.size(-1)}), targets.view({-1}),
                                                 {}, at::Reduction::None)
                              .view(targets.sizes());
  weighted(loss).backward();
  return {loss.detach(), leaf.grad()};
}

TEST(VocabularyLoss, IsTorchsWithinRounding) {
  const at::Tensor targets = some_targets();
  for (const double scale : {0.1, 3.0, 1e4}) {
    const at::Tensor logits = some_logits(at::kFloat, scale);
    const auto expected = of_torch(logits, targets);
    for (const int ranks : {1, 2, 3, 4}) {
      const auto got = of_ranks(ranks, 4, logits, targets);
      EXPECT_TRUE(at::allclose(got.loss, expected.loss, 1e-6, 1e-6)) << scale;
      EXPECT_TRUE(at::allclose(got.gradient, expected.gradient, 1e-5, 1e-6)) << scale;
    }
  }
}

TEST(VocabularyLoss, AnyNumberOfRanksHasTheSameBits) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const auto expected = of_ranks(1, 4, some_logits(type), some_targets());
    EXPECT_EQ(expected.gradient.scalar_type(), type);
    for (const int ranks : {2, 3, 4}) {
      const auto got = of_ranks(ranks, 4, some_logits(type), some_targets());
      EXPECT_TRUE(at::equal(got.loss, expected.loss)) << type << " on " << ranks;
      EXPECT_TRUE(at::equal(got.gradient, expected.gradient)) << type << " on " << ranks;
    }
  }
}

TEST(VocabularyLoss, GradientsAreThoseOfFiniteDifferences) {
  constexpr double kStep = 1e-5;
  const at::Tensor logits = some_logits(at::kDouble).slice(0, 0, 1).slice(1, 0, 2).slice(2, 0, 7);
  const at::Tensor targets = torch::tensor({4, 6}, at::kLong).view({1, 2});
  for (const int ranks : {1, 2, 3}) {
    const auto got = of_ranks(ranks, 3, logits, targets);
    for (int64_t place = 0; place < logits.numel(); ++place) {
      const auto moved = [&](double change) {
        const at::Tensor other = logits.clone(at::MemoryFormat::Contiguous);
        other.view(-1)[place] += change;
        return weighted(of_ranks(ranks, 3, other, targets).loss).item<double>();
      };
      const double slope = (moved(kStep) - moved(-kStep)) / (2 * kStep);
      EXPECT_NEAR(got.gradient.reshape(-1)[place].item<double>(), slope, 1e-8);
    }
  }
}

TEST(VocabularyLoss, WhatIsNoNumberStaysInItsRow) {
  at::Tensor logits = some_logits(at::kFloat);
  logits[0][2][40] = std::numeric_limits<float>::quiet_NaN();
  logits[1][1][3] = -std::numeric_limits<float>::infinity();
  const auto expected = of_torch(logits, some_targets());
  const auto got = of_ranks(2, 4, logits, some_targets());
  EXPECT_TRUE(at::allclose(got.loss, expected.loss, 1e-6, 1e-6, /*equal_nan=*/true));
  EXPECT_TRUE(at::isnan(got.loss[0][2]).item<bool>());
  EXPECT_EQ(at::isnan(got.loss).sum().item<int64_t>(), 1);
}

TEST(VocabularyLossErrors, TargetsShapesAndSecondDerivatives) {
  const auto error = [](const at::Tensor& logits, const at::Tensor& targets) {
    return errors_of_tensor_ranks(
        1, 1, [&](const TensorGroup& group) { cross_entropy(group, {logits}, targets); })[0];
  };
  EXPECT_THAT(message_of<DataError>([] {
                cross_entropy(TensorGroup(1), {at::ones({3, 65})},
                              torch::tensor({1, 65, 2}, at::kLong));
              }),
              HasSubstr("cross_entropy of blocks: element 1 is 65, expected 0 to 64"));
  EXPECT_THAT(error(at::ones({3, 65}), torch::tensor({1, 0, -100}, at::kLong)),
              HasSubstr("element 2 is -100"));
  EXPECT_THAT(error(at::ones({3, 65}), at::zeros({3})), HasSubstr("UsageError"));
  EXPECT_THAT(error(at::ones({3, 65}), at::zeros({2}, at::kLong)),
              HasSubstr("logits are Float [3, 65], targets [2]"));
  EXPECT_THAT(error(at::ones({3, 65}, at::kLong), at::zeros({3}, at::kLong)),
              HasSubstr("logits are Long"));
  const auto twice = errors_of_tensor_ranks(1, 1, [&](const TensorGroup& group) {
    const at::Tensor x = at::ones({1, 3}).requires_grad_();
    const at::Tensor loss = cross_entropy(group, {x}, at::zeros({1}, at::kLong));
    torch::autograd::grad({loss.sum()}, {x}, {}, true, /*create_graph=*/true);
  });
  EXPECT_THAT(twice[0], HasSubstr("it has no second derivative"));
}

TEST(VocabularyLossErrors, AnotherNumberOfRowsNamesTheRank) {
  EXPECT_THAT(errors_of_tensor_ranks(2, 2,
                                     [](const TensorGroup& group) {
                                       const int64_t rows = 3 + group.rank();
                                       cross_entropy(group, {at::ones({rows, 5})},
                                                     at::zeros({rows}, at::kLong));
                                     }),
              Each(HasSubstr("Mismatch: cross_entropy: rank 1 of 2 calls cross_entropy of Float "
                             "[4, 5] along axis 1, rank 0 calls cross_entropy of Float [3, 5]")));
}

}  // namespace
}  // namespace tutti::parallel
