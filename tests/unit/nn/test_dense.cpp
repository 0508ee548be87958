#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/nn/dense.h"
#include "tutti/nn/detail/layers.h"
#include "tutti/nn/precision.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using nn::Activation;
using nn::DenseKernel;
using test::message_of;
using ::testing::HasSubstr;

/// The kernels that this LibTorch carries.
std::vector<DenseKernel> carried() {
  std::vector<DenseKernel> all;
  const DenseKernel before = nn::dense_kernel();
  for (const auto kernel : {DenseKernel::blas, DenseKernel::onednn}) {
    try {
      nn::use_dense_kernel(kernel);
      all.push_back(kernel);
    } catch (const UsageError&) {
    }
  }
  nn::use_dense_kernel(before);
  return all;
}

class DenseBy : public ::testing::TestWithParam<DenseKernel> {
 protected:
  void SetUp() override { nn::use_dense_kernel(GetParam()); }
  void TearDown() override { nn::use_dense_kernel(before_); }

 private:
  DenseKernel before_ = nn::dense_kernel();
};

struct DenseSizes {
  int64_t rows, features, units;
};
// Below and above the size from which on oneDNN multiplies.
constexpr DenseSizes kSizes[] = {
    {1, 3, 2}, {5, 7, 9}, {1, 1024, 600}, {64, 784, 128}, {33, 201, 101}};

double error_of(const at::Tensor& got, const at::Tensor& expected) {
  return ((got.to(torch::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

TEST_P(DenseBy, ValuesAndGradientsAreThoseOfTorchInDoublePrecision) {
  for (const auto [rows, features, units] : kSizes)
    for (const auto activation : {Activation::none, Activation::relu})
      for (const bool with_bias : {true, false}) {
        torch::manual_seed(2);
        const auto x = torch::randn({rows, features}).requires_grad_();
        const auto weight = torch::randn({units, features}).requires_grad_();
        const auto bias = with_bias ? torch::randn({units}).requires_grad_() : at::Tensor();
        const auto gradient = torch::randn({rows, units});
        const auto y = nn::dense(x, weight, bias, activation);
        y.backward(gradient);
        // Of the same ReLU: near zero a rounded sum may be on the other side.
        const auto exact =
            torch::linear(x.detach().to(torch::kDouble), weight.detach().to(torch::kDouble),
                          with_bias ? bias.detach().to(torch::kDouble) : bias);
        const bool relu = activation == Activation::relu;
        EXPECT_LT(error_of(y.detach(), relu ? exact.relu() : exact), 1e-6);
        const auto dz = (relu ? gradient * (y > 0) : gradient).to(torch::kDouble);
        EXPECT_LT(error_of(x.grad(), dz.mm(weight.detach().to(torch::kDouble))), 1e-6);
        EXPECT_LT(error_of(weight.grad(), dz.t().mm(x.detach().to(torch::kDouble))), 1e-6);
        if (!with_bias) continue;
        EXPECT_LT(error_of(bias.grad(), dz.sum(0)), 1e-6);
      }
}

// By differences of a sum that is linear in each element, in double precision.
TEST_P(DenseBy, GradientsAreThoseOfFiniteDifferences) {
  torch::manual_seed(4);
  const auto x = torch::randn({33, 201}), weight = torch::randn({101, 201});
  const auto bias = torch::randn({101}), gradient = torch::randn({33, 101});
  auto inputs = std::vector{x.clone().requires_grad_(), weight.clone().requires_grad_(),
                            bias.clone().requires_grad_()};
  (nn::dense(inputs[0], inputs[1], inputs[2], Activation::relu) * gradient).sum().backward();
  const auto loss = [&](const std::vector<at::Tensor>& of) {
    const auto y = torch::relu(torch::linear(of[0], of[1], of[2]));
    return (y * gradient.to(torch::kDouble)).sum().item<double>();
  };
  std::vector<at::Tensor> exact;
  for (const auto& input : inputs) exact.push_back(input.detach().to(torch::kDouble));
  for (size_t i = 0; i < exact.size(); ++i)
    for (int64_t place = 0; place < exact[i].numel(); place += 1 + exact[i].numel() / 50) {
      constexpr double kStep = 1e-6;
      auto element = exact[i].view(-1)[place];
      element += kStep;
      const double up = loss(exact);
      element -= 2 * kStep;
      const double down = loss(exact);
      element += kStep;
      const double slope = (up - down) / (2 * kStep);
      EXPECT_NEAR(inputs[i].grad().view(-1)[place].item<double>(), slope,
                  2e-4 * (1 + std::abs(slope)))
          << "input " << i << ", element " << place;
    }
}

TEST_P(DenseBy, WhatIsNoNumberIsSeen) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto x = torch::ones({64, 784});
    x[3][5] = bad;
    const auto weight = torch::ones({128, 784}).requires_grad_();
    const auto bias = torch::zeros({128}).requires_grad_();
    const auto y = nn::dense(x, weight, bias, Activation::relu);
    EXPECT_FALSE(y[3].isfinite().any().item<bool>());
    EXPECT_TRUE(y[4].isfinite().all().item<bool>());
    y.sum().backward();
    EXPECT_FALSE(weight.grad().select(1, 5).isfinite().any().item<bool>());
    EXPECT_TRUE(weight.grad().select(1, 6).isfinite().all().item<bool>());
  }
}

TEST_P(DenseBy, TakesNoRowsAndMoreDimensions) {
  const auto weight = torch::randn({128, 784}).requires_grad_(), bias = torch::randn({128});
  const auto none = nn::dense(torch::randn({0, 784}), weight, bias, Activation::relu);
  EXPECT_EQ(none.sizes(), at::IntArrayRef({0, 128}));
  none.sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), torch::zeros_like(weight)));
  const auto x = torch::randn({4, 784, 16}).transpose(1, 2).requires_grad_();
  const auto y = nn::dense(x, weight, bias);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({4, 16, 128}));
  EXPECT_TRUE(torch::equal(y.view({64, 128}), nn::dense(x.reshape({64, 784}), weight, bias)));
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

