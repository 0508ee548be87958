#include "tutti/nn/detail/convolution.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "tutti/nn/detail/graph_step.h"
#include "tutti/nn/detail/layers.h"
#include "tutti/sync/before_use.h"

namespace tutti::nn::detail {
namespace {

constexpr auto kInnermost = at::MemoryFormat::ChannelsLast;

// What each of `count` matrices [rows, columns] is when its columns come first. One matrix stays in
// the first level of cache; LibTorch's copy takes ten times as long for the few columns of a
// kernel.
template <class Element>
void transpose(const Element* from, Element* to, int64_t count, int64_t rows, int64_t columns) {
  constexpr int64_t kWorthAThread = 1 << 15;  // elements
  const int64_t size = rows * columns;
  at::parallel_for(0, count, std::max<int64_t>(1, kWorthAThread / size),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i)
                       for (int64_t c = 0; c < columns; ++c) {
                         const Element* const in = from + i * size + c;
                         Element* const out = to + i * size + c * rows;
                         for (int64_t r = 0; r < rows; ++r) out[r] = in[r * columns];
                       }
                   });
}

void transpose(const at::Tensor& from, at::Tensor& to, int64_t rows, int64_t columns) {
  const int64_t count = from.size(0);
  if (from.scalar_type() == at::kBFloat16)
    transpose(from.const_data_ptr<at::BFloat16>(), to.mutable_data_ptr<at::BFloat16>(), count, rows,
              columns);
  else
    transpose(from.const_data_ptr<float>(), to.mutable_data_ptr<float>(), count, rows, columns);
}

int64_t taps_of(const at::Tensor& weight) { return weight.size(2) * weight.size(3); }

// One channel or one tap: the elements lie alike in both orders.
bool is_both_orders(const at::Tensor& weight) {
  return weight.size(1) == 1 || taps_of(weight) == 1;
}

/// Where a line of outputs reads a line of inputs: output `output` multiplies taps `tap` to
/// `tap + count` with inputs `input` on; the others read padding.
struct Reach {
  int64_t output, input, tap, count;
};

std::vector<Reach> reaches(int64_t inputs, int64_t kernel, int64_t stride, int64_t padding) {
  std::vector<Reach> all;
  const int64_t outputs = (inputs + 2 * padding - kernel) / stride + 1;
  for (int64_t o = 0; o < outputs; ++o) {
    const int64_t first = o * stride - padding;
    const int64_t tap = std::max<int64_t>(0, -first);
    const int64_t end = std::min(kernel, inputs - first);
    all.push_back({o, first + tap, tap, std::max<int64_t>(0, end - tap)});
  }
  return all;
}

at::Tensor empty_images(const at::Tensor& like, int64_t count, int64_t channels, int64_t height,
                        int64_t width) {
  return at::empty({count, channels, height, width}, like.options().memory_format(kInnermost));
}

// The memory of images or weights as a matrix, of which a place or a tap is a few columns, side by
// side with its right neighbour:  x [B, (H W C)]   w [O, (height width C)]   y [B, (H' W' O)].
at::Tensor as_rows(const at::Tensor& innermost) {
  return innermost.permute({0, 2, 3, 1}).view({innermost.size(0), -1});
}

// Places one below the other [(B H W), C], and images of such.
at::Tensor places_of(const at::Tensor& innermost) {
  return innermost.permute({0, 2, 3, 1}).view({-1, innermost.size(1)});
}

at::Tensor places_as_images(const at::Tensor& places, int64_t height, int64_t width) {
  return places.view({-1, height, width, places.size(1)}).permute({0, 3, 1, 2});
}

// sum = a b, or sum + a b.
void multiply(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool adds) {
  at::Tensor out = sum;
  if (adds)
    at::addmm_out(out, out, a, b);
  else
    at::mm_out(out, a, b);
}

