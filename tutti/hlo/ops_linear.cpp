// Sums, products, windows: what brings elements together.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "tutti/hlo/checks.h"
#include "tutti/hlo/instruction.h"
#include "tutti/hlo/ops.h"

namespace tutti::hlo {
namespace {

bool is_bfloat16(Value a) { return a.dtype() == DType::bfloat16; }

Value reduce(Op op, std::string_view operation, Value a, std::vector<int64_t> dimensions) {
  require_numbers(operation, a);
  require_dimensions(operation, dimensions, a.shape().size());
  if (dimensions.empty()) return a;
  std::ranges::sort(dimensions);
  Type type{a.dtype(), {}};
  for (size_t i = 0; i < a.shape().size(); ++i)
    if (!std::ranges::binary_search(dimensions, int64_t(i))) type.shape.push_back(a.shape()[i]);
  return a.program().add({.op = op,
                          .type = std::move(type),
                          .operands = {a.number()},
                          .dimensions = std::move(dimensions)});
}

// What is left of a value's dimensions, in their order.
Shape left_of(const Shape& shape, const std::vector<int64_t>& batch,
              const std::vector<int64_t>& contract) {
  Shape left;
  for (size_t i = 0; i < shape.size(); ++i)
    if (std::ranges::find(batch, int64_t(i)) == batch.end() &&
        std::ranges::find(contract, int64_t(i)) == contract.end())
      left.push_back(shape[i]);
  return left;
}

Shape shape_of_dot(Value a, Value b, const DotDimensions& d) {
  const auto wrong = [&](std::string_view expected) {
    refuse("dot",
           fmt::format("{}, batch {} and {}, contracted {} and {}", words_of({a, b}),
                       words_of(d.batch_a), words_of(d.batch_b), words_of(d.contract_a),
                       words_of(d.contract_b)),
           expected);
  };
  const auto check = [&](const std::vector<int64_t>& of_a, const std::vector<int64_t>& of_b) {
    if (of_a.size() != of_b.size()) wrong("as many dimensions of each");
    for (size_t i = 0; i < of_a.size(); ++i)
      if (a.shape()[size_t(of_a[i])] != b.shape()[size_t(of_b[i])]) wrong("the same sizes of both");
  };
  for (const auto& [value, batch, contract] :
       {std::tuple{a, d.batch_a, d.contract_a}, std::tuple{b, d.batch_b, d.contract_b}}) {
    std::vector<int64_t> all = batch;
    all.insert(all.end(), contract.begin(), contract.end());
    require_dimensions("dot", all, value.shape().size());
  }
  check(d.batch_a, d.batch_b);
  check(d.contract_a, d.contract_b);
  Shape shape;
  for (const int64_t dimension : d.batch_a) shape.push_back(a.shape()[size_t(dimension)]);
  for (const int64_t size : left_of(a.shape(), d.batch_a, d.contract_a)) shape.push_back(size);
  for (const int64_t size : left_of(b.shape(), d.batch_b, d.contract_b)) shape.push_back(size);
  return shape;
}

// How many times a window fits; height is 0, width 1.
int64_t times(std::string_view operation, Value x, const Window& window, size_t axis) {
  const int64_t size = x.shape()[window.dimension(axis)] + window.before[axis] + window.after[axis];
  if (window.size[axis] < 1 || window.stride[axis] < 1 || window.before[axis] < 0 ||
      size < window.size[axis])
    refuse(operation,
           fmt::format("{}, a window of {}, stride {}, padding {}", words_of({x}),
                       words_of(window.size), words_of(window.stride), words_of(window.before)),
           "a window and stride of 1 or more that fit, and no negative padding");
  return (size - window.size[axis]) / window.stride[axis] + 1;
}

int64_t channels_of(Value x, const Window& window) {
  return x.shape()[size_t(axes_of(window.order).channels)];
}

// Of the image of this many channels that a window makes of x.
Shape image_shape(std::string_view operation, Value x, const Window& window, int64_t channels) {
  Shape shape(4, x.shape()[0]);
  shape[size_t(axes_of(window.order).channels)] = channels;
  for (const size_t axis : {0, 1})
    shape[window.dimension(axis)] = times(operation, x, window, axis);
  return shape;
}

Value windowed(Op op, std::string_view operation, Value x, const WindowOptions& options) {
  require_floating(operation, x);
  require_rank(operation, x, 4);
  const Window window{.size = {options.kernel_height, options.kernel_width},
                      .stride = {options.stride_height, options.stride_width},
                      .before = {options.pad_height, options.pad_width},
                      .after = {options.pad_height, options.pad_width},
                      .order = options.order};
  const Shape shape = image_shape(operation, x, window, channels_of(x, window));
  return x.program().add(
      {.op = op, .type = {x.dtype(), shape}, .operands = {x.number()}, .window = window});
}

}  // namespace

Value reduce_sum(Value a, std::vector<int64_t> dimensions) {
  if (!is_bfloat16(a)) return reduce(Op::reduce_sum, "reduce_sum", a, std::move(dimensions));
  const Value sum = reduce_sum(convert(a, DType::float32), std::move(dimensions));
  return convert(sum, DType::bfloat16);
}

Value reduce_max(Value a, std::vector<int64_t> dimensions) {
  return reduce(Op::reduce_max, "reduce_max", a, std::move(dimensions));
}

Value dot(Value a, Value b, const DotDimensions& dimensions) {
  require_same_program("dot", a, b);
  require_floating("dot", a);
  if (a.dtype() != b.dtype()) refuse("dot", words_of({a, b}), "one type of elements");
  return a.program().add({.op = Op::dot,
                          .type = {DType::float32, shape_of_dot(a, b, dimensions)},
                          .operands = {a.number(), b.number()},
                          .dot = dimensions});
}

Value dot(Value a, Value b) {
  if (a.shape().size() != 2 || b.shape().size() != 2 || a.shape()[1] != b.shape()[0])
    refuse("dot", words_of({a, b}), "[n, k] and [k, m]");
  return dot(a, b, {.batch_a = {}, .batch_b = {}, .contract_a = {1}, .contract_b = {0}});
}

ImageAxes axes_of(ImageOrder order) {
  return order == ImageOrder::channels_first ? ImageAxes{.channels = 1, .height = 2, .width = 3}
                                             : ImageAxes{.channels = 3, .height = 1, .width = 2};
}

Value conv2d(Value x, Value w, const ConvOptions& options) {
  require_same_program("conv2d", x, w);
  require_floating("conv2d", x);
  require_rank("conv2d", x, 4);
  require_rank("conv2d", w, 4);
  if (x.dtype() != w.dtype()) refuse("conv2d", words_of({x, w}), "one type of elements");
  const int64_t groups = options.groups;
  const Window window{.size = {w.shape()[2], w.shape()[3]},
                      .stride = {options.stride_height, options.stride_width},
                      .before = {options.pad_height, options.pad_width},
                      .after = {options.pad_height, options.pad_width},
                      .feature_groups = groups,
                      .order = options.order};
  if (groups < 1 || channels_of(x, window) != w.shape()[1] * groups || w.shape()[0] % groups != 0)
    refuse("conv2d", fmt::format("{} in {} groups", words_of({x, w}), groups),
           fmt::format("{} and [outputs, channels / groups, height, width], outputs a multiple of "
                       "the groups",
                       options.order == ImageOrder::channels_first
                           ? "[batch, channels, height, width]"
                           : "[batch, height, width, channels]"));
  const Shape shape = image_shape("conv2d", x, window, w.shape()[0]);
  return x.program().add({.op = Op::convolution,
                          .type = {DType::float32, shape},
                          .operands = {x.number(), w.number()},
                          .window = window});
}

Value window_max(Value x, const WindowOptions& options) {
  return windowed(Op::window_max, "window_max", x, options);
}

Value window_sum(Value x, const WindowOptions& options) {
  if (!is_bfloat16(x)) return windowed(Op::window_sum, "window_sum", x, options);
  return convert(window_sum(convert(x, DType::float32), options), DType::bfloat16);
}

Value take_rows(Value table, Value numbers) {
  require_same_program("take_rows", table, numbers);
  require_rank("take_rows", table, 2);
  if (numbers.dtype() != DType::int32 && numbers.dtype() != DType::int64)
    refuse("take_rows", words_of({table, numbers}), "numbers of int32 or int64");
  Type type{table.dtype(), numbers.shape()};
  type.shape.push_back(table.shape()[1]);
  return table.program().add({.op = Op::take_rows,
                              .type = std::move(type),
                              .operands = {table.number(), numbers.number()}});
}

Value all_reduce(Value a) {
  require_numbers("all_reduce", a);
  if (a.program().replicas() == 1) return a;
  return a.program().add({.op = Op::all_reduce, .type = a.type(), .operands = {a.number()}});
}

Value replica_number(Program& program) {
  return program.add({.op = Op::replica_number, .type = {DType::uint32, {}}});
}

}  // namespace tutti::hlo
