// Rules of products, convolutions, windows and rows.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "tutti/hlo/gradient_rules.h"
#include "tutti/hlo/ops.h"

namespace tutti::hlo {
namespace {

bool has(const std::vector<int64_t>& dimensions, int64_t dimension) {
  return std::ranges::find(dimensions, dimension) != dimensions.end();
}

// One side of a dot.
struct Side {
  Value value;
  std::vector<int64_t> batch, contract, free;
};

Side side_of(Value value, const std::vector<int64_t>& batch, const std::vector<int64_t>& contract) {
  Side side{value, batch, contract, {}};
  for (int64_t d = 0; d < int64_t(value.shape().size()); ++d)
    if (!has(batch, d) && !has(contract, d)) side.free.push_back(d);
  return side;
}

// The product with a kernel's or an input's type of elements, in float32.
Value convolution(Value x, Value kernel, Shape shape, const Window& window) {
  return x.program().add({.op = Op::convolution,
                          .type = {DType::float32, std::move(shape)},
                          .operands = {x.number(), kernel.number()},
                          .window = window});
}

// Elements and what is between them.
int64_t spread(int64_t size, int64_t stride) { return size == 0 ? 0 : (size - 1) * stride + 1; }

// Of w [outputs, channels / groups, ...] in groups: [outputs / groups, channels, ...].
Value channels_together(Value w, int64_t groups) {
  if (groups == 1) return w;
  const Shape& s = w.shape();
  const Value apart = reshape(w, {groups, s[0] / groups, s[1], s[2], s[3]});
  return reshape(transpose(apart, {1, 0, 2, 3, 4}), {s[0] / groups, groups * s[1], s[2], s[3]});
}

// The gradient, with zeros between its elements, under the kernel turned round.
Value gradient_of_input(const BackwardStep& step, Value incoming) {
  const Window& forward = step.i.window;
  const Value x = step.operand(0);
  Window back{.size = forward.size,
              .spread_input = forward.stride,
              .feature_groups = forward.feature_groups,
              .order = forward.order};
  for (size_t k = 0; k < 2; ++k) {
    back.before[k] = forward.size[k] - 1 - forward.before[k];
    const size_t dimension = forward.dimension(k);
    back.after[k] = x.shape()[dimension] + forward.size[k] - 1 - back.before[k] -
                    spread(incoming.shape()[dimension], forward.stride[k]);
  }
  // Turned round and over by itself: compilers have fast kernels for plain convolutions alone.
  const Value w = reverse(channels_together(step.operand(1), forward.feature_groups), {2, 3});
  return convolution(incoming, transpose(w, {1, 0, 2, 3}), x.shape(), back);
}

// The input under the gradient as a kernel: sums go over the batch, which stands for channels.
Value gradient_of_kernel(const BackwardStep& step, Value incoming) {
  const Window& forward = step.i.window;
  const Value x = step.operand(0);
  const std::array dimensions{forward.dimension(0), forward.dimension(1)};
  Window back{.size = {incoming.shape()[dimensions[0]], incoming.shape()[dimensions[1]]},
              .before = forward.before,
              .spread_kernel = forward.stride,
              .batch_groups = forward.feature_groups,
              .layout = ConvolutionLayout::all_swapped,
              .order = forward.order};
  for (size_t k = 0; k < 2; ++k)
    back.after[k] = spread(back.size[k], forward.stride[k]) + forward.size[k] - 1 -
                    x.shape()[dimensions[k]] - forward.before[k];
  return convolution(x, incoming, step.operand(1).shape(), back);
}

}  // namespace

Value gradient_of_dot(const BackwardStep& step, size_t which) {
  const DotDimensions& d = step.i.dot;
  Side mine = side_of(step.operand(0), d.batch_a, d.contract_a);
  Side other = side_of(step.operand(1), d.batch_b, d.contract_b);
  // The result: batch, what is free of a, what is free of b.
  const auto batches = int64_t(d.batch_a.size());
  int64_t others_at = batches + int64_t(mine.free.size());
  if (which == 1) {
    std::swap(mine, other);
    others_at = batches;
  }
  DotDimensions back{.batch_a = std::vector<int64_t>(size_t(batches)),
                     .batch_b = other.batch,
                     .contract_a = std::vector<int64_t>(other.free.size()),
                     .contract_b = other.free};
  std::iota(back.batch_a.begin(), back.batch_a.end(), 0);
  std::iota(back.contract_a.begin(), back.contract_a.end(), others_at);
  const Value incoming = convert(step.incoming, mine.value.dtype());
  const Value product = dot(incoming, other.value, back);

  // It has batch, what is free of mine, then what was contracted, as the other has it in order.
  std::vector<int64_t> has_now = mine.batch;
  has_now.insert(has_now.end(), mine.free.begin(), mine.free.end());
  for (int64_t dimension = 0; dimension < int64_t(other.value.shape().size()); ++dimension)
    if (const auto at = std::ranges::find(other.contract, dimension); at != other.contract.end())
      has_now.push_back(mine.contract[size_t(at - other.contract.begin())]);
  std::vector<int64_t> order(has_now.size());
  for (size_t k = 0; k < has_now.size(); ++k) order[size_t(has_now[k])] = int64_t(k);
  return convert(transpose(product, order), mine.value.dtype());
}

Value gradient_of_convolution(const BackwardStep& step, size_t which) {
  const DType dtype = step.operand(0).dtype();
  const Value incoming = convert(step.incoming, dtype);
  return convert(
      which == 0 ? gradient_of_input(step, incoming) : gradient_of_kernel(step, incoming), dtype);
}

Value gradient_of_window_max(const BackwardStep& step) {
  const Value x = step.operand(0);
  return step.program().add({.op = Op::window_max_gradient,
                             .type = x.type(),
                             .operands = {x.number(), step.incoming.number()},
                             .window = step.i.window});
}

// Each element gets what the windows over it got: a sum of windows again, over the gradient with
// zeros between its elements.
Value gradient_of_window_sum(const BackwardStep& step) {
  const Window& window = step.i.window;
  const Value x = step.operand(0);
  Shape before(4, 0), after(4, 0), between(4, 0);
  for (size_t k = 0; k < 2; ++k) {
    const size_t dimension = window.dimension(k);
    between[dimension] = window.stride[k] - 1;
    before[dimension] = window.size[k] - 1 - window.before[k];
    after[dimension] = x.shape()[dimension] + window.size[k] - 1 - before[dimension] -
                       spread(step.i.type.shape[dimension], window.stride[k]);
  }
  return window_sum(
      pad(step.incoming, before, after, between),
      {.kernel_height = window.size[0], .kernel_width = window.size[1], .order = window.order});
}

Value gradient_of_take_rows(const BackwardStep& step) {
  const Value table = step.operand(0);
  const Value rows = convert(step.incoming, DType::float32);
  const Value sums = step.program().add({.op = Op::add_rows,
                                         .type = {DType::float32, table.shape()},
                                         .operands = {rows.number(), step.i.operands[1]}});
  return convert(sums, table.dtype());
}

}  // namespace tutti::hlo
