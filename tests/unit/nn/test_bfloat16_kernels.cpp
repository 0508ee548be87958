// Kernels of bfloat16 layers beside their formulas in double precision, and each instruction set
// beside the first.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tutti/nn/detail/bfloat16_layers.h"

namespace tutti {
namespace {

using nn::detail::bfloat16_kernels;
using nn::detail::Bfloat16Kernels;
using nn::detail::ScoresShape;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

uint16_t* bits(const at::Tensor& x) {
  return reinterpret_cast<uint16_t*>(x.data_ptr<at::BFloat16>());
}

/// Within `units` in the last place of bfloat16, or 1e-6 where that is more.
void expect_near_in_bfloat16(const at::Tensor& got, const at::Tensor& expected, double units,
                             const std::string& what) {
  const at::Tensor allowed = expected.abs() * (units / 128) + 1e-6;
  const at::Tensor wrong = (got.to(at::kDouble) - expected).abs() > allowed;
  EXPECT_FALSE(wrong.any().item<bool>()) << what << ": " << wrong.sum().item<int64_t>();
}

class Bfloat16KernelsOf : public ::testing::TestWithParam<CpuVariant> {
 protected:
  static const Bfloat16Kernels& kernels() { return bfloat16_kernels(GetParam()); }
};

/// All numbers of bfloat16 but those that are not finite.
at::Tensor all_finite() {
  const at::Tensor x = torch::arange(1 << 16).to(at::kShort).view(at::kBFloat16);
  return x.masked_select(x.isfinite());
}

TEST_P(Bfloat16KernelsOf, GeluIsItsFormulaForEveryNumber) {
  const at::Tensor x = all_finite(), wide = x.to(at::kDouble);
  const at::Tensor u = std::sqrt(2 / M_PI) * (wide + 0.044715 * wide.pow(3));
  const at::Tensor t = u.tanh(), y = torch::empty_like(x);
  kernels().gelu(bits(x), bits(y), x.numel());
  const at::Tensor expected = wide * (1 / (1 + (-2 * u).exp()));
  expect_near_in_bfloat16(y, torch::where(wide < -64, torch::zeros_like(wide), expected), 0.52,
                          "gelu");

  const at::Tensor slope = 0.5 * (1 + t) + 0.5 * wide * (1 - t * t) * std::sqrt(2 / M_PI) *
                                               (1 + 3 * 0.044715 * wide.pow(2));
  const at::Tensor one = torch::ones_like(x), dx = torch::empty_like(x);
  kernels().gelu_gradient(bits(one), bits(x), bits(dx), x.numel());
  const at::Tensor ends = torch::where(wide > 64, torch::ones_like(wide), slope);
  // (1 - t * t) loses digits where t is near 1: there the slope is near 1 or 0 itself.
  expect_near_in_bfloat16(dx, torch::where(wide < -64, torch::zeros_like(wide), ends), 0.6,
                          "gradient");
}

TEST_P(Bfloat16KernelsOf, GeluOfWhatIsNotFinite) {
  const at::Tensor x = torch::tensor({kInfinity, -kInfinity, std::nan("")}).to(at::kBFloat16);
  const at::Tensor y = torch::empty_like(x);
  kernels().gelu(bits(x), bits(y), x.numel());
  EXPECT_EQ(y[0].item<float>(), kInfinity);
  EXPECT_EQ(y[1].item<float>(), 0);
  EXPECT_TRUE(std::isnan(y[2].item<float>()));
  kernels().gelu_gradient(bits(torch::ones_like(x)), bits(x), bits(y), x.numel());
  EXPECT_EQ(y[0].item<float>(), 1);
  EXPECT_EQ(y[1].item<float>(), 0);
  EXPECT_TRUE(std::isnan(y[2].item<float>()));
}

const std::vector<ScoresShape> kShapes = {{1, 1, 1, 1.0F, true},     {2, 5, 5, 0.5F, true},
                                          {3, 16, 16, 0.25F, false}, {2, 33, 33, 0.125F, true},
                                          {1, 7, 65, 1.0F, false},   {2, 64, 64, 0.125F, true}};

/// Minus infinity where a query does not see a key.
at::Tensor unseen(const ScoresShape& shape) {
  const at::Tensor none = torch::zeros({shape.queries, shape.keys}, at::kDouble);
  if (!shape.causal) return none;
  return none.masked_fill(torch::ones_like(none, at::kBool).triu(1), -kInfinity);
}

TEST_P(Bfloat16KernelsOf, SoftmaxAndItsGradientAreTheirFormulas) {
  for (const ScoresShape& shape : kShapes) {
    torch::manual_seed(shape.keys);
    const std::vector<int64_t> sides{shape.matrices, shape.queries, shape.keys};
    const at::Tensor scores = (torch::randn(sides) * 8).to(at::kBFloat16);
    const at::Tensor p = scores.clone(), scratch = torch::empty({shape.keys});
    kernels().softmax(shape, bits(p), scratch.data_ptr<float>());
    const double scale = shape.scale;
    const at::Tensor expected = (scores.to(at::kDouble) * scale + unseen(shape)).softmax(-1);
    const std::string what = c10::str(sides);
    expect_near_in_bfloat16(p, expected, 0.52, what);

    const at::Tensor above = torch::randn(sides).to(at::kBFloat16), dx = above.clone();
    kernels().softmax_gradient(shape, bits(p), bits(dx));
    const at::Tensor wide = p.to(at::kDouble), of_p = above.to(at::kDouble);
    const at::Tensor mean = (wide * of_p).sum(-1, true);
    const at::Tensor of_scores = scale * wide * (of_p - mean);
    // The mean is of float32: where its gradient is all but equal, digits are lost.
    const at::Tensor lost = (dx.to(at::kDouble) - of_scores).abs();
    const at::Tensor allowed = of_scores.abs() * (0.52 / 128) + scale * wide * 1e-5;
    EXPECT_FALSE((lost > allowed).any().item<bool>()) << what;
  }
}

TEST_P(Bfloat16KernelsOf, SoftmaxSeesWhatIsNoNumber) {
  const ScoresShape shape{.matrices = 1, .queries = 2, .keys = 20, .scale = 1, .causal = false};
  const at::Tensor p = torch::zeros({1, 2, 20}).to(at::kBFloat16), scratch = torch::empty({20});
  p[0][0][17] = std::nan("");
  kernels().softmax(shape, bits(p), scratch.data_ptr<float>());
  EXPECT_TRUE(p[0][0].isnan().all().item<bool>());
  EXPECT_TRUE(p[0][1].isfinite().all().item<bool>());
}

TEST_P(Bfloat16KernelsOf, HaveTheBitsOfTheBaseline) {
  const Bfloat16Kernels& plain = bfloat16_kernels(CpuVariant::baseline);
  torch::manual_seed(3);
  const at::Tensor x = all_finite(), g = torch::randn(x.sizes()).to(at::kBFloat16);
  const at::Tensor a = torch::empty_like(x), b = torch::empty_like(x);
  const auto same = [&] { return torch::equal(a.view(at::kShort), b.view(at::kShort)); };
  kernels().gelu(bits(x), bits(a), x.numel());
  plain.gelu(bits(x), bits(b), x.numel());
  EXPECT_TRUE(same());
  kernels().gelu_gradient(bits(g), bits(x), bits(a), x.numel());
  plain.gelu_gradient(bits(g), bits(x), bits(b), x.numel());
  EXPECT_TRUE(same());
  for (const ScoresShape& shape : kShapes) {
    const int64_t count = shape.matrices * shape.queries * shape.keys;
    const at::Tensor scratch = torch::empty({shape.keys});
    const at::Tensor p = torch::randn({count}).to(at::kBFloat16), q = p.clone();
    kernels().softmax(shape, bits(p), scratch.data_ptr<float>());
    plain.softmax(shape, bits(q), scratch.data_ptr<float>());
    EXPECT_TRUE(torch::equal(p, q)) << shape.keys;
    const at::Tensor dp = torch::randn({count}).to(at::kBFloat16), dq = dp.clone();
    kernels().softmax_gradient(shape, bits(p), bits(dp));
    plain.softmax_gradient(shape, bits(q), bits(dq));
    EXPECT_TRUE(torch::equal(dp, dq)) << shape.keys;
  }
}

/// By its formula, in double precision.
at::Tensor attended(const at::Tensor& x, int64_t heads, bool causal) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2) / 3 / heads;
  const auto parts = x.view({batch, length, 3, heads, width}).permute({2, 0, 3, 1, 4});
  auto scores = parts[0].matmul(parts[1].transpose(2, 3)) / std::sqrt(double(width));
  if (causal) {
    const auto hidden = torch::ones({length, length}, at::kBool).triu(1);
    scores = scores.masked_fill(hidden, -kInfinity);
  }
  return scores.softmax(-1).matmul(parts[2]).transpose(1, 2).reshape({batch, length, -1});
}