TEST_P(DenseBy, ABackwardPassMayMakeAGraph) {
  const auto x = torch::randn({64, 784}).requires_grad_();
  const auto weight = torch::randn({128, 784}).requires_grad_();
  const auto y = nn::dense(x, weight, {}, Activation::relu).pow(2).sum();
  const auto dx = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
  dx.pow(2).sum().backward();
  const auto again = weight.detach().clone().requires_grad_();
  const auto other = torch::relu(torch::linear(x, again)).pow(2).sum();
  torch::autograd::grad({other}, {x}, {}, true, true)[0].pow(2).sum().backward();
  EXPECT_LT(error_of(weight.grad(), again.grad().to(torch::kDouble)), 1e-5);
}

TEST_P(DenseBy, OnlyWhatIsTrainedGetsAGradient) {
  const auto weight = torch::randn({128, 784}), bias = torch::randn({128}).requires_grad_();
  nn::dense(torch::randn({64, 784}), weight, bias, Activation::relu).sum().backward();
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_TRUE(bias.grad().defined());
}

TEST_P(DenseBy, OtherPrecisionsAreTorchs) {
  const auto x = torch::randn({64, 784}), weight = torch::randn({128, 784});
  {
    const Autocast bfloat16(Precision::bfloat16);
    EXPECT_EQ(nn::dense(x, weight).scalar_type(), torch::kBFloat16);
  }
  const auto wide = nn::dense(x.to(torch::kDouble), weight.to(torch::kDouble));
  EXPECT_TRUE(torch::equal(wide, torch::linear(x.to(torch::kDouble), weight.to(torch::kDouble))));
}

