// Batch norm by kernels of ours, beside LibTorch's in double.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tutti/nn/detail/batch_norm.h"
#include "tutti/nn/detail/layers.h"

namespace tutti {
namespace {

using nn::detail::LayerKernels;
using nn::detail::NormOfColumns;

constexpr double kUlp = 1.1920929e-07;  // of numbers from 1 to 2

/// The largest distance in units in the last place of the largest element of a channel's terms.
double ulps_apart(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor apart = (got.to(torch::kDouble) - expected).abs();
  const at::Tensor size = expected.abs().max().clamp_min(1e-30);
  return (apart.max() / size).item<double>() / kUlp;
}

struct Normed {
  at::Tensor y, dx, dweight, dbias, mean, variance;
};

/// One pass in training by LibTorch in double, or by ours.
Normed pass(const at::Tensor& x, const at::Tensor& gradient, bool relu, bool by_double) {
  torch::nn::BatchNorm2d layer(torch::nn::BatchNorm2dOptions(x.size(1)).momentum(0.3));
  {
    torch::NoGradGuard no_grad;
    const auto channels = torch::arange(x.size(1));
    layer->weight.copy_(1 + 0.3 * torch::sin(channels));
    layer->bias.copy_(0.2 * torch::cos(channels));
  }
  const auto dtype = by_double ? torch::kDouble : torch::kFloat;
  layer->to(dtype);
  if (!by_double) {
    EXPECT_TRUE(nn::detail::batch_norm_takes(x, *layer));
    const auto activation = relu ? nn::Activation::relu : nn::Activation::none;
    const auto of = nn::detail::batch_norm_forward(x, *layer, activation);
    const auto back = nn::detail::batch_norm_backward(gradient, of.x, of.columns, activation, {});
    return {of.y, back.x, back.weight, back.bias, layer->running_mean, layer->running_var};
  }
  const auto given = x.to(dtype).detach().requires_grad_();
  auto y = layer->forward(given);
  if (relu) y = torch::relu(y);
  y.backward(gradient.to(dtype));
  return {y.detach(),         given.grad(),        layer->weight.grad(),
          layer->bias.grad(), layer->running_mean, layer->running_var};
}

struct Images {
  int64_t batch, channels, height, width;
};

TEST(BatchNorm, IsWithinTwoUnitsOfDoubles) {
  for (const auto& [batch, channels, height, width] : {Images{2, 1, 1, 1},
                                                       {3, 3, 5, 7},
                                                       {4, 16, 8, 8},
                                                       {2, 33, 3, 3},
                                                       {16, 64, 16, 16},
                                                       {8, 70, 1, 2}})
    for (const bool relu : {false, true}) {
      SCOPED_TRACE(std::to_string(channels) + (relu ? " with ReLU" : ""));
      torch::manual_seed(7);
      const auto x = torch::randn({batch, channels, height, width}) * 2 + 0.5;
      const auto gradient = torch::randn(x.sizes());
      const Normed got = pass(x, gradient, relu, false), expected = pass(x, gradient, relu, true);
      // Where the sum is nearly zero a ReLU's gradient may be cut off on one side alone.
      EXPECT_LE(ulps_apart(got.y, expected.y), 2);
      EXPECT_LE(ulps_apart(got.dweight, expected.dweight), 2);
      EXPECT_LE(ulps_apart(got.dbias, expected.dbias), 2);
      if (batch * height * width > 2) {
        EXPECT_LE(ulps_apart(got.dx, expected.dx), 2);
      }
      EXPECT_LE(ulps_apart(got.mean, expected.mean), 1);
      EXPECT_LE(ulps_apart(got.variance, expected.variance), 1);
    }
}

TEST(BatchNorm, BitsDependNeitherOnThreadsNorOnTheOrderOfMemory) {
  torch::manual_seed(3);
  const auto x = torch::randn({9, 70, 13, 11}), gradient = torch::randn(x.sizes());
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const Normed expected = pass(x, gradient, true, false);
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    for (const auto order : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      const Normed got = pass(x.contiguous(order), gradient.contiguous(order), true, false);
      EXPECT_TRUE(torch::equal(got.y, expected.y));
      EXPECT_TRUE(torch::equal(got.dx, expected.dx));
      EXPECT_TRUE(torch::equal(got.dweight, expected.dweight));
      EXPECT_TRUE(torch::equal(got.dbias, expected.dbias));
      EXPECT_TRUE(torch::equal(got.mean, expected.mean));
      EXPECT_TRUE(torch::equal(got.variance, expected.variance));
    }
  }
  at::set_num_threads(before);
}

TEST(BatchNorm, OfEqualValuesIsTheBias) {
  const auto x = torch::full({4, 8, 5, 5}, 1e4F / 3);
  const Normed got = pass(x, torch::ones(x.sizes()), false, false);
  EXPECT_TRUE(got.y.isfinite().all().item<bool>());
  EXPECT_LE(got.dx.abs().max().item<float>(), 1e-3F);
}

TEST(BatchNorm, WhatIsNoNumberIsInTheStatistics) {
  for (const float what :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto x = torch::randn({3, 2, 4, 4});
    x[1][1][2][2] = what;
    const Normed got = pass(x, torch::ones(x.sizes()), true, false);
    EXPECT_TRUE(got.variance[0].isfinite().item<bool>());
    EXPECT_TRUE(got.variance[1].isnan().item<bool>());
  }
}

TEST(BatchNorm, ABackwardPassThatMakesAGraphIsLibTorchs) {
  torch::manual_seed(2);
  const auto x = torch::randn({4, 3, 5, 5}), v = torch::randn({4, 3, 5, 5});
  std::vector<at::Tensor> seconds;
  for (const bool ours : {true, false}) {
    torch::nn::BatchNorm2d layer(3);
    const auto given = x.clone().requires_grad_();
    const auto y = ours ? nn::detail::batch_norm(given, *layer) : layer->forward(given);
    const auto first = torch::autograd::grad({y.pow(2).sum()}, {given}, {}, true, true)[0];
    seconds.push_back(torch::autograd::grad({(first * v).sum()}, {layer->weight})[0]);
  }
  EXPECT_TRUE(torch::allclose(seconds[0], seconds[1], 1e-3, 1e-4));
}

class NormKernelsOf : public ::testing::TestWithParam<CpuVariant> {
 protected:
  const LayerKernels& kernels() const { return nn::detail::layer_kernels(GetParam()); }
};

TEST_P(NormKernelsOf, AreThoseOfOneElementAfterTheOther) {
  torch::manual_seed(4);
  for (const int64_t rows : {1, 3, 4, 41})
    for (const int64_t columns : {1, 5, 16, 37, 64})
      for (const bool relu : {false, true}) {
        const auto x = torch::randn({rows, columns}), dy = torch::randn({rows, columns});
        const auto by = torch::randn({5, columns});
        x[0][0] = NAN;
        const auto at = [&](int64_t row) { return by[row].data_ptr<float>(); };
        const NormOfColumns norm{.mean = at(0), .scale = at(1), .shift = at(2)};
        const auto size = static_cast<size_t>(columns);
        std::vector<double> sums(size), squares(size), of(size), products(size);
        const int64_t middle = columns / 2;
        for (const auto& [begin, end] :
             {std::pair{int64_t{0}, middle}, std::pair{middle, columns}}) {
          kernels().column_moments(x.data_ptr<float>(), rows, columns, begin, end, sums.data(),
                                   squares.data());
          kernels().norm_gradient_sums(dy.data_ptr<float>(), x.data_ptr<float>(), norm, relu, rows,
                                       columns, begin, end, of.data(), products.data());
        }
        auto y = torch::empty_like(x), dx = torch::empty_like(x);
        kernels().normalise(x.data_ptr<float>(), norm, nullptr, relu, y.data_ptr<float>(), rows,
                            columns);
        kernels().norm_gradient(dy.data_ptr<float>(), x.data_ptr<float>(), norm, relu, at(3), at(4),
                                dx.data_ptr<float>(), rows, columns);
        const auto plain = (x - by[0]) * by[1] + by[2];
        const auto dz = relu ? at::threshold_backward(dy, plain, 0) : dy;
        EXPECT_TRUE(torch::allclose(y, relu ? torch::relu(plain) : plain, 0, 0, true));
        kernels().normalise(x.data_ptr<float>(), norm, dy.data_ptr<float>(), relu,
                            y.data_ptr<float>(), rows, columns);
        EXPECT_TRUE(torch::allclose(y, relu ? torch::relu(plain + dy) : plain + dy, 0, 0, true));
        EXPECT_TRUE(torch::allclose(dx, ((dz - by[3]) - (x - by[0]) * by[4]) * by[1], 0, 0, true));
        for (size_t c = 0; c < size; ++c) {
          double s = 0, q = 0, g = 0, p = 0;
          for (int64_t r = 0; r < rows; ++r) {
            const double value = x[r][static_cast<int64_t>(c)].item<float>();
            const double one = dz[r][static_cast<int64_t>(c)].item<float>();
            s += value;
            q += value * value;
            g += one;
            p += one * (value - double(norm.mean[c]));
          }
          if (c == 0) continue;  // NaN
          EXPECT_EQ(sums[c], s);
          EXPECT_EQ(squares[c], q);
          EXPECT_EQ(of[c], g);
          EXPECT_EQ(products[c], p);
        }
        EXPECT_TRUE(std::isnan(sums[0]) && std::isnan(products[0]));
        kernels().add_relu(x.data_ptr<float>(), dy.data_ptr<float>(), y.data_ptr<float>(),
                           x.numel());
        EXPECT_TRUE(torch::allclose(y, torch::relu(x + dy), 0, 0, true));
      }
}

INSTANTIATE_TEST_SUITE_P(EachVariant, NormKernelsOf, ::testing::ValuesIn(runnable_variants()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tutti