/// A convolution tap by tap. Taps that read padding are left out: of 3 x 3 over 2 x 2 images, 20 of
/// 36. Sums are made row of taps after row of taps, outputs in their order.
class ByTaps {
 public:
  ByTaps(const op::Conv2d& conv, int64_t height, int64_t width)
      : in_(conv.in_channels),
        out_(conv.out_channels),
        kernel_(conv.kernel),
        width_(width),
        down_(reaches(height, conv.kernel.height, conv.stride, conv.padding.height)),
        across_(reaches(width, conv.kernel.width, conv.stride, conv.padding.width)) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight) const {
    const at::Tensor from = as_rows(x), w = as_rows(weight);
    at::Tensor y = empty_images(x, x.size(0), out_, std::ssize(down_), std::ssize(across_));
    const at::Tensor to = as_rows(y);
    for (const Reach& row : down_)
      for (const Reach& column : across_) {
        const at::Tensor sum = output(to, row, column);
        if (row.count == 0 || column.count == 0) sum.zero_();
        for (int64_t i = 0; i < row.count && column.count > 0; ++i)
          multiply(sum, inputs(from, row, column, i), taps(w, row, column, i).t(), i > 0);
      }
    return y;
  }

  at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& x,
                            const at::Tensor& weight) const {
    const at::Tensor dy = as_rows(gradient), w = as_rows(weight);
    at::Tensor dx = empty_images(x, x.size(0), in_, x.size(2), width_).zero_();
    const at::Tensor to = as_rows(dx);
    for (const Reach& row : down_)
      for (const Reach& column : across_)
        for (int64_t i = 0; i < row.count && column.count > 0; ++i)
          multiply(inputs(to, row, column, i), output(dy, row, column), taps(w, row, column, i),
                   true);
    return dx;
  }

  at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& x) const {
    const at::Tensor dy = as_rows(gradient), from = as_rows(x);
    at::Tensor dw = empty_images(x, out_, in_, kernel_.height, kernel_.width);
    const at::Tensor to = as_rows(dw);
    for (int64_t down = 0; down < kernel_.height; ++down)
      for (int64_t across = 0; across < kernel_.width; ++across)
        add_of_tap(to.narrow(1, (down * kernel_.width + across) * in_, in_), dy, from, down,
                   across);
    return dw;
  }

 private:
  at::Tensor output(const at::Tensor& y, const Reach& row, const Reach& column) const {
    return y.narrow(1, (row.output * std::ssize(across_) + column.output) * out_, out_);
  }
  at::Tensor inputs(const at::Tensor& x, const Reach& row, const Reach& column, int64_t i) const {
    return x.narrow(1, ((row.input + i) * width_ + column.input) * in_, column.count * in_);
  }
  at::Tensor taps(const at::Tensor& w, const Reach& row, const Reach& column, int64_t i) const {
    return w.narrow(1, ((row.tap + i) * kernel_.width + column.tap) * in_, column.count * in_);
  }

  void add_of_tap(const at::Tensor& sum, const at::Tensor& dy, const at::Tensor& x, int64_t down,
                  int64_t across) const {
    const auto reads = [](const Reach& reach, int64_t tap) {
      return tap >= reach.tap && tap < reach.tap + reach.count;
    };
    bool adds = false;
    for (const Reach& row : down_)
      for (const Reach& column : across_) {
        if (!reads(row, down) || !reads(column, across)) continue;
        const int64_t high = row.input + down - row.tap, wide = column.input + across - column.tap;
        multiply(sum, output(dy, row, column).t(), x.narrow(1, (high * width_ + wide) * in_, in_),
                 std::exchange(adds, true));
      }
    if (!adds) sum.zero_();
  }

  int64_t in_, out_;
  Size2d kernel_;
  int64_t width_;
  std::vector<Reach> down_, across_;
};

// Products are float32's.
ConvolutionWay way_for(const op::Conv2d& conv, const at::Tensor& x) {
  if (x.scalar_type() != at::kFloat) return ConvolutionWay::libtorch;
  return way_of(conv, x.size(2), x.size(3));
}

