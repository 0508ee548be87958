/// What a program is made of. Not for users: ops.h makes these, text.cpp prints them, gradients.cpp
/// differentiates them.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tutti/hlo/ops.h"
#include "tutti/hlo/program.h"

namespace tutti::hlo {

/// In the order of ops.h. The names of StableHLO are in text.cpp.
// clang-format off
enum class Op : uint8_t {
  argument, constant, iota,
  add, subtract, multiply, divide, maximum, minimum,
  negate, exp, log, sqrt, rsqrt, tanh, sigmoid, erf, abs, power,
  bit_and, bit_or, bit_xor, shift_left, shift_right,
  compare, select, convert, stop_gradient,
  broadcast, reshape, transpose, slice, pad, concatenate, reverse,
  reduce_sum, reduce_max, dot, convolution,
  window_max,
  window_max_gradient,  // of the windowed value and what goes into each window's largest element
  window_sum,
  take_rows,
  add_rows,  // of what a table's taken rows get, and their numbers: what the table's rows get
  all_reduce, replica_number,
};
// clang-format on

/// Of a convolution's first operand, kernel and result: which dimension is what.
enum class ConvolutionLayout : uint8_t {
  plain,  ///< an image and a kernel [o, i, 0, 1] give an image
  /// Batch and features change places in both operands, of which the second one is an image too,
  /// and give a kernel [f, b, 0, 1].
  all_swapped,
};

/// How a window, or a kernel, goes over height and width.
struct Window {
  using Pair = std::array<int64_t, 2>;
  Pair size{1, 1}, stride{1, 1};
  Pair before{0, 0}, after{0, 0};  ///< padding; that of a convolution may be negative
  // Of convolutions alone.
  Pair spread_input{1, 1}, spread_kernel{1, 1};  ///< from one element to the next
  int64_t feature_groups = 1, batch_groups = 1;
  ConvolutionLayout layout = ConvolutionLayout::plain;
  ImageOrder order = ImageOrder::channels_first;

  /// That of the image's height, for axis 0, or width, 1.
  size_t dimension(size_t axis) const { return size_t(axes_of(order).height) + axis; }
};

struct Instruction {
  Op op;
  Type type;                  ///< of what it makes
  std::vector<int> operands;  ///< the instructions that make them
  double number = 0;          ///< constant; power's exponent; bits of a shift; what pad puts in
  Comparison how = Comparison::eq;
  std::vector<int64_t> dimensions;  ///< as the operator of that name takes them
  Shape begin, end, step;           ///< slice's; before, after and between of pad
  DotDimensions dot;
  Window window;
  std::string name;     ///< argument's
  int becomes = -1;     ///< argument's
  bool anew = false;    ///< of an argument: each pass of a repeated program has its own
  std::string comment;  ///< Program::comment
};

}  // namespace tutti::hlo
