/// Layers of nn::Graph beside those in graph.h: activations, sequences, transposed convolution.
///
///   auto strokes = nn::input({100, 3}), count = nn::input({1}, DType::int64);
///   auto x = nn::conv1d(48, 5, {.padding = 2})(strokes);
///   x = nn::lstm(128, {.layers = 2, .bidirectional = true})(x, count);
///   auto graph = nn::Graph({{"strokes", strokes}, {"count", count}}, {{"doodle",
///   nn::linear(10)(x)}});
///
/// ops_*.h say what each computes. A sequence is [length, features]. Thread rule: pure functions.
#pragma once

#include "tutti/nn/graph.h"

namespace tutti::nn {

Layer sigmoid();
Layer leaky_relu(double slope = 0.01);
Layer elu(double alpha = 1);
Layer selu();
Layer silu();  ///< swish
Layer hard_sigmoid();
Layer hard_swish();
Layer softplus();
Layer mish();
Layer relu6();
Layer log_softmax();

/// Of two values of one shape, element by element. add() and concat() are in graph.h.
Value subtract(const Value& a, const Value& b);
Value multiply(const Value& a, const Value& b);
Value maximum(const Value& a, const Value& b);
Value minimum(const Value& a, const Value& b);

struct Conv1dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t groups = 1;
  bool bias = true;
};
struct ConvTranspose1dOptions {
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t output_padding = 0;
  bool bias = true;
};
struct ConvTranspose2dOptions {
  int64_t stride = 1;
  Size2d padding = 0;
  int64_t output_padding = 0;
  bool bias = true;
};
struct RecurrentLayerOptions {
  int64_t layers = 1;
  bool bidirectional = false;
  bool sequences = false;  ///< all steps, [length, ...], instead of the last state
};
struct GroupNormOptions {
  double epsilon = 1e-5;
};

Layer conv1d(int64_t out_channels, int64_t kernel, Conv1dOptions options = {});
Layer conv_transpose1d(int64_t out_channels, int64_t kernel, ConvTranspose1dOptions options = {});
Layer max_pool1d(int64_t kernel, PoolOptions options = {});
Layer avg_pool1d(int64_t kernel, PoolOptions options = {});
Layer global_avg_pool1d();
Layer global_max_pool1d();

/// On a sequence; or on a sequence and the steps that there are: [length], 1 or 0 of each, or [1],
/// how many. UsageError for steps of another length; DataError, when it runs on the CPU, that names
/// the first sample with another number.
Layer lstm(int64_t units, RecurrentLayerOptions options = {});
Layer gru(int64_t units, RecurrentLayerOptions options = {});

Layer conv_transpose2d(int64_t out_channels, Size2d kernel, ConvTranspose2dOptions options = {});
Layer group_norm(int64_t groups, GroupNormOptions options = {});
/// One side may be -1: what is left.
Layer reshape(Shape shape);
/// Dimensions of a sample, from 0: permute({1, 2, 0}) puts channels behind.
Layer permute(Shape order);
/// Of the last dimension, from begin to before end.
Layer slice(int64_t begin, int64_t end);

}  // namespace tutti::nn