auto libtorchs_gradients(const op::Conv2d& conv, const at::Tensor& gradient, const at::Tensor& x,
                         const at::Tensor& weight, ConvolutionNeeds needs) {
  const std::array<int64_t, 1> bias{conv.out_channels};
  return at::convolution_backward(
      gradient, x, weight, needs.bias ? at::OptionalIntArrayRef(bias) : at::OptionalIntArrayRef(),
      {conv.stride, conv.stride}, {conv.padding.height, conv.padding.width}, {1, 1},
      /*transposed=*/false, {0, 0}, conv.groups, {needs.x, needs.weight, needs.bias});
}

// In the place of a weight whose sizes alone are asked for: an operator that has the weight itself
// waits until it has come, and may copy it.
at::Tensor unread(const at::Tensor& weight) {
  const auto order = is_both_orders(weight) ? at::MemoryFormat::Contiguous : kInnermost;
  return at::empty(weight.sizes(), weight.options().memory_format(order));
}

// What of a Conv2d its tensors do not say, as autograd keeps it.
std::vector<int64_t> numbers_of(const op::Conv2d& conv) {
  return {conv.in_channels, conv.out_channels,   conv.kernel.height, conv.kernel.width,
          conv.stride,      conv.padding.height, conv.padding.width, conv.groups};
}

op::Conv2d conv_of(const std::vector<int64_t>& numbers, bool bias) {
  return {.in_channels = numbers[0],
          .out_channels = numbers[1],
          .kernel = {numbers[2], numbers[3]},
          .stride = numbers[4],
          .padding = {numbers[5], numbers[6]},
          .groups = numbers[7],
          .bias = bias};
}

struct ConvolutionFunction : torch::autograd::Function<ConvolutionFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const op::Conv2d& conv) {
    context->save_for_backward({x, weight});
    context->saved_data["numbers"] = numbers_of(conv);
    context->saved_data["bias"] = bias.has_value();
    const at::AutoDispatchBelowADInplaceOrView below;  // what it gives may be written over
    return convolution_forward(conv, x, weight, bias.value_or(at::Tensor()));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const bool bias = context->saved_data["bias"].toBool();
    const op::Conv2d conv = conv_of(context->saved_data["numbers"].toIntVector(), bias);
    const ConvolutionNeeds needs{.x = context->needs_input_grad(0),
                                 .weight = context->needs_input_grad(1),
                                 .bias = bias && context->needs_input_grad(2)};
    if (at::GradMode::is_enabled()) {  // a backward pass that is itself to have gradients
      const auto of = libtorchs_gradients(conv, gradients[0], saved[0], saved[1], needs);
      return {std::get<0>(of), std::get<1>(of), std::get<2>(of), {}};
    }
    const auto of = convolution_backward(conv, gradients[0], saved[0], saved[1], needs);
    return {of.x, of.weight, of.bias, {}};
  }
};

}  // namespace

