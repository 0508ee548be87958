/// Where an operator's shapes are inferred. Not for users. Thread rule: a plain value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/nn/ops.h"

namespace tutti::nn::detail {

/// Context of one resolve(): the inputs, and the words for errors.
struct Site {
  const Op& op;
  const std::vector<Shape>& inputs;
  std::string_view name;

  /// UsageError that says the layer.
  [[noreturn]] void fail(const std::string& what) const;

  void at_least(std::string_view what, int64_t value, int64_t least) const;
  void not_negative(std::string_view what, double value) const;
  /// Of a padding and a kernel.
  void at_most_half(std::string_view what, int64_t value, int64_t kernel) const;
  void heads_of(int64_t features, int64_t heads) const;

  const Shape& only_input() const;
  const Shape& image() const;     ///< the input as {channels, height, width}
  const Shape& sequence() const;  ///< the input as {length, features}

  /// Length of one side after a window of `kernel` has walked over it.
  int64_t windows(int64_t side, int64_t kernel, int64_t stride, int64_t padding) const;
  /// The length of which windows() gives `side`, with so many places more.
  int64_t unwound(int64_t side, int64_t kernel, int64_t stride, int64_t padding,
                  int64_t more) const;
};

}  // namespace tutti::nn::detail
