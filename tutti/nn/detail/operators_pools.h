/// Pools of images. Not for users: operators.h says how they are read.
#pragma once

#include <torch/types.h>

#include <tuple>
#include <utility>
#include <vector>

#include "tutti/nn/detail/layers.h"
#include "tutti/nn/detail/lowering.h"
#include "tutti/nn/detail/operators.h"

namespace tutti::nn::detail {

/// Of a max-pool or an average pool.
struct WindowPool : Stateless, BothOrders {
  template <class Pool>
  static Resolved infer(const Pool& op, const Site& site) {
    const Shape& in = site.image();
    site.at_most_half("padding", op.padding, op.kernel);
    return {op,
            {in[0], site.windows(in[1], op.kernel, op.stride, op.padding),
             site.windows(in[2], op.kernel, op.stride, op.padding)},
            {}};
  }
};

template <class Pool>
std::vector<onnx::Attribute> onnx_window(const Pool& op) {
  return {{"kernel_shape", std::vector{op.kernel, op.kernel}},
          {"strides", std::vector{op.stride, op.stride}},
          {"pads", std::vector<int64_t>(4, op.padding)}};
}

template <>
struct OperatorOf<op::MaxPool2d> : WindowPool {
  static constexpr std::string_view kind = "max_pool2d";
  static constexpr std::tuple fields{Field{"kernel", &op::MaxPool2d::kernel},
                                     Field{"stride", &op::MaxPool2d::stride},
                                     Field{"padding", &op::MaxPool2d::padding}};
  static at::Tensor run(const op::MaxPool2d& op, const Running& in) {
    return torch::max_pool2d(in.x(), op.kernel, op.stride, op.padding);
  }
  /// Beside a ReLU that was taken along (GraphPlan), by a kernel of ours.
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept);
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool weights_first);
  static constexpr int64_t kMostOfAByte = 15;  // side of a window whose places fit one
  static bool is_tiling(const Op& op) {
    const auto& pool = std::get<op::MaxPool2d>(op);
    return pool.kernel == pool.stride && pool.padding == 0 && pool.kernel <= kMostOfAByte;
  }
  static constexpr LayerPlan plan{.forward = forward,
                                  .backward = backward,
                                  .from_output = true,
                                  .takes_relu = is_tiling,
                                  .bfloat16 = InBfloat16::as_given};
  static onnx::Value to_onnx(const op::MaxPool2d& op, const NodeToOnnx& to) {
    return to.add("MaxPool", {to.x()}, onnx_window(op));
  }
  static hlo::Value lower(const op::MaxPool2d& op, const NodeLowering& to) {
    constexpr int64_t kLargestTile = 3;
    const bool tiles = op.stride == op.kernel && op.padding == 0 && op.kernel <= kLargestTile;
    return tiles ? max_of_tiles(to.x(), op.kernel, to.order)
                 : hlo::window_max(to.x(), window_of(op, to.order));
  }
};

inline PoolShape pool_shape(const at::Tensor& x, int64_t kernel) {
  return {.images = x.size(0),
          .height = x.size(2),
          .width = x.size(3),
          .channels = x.size(1),
          .kernel = kernel};
}

inline at::Tensor OperatorOf<op::MaxPool2d>::forward(const PlannedLayer& layer,
                                                     GraphStep::Values& values, KeptOfLayer& kept) {
  const auto& pool = std::get<op::MaxPool2d>(layer.op);
  const at::Tensor& x = kept.x = values[0];
  const bool innermost = x.size(1) > 1 && x.is_contiguous(at::MemoryFormat::ChannelsLast);
  if (layer.activation == Activation::none || !innermost || x.scalar_type() != at::kFloat) {
    at::Tensor places;
    std::tie(kept.y, places) =
        at::max_pool2d_with_indices(x, pool.kernel, pool.stride, pool.padding);
    kept.others = {std::move(places)};
    if (layer.activation == Activation::relu) at::relu_(kept.y);
    return kept.y;
  }
  kept.y = at::empty({x.size(0), x.size(1), x.size(2) / pool.kernel, x.size(3) / pool.kernel},
                     x.options().memory_format(at::MemoryFormat::ChannelsLast));
  kept.others = {at::empty({kept.y.numel()}, at::kByte)};
  layer_kernels().pool_relu(pool_shape(x, pool.kernel), x.const_data_ptr<float>(),
                            kept.y.mutable_data_ptr<float>(),
                            kept.others[0].mutable_data_ptr<uint8_t>());
  return kept.y;
}

inline LayerGradients OperatorOf<op::MaxPool2d>::backward(const PlannedLayer& layer,
                                                          const KeptOfLayer& kept,
                                                          const at::Tensor& gradient, bool) {
  const auto& pool = std::get<op::MaxPool2d>(layer.op);
  const at::Tensor& places = kept.others[0];
  if (places.scalar_type() != at::kByte) {
    const bool relu = layer.activation == Activation::relu;
    const at::Tensor dy = relu ? at::threshold_backward(gradient, kept.y, 0) : gradient;
    return {.inputs = {at::max_pool2d_with_indices_backward(dy, kept.x, pool.kernel, pool.stride,
                                                            pool.padding, 1, false, places)}};
  }
  const at::Tensor dy = gradient.contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor dx =
      at::empty(kept.x.sizes(), kept.x.options().memory_format(at::MemoryFormat::ChannelsLast));
  layer_kernels().pool_relu_gradient(
      pool_shape(kept.x, pool.kernel), dy.const_data_ptr<float>(), kept.y.const_data_ptr<float>(),
      places.const_data_ptr<uint8_t>(), dx.mutable_data_ptr<float>());
  return {.inputs = {std::move(dx)}};
}

