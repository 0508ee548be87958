#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tutti/nn/detail/layers.h"

namespace tutti {
namespace {

using nn::detail::layer_kernels;
using nn::detail::LayerKernels;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Numbers with some of those that kernels treat apart.
at::Tensor numbers(at::IntArrayRef shape) {
  at::Tensor x = torch::randn(shape);
  float* const values = x.data_ptr<float>();
  const float special[] = {0.0F, -0.0F, kInf, -kInf, kNan, 1e-42F};
  for (int64_t i = 0; i < x.numel(); i += 7) values[i] = special[i / 7 % std::ssize(special)];
  return x;
}

/// Equal bit for bit, but that any NaN is any other.
::testing::AssertionResult same(const at::Tensor& a, const at::Tensor& b) {
  const auto nan = a.isnan();
  if (!torch::equal(nan, b.isnan())) return ::testing::AssertionFailure() << "NaN elsewhere";
  const auto bits = [&](const at::Tensor& x) {
    return x.masked_fill(nan, 0).contiguous().view(torch::kInt32);
  };
  if (torch::equal(bits(a), bits(b))) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << (bits(a) != bits(b)).sum().item<int64_t>() << " differ";
}

struct Sides {
  int64_t rows, columns;
};

class LayerKernelsOf : public ::testing::TestWithParam<CpuVariant> {
 protected:
  const LayerKernels& kernels() const { return layer_kernels(GetParam()); }
};

constexpr Sides kSides[] = {{0, 5}, {1, 1}, {1, 16}, {3, 7}, {64, 33}, {65, 128}};

TEST_P(LayerKernelsOf, AddABiasAndCutOffAsTorchDoes) {
  for (const auto [rows, columns] : kSides) {
    const auto x = numbers({rows, columns}), bias = torch::randn({columns});
    auto y = x.clone();
    kernels().bias_relu(y.data_ptr<float>(), bias.data_ptr<float>(), rows, columns);
    EXPECT_TRUE(same(y, torch::relu(x + bias))) << rows << " x " << columns;
    y = x.clone();
    kernels().bias_relu(y.data_ptr<float>(), nullptr, rows, columns);
    EXPECT_TRUE(same(y, torch::relu(x))) << rows << " x " << columns;
  }
}

TEST_P(LayerKernelsOf, PassGradientsAsTorchDoesAndAddThemRowByRow) {
  for (const auto [rows, columns] : kSides) {
    const auto gradient = numbers({rows, columns});
    const auto y = torch::relu(numbers({rows, columns}).flip({0}));
    const auto expected = at::threshold_backward(gradient, y, 0);
    auto sums = torch::zeros({columns});
    for (int64_t row = 0; row < rows; ++row) sums += expected[row];
    auto out = torch::empty_like(gradient), got = torch::empty({columns});
    kernels().relu_gradient_sums(gradient.data_ptr<float>(), y.data_ptr<float>(),
                                 out.data_ptr<float>(), got.data_ptr<float>(), rows, columns);
    EXPECT_TRUE(same(out, expected));
    EXPECT_TRUE(same(got, sums)) << rows << " x " << columns;
    got.fill_(1);
    kernels().column_sums(expected.data_ptr<float>(), got.data_ptr<float>(), rows, columns);
    EXPECT_TRUE(same(got, sums)) << rows << " x " << columns;
    auto in_place = gradient.clone();
    kernels().relu_gradient(in_place.data_ptr<float>(), y.data_ptr<float>(),
                            in_place.data_ptr<float>(), rows * columns);
    EXPECT_TRUE(same(in_place, expected));
  }
}

TEST_P(LayerKernelsOf, PoolAsTorchDoes) {
  struct Image {
    int64_t images, channels, height, width, kernel;
  };
  for (const Image image : {Image{1, 2, 2, 2, 2},
                            {2, 3, 7, 5, 2},
                            {3, 16, 28, 28, 2},
                            {1, 33, 9, 11, 3},
                            {2, 17, 5, 16, 5},
                            {1, 4, 15, 31, 15}}) {
    const auto x = numbers({image.images, image.channels, image.height, image.width})
                       .contiguous(at::MemoryFormat::ChannelsLast)
                       .requires_grad_();
    const auto expected = torch::relu(torch::max_pool2d(x, image.kernel));
    const auto gradient = torch::randn(expected.sizes());
    expected.backward(gradient);
    const nn::detail::PoolShape shape{image.images, image.height, image.width, image.channels,
                                      image.kernel};
    auto y = torch::empty(expected.sizes(), at::MemoryFormat::ChannelsLast);
    std::vector<uint8_t> places(static_cast<size_t>(y.numel()));
    kernels().pool_relu(shape, x.data_ptr<float>(), y.data_ptr<float>(), places.data());
    EXPECT_TRUE(same(y, expected.detach())) << image.channels;
    auto dx = torch::full(x.sizes(), kNan).contiguous(at::MemoryFormat::ChannelsLast);
    kernels().pool_relu_gradient(
        shape, gradient.contiguous(at::MemoryFormat::ChannelsLast).data_ptr<float>(),
        y.data_ptr<float>(), places.data(), dx.data_ptr<float>());
    EXPECT_TRUE(same(dx, x.grad())) << image.channels;
  }
}

INSTANTIATE_TEST_SUITE_P(EachVariant, LayerKernelsOf, ::testing::ValuesIn(runnable_variants()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace tutti