INSTANTIATE_TEST_SUITE_P(EachKernel, DenseBy, ::testing::ValuesIn(carried()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(DenseKernels, OneDnnMultipliesOtherwiseThanTheBlas) {
  if (carried().size() < 2) GTEST_SKIP() << "this LibTorch carries one kernel";
  const DenseKernel before = nn::dense_kernel();
  const auto x = torch::randn({64, 784}), weight = torch::randn({128, 784});
  nn::use_dense_kernel(DenseKernel::blas);
  const auto by_blas = nn::dense(x, weight);
  EXPECT_TRUE(torch::equal(by_blas, torch::linear(x, weight)));
  nn::use_dense_kernel(DenseKernel::onednn);
  const auto by_onednn = nn::dense(x, weight);
  nn::use_dense_kernel(before);
  EXPECT_TRUE(torch::allclose(by_onednn, by_blas, 1e-5, 1e-4));
}

TEST(DenseKernels, AreThoseOfTheRule) {
  using nn::detail::CpuMaker;
  using nn::detail::fastest_kernel;
  const auto kernel = [](std::string_view blas, CpuMaker maker, CpuVariant variant) {
    return fastest_kernel(
        {.onednn = true, .mkl = blas == "MKL", .maker = maker, .variant = variant});
  };
  for (const auto variant : {CpuVariant::avx2, CpuVariant::avx512}) {
    EXPECT_EQ(kernel("MKL", CpuMaker::intel, variant), DenseKernel::blas);
    EXPECT_EQ(kernel("MKL", CpuMaker::other, variant), DenseKernel::onednn);
  }
  EXPECT_EQ(kernel("MKL", CpuMaker::amd, CpuVariant::avx2), DenseKernel::blas);
  EXPECT_EQ(kernel("MKL", CpuMaker::amd, CpuVariant::avx512), DenseKernel::onednn);
  for (const auto maker : {CpuMaker::intel, CpuMaker::amd, CpuMaker::other}) {
    EXPECT_EQ(kernel("OpenBLAS", maker, CpuVariant::avx2), DenseKernel::onednn);
    EXPECT_EQ(kernel("OpenBLAS", maker, CpuVariant::avx512), DenseKernel::onednn);
    EXPECT_EQ(kernel("OpenBLAS", maker, CpuVariant::baseline), DenseKernel::blas);
  }
  EXPECT_EQ(fastest_kernel({.variant = CpuVariant::avx512}), DenseKernel::blas);
}

TEST(DenseKernels, HaveNames) {
  EXPECT_EQ(nn::dense_kernel_by_name("onednn"), DenseKernel::onednn);
  EXPECT_EQ(name_of(DenseKernel::blas), "blas");
  EXPECT_THAT(message_of<UsageError>([] { nn::dense_kernel_by_name("onedn"); }),
              HasSubstr("onednn"));
}

TEST(DenseLinear, IsTorchsByNamesShapesAndInitialValues) {
  torch::manual_seed(8);
  nn::Linear ours(6, 4);
  torch::manual_seed(8);
  const torch::nn::Linear theirs(6, 4);
  ASSERT_EQ(ours->parameters().size(), 2U);
  for (const auto& parameter : theirs->named_parameters())
    EXPECT_TRUE(torch::equal(ours->named_parameters()[parameter.key()], parameter.value()));
  const auto x = torch::randn({3, 6});
  EXPECT_TRUE(torch::equal(ours->forward(x), nn::dense(x, ours->weight, ours->bias)));
  const auto copy = std::dynamic_pointer_cast<nn::LinearImpl>(ours->clone());
  ASSERT_TRUE(copy);
  EXPECT_TRUE(torch::equal(copy->weight, ours->weight));
  std::ostringstream words;
  words << *ours;
  EXPECT_EQ(words.str(), "tutti::nn::Linear(in_features=6, out_features=4, bias=true)");
  const nn::Linear plain(torch::nn::LinearOptions(6, 4).bias(false));
  EXPECT_EQ(plain->parameters().size(), 1U);
  EXPECT_EQ(torch::nn::Sequential(nn::Linear(6, 4), torch::nn::ReLU())->forward(x).size(1), 4);
}

}  // namespace
}  // namespace tutti
