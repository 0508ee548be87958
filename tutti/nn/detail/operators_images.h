/// Convolution and normalization of images. Not for users: operators.h says how they are read.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/nn/detail/batch_norm.h"
#include "tutti/nn/detail/convolution.h"
#include "tutti/nn/detail/operators.h"
#include "tutti/nn/sync_batch_norm.h"

namespace tutti::nn::detail {

template <>
struct OperatorOf<op::Conv2d> : BothOrders {
  static constexpr std::string_view kind = "conv2d";
  static constexpr std::tuple fields{Field{"in_channels", &op::Conv2d::in_channels},
                                     Field{"out_channels", &op::Conv2d::out_channels},
                                     Field{"kernel", &op::Conv2d::kernel},
                                     Field{"stride", &op::Conv2d::stride},
                                     Field{"padding", &op::Conv2d::padding},
                                     Field{"groups", &op::Conv2d::groups},
                                     Field{"bias", &op::Conv2d::bias}};
  static Resolved infer(op::Conv2d op, const Site& site) {
    const Shape& in = site.image();
    site.at_least("out_channels", op.out_channels, 1);
    site.at_least("groups", op.groups, 1);
    if (in[0] % op.groups != 0 || op.out_channels % op.groups != 0)
      site.fail(fmt::format("groups is {}, must divide {} input and {} output channels", op.groups,
                            in[0], op.out_channels));
    op.in_channels = in[0];
    Resolved out{
        op,
        {op.out_channels, site.windows(in[1], op.kernel.height, op.stride, op.padding.height),
         site.windows(in[2], op.kernel.width, op.stride, op.padding.width)},
        {{"weight", {op.out_channels, in[0] / op.groups, op.kernel.height, op.kernel.width}}}};
    if (op.bias) out.parameters.push_back({"bias", {op.out_channels}});
    return out;
  }
  static LayerState state(const op::Conv2d& op, int) {
    return {.module = std::make_shared<torch::nn::Conv2dImpl>(
                torch::nn::Conv2dOptions(op.in_channels, op.out_channels,
                                         {op.kernel.height, op.kernel.width})
                    .stride(op.stride)
                    .padding({op.padding.height, op.padding.width})
                    .groups(op.groups)
                    .bias(op.bias))};
  }
  static at::Tensor run(const op::Conv2d& op, const Running& in) {
    auto& conv = *static_cast<torch::nn::Conv2dImpl*>(in.step.module);
    const at::Tensor x = channels_last(in.x());
    return convolution_takes(x, conv.weight, conv.bias) ? convolve(op, x, conv.weight, conv.bias)
                                                        : conv.forward(x);
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    const at::Tensor &weight = kept.parameters[0], &bias = kept.parameters[1];
    kept.x = channels_last(values[0]);
    if (kept.needs_any_input()) kept.read.push_back(weight);
    return convolution_forward(std::get<op::Conv2d>(layer.op), kept.x, weight, bias);
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    auto of = convolution_backward(
        std::get<op::Conv2d>(layer.op), gradient, kept.x, kept.parameters[0],
        {kept.needs_input(), kept.needs_parameter(0), kept.needs_parameter(1)});
    return {.inputs = {std::move(of.x)}, .parameters = {std::move(of.weight), std::move(of.bias)}};
  }
  static constexpr LayerPlan plan{.forward = forward,
                                  .backward = backward,
                                  .parameters = weight_and_bias<torch::nn::Conv2dImpl>,
                                  .bfloat16 = InBfloat16::yes};
  static onnx::Value to_onnx(const op::Conv2d& op, const NodeToOnnx& to) {
    std::vector<onnx::Value> inputs{to.x(), to.state("weight")};
    if (op.bias) inputs.push_back(to.state("bias"));
    const int64_t high = op.padding.height, wide = op.padding.width;
    return to.add("Conv", inputs,
                  {{"kernel_shape", std::vector{op.kernel.height, op.kernel.width}},
                   {"strides", std::vector{op.stride, op.stride}},
                   {"pads", std::vector{high, wide, high, wide}},
                   {"group", op.groups}});
  }
  static hlo::Value lower(const op::Conv2d& op, const NodeLowering& to) {
    const hlo::Value y = hlo::conv2d(to.product_type(to.x()), to.product_type(to.state("weight")),
                                     {.stride_height = op.stride,
                                      .stride_width = op.stride,
                                      .pad_height = op.padding.height,
                                      .pad_width = op.padding.width,
                                      .groups = op.groups,
                                      .order = to.order});
    return op.bias ? y + hlo::broadcast(to.state("bias"), y.shape(), {to.axes().channels}) : y;
  }
};

template <>
struct OperatorOf<op::BatchNorm2d> : BothOrders {
  static constexpr std::string_view kind = "batch_norm2d";
  static constexpr std::tuple fields{Field{"channels", &op::BatchNorm2d::channels},
                                     Field{"epsilon", &op::BatchNorm2d::epsilon},
                                     Field{"momentum", &op::BatchNorm2d::momentum},
                                     Field{"synchronized", &op::BatchNorm2d::synchronized}};
  static Resolved infer(op::BatchNorm2d op, const Site& site) {
    const Shape& in = site.image();
    if (!(op.epsilon > 0)) site.fail(fmt::format("epsilon is {}, must be above 0", op.epsilon));
    if (!(op.momentum >= 0 && op.momentum <= 1))
      site.fail(fmt::format("momentum is {}, must be from 0 to 1", op.momentum));
    op.channels = in[0];
    return {op,
            in,
            {{"weight", {in[0]}},
             {"bias", {in[0]}},
             {"running_mean", {in[0]}, false},
             {"running_var", {in[0]}, false},
             {"num_batches_tracked", {}, false}}};
  }
  static LayerState state(const op::BatchNorm2d& op, int) {
    const auto options =
        torch::nn::BatchNormOptions(op.channels).eps(op.epsilon).momentum(op.momentum);
    if (op.synchronized) return {.module = std::make_shared<SyncBatchNormImpl>(options)};
    return {.module = std::make_shared<torch::nn::BatchNorm2dImpl>(options)};
  }
  static at::Tensor run(const op::BatchNorm2d& op, const Running& in) {
    if (op.synchronized) return in.by<SyncBatchNormImpl>();
    return batch_norm(channels_last(in.x()),
                      *static_cast<torch::nn::BatchNorm2dImpl*>(in.step.module));
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept);
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool weights_first);
  static constexpr LayerPlan plan{
      .forward = forward,
      .backward = backward,
      .parameters = weight_and_bias<torch::nn::BatchNorm2dImpl>,
      .takes = [](const Op& op) { return !std::get<op::BatchNorm2d>(op).synchronized; },
      .takes_relu = [](const Op&) { return true; }};
  static onnx::Value to_onnx(const op::BatchNorm2d& op, const NodeToOnnx& to) {
    return to.add("BatchNormalization",
                  {to.x(), to.state("weight"), to.state("bias"), to.state("running_mean"),
                   to.state("running_var")},
                  {{"epsilon", static_cast<float>(op.epsilon)}});
  }
  static hlo::Value lower(const op::BatchNorm2d& op, const NodeLowering& to);