double apart_of(const at::Tensor& got, const at::Tensor& expected) {
  return ((got.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

TEST(AttendInBfloat16, IsItsFormulaAndSoIsItsGradient) {
  struct Case {
    int64_t batch, length, heads, width;
  };
  // The last one is worked on in pieces.
  for (const Case of : {Case{1, 1, 1, 4}, {2, 5, 3, 8}, {3, 65, 4, 16}, {2, 600, 3, 8}})
    for (const bool causal : {false, true}) {
      torch::manual_seed(of.length);
      const at::Tensor x =
          torch::randn({of.batch, of.length, 3 * of.heads * of.width}).to(at::kBFloat16);
      const at::Tensor above =
          torch::randn({of.batch, of.length, of.heads * of.width}).to(at::kBFloat16);
      const at::Tensor wide = x.to(at::kDouble).requires_grad_();
      const at::Tensor expected = attended(wide, of.heads, causal);
      expected.backward(above.to(at::kDouble));
      const at::Tensor y = nn::detail::attend_in_bfloat16(x, of.heads, causal);
      const at::Tensor dx = nn::detail::attend_gradient_in_bfloat16(above, x, of.heads, causal);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      EXPECT_LT(apart_of(y, expected.detach()), 0.01) << of.length << ' ' << causal;
      EXPECT_LT(apart_of(dx, wide.grad()), 0.01) << of.length << ' ' << causal;
    }
}

INSTANTIATE_TEST_SUITE_P(Variants, Bfloat16KernelsOf, ::testing::ValuesIn(runnable_variants()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tutti
