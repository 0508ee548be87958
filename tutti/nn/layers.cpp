#include "tutti/nn/layers.h"

#include <utility>

#include "tutti/nn/detail/applied.h"

namespace tutti::nn {
namespace {

Value of_two(const Op& op, const Value& a, const Value& b) {
  return detail::Applied{.op = op, .name = "", .layer = nullptr, .inputs = {a, b}, .frozen = {}}
      .value();
}

template <class Pool>
Layer pool_of(int64_t kernel, const PoolOptions& options) {
  return Layer(Pool{.kernel = kernel,
                    .stride = options.stride == 0 ? kernel : options.stride,
                    .padding = options.padding});
}

template <class Cell>
Layer recurrent_of(int64_t units, const RecurrentLayerOptions& options) {
  return Layer(Cell{.units = units,
                    .layers = options.layers,
                    .bidirectional = options.bidirectional,
                    .sequences = options.sequences});
}

}  // namespace

Layer sigmoid() { return Layer(op::Sigmoid{}); }
Layer leaky_relu(double slope) { return Layer(op::LeakyRelu{slope}); }
Layer elu(double alpha) { return Layer(op::Elu{alpha}); }
Layer selu() { return Layer(op::Selu{}); }
Layer silu() { return Layer(op::Silu{}); }
Layer hard_sigmoid() { return Layer(op::HardSigmoid{}); }
Layer hard_swish() { return Layer(op::HardSwish{}); }
Layer softplus() { return Layer(op::Softplus{}); }
Layer mish() { return Layer(op::Mish{}); }
Layer relu6() { return Layer(op::Relu6{}); }
Layer log_softmax() { return Layer(op::LogSoftmax{}); }

Value subtract(const Value& a, const Value& b) { return of_two(op::Subtract{}, a, b); }
Value multiply(const Value& a, const Value& b) { return of_two(op::Multiply{}, a, b); }
Value maximum(const Value& a, const Value& b) { return of_two(op::Maximum{}, a, b); }
Value minimum(const Value& a, const Value& b) { return of_two(op::Minimum{}, a, b); }

Layer conv1d(int64_t out_channels, int64_t kernel, Conv1dOptions options) {
  return Layer(op::Conv1d{.out_channels = out_channels,
                          .kernel = kernel,
                          .stride = options.stride,
                          .padding = options.padding,
                          .groups = options.groups,
                          .bias = options.bias});
}
Layer conv_transpose1d(int64_t out_channels, int64_t kernel, ConvTranspose1dOptions options) {
  return Layer(op::ConvTranspose1d{.out_channels = out_channels,
                                   .kernel = kernel,
                                   .stride = options.stride,
                                   .padding = options.padding,
                                   .output_padding = options.output_padding,
                                   .bias = options.bias});
}
Layer max_pool1d(int64_t kernel, PoolOptions options) {
  return pool_of<op::MaxPool1d>(kernel, options);
}
Layer avg_pool1d(int64_t kernel, PoolOptions options) {
  return pool_of<op::AvgPool1d>(kernel, options);
}
Layer global_avg_pool1d() { return Layer(op::GlobalAvgPool1d{}); }
Layer global_max_pool1d() { return Layer(op::GlobalMaxPool1d{}); }

Layer lstm(int64_t units, RecurrentLayerOptions options) {
  return recurrent_of<op::Lstm>(units, options);
}
Layer gru(int64_t units, RecurrentLayerOptions options) {
  return recurrent_of<op::Gru>(units, options);
}

Layer conv_transpose2d(int64_t out_channels, Size2d kernel, ConvTranspose2dOptions options) {
  return Layer(op::ConvTranspose2d{.out_channels = out_channels,
                                   .kernel = kernel,
                                   .stride = options.stride,
                                   .padding = options.padding,
                                   .output_padding = options.output_padding,
                                   .bias = options.bias});
}
Layer group_norm(int64_t groups, GroupNormOptions options) {
  return Layer(op::GroupNorm{.groups = groups, .epsilon = options.epsilon});
}
Layer reshape(Shape shape) { return Layer(op::Reshape{std::move(shape)}); }
Layer permute(Shape order) { return Layer(op::Permute{std::move(order)}); }
Layer slice(int64_t begin, int64_t end) { return Layer(op::Slice{begin, end}); }

}  // namespace tutti::nn