 private:
  /// By the statistics [C]; the weight and the bias after that.
  static hlo::Value normalised(const op::BatchNorm2d& op, const NodeLowering& to, hlo::Value mean,
                               hlo::Value variance) {
    const int64_t channels = to.axes().channels;
    const hlo::Value scale = hlo::rsqrt(variance + op.epsilon) * to.state("weight");
    return (to.x() - to.along(mean, channels)) * to.along(scale, channels) +
           to.along(to.state("bias"), channels);
  }
};

inline at::Tensor OperatorOf<op::BatchNorm2d>::forward(const PlannedLayer& layer,
                                                       GraphStep::Values& values,
                                                       KeptOfLayer& kept) {
  auto& own = *static_cast<torch::nn::BatchNorm2dImpl*>(layer.step->module);
  const at::Tensor& x = values[0];
  if (batch_norm_takes(x, own)) {
    NormedBatch of = batch_statistics(x, own);
    kept.x = of.x;
    kept.others = {of.columns};
    return layer.is_put_off ? of.x : apply_norm(of.x, of.columns, {}, layer.activation);
  }
  if (own.is_training()) return layer.step->run(values);  // one value a channel: LibTorch's error
  const auto& op = std::get<op::BatchNorm2d>(layer.op);
  const at::Tensor &mean = own.running_mean, &variance = own.running_var;
  kept.x = channels_last(x);
  auto of = at::native_batch_norm(kept.x, own.weight, own.bias, mean, variance, /*training=*/false,
                                  op.momentum, op.epsilon);
  const bool relu = layer.activation == Activation::relu;
  if (relu) at::relu_(std::get<0>(of));
  if (relu) kept.y = std::get<0>(of);
  kept.others = {mean, variance, std::get<1>(of), std::get<2>(of)};
  kept.read = {own.weight, mean, variance};
  return std::get<0>(of);
}