bool convolution_takes(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto plain = [](const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.scalar_type() == at::kFloat &&
           tensor.layout() == at::kStrided && tensor.numel() > 0;
  };
  return plain(x) && plain(weight) && (!bias.defined() || plain(bias)) &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

ConvolutionWay way_of(const op::Conv2d& conv, int64_t height, int64_t width) {
  // Measured (docs/design/layouts.md): over more places LibTorch's kernel is level or better, and
  // products of fewer channels cost more to call than to make.
  constexpr int64_t kMostOfTaps = 4, kMostOfDense = 16, kFewestElements = 1 << 15, kLine = 16;
  const auto outputs = [&](int64_t inputs, int64_t kernel, int64_t padding) {
    return (inputs + 2 * padding - kernel) / conv.stride + 1;
  };
  const int64_t taps = conv.kernel.height * conv.kernel.width;
  const int64_t places = outputs(height, conv.kernel.height, conv.padding.height) *
                         outputs(width, conv.kernel.width, conv.padding.width);
  if (conv.groups != 1 || conv.in_channels % kLine != 0 || conv.out_channels % kLine != 0 ||
      conv.in_channels * conv.out_channels * taps < kFewestElements)
    return ConvolutionWay::libtorch;
  const bool every_place = conv.stride == 1 && conv.padding.height == 0 && conv.padding.width == 0;
  if (taps == 1 && every_place)
    return places <= kMostOfDense ? ConvolutionWay::dense : ConvolutionWay::libtorch;
  return places <= kMostOfTaps ? ConvolutionWay::by_taps : ConvolutionWay::libtorch;
}

at::Tensor with_channels_innermost(const at::Tensor& weight) {
  if (is_both_orders(weight)) return weight.contiguous();
  if (!weight.is_contiguous()) return weight.contiguous(kInnermost);
  require_ready(weight);
  at::Tensor laid = at::empty(weight.sizes(), weight.options().memory_format(kInnermost));
  transpose(weight, laid, weight.size(1), taps_of(weight));
  return laid;
}

at::Tensor in_torchs_order(const at::Tensor& weight) {
  // Dimensions of one element may have any stride: who compares strides is to find torch's.
  if (is_both_orders(weight) || !weight.is_contiguous(kInnermost))
    return weight.contiguous().as_strided(weight.sizes(), c10::contiguous_strides(weight.sizes()));
  at::Tensor plain =
      at::empty(weight.sizes(), weight.options().memory_format(at::MemoryFormat::Contiguous));
  transpose(weight, plain, taps_of(weight), weight.size(1));
  return plain;
}

at::Tensor convolution_forward(const op::Conv2d& conv, const at::Tensor& x,
                               const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor laid = with_channels_innermost(weight);
  const int64_t height = x.size(2), width = x.size(3);
  switch (way_for(conv, x)) {
    case ConvolutionWay::dense:
      return places_as_images(
          dense_forward(places_of(channels_last(x)), as_rows(laid), bias, Activation::none), height,
          width);
    case ConvolutionWay::by_taps: {
      at::Tensor y = ByTaps(conv, height, width).forward(channels_last(x), laid);
      return bias.defined() ? y.add_(bias.view({-1, 1, 1})) : y;
    }
    case ConvolutionWay::libtorch: break;
  }
  return at::convolution(x, laid, bias, {conv.stride, conv.stride},
                         {conv.padding.height, conv.padding.width}, {1, 1},
                         /*transposed=*/false, {0, 0}, conv.groups);
}

ConvolutionGradients convolution_backward(const op::Conv2d& conv, const at::Tensor& gradient,
                                          const at::Tensor& x, const at::Tensor& weight,
                                          ConvolutionNeeds needs) {
  const int64_t height = x.size(2), width = x.size(3);
  const ConvolutionWay way = way_for(conv, x);
  const at::Tensor dy = channels_last(gradient);
  ConvolutionGradients of;
  if (way == ConvolutionWay::libtorch) {
    std::tie(of.x, of.weight, of.bias) = libtorchs_gradients(
        conv, dy, x, needs.x ? with_channels_innermost(weight) : unread(weight), needs);
  } else if (way == ConvolutionWay::dense) {
    const at::Tensor w = needs.x ? as_rows(with_channels_innermost(weight)) : at::Tensor();
    const auto dense = dense_backward(places_of(dy), places_of(channels_last(x)), w, {},
                                      Activation::none, {needs.x, needs.weight, needs.bias});
    if (needs.x) of.x = places_as_images(dense.x, height, width);
    if (needs.weight) of.weight = dense.weight.view(weight.sizes());
    of.bias = dense.bias;
  } else {
    const ByTaps by_taps(conv, height, width);
    const at::Tensor from = channels_last(x);
    if (needs.bias) of.bias = dy.sum({0, 2, 3});
    if (needs.x) of.x = by_taps.input_gradient(dy, from, with_channels_innermost(weight));
    if (needs.weight) of.weight = by_taps.weight_gradient(dy, from);
  }
  if (needs.weight && weight.is_contiguous()) of.weight = in_torchs_order(of.weight);
  return of;
}

at::Tensor convolve(const op::Conv2d& conv, const at::Tensor& x, const at::Tensor& weight,
                    const at::Tensor& bias) {
  return ConvolutionFunction::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt,
                                    conv);
}

}  // namespace tutti::nn::detail
