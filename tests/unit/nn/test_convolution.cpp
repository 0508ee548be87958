// Convolutions by either way, held against LibTorch's in double precision.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include "tutti/nn/detail/convolution.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/nn/graph_module.h"
#include "tutti/sync/before_use.h"

#include "tests/support/planned.h"

namespace tutti {
namespace {

using nn::Size2d;
using nn::op::Conv2d;
using Way = nn::detail::ConvolutionWay;

struct ConvolutionCase {
  std::string what;
  Conv2d conv;
  int64_t height, width;
  Way way;
};

void PrintTo(const ConvolutionCase& each, std::ostream* out) { *out << each.what; }

Conv2d conv_with(int64_t in, int64_t out, Size2d kernel, int64_t stride, Size2d padding,
                 int64_t groups = 1, bool bias = true) {
  return {in, out, kernel, stride, padding, groups, bias};
}

std::vector<ConvolutionCase> convolution_cases() {
  return {
      {"3 x 3 of 2 x 2", conv_with(64, 64, 3, 1, 1), 2, 2, Way::by_taps},
      {"3 x 3 of 1 x 1, of which one tap reads", conv_with(80, 64, 3, 1, 1), 1, 1, Way::by_taps},
      {"3 x 3 of 4 x 4 by two", conv_with(64, 96, 3, 2, 1, 1, false), 4, 4, Way::by_taps},
      {"3 x 3 of 3 x 3 by two", conv_with(64, 64, 3, 2, 1), 3, 3, Way::by_taps},
      {"3 x 3 of 4 x 1", conv_with(64, 64, 3, 1, 1), 4, 1, Way::by_taps},
      {"1 x 3 of 1 x 4", conv_with(128, 96, {1, 3}, 1, {0, 1}), 1, 4, Way::by_taps},
      {"5 x 3 of 2 x 2, beyond both edges", conv_with(48, 64, {5, 3}, 1, {2, 1}), 2, 2,
       Way::by_taps},
      {"padding that some outputs read alone", conv_with(64, 64, 3, 3, 3), 1, 1, Way::by_taps},
      {"all of a 3 x 3 image", conv_with(64, 64, 3, 1, 0), 3, 3, Way::by_taps},
      {"5 x 1 outputs", conv_with(64, 64, 3, 1, 1), 5, 1, Way::libtorch},
      {"3 x 3 of 3 x 3", conv_with(64, 64, 3, 1, 1), 3, 3, Way::libtorch},
      {"one tap of 2 x 2", conv_with(256, 144, 1, 1, 0), 2, 2, Way::dense},
      {"one tap of 3 x 5", conv_with(256, 128, 1, 1, 0, 1, false), 3, 5, Way::dense},
      {"one tap of 17 x 1", conv_with(256, 128, 1, 1, 0), 17, 1, Way::libtorch},
      {"one tap by two", conv_with(256, 144, 1, 2, 0), 3, 4, Way::by_taps},
      {"one tap with padding", conv_with(256, 144, 1, 2, 1), 2, 2, Way::by_taps},
      {"few channels", conv_with(48, 64, 3, 1, 1), 2, 2, Way::libtorch},
      {"channels that are no lines of cache", conv_with(72, 64, 3, 1, 1), 2, 2, Way::libtorch},
      {"groups", conv_with(128, 128, 3, 1, 1, 2), 2, 2, Way::libtorch},
      {"a group a channel", conv_with(32, 32, 3, 1, 1, 32), 6, 5, Way::libtorch},
      {"one channel in", conv_with(1, 24, 5, 1, 2), 12, 9, Way::libtorch},
      {"one channel out", conv_with(16, 1, 3, 1, 1), 7, 7, Way::libtorch},
      {"7 x 7 by two", conv_with(3, 64, 7, 2, 3, 1, false), 20, 22, Way::libtorch},
  };
}

class Convolutions : public ::testing::TestWithParam<ConvolutionCase> {
 protected:
  struct Tensors {
    at::Tensor x, weight, bias, y;
  };
  const Conv2d& conv() const { return GetParam().conv; }

