/// Convolutions along sequences [length, features]. Not for users: operators.h says how
/// they are read.
#pragma once

#include <torch/nn/modules/conv.h>

#include <array>
#include <memory>
#include <vector>

#include "tutti/nn/detail/lowering.h"
#include "tutti/nn/detail/operators.h"
#include "tutti/nn/detail/operators_sequence_pools.h"

namespace tutti::nn::detail {

/// w [outputs, inputs, kernel] as [outputs, inputs, 1, kernel].
inline hlo::Value as_row(const NodeLowering& to, hlo::Value w) {
  const hlo::Shape& s = w.shape();
  return to.product_type(hlo::reshape(w, {s[0], s[1], 1, s[2]}));
}
template <class O>
std::vector<onnx::Value> onnx_conv_inputs(const O& op, const NodeToOnnx& to) {
  std::vector<onnx::Value> inputs{turned(to, to.x()), to.state("weight")};
  if (op.bias) inputs.push_back(to.state("bias"));
  return inputs;
}
template <class O>
hlo::Value plus_bias(const O& op, const NodeLowering& to, hlo::Value y, int64_t dimension) {
  return op.bias ? y + hlo::broadcast(to.state("bias"), y.shape(), {dimension}) : y;
}

/// LayerPlan of both: convolutions of images of one row.
template <class O>
struct PlannedAlongSequence {
  using Said = OperatorOf<O>;
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    const at::Tensor& weight = kept.parameters[0];
    if (kept.needs_any_input()) kept.read.push_back(weight);
    kept.x = row_of_image(values[0]);
    return sequence_of(Said::of_row(std::get<O>(layer.op), kept.x, weight, kept.parameters[1]));
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    const auto& op = std::get<O>(layer.op);
    const std::array<int64_t, 1> bias{op.out_channels};
    auto [x, weight, of_bias] = at::convolution_backward(
        through_sequence_of(gradient), kept.x, kept.parameters[0].unsqueeze(2),
        op.bias ? at::OptionalIntArrayRef(bias) : at::OptionalIntArrayRef(), {1, op.stride},
        at::IntArrayRef{0, op.padding}, {1, 1}, Said::kTransposed,
        at::IntArrayRef{0, Said::output_padding(op)}, Said::groups(op),
        {kept.needs_input(), kept.needs_parameter(0), kept.needs_parameter(1)});
    return {.inputs = {x.defined() ? through_row_of_image(x) : x},
            .parameters = {weight.defined() ? weight.squeeze(2) : weight, std::move(of_bias)}};
  }
};

template <>
struct OperatorOf<op::Conv1d> : LibTorchsOrder {
  static constexpr std::string_view kind = "conv1d";
  static constexpr std::tuple fields{Field{"in_channels", &op::Conv1d::in_channels},
                                     Field{"out_channels", &op::Conv1d::out_channels},
                                     Field{"kernel", &op::Conv1d::kernel},
                                     Field{"stride", &op::Conv1d::stride},
                                     Field{"padding", &op::Conv1d::padding},
                                     Field{"groups", &op::Conv1d::groups},
                                     Field{"bias", &op::Conv1d::bias}};
  static Resolved infer(op::Conv1d op, const Site& site) {
    const Shape& in = site.sequence();
    site.at_least("out_channels", op.out_channels, 1);
    site.at_least("groups", op.groups, 1);
    if (in[1] % op.groups != 0 || op.out_channels % op.groups != 0)
      site.fail(fmt::format("groups is {}, must divide {} input and {} output channels", op.groups,
                            in[1], op.out_channels));
    op.in_channels = in[1];
    Resolved out{op,
                 {site.windows(in[0], op.kernel, op.stride, op.padding), op.out_channels},
                 {{"weight", {op.out_channels, in[1] / op.groups, op.kernel}}}};
    if (op.bias) out.parameters.push_back({"bias", {op.out_channels}});
    return out;
  }
  static LayerState state(const op::Conv1d& op, int) {
    return {.module = std::make_shared<torch::nn::Conv1dImpl>(
                torch::nn::Conv1dOptions(op.in_channels, op.out_channels, op.kernel)
                    .groups(op.groups)
                    .bias(op.bias))};
  }
  static at::Tensor run(const op::Conv1d& op, const Running& in) {
    const auto& own = *static_cast<torch::nn::Conv1dImpl*>(in.step.module);
    return sequence_of(of_row(op, row_of_image(in.x()), own.weight, own.bias));
  }
  static at::Tensor of_row(const op::Conv1d& op, const at::Tensor& row, const at::Tensor& weight,
                           const at::Tensor& bias) {
    return at::conv2d(row, weight.unsqueeze(2), bias, {1, op.stride},
                      at::IntArrayRef{0, op.padding}, {1, 1}, op.groups);
  }
  static constexpr bool kTransposed = false;
  static int64_t output_padding(const op::Conv1d&) { return 0; }
  static int64_t groups(const op::Conv1d& op) { return op.groups; }
  static constexpr LayerPlan plan{.forward = PlannedAlongSequence<op::Conv1d>::forward,
                                  .backward = PlannedAlongSequence<op::Conv1d>::backward,
                                  .parameters = weight_and_bias<torch::nn::Conv1dImpl>};
  static onnx::Value to_onnx(const op::Conv1d& op, const NodeToOnnx& to) {
    return turned(to, to.add("Conv", onnx_conv_inputs(op, to),
                             {{"kernel_shape", std::vector{op.kernel}},
                              {"strides", std::vector{op.stride}},
                              {"pads", std::vector{op.padding, op.padding}},
                              {"group", op.groups}}));
  }
  static hlo::Value lower(const op::Conv1d& op, const NodeLowering& to) {
    const hlo::Value y =
        hlo::conv2d(to.product_type(row_of_image(to.x())), as_row(to, to.state("weight")),
                    {.stride_width = op.stride,
                     .pad_width = op.padding,
                     .groups = op.groups,
                     .order = hlo::ImageOrder::channels_last});
    return plus_bias(op, to, sequence_of(y), 2);
  }
};