inline LayerGradients OperatorOf<op::BatchNorm2d>::backward(const PlannedLayer& layer,
                                                            const KeptOfLayer& kept,
                                                            const at::Tensor& gradient, bool) {
  const bool of_input = kept.needs_input();
  const bool of_weight = kept.needs_parameter(0), of_bias = kept.needs_parameter(1);
  if (kept.others.size() == 1) {
    auto of = batch_norm_backward(gradient, kept.x, kept.others[0], layer.activation,
                                  {.x = of_input, .weight = of_weight, .bias = of_bias});
    return {.inputs = {std::move(of.x)}, .parameters = {std::move(of.weight), std::move(of.bias)}};
  }
  const auto of = at::native_batch_norm_backward(
      kept.y.defined() ? at::threshold_backward(gradient, kept.y, 0) : gradient, kept.x,
      kept.parameters[0], kept.others[0], kept.others[1], kept.others[2], kept.others[3],
      /*train=*/false, std::get<op::BatchNorm2d>(layer.op).epsilon, {of_input, of_weight, of_bias});
  return {.inputs = {std::get<0>(of)}, .parameters = {std::get<1>(of), std::get<2>(of)}};
}

inline hlo::Value OperatorOf<op::BatchNorm2d>::lower(const op::BatchNorm2d& op,
                                                     const NodeLowering& to) {
  const hlo::Value x = to.x();
  const bool frozen = std::ranges::all_of(
      to.node.parameters, [](const Parameter& p) { return !p.trainable || p.frozen; });
  if (!to.from.training || frozen)
    return normalised(op, to, to.state("running_mean"), to.state("running_var"));
  // Statistics of the rows that count, of all replicas' where they are synchronized.
  const hlo::ImageAxes axes = to.axes();
  const auto sum = [&](hlo::Value a) {
    const hlo::Value own = hlo::reduce_sum(a, {0, axes.height, axes.width});
    return op.synchronized ? hlo::all_reduce(own) : own;
  };
  const hlo::Value counts = to.from.row_weights
                                ? hlo::broadcast(*to.from.row_weights, x.shape(), {0})
                                : hlo::constant(x.program(), x.type(), 1);
  const hlo::Value counted = sum(counts);
  const hlo::Value any = hlo::compare(counted, hlo::Comparison::gt, 0);
  const hlo::Value count = hlo::maximum(counted, 1);  // of a part without rows nothing is kept
  const hlo::Value mean = sum(x * counts) / count;
  const hlo::Value apart = x - to.along(mean, axes.channels);
  const hlo::Value squares = sum(apart * apart * counts);
  // A layer that is applied twice moves them twice.
  const auto now = [&](std::string_view name) {
    const auto moved = to.buffers.find(to.full_name_of(name));
    return moved != to.buffers.end() ? moved->second : to.state(name);
  };
  const auto becomes = [&](std::string_view name, hlo::Value value) {
    to.buffers.insert_or_assign(to.full_name_of(name), value);
  };
  const auto move = [&](std::string_view name, hlo::Value towards) {
    const hlo::Value old = now(name);
    becomes(name, hlo::select(any, old * (1 - op.momentum) + towards * op.momentum, old));
  };
  move("running_mean", mean);
  move("running_var", squares / hlo::maximum(count - 1, 1));
  const hlo::Value tracked = now("num_batches_tracked");
  const hlo::Value one = hlo::reshape(hlo::slice(any, {0}, {1}), {});
  becomes("num_batches_tracked", tracked + hlo::convert(one, tracked.dtype()));
  return normalised(op, to, mean, squares / count);
}

}  // namespace tutti::nn::detail