  Tensors drawn(int64_t batch) const {
    torch::manual_seed(3);
    const auto& [in, out, kernel, stride, padding, groups, bias] = conv();
    Tensors all;
    all.x = torch::randn({batch, in, GetParam().height, GetParam().width});
    all.weight = torch::randn({out, in / groups, kernel.height, kernel.width});
    if (bias) all.bias = torch::randn({out});
    return all;
  }

  at::Tensor by_libtorch(const Tensors& of) const {
    return at::conv2d(of.x, of.weight, of.bias, {conv().stride, conv().stride},
                      {conv().padding.height, conv().padding.width}, {1, 1}, conv().groups);
  }

  static std::vector<at::Tensor> inputs_of(Tensors& of) {
    std::vector<at::Tensor> inputs{of.x.requires_grad_(), of.weight.requires_grad_()};
    if (of.bias.defined()) inputs.push_back(of.bias.requires_grad_());
    return inputs;
  }

  Tensors in_double(const Tensors& of) const {
    Tensors all{of.x.detach().to(torch::kDouble),
                of.weight.detach().to(torch::kDouble),
                of.bias.defined() ? of.bias.detach().to(torch::kDouble) : at::Tensor(),
                {}};
    all.y = by_libtorch({all.x.requires_grad_(),
                         all.weight.requires_grad_(),
                         of.bias.defined() ? all.bias.requires_grad_() : at::Tensor(),
                         {}});
    return all;
  }

