/// Convolution and normalization of images. Not for users: operators.h says how they are read.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <vector>

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
  static at::Tensor run(const op::Conv2d&, const Running& in) {
    return static_cast<torch::nn::Conv2dImpl*>(in.step.module)->forward(channels_last(in.x()));
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    values[0] = channels_last(values[0]);
    return keep_input(layer, values, kept);
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    const auto& conv = std::get<op::Conv2d>(layer.op);
    const std::array<int64_t, 1> bias{conv.out_channels};
    const auto of = at::convolution_backward(
        gradient, kept.x, kept.weight,
        conv.bias ? at::OptionalIntArrayRef(bias) : at::OptionalIntArrayRef(),
        {conv.stride, conv.stride}, {conv.padding.height, conv.padding.width}, {1, 1},
        /*transposed=*/false, {0, 0}, conv.groups,
        {kept.needs_input, kept.needs_weight, kept.needs_bias});
    return {std::get<0>(of), std::get<1>(of), std::get<2>(of)};
  }
  static constexpr LayerPlan plan{.forward = forward, .backward = backward};
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
struct OperatorOf<op::BatchNorm2d> : NotPlanned, BothOrders {
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
    return op.synchronized ? in.by<SyncBatchNormImpl>() : in.by<torch::nn::BatchNorm2dImpl>();
  }
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
