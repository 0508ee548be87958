/// Sizes of samples and windows in nn::Graph. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::nn {

/// Dimensions of one sample, without the batch dimension: {channels, height, width} or {features}.
using Shape = std::vector<int64_t>;

/// "[16, 28, 28]".
std::string to_string(const Shape& shape);

/// Height and width; one number stands for both.
struct Size2d {
  int64_t height = 1;
  int64_t width = 1;
  Size2d(int64_t both) : height(both), width(both) {}  // NOLINT(google-explicit-constructor)
  Size2d(int64_t high, int64_t wide) : height(high), width(wide) {}
};

}  // namespace tutti::nn