  at::Tensor convolved(const Tensors& of) const {
    return nn::detail::convolve(conv(), nn::detail::channels_last(of.x), of.weight, of.bias);
  }
};

double error_beside(const at::Tensor& got, const at::Tensor& expected) {
  return ((got.to(torch::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}

TEST_P(Convolutions, ValuesAndGradientsAreThoseInDoublePrecision) {
  EXPECT_EQ(nn::detail::way_of(conv(), GetParam().height, GetParam().width), GetParam().way);
  for (const int64_t batch : {1, 5}) {
    Tensors ours = drawn(batch);
    const Tensors exact = in_double(ours);
    const auto inputs = inputs_of(ours);
    const at::Tensor y = convolved(ours);
    ASSERT_EQ(y.sizes(), exact.y.sizes());
    EXPECT_LT(error_beside(y.detach(), exact.y.detach()), 2e-6);
    const auto gradient = torch::randn(y.sizes());
    y.backward(gradient);
    exact.y.backward(gradient.to(torch::kDouble));
    EXPECT_LT(error_beside(ours.x.grad(), exact.x.grad()), 2e-6);
    EXPECT_LT(error_beside(ours.weight.grad(), exact.weight.grad()), 2e-6);
    EXPECT_EQ(ours.weight.grad().strides(), ours.weight.strides());
    if (!ours.bias.defined()) continue;
    EXPECT_LT(error_beside(ours.bias.grad(), exact.bias.grad()), 2e-6);
  }
}

TEST_P(Convolutions, OfAWeightOfAnyStridesHaveTheSameBits) {
  Tensors plain = drawn(3);
  inputs_of(plain);
  const at::Tensor expected = convolved(plain);
  expected.sum().backward();  // an expanded gradient: no two of its elements are two
  const auto innermost = [](const at::Tensor& w) {
    return w.contiguous(torch::MemoryFormat::ChannelsLast);
  };
  const auto outermost = [](const at::Tensor& w) {
    return w.permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0});
  };
  const auto every_second = [](const at::Tensor& w) {
    return torch::stack({w, w}, -1).select(-1, 0);
  };
  for (const auto& laid : {innermost(plain.weight.detach()), outermost(plain.weight.detach()),
                           every_second(plain.weight.detach())}) {
    Tensors planted = drawn(3);
    planted.weight = laid;
    inputs_of(planted);
    const at::Tensor y = convolved(planted);
    EXPECT_TRUE(torch::equal(y, expected)) << laid.strides();
    y.sum().backward();
    EXPECT_TRUE(torch::equal(planted.weight.grad(), plain.weight.grad())) << laid.strides();
    EXPECT_TRUE(torch::equal(planted.x.grad(), plain.x.grad())) << laid.strides();
  }
}

TEST_P(Convolutions, GradientsOfGradientsAreThoseOfLibTorch) {
  Tensors ours = drawn(2), theirs = drawn(2);
  const auto penalty = [](const at::Tensor& y, const std::vector<at::Tensor>& inputs) {
    const auto gradients = torch::autograd::grad({y.pow(2).sum()}, inputs, {}, true, true);
    return gradients[0].pow(2).sum() + gradients[1].pow(2).sum();
  };
  const auto our_inputs = inputs_of(ours), their_inputs = inputs_of(theirs);
  penalty(convolved(ours), our_inputs).backward();
  penalty(by_libtorch(theirs), their_inputs).backward();
  for (size_t i = 0; i < our_inputs.size(); ++i)
    EXPECT_LT(error_beside(our_inputs[i].grad(), their_inputs[i].grad().to(torch::kDouble)), 1e-5);
}

TEST_P(Convolutions, InBfloat16AreThoseInDoublePrecision) {
  const auto lower = [](const at::Tensor& t) { return t.defined() ? t.to(torch::kBFloat16) : t; };
  const Tensors of = drawn(5);
  const Tensors lowered{
      nn::detail::channels_last(lower(of.x)), lower(of.weight), lower(of.bias), {}};
  const Tensors exact = in_double(lowered);
  const at::Tensor y =
      nn::detail::convolution_forward(conv(), lowered.x, lowered.weight, lowered.bias);
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  constexpr double kDigits = 0.01;  // of the largest element
  EXPECT_LT(error_beside(y, exact.y.detach()), kDigits);
  const at::Tensor gradient = lower(torch::randn(y.sizes()));
  exact.y.backward(gradient.to(torch::kDouble));
  const auto got = nn::detail::convolution_backward(conv(), gradient, lowered.x, lowered.weight,
                                                    {.bias = of.bias.defined()});
  EXPECT_LT(error_beside(got.x, exact.x.grad()), kDigits);
  EXPECT_LT(error_beside(got.weight, exact.weight.grad()), kDigits);
  EXPECT_TRUE(got.weight.is_contiguous()) << "as the weight is";
  if (of.bias.defined()) {
    EXPECT_LT(error_beside(got.bias, exact.bias.grad()), kDigits);
  }
}

TEST_P(Convolutions, GradientsButTheInputsDoNotWaitForTheWeight) {
  Tensors of = drawn(2);
  const auto x = nn::detail::channels_last(of.x), gradient = torch::randn(by_libtorch(of).sizes());
  const bool bias = of.bias.defined();
  const auto backward = [&](bool needs_x) {
    return nn::detail::convolution_backward(conv(), gradient, x, of.weight,
                                            {.x = needs_x, .weight = true, .bias = bias});
  };
  const auto expected = backward(true);
  const auto* const begin = static_cast<const std::byte*>(of.weight.const_data_ptr());
  int filled = 0;
  detail::BeforeUse late({{.begin = begin, .end = begin + of.weight.nbytes(), .part = 0}}, 1,
                         [&](int) { ++filled; });
  late.expect();
  late.watch();
  const auto got = backward(false);
  EXPECT_EQ(filled, 0);
  EXPECT_TRUE(torch::equal(got.weight, expected.weight));
  EXPECT_EQ(got.weight.strides(), of.weight.strides());
  EXPECT_EQ(got.bias.defined(), bias);
  if (bias) {
    EXPECT_TRUE(torch::equal(got.bias, expected.bias));
  }
  EXPECT_TRUE(torch::equal(backward(true).x, expected.x));
  EXPECT_EQ(filled, 1);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Convolutions, ::testing::ValuesIn(convolution_cases()));

TEST(Convolution, OrdersOfAWeightHoldTheSameValues) {
  for (const at::IntArrayRef sizes : {at::IntArrayRef{70, 33, 3, 5},
                                      {1, 512, 7, 7},
                                      {9, 1, 3, 3},
                                      {8, 24, 1, 1},
                                      {64, 600, 2, 1}}) {
    for (const auto type : {torch::kFloat, torch::kBFloat16}) {
      const auto weight = torch::randn(sizes).to(type);
      const auto innermost = nn::detail::with_channels_innermost(weight);
      EXPECT_TRUE(innermost.is_contiguous(torch::MemoryFormat::ChannelsLast)) << sizes;
      EXPECT_TRUE(torch::equal(innermost, weight)) << sizes;
      const auto back = nn::detail::in_torchs_order(innermost);
      EXPECT_TRUE(back.is_contiguous()) << sizes;
      EXPECT_EQ(back.strides(), weight.strides()) << sizes;
      EXPECT_TRUE(torch::equal(back, weight)) << sizes;
    }
    auto others = torch::empty(sizes, torch::MemoryFormat::ChannelsLast);  // 1 x 1: (24, 1, 24, 24)
    EXPECT_EQ(nn::detail::in_torchs_order(others).strides(), torch::empty(sizes).strides())
        << sizes;
  }
}

nn::Graph of_small_images() {
  const auto input = nn::input({3, 8, 8});
  auto x = nn::relu()(nn::conv2d(64, 3, {.stride = 2, .padding = 1})(input));
  x = nn::relu()(nn::conv2d(64, 3, {.stride = 2, .padding = 1}).named("of_taps")(x));
  const auto y = nn::conv2d(64, 3, {.padding = 1, .bias = false})(x);
  x = nn::relu()(nn::add(x, y));
  x = nn::relu()(nn::conv2d(512, 1).named("dense")(x));
  return {input, nn::linear(3)(nn::flatten()(x))};
}

TEST(Convolution, PlannedIsThatByAutograd) {
  torch::manual_seed(4);
  for (const int64_t batch : {1, 7})
    test::expect_planned_is_by_autograd(of_small_images(), torch::randn({batch, 3, 8, 8}));
  for (const auto& parameter : nn::make_module(of_small_images())->named_parameters())
    test::expect_planned_is_by_autograd(of_small_images(), {torch::randn({3, 3, 8, 8})},
                                        parameter.key());
}

TEST(Convolution, AWriteToItsWeightBeforeBackwardIsAnError) {
  for (const bool planned : {true, false}) {
    const auto module = nn::make_module(of_small_images());
    module->set_planned(planned);
    const auto loss = module->forward(torch::ones({2, 3, 8, 8})).sum();
    {
      torch::NoGradGuard no_grad;
      module->named_parameters()["of_taps.weight"].add_(1);
    }
    EXPECT_ANY_THROW(loss.backward()) << planned;
  }
}

TEST(Convolution, FrozenWeightsGetNoGradient) {
  const auto module = nn::make_module(of_small_images());
  const auto gradient_after = [&](bool frozen) {
    module->zero_grad();
    module->named_parameters()["of_taps.weight"].set_requires_grad(!frozen);
    module->forward(torch::ones({2, 3, 8, 8})).sum().backward();
    const auto parameters = module->named_parameters();
    EXPECT_EQ(parameters["of_taps.weight"].grad().defined(), !frozen);
    return parameters[0]->grad().clone();
  };
  const auto whole = gradient_after(false);
  EXPECT_TRUE(torch::equal(gradient_after(true), whole));
}

TEST(Convolution, WhatIsNotFloat32IsLibTorchs) {
  const auto module = nn::make_module(of_small_images());
  const auto x = torch::rand({2, 3, 8, 8});
  const auto expected = module->forward(x).detach();
  module->to(torch::kDouble);
  EXPECT_LT(error_beside(expected, module->forward(x.to(torch::kDouble)).detach()), 1e-5);
}

TEST(Convolution, OrdersOfAWeightAreMadeByAnyNumberOfThreads) {
  torch::manual_seed(6);
  const auto weight = torch::randn({256, 256, 3, 3});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto alone = nn::detail::with_channels_innermost(weight);
  at::set_num_threads(2);
  EXPECT_TRUE(torch::equal(nn::detail::with_channels_innermost(weight), alone));
  at::set_num_threads(before);
}

}  // namespace
}  // namespace tutti