template <>
struct OperatorOf<op::ConvTranspose1d> : LibTorchsOrder {
  static constexpr std::string_view kind = "conv_transpose1d";
  static constexpr std::tuple fields{Field{"in_channels", &op::ConvTranspose1d::in_channels},
                                     Field{"out_channels", &op::ConvTranspose1d::out_channels},
                                     Field{"kernel", &op::ConvTranspose1d::kernel},
                                     Field{"stride", &op::ConvTranspose1d::stride},
                                     Field{"padding", &op::ConvTranspose1d::padding},
                                     Field{"output_padding", &op::ConvTranspose1d::output_padding},
                                     Field{"bias", &op::ConvTranspose1d::bias}};
  static Resolved infer(op::ConvTranspose1d op, const Site& site) {
    const Shape& in = site.sequence();
    site.at_least("out_channels", op.out_channels, 1);
    op.in_channels = in[1];
    const int64_t length = site.unwound(in[0], op.kernel, op.stride, op.padding, op.output_padding);
    Resolved out{op, {length, op.out_channels}, {{"weight", {in[1], op.out_channels, op.kernel}}}};
    if (op.bias) out.parameters.push_back({"bias", {op.out_channels}});
    return out;
  }
  static LayerState state(const op::ConvTranspose1d& op, int) {
    return {.module = std::make_shared<torch::nn::ConvTranspose1dImpl>(
                torch::nn::ConvTranspose1dOptions(op.in_channels, op.out_channels, op.kernel)
                    .bias(op.bias))};
  }
  static at::Tensor run(const op::ConvTranspose1d& op, const Running& in) {
    const auto& own = *static_cast<torch::nn::ConvTranspose1dImpl*>(in.step.module);
    return sequence_of(of_row(op, row_of_image(in.x()), own.weight, own.bias));
  }
  static at::Tensor of_row(const op::ConvTranspose1d& op, const at::Tensor& row,
                           const at::Tensor& weight, const at::Tensor& bias) {
    return at::conv_transpose2d(row, weight.unsqueeze(2), bias, {1, op.stride}, {0, op.padding},
                                {0, op.output_padding});
  }
  static constexpr bool kTransposed = true;
  static int64_t output_padding(const op::ConvTranspose1d& op) { return op.output_padding; }
  static int64_t groups(const op::ConvTranspose1d&) { return 1; }
  static constexpr LayerPlan plan{.forward = PlannedAlongSequence<op::ConvTranspose1d>::forward,
                                  .backward = PlannedAlongSequence<op::ConvTranspose1d>::backward,
                                  .parameters = weight_and_bias<torch::nn::ConvTranspose1dImpl>};
  static onnx::Value to_onnx(const op::ConvTranspose1d& op, const NodeToOnnx& to) {
    return turned(to, to.add("ConvTranspose", onnx_conv_inputs(op, to),
                             {{"kernel_shape", std::vector{op.kernel}},
                              {"strides", std::vector{op.stride}},
                              {"pads", std::vector{op.padding, op.padding}},
                              {"output_padding", std::vector{op.output_padding}}}));
  }
  static hlo::Value lower(const op::ConvTranspose1d& op, const NodeLowering& to) {
    const hlo::Value y =
        conv_transpose2d(to.product_type(row_of_image(to.x())), as_row(to, to.state("weight")),
                         {.stride = {1, op.stride},
                          .padding = {0, op.padding},
                          .output_padding = {0, op.output_padding},
                          .order = hlo::ImageOrder::channels_last});
    return plus_bias(op, to, sequence_of(y), 2);
  }
};

}  // namespace tutti::nn::detail
