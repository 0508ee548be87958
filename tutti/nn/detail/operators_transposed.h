/// Transposed convolution and group norm of images, and operators that give elements another
/// shape. Not for users: operators.h says how they are read.
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "tutti/nn/detail/lowering.h"
#include "tutti/nn/detail/operators.h"

namespace tutti::nn::detail {

template <>
struct OperatorOf<op::ConvTranspose2d> : BothOrders {
  static constexpr std::string_view kind = "conv_transpose2d";
  static constexpr std::tuple fields{Field{"in_channels", &op::ConvTranspose2d::in_channels},
                                     Field{"out_channels", &op::ConvTranspose2d::out_channels},
                                     Field{"kernel", &op::ConvTranspose2d::kernel},
                                     Field{"stride", &op::ConvTranspose2d::stride},
                                     Field{"padding", &op::ConvTranspose2d::padding},
                                     Field{"output_padding", &op::ConvTranspose2d::output_padding},
                                     Field{"bias", &op::ConvTranspose2d::bias}};
  static Resolved infer(op::ConvTranspose2d op, const Site& site) {
    const Shape& in = site.image();
    site.at_least("out_channels", op.out_channels, 1);
    op.in_channels = in[0];
    const auto side = [&](int64_t from, int64_t kernel, int64_t padding) {
      return site.unwound(from, kernel, op.stride, padding, op.output_padding);
    };
    Resolved out{op,
                 {op.out_channels, side(in[1], op.kernel.height, op.padding.height),
                  side(in[2], op.kernel.width, op.padding.width)},
                 {{"weight", {in[0], op.out_channels, op.kernel.height, op.kernel.width}}}};
    if (op.bias) out.parameters.push_back({"bias", {op.out_channels}});
    return out;
  }
  static LayerState state(const op::ConvTranspose2d& op, int) {
    return {.module = std::make_shared<torch::nn::ConvTranspose2dImpl>(
                torch::nn::ConvTranspose2dOptions(op.in_channels, op.out_channels,
                                                  {op.kernel.height, op.kernel.width})
                    .stride(op.stride)
                    .padding({op.padding.height, op.padding.width})
                    .output_padding(op.output_padding)
                    .bias(op.bias))};
  }
  static at::Tensor run(const op::ConvTranspose2d& op, const Running& in) {
    const auto& own = *static_cast<torch::nn::ConvTranspose2dImpl*>(in.step.module);
    return at::conv_transpose2d(channels_last(in.x()), own.weight, own.bias, op.stride,
                                {op.padding.height, op.padding.width}, op.output_padding);
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    values[0] = channels_last(values[0]);
    if (kept.needs_any_input()) kept.read.push_back(kept.parameters[0]);
    return keep_input(layer, values, kept);
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    const auto& conv = std::get<op::ConvTranspose2d>(layer.op);
    const std::array<int64_t, 1> bias{conv.out_channels};
    const auto of = at::convolution_backward(
        gradient, kept.x, kept.parameters[0],
        conv.bias ? at::OptionalIntArrayRef(bias) : at::OptionalIntArrayRef(),
        {conv.stride, conv.stride}, {conv.padding.height, conv.padding.width}, {1, 1},
        /*transposed=*/true, {conv.output_padding, conv.output_padding}, /*groups=*/1,
        {kept.needs_input(), kept.needs_parameter(0), kept.needs_parameter(1)});
    return {.inputs = {std::get<0>(of)}, .parameters = {std::get<1>(of), std::get<2>(of)}};
  }
  static constexpr LayerPlan plan{.forward = forward,
                                  .backward = backward,
                                  .parameters = weight_and_bias<torch::nn::ConvTranspose2dImpl>};
  static onnx::Value to_onnx(const op::ConvTranspose2d& op, const NodeToOnnx& to) {
    std::vector<onnx::Value> inputs{to.x(), to.state("weight")};
    if (op.bias) inputs.push_back(to.state("bias"));
    const int64_t high = op.padding.height, wide = op.padding.width;
    return to.add("ConvTranspose", inputs,
                  {{"kernel_shape", std::vector{op.kernel.height, op.kernel.width}},
                   {"strides", std::vector{op.stride, op.stride}},
                   {"pads", std::vector{high, wide, high, wide}},
                   {"output_padding", std::vector{op.output_padding, op.output_padding}}});
  }
  static hlo::Value lower(const op::ConvTranspose2d& op, const NodeLowering& to) {
    const hlo::Value y =
        conv_transpose2d(to.product_type(to.x()), to.product_type(to.state("weight")),
                         {.stride = op.stride,
                          .padding = op.padding,
                          .output_padding = op.output_padding,
                          .order = to.order});
    return op.bias ? y + hlo::broadcast(to.state("bias"), y.shape(), {to.axes().channels}) : y;
  }
};

template <>
struct OperatorOf<op::GroupNorm> : LibTorchsOrder {
  static constexpr std::string_view kind = "group_norm";
  static constexpr std::tuple fields{Field{"channels", &op::GroupNorm::channels},
                                     Field{"groups", &op::GroupNorm::groups},
                                     Field{"epsilon", &op::GroupNorm::epsilon}};
  static Resolved infer(op::GroupNorm op, const Site& site) {
    const Shape& in = site.image();
    site.at_least("groups", op.groups, 1);
    if (in[0] % op.groups != 0)
      site.fail(fmt::format("groups is {}, must divide {} channels", op.groups, in[0]));
    if (!(op.epsilon > 0)) site.fail(fmt::format("epsilon is {}, must be above 0", op.epsilon));
    op.channels = in[0];
    return {op, in, {{"weight", {in[0]}}, {"bias", {in[0]}}}};
  }
  static LayerState state(const op::GroupNorm& op, int) {
    return {.module = std::make_shared<torch::nn::GroupNormImpl>(
                torch::nn::GroupNormOptions(op.groups, op.channels).eps(op.epsilon))};
  }
  static at::Tensor run(const op::GroupNorm& op, const Running& in) {
    const auto& own = *static_cast<torch::nn::GroupNormImpl*>(in.step.module);
    return at::group_norm(in.x().contiguous(), op.groups, own.weight, own.bias, op.epsilon);
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    const auto& op = std::get<op::GroupNorm>(layer.op);
    const at::Tensor &weight = kept.parameters[0], &bias = kept.parameters[1];
    const at::Tensor x = kept.x = values[0].contiguous();
    auto [y, mean, deviation] = at::native_group_norm(x, weight, bias, x.size(0), x.size(1),
                                                      x.size(2) * x.size(3), op.groups, op.epsilon);
    kept.others = {std::move(mean), std::move(deviation)};
    kept.read = {weight};
    return y;
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    const at::Tensor& x = kept.x;
    const auto of = at::native_group_norm_backward(
        gradient.contiguous(), x, kept.others[0], kept.others[1], kept.parameters[0], x.size(0),
        x.size(1), x.size(2) * x.size(3), std::get<op::GroupNorm>(layer.op).groups,
        {kept.needs_input(), kept.needs_parameter(0), kept.needs_parameter(1)});
    return {.inputs = {std::get<0>(of)}, .parameters = {std::get<1>(of), std::get<2>(of)}};
  }
  static constexpr LayerPlan plan{.forward = forward,
                                  .backward = backward,
                                  .parameters = weight_and_bias<torch::nn::GroupNormImpl>};
  static onnx::Value to_onnx(const op::GroupNorm& op, const NodeToOnnx& to) {
    const Shape& image = to.shape();
    const Array ones = Array::zeros(DType::float32, {op.groups});
    std::ranges::fill(ones.as<float>(), 1.0F);
    const onnx::Value groups =
        to.add("InstanceNormalization",
               {to.reshape(to.x(), {0, op.groups, -1}), to.program.constant(ones),
                to.program.constant(Array::zeros(DType::float32, {op.groups}))},
               {{"epsilon", static_cast<float>(op.epsilon)}});
    const auto of_channels = [&](const char* name) {
      return to.reshape(to.state(name), {op.channels, 1, 1});
    };
    const onnx::Value normal = to.reshape(groups, {0, image[0], image[1], image[2]});
    return to.add("Add", {to.add("Mul", {normal, of_channels("weight")}), of_channels("bias")});
  }
  static hlo::Value lower(const op::GroupNorm& op, const NodeLowering& to) {
    const hlo::Shape image = to.x().shape();
    const int64_t elements = image[1] / op.groups * image[2] * image[3];
    const hlo::Value x = hlo::reshape(to.x(), {image[0], op.groups, elements});
    const auto back = [&](hlo::Value of_groups) {
      return hlo::broadcast(of_groups, x.shape(), {0, 1});
    };
    const hlo::Value apart = x - back(hlo::reduce_sum(x, {2}) / double(elements));
    const hlo::Value variance = hlo::reduce_sum(apart * apart, {2}) / double(elements);
    const hlo::Value normal = hlo::reshape(apart * back(hlo::rsqrt(variance + op.epsilon)), image);
    return normal * to.along(to.state("weight"), 1) + to.along(to.state("bias"), 1);
  }
};

template <>
struct OperatorOf<op::Reshape> : Stateless, LibTorchsOrder {
  static constexpr std::string_view kind = "reshape";
  static constexpr std::tuple fields{Field{"shape", &op::Reshape::shape}};
  static Resolved infer(op::Reshape op, const Site& site) {
    const Shape& in = site.only_input();
    const int64_t elements = std::reduce(in.begin(), in.end(), int64_t{1}, std::multiplies());
    int64_t known = 1;
    int64_t* open = nullptr;
    bool fits = !op.shape.empty();
    for (int64_t& side : op.shape) {
      if (side == -1 && open == nullptr)
        open = &side;
      else
        fits = fits && side >= 1 && side <= elements && (known *= side) <= elements;
    }
    fits = fits && (open != nullptr ? elements % known == 0 : known == elements);
    if (!fits)
      site.fail(
          fmt::format("got shape {} for an input of shape {}, expected one of {} elements, "
                      "of which one side may be -1",
                      to_string(op.shape), to_string(in), elements));
    if (open != nullptr) *open = elements / known;
    return {op, op.shape, {}};
  }
  static at::Tensor run(const op::Reshape& op, const Running& in) {
    std::vector<int64_t> sizes = op.shape;
    sizes.insert(sizes.begin(), in.x().size(0));
    return with_contiguous_gradient(in.x()).contiguous().reshape(sizes);
  }
  static constexpr LayerPlan plan{
      .forward = keep_sizes,
      .backward =
          [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            return LayerGradients{.inputs = {gradient.reshape(kept.sizes).contiguous()}};
          },
      .gives_a_view = true};
  static onnx::Value to_onnx(const op::Reshape& op, const NodeToOnnx& to) {
    std::vector<int64_t> sides = op.shape;
    sides.insert(sides.begin(), 0);
    return to.reshape(to.x(), sides);
  }
  static hlo::Value lower(const op::Reshape& op, const NodeLowering& to) {
    hlo::Shape shape = op.shape;
    shape.insert(shape.begin(), to.size(0));
    return hlo::reshape(to.x(), shape);
  }
};

template <>
struct OperatorOf<op::Permute> : Stateless, LibTorchsOrder {
  static constexpr std::string_view kind = "permute";
  static constexpr std::tuple fields{Field{"order", &op::Permute::order}};
  static Resolved infer(const op::Permute& op, const Site& site) {
    const Shape& in = site.only_input();
    Shape sorted = op.order, all(in.size());
    std::ranges::sort(sorted);
    std::iota(all.begin(), all.end(), 0);
    if (sorted != all)
      site.fail(fmt::format("got the order {} for an input of shape {}, expected each of {} once",
                            to_string(op.order), to_string(in), to_string(all)));
    Shape shape;
    for (const int64_t dimension : op.order) shape.push_back(in[static_cast<size_t>(dimension)]);
    return {op, shape, {}};
  }
  /// Behind the batch's.
  static std::vector<int64_t> dimensions(const op::Permute& op) {
    std::vector<int64_t> all{0};
    for (const int64_t dimension : op.order) all.push_back(dimension + 1);
    return all;
  }
  static at::Tensor run(const op::Permute& op, const Running& in) {
    return with_contiguous_gradient(in.x()).permute(dimensions(op)).contiguous();
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer&,
                                 const at::Tensor& gradient, bool) {
    const auto there = dimensions(std::get<op::Permute>(layer.op));
    std::vector<int64_t> back(there.size());
    for (size_t d = 0; d < there.size(); ++d)
      back[static_cast<size_t>(there[d])] = static_cast<int64_t>(d);
    return {.inputs = {gradient.permute(back).contiguous()}};
  }
  static constexpr LayerPlan plan{
      .forward = keep_sizes, .backward = backward, .gives_a_view = true};
  static onnx::Value to_onnx(const op::Permute& op, const NodeToOnnx& to) {
    return to.transpose(to.x(), dimensions(op));
  }
  static hlo::Value lower(const op::Permute& op, const NodeLowering& to) {
    return hlo::transpose(to.x(), dimensions(op));
  }
};

template <>
struct OperatorOf<op::Slice> : Stateless, LibTorchsOrder {
  static constexpr std::string_view kind = "slice";
  static constexpr std::tuple fields{Field{"begin", &op::Slice::begin},
                                     Field{"end", &op::Slice::end}};
  static Resolved infer(const op::Slice& op, const Site& site) {
    Shape shape = site.only_input();
    if (op.begin < 0 || op.end <= op.begin || op.end > shape.back())
      site.fail(fmt::format("got {} to before {} of an input of shape {}, expected some of its {}",
                            op.begin, op.end, to_string(shape), shape.back()));
    shape.back() = op.end - op.begin;
    return {op, shape, {}};
  }
  static at::Tensor run(const op::Slice& op, const Running& in) {
    return in.x().slice(-1, op.begin, op.end).contiguous();
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    const auto& op = std::get<op::Slice>(layer.op);
    return {.inputs = {at::slice_backward(gradient, kept.sizes, -1, op.begin, op.end, 1)}};
  }
  static constexpr LayerPlan plan{
      .forward = keep_sizes, .backward = backward, .gives_a_view = true};
  static onnx::Value to_onnx(const op::Slice& op, const NodeToOnnx& to) {
    const auto one = [&](int64_t number) {
      return to.program.constant(std::vector<int64_t>{number});
    };
    return to.add("Slice", {to.x(), one(op.begin), one(op.end), one(std::ssize(to.shape()))});
  }
  static hlo::Value lower(const op::Slice& op, const NodeLowering& to) {
    hlo::Shape begin(to.x().shape().size(), 0), end = to.x().shape();
    begin.back() = op.begin;
    end.back() = op.end;
    return hlo::slice(to.x(), begin, end);
  }
};

}  // namespace tutti::nn::detail