template <>
struct OperatorOf<op::AvgPool2d> : WindowPool {
  static constexpr std::string_view kind = "avg_pool2d";
  static constexpr std::tuple fields{Field{"kernel", &op::AvgPool2d::kernel},
                                     Field{"stride", &op::AvgPool2d::stride},
                                     Field{"padding", &op::AvgPool2d::padding}};
  static at::Tensor run(const op::AvgPool2d& op, const Running& in) {
    return torch::avg_pool2d(in.x(), op.kernel, op.stride, op.padding);
  }
  static constexpr LayerPlan plan{
      .forward = keep_input,
      .backward =
          [](const PlannedLayer& layer, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            const auto& op = std::get<op::AvgPool2d>(layer.op);
            return LayerGradients{
                .inputs = {at::avg_pool2d_backward(
                    gradient, kept.x, op.kernel, op.stride, op.padding,
                    /*ceil_mode=*/false, /*count_include_pad=*/true, std::nullopt)}};
          },
      .bfloat16 = InBfloat16::as_given};
  static onnx::Value to_onnx(const op::AvgPool2d& op, const NodeToOnnx& to) {
    auto window = onnx_window(op);
    window.push_back({"count_include_pad", int64_t{1}});
    return to.add("AveragePool", {to.x()}, std::move(window));
  }
  static hlo::Value lower(const op::AvgPool2d& op, const NodeLowering& to) {
    return hlo::window_sum(to.x(), window_of(op, to.order)) / double(op.kernel * op.kernel);
  }
};

/// Of the mean over whole images, as LibTorch has it.
inline at::Tensor whole_mean_gradient(const at::Tensor& gradient, at::IntArrayRef sizes) {
  return gradient.reshape({sizes[0], sizes[1], 1, 1}).expand(sizes) / (sizes[2] * sizes[3]);
}

template <>
struct OperatorOf<op::AdaptiveAvgPool2d> : Stateless, BothOrders {
  static constexpr std::string_view kind = "adaptive_avg_pool2d";
  static constexpr std::tuple fields{Field{"size", &op::AdaptiveAvgPool2d::size}};
  static Resolved infer(const op::AdaptiveAvgPool2d& op, const Site& site) {
    site.at_least("height", op.size.height, 1);
    site.at_least("width", op.size.width, 1);
    return {op, {site.image()[0], op.size.height, op.size.width}, {}};
  }
  static at::Tensor run(const op::AdaptiveAvgPool2d& op, const Running& in) {
    return torch::adaptive_avg_pool2d(in.x(), {op.size.height, op.size.width});
  }
  static bool is_whole(const op::AdaptiveAvgPool2d& op) {
    return op.size.height == 1 && op.size.width == 1;
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    const bool whole = is_whole(std::get<op::AdaptiveAvgPool2d>(layer.op));
    return whole ? keep_sizes(layer, values, kept) : keep_input(layer, values, kept);
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    if (is_whole(std::get<op::AdaptiveAvgPool2d>(layer.op)))
      return {.inputs = {whole_mean_gradient(gradient, kept.sizes)}};
    return {.inputs = {at::_adaptive_avg_pool2d_backward(gradient, kept.x)}};
  }
  static constexpr LayerPlan plan{.forward = forward, .backward = backward};
  static onnx::Value to_onnx(const op::AdaptiveAvgPool2d& op, const NodeToOnnx& to) {
    return mean_of_cells(to, {to.shape()[1], to.shape()[2]}, op.size);
  }
  static hlo::Value lower(const op::AdaptiveAvgPool2d& op, const NodeLowering& to) {
    return mean_of_cells(to.x(), op.size, to.order);
  }
};

template <>
struct OperatorOf<op::GlobalAvgPool2d> : NoFields, Stateless, BothOrders {
  static constexpr std::string_view kind = "global_avg_pool2d";
  static Resolved infer(const op::GlobalAvgPool2d& op, const Site& site) {
    return {op, {site.image()[0]}, {}};
  }
  static at::Tensor run(const op::GlobalAvgPool2d&, const Running& in) {
    return torch::adaptive_avg_pool2d(in.x(), {1, 1}).flatten(1);
  }
  static constexpr LayerPlan plan{
      .forward = keep_sizes,
      .backward = [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient,
                     bool) {
        return LayerGradients{.inputs = {whole_mean_gradient(gradient, kept.sizes)}};
      }};
  static onnx::Value to_onnx(const op::GlobalAvgPool2d&, const NodeToOnnx& to) {
    return to.add("Flatten", {to.add("GlobalAveragePool", {to.x()})}, {{"axis", int64_t{1}}});
  }
  static hlo::Value lower(const op::GlobalAvgPool2d&, const NodeLowering& to) {
    const hlo::ImageAxes axes = to.axes();
    return hlo::reduce_sum(to.x(), {axes.height, axes.width}) /
           double(to.size(axes.height) * to.size(axes.width));
  }
};

}  // namespace tutti::nn::detail
