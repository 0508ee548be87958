/// Operators of nn::Graph on images [channels, height, width], and on shapes, beside those in
/// ops.h, which says how they are read. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tutti/nn/shape.h"

namespace tutti::nn {

struct LambdaFunction;

namespace op {

/// The gradient of a Conv2d: sides of (side - 1) stride - 2 padding + kernel + output_padding.
/// torch::nn::ConvTranspose2d.
struct ConvTranspose2d {
  int64_t in_channels = 0;     ///< from the input
  int64_t out_channels = 0;    ///< >= 1
  Size2d kernel = 1;           ///< >= 1
  int64_t stride = 1;          ///< >= 1
  Size2d padding = 0;          ///< taken away on each side, from 0 to below the kernel
  int64_t output_padding = 0;  ///< more at the right and the bottom, below the stride
  bool bias = true;
};

/// (x - mean) / sqrt(variance + epsilon) * weight + bias, with the statistics of a sample's
/// channels in groups. Wu and He 2018, arXiv:1803.08494; torch::nn::GroupNorm.
struct GroupNorm {
  int64_t channels = 0;   ///< from the input
  int64_t groups = 1;     ///< >= 1, divides the channels
  double epsilon = 1e-5;  ///< > 0
};

/// The same elements, row by row, in another shape.
struct Reshape {
  Shape shape;  ///< one side may be -1, and follows from the others; resolved it is known
};

/// Dimension i of what it gives is dimension order[i] of a sample.
struct Permute {
  Shape order;  ///< each of 0 to dimensions - 1, once
};

/// Elements from begin to before end of the last dimension.
struct Slice {
  int64_t begin = 0;  ///< >= 0
  int64_t end = 1;    ///< above begin, at most the dimension
};

/// What a function of the program's own gives: lambda.h.
struct Lambda {
  std::string what;  ///< not empty
  Shape shape;       ///< of one sample of what it gives
  std::shared_ptr<const LambdaFunction> function;
};

}  // namespace op
}  // namespace tutti::nn
