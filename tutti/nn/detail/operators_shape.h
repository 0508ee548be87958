/// Operators that move elements, and inputs. Not for users: operators.h says how they are read.
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "tutti/nn/detail/operators.h"

namespace tutti::nn::detail {

template <>
struct OperatorOf<op::Input> : Stateless, BothOrders {
  static constexpr std::string_view kind = "input";
  static constexpr std::tuple fields{Field{"shape", &op::Input::shape},
                                     Field{"dtype", &op::Input::dtype}};
  static Resolved infer(const op::Input& op, const Site& site) {
    if (op.shape.empty()) site.fail("got an empty shape, expected that of one sample: {1, 28, 28}");
    int64_t total = 1;
    for (int64_t side : op.shape) {
      site.at_least("each dimension", side, 1);
      if (side > std::numeric_limits<int64_t>::max() / total)
        site.fail(fmt::format("shape {} has too many elements", to_string(op.shape)));
      total *= side;
    }
    return {op, op.shape, {}};
  }
  static at::Tensor run(const op::Input&, const Running& in) { return in.x(); }
  static constexpr LayerPlan plan{
      .forward = keep_input,
      .backward = [](const PlannedLayer&, const KeptOfLayer&, const at::Tensor&, bool) {
        return LayerGradients{};
      }};
  static onnx::Value to_onnx(const op::Input&, const NodeToOnnx& to) { return to.x(); }
  static hlo::Value lower(const op::Input&, const NodeLowering& to) { return to.x(); }
};

template <>
struct OperatorOf<op::Flatten> : NoFields, Stateless, LibTorchsOrder {
  static constexpr std::string_view kind = "flatten";
  static Resolved infer(const op::Flatten& op, const Site& site) {
    int64_t total = 1;
    for (const int64_t side : site.only_input()) total *= side;
    return {op, {total}, {}};
  }
  static at::Tensor run(const op::Flatten&, const Running& in) { return in.x().flatten(1); }
  static constexpr LayerPlan plan{
      .forward = keep_sizes,
      .backward = [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient,
                     bool) { return LayerGradients{.inputs = {gradient.reshape(kept.sizes)}}; },
      .gives_a_view = true,
      .bfloat16 = InBfloat16::as_given};
  static onnx::Value to_onnx(const op::Flatten&, const NodeToOnnx& to) {
    return to.add("Flatten", {to.x()}, {{"axis", int64_t{1}}});
  }
  static hlo::Value lower(const op::Flatten&, const NodeLowering& to) {
    return hlo::reshape(to.x(), {to.size(0), to.node.shape[0]});
  }
};

template <>
struct OperatorOf<op::Concat> : NoFields, Stateless, OfValues, BothOrders {
  static constexpr std::string_view kind = "concat";
  static Resolved infer(const op::Concat& op, const Site& site) {
    if (site.inputs.empty()) site.fail("got no inputs, expected one or more");
    Shape shape = site.inputs[0];
    for (size_t i = 1; i < site.inputs.size(); ++i) {
      const Shape& next = site.inputs[i];
      const bool fits = next.size() == shape.size() &&
                        std::equal(next.begin() + 1, next.end(), shape.begin() + 1);
      if (!fits)
        site.fail(
            fmt::format("got shapes {} and {}, expected equal ones but for the first dimension",
                        to_string(site.inputs[0]), to_string(next)));
      shape[0] += next[0];
    }
    return {op, shape, {}};
  }
  static at::Tensor run(const op::Concat&, const Running& in) {
    return at::cat(at::TensorList(in.all.data(), in.all.size()), 1);
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    for (const at::Tensor& value : values) kept.sizes.push_back(value.size(1));
    return layer.step->run(values);
  }
  static LayerGradients backward(const PlannedLayer&, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    LayerGradients of;
    int64_t begin = 0;
    for (const int64_t size : kept.sizes) {
      of.inputs.push_back(gradient.narrow(1, begin, size));
      begin += size;
    }
    return of;
  }
  static constexpr LayerPlan plan{.forward = forward, .backward = backward};
  static onnx::Value to_onnx(const op::Concat&, const NodeToOnnx& to) {
    return to.add("Concat", to.all, {{"axis", int64_t{1}}});
  }
  static hlo::Value lower(const op::Concat&, const NodeLowering& to) {
    return hlo::concatenate(to.all, to.axes().channels);
  }
};

template <>
struct OperatorOf<op::Upsample2d> : Stateless, BothOrders {
  static constexpr std::string_view kind = "upsample2d";
  static constexpr std::tuple fields{Field{"times", &op::Upsample2d::times}};
  static Resolved infer(const op::Upsample2d& op, const Site& site) {
    const Shape& in = site.image();
    site.at_least("times", op.times, 1);
    return {op, {in[0], in[1] * op.times, in[2] * op.times}, {}};
  }
  static at::Tensor run(const op::Upsample2d& op, const Running& in) {
    const at::Tensor& x = in.x();
    return torch::upsample_nearest2d(x, {x.size(2) * op.times, x.size(3) * op.times});
  }
  static constexpr LayerPlan plan{
      .forward = keep_sizes,
      .backward = [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient,
                     bool) {
        return LayerGradients{.inputs = {at::upsample_nearest2d_backward(
                                  gradient, {gradient.size(2), gradient.size(3)}, kept.sizes)}};
      }};
  static onnx::Value to_onnx(const op::Upsample2d& op, const NodeToOnnx& to) {
    const Array scales = Array::zeros(DType::float32, {4});
    const auto times = static_cast<float>(op.times);
    std::ranges::copy(std::vector{1.0F, 1.0F, times, times}, scales.as<float>().begin());
    return to.add("Resize", {to.x(), {""}, to.program.constant(scales)},
                  {{"mode", "nearest"},
                   {"coordinate_transformation_mode", "asymmetric"},
                   {"nearest_mode", "floor"}});
  }
  static hlo::Value lower(const op::Upsample2d& op, const NodeLowering& to) {
    const hlo::ImageAxes axes = to.axes();
    hlo::Shape apart, together = to.x().shape();
    std::vector<int64_t> dimensions;
    for (int64_t d = 0; d < std::ssize(together); ++d) {
      int64_t& side = together[static_cast<size_t>(d)];
      dimensions.push_back(std::ssize(apart));
      apart.push_back(side);
      if (d != axes.height && d != axes.width) continue;
      apart.push_back(op.times);
      side *= op.times;
    }
    return hlo::reshape(hlo::broadcast(to.x(), apart, dimensions), together);
  }
};

template <>
struct OperatorOf<op::RepeatChannels> : Stateless, BothOrders {
  static constexpr std::string_view kind = "repeat_channels";
  static constexpr std::tuple fields{Field{"times", &op::RepeatChannels::times}};
  static Resolved infer(const op::RepeatChannels& op, const Site& site) {
    const Shape& in = site.image();
    site.at_least("times", op.times, 1);
    if (in[0] != 1 && in[0] != op.times)
      site.fail(fmt::format("got an input of shape {}, expected 1 or {} channels", to_string(in),
                            op.times));
    return {op, {op.times, in[1], in[2]}, {}};
  }
  static at::Tensor run(const op::RepeatChannels& op, const Running& in) {
    const at::Tensor& x = in.x();
    return x.expand({x.size(0), op.times, x.size(2), x.size(3)});
  }
  static constexpr LayerPlan plan{
      .forward = keep_sizes,
      .backward =
          [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            const bool repeats = kept.sizes[1] != gradient.size(1);
            return LayerGradients{.inputs = {repeats ? gradient.sum(1, true) : gradient}};
          },
      .gives_a_view = true};
  static onnx::Value to_onnx(const op::RepeatChannels& op, const NodeToOnnx& to) {
    return to.add("Expand", {to.x(), to.program.constant({1, op.times, 1, 1})});
  }
  static hlo::Value lower(const op::RepeatChannels& op, const NodeLowering& to) {
    return hlo::broadcast(to.x(), to.shape_with(to.axes().channels, op.times), {0, 1, 2, 3});
  }
};

template <>
struct OperatorOf<op::ToSequence> : NoFields, Stateless, LibTorchsOrder {
  static constexpr std::string_view kind = "to_sequence";
  static Resolved infer(const op::ToSequence& op, const Site& site) {
    const Shape& in = site.image();
    return {op, {in[1] * in[2], in[0]}, {}};
  }
  static at::Tensor run(const op::ToSequence&, const Running& in) {
    return in.x().flatten(2).transpose(1, 2);
  }
  static constexpr LayerPlan plan{
      .forward = keep_sizes,
      .backward =
          [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            return LayerGradients{.inputs = {gradient.transpose(1, 2).reshape(kept.sizes)}};
          },
      .gives_a_view = true};
  static onnx::Value to_onnx(const op::ToSequence&, const NodeToOnnx& to) {
    const Shape& image = to.shape();
    return to.transpose(to.reshape(to.x(), {0, image[0], image[1] * image[2]}), {0, 2, 1});
  }
  static hlo::Value lower(const op::ToSequence&, const NodeLowering& to) {
    const hlo::Shape pixels{to.size(0), to.size(1), to.size(2) * to.size(3)};
    return hlo::transpose(hlo::reshape(to.x(), pixels), {0, 2, 1});
  }
};

template <>
struct OperatorOf<op::FirstOfSequence> : NoFields, Stateless, LibTorchsOrder {
  static constexpr std::string_view kind = "first_of_sequence";
  static Resolved infer(const op::FirstOfSequence& op, const Site& site) {
    return {op, {site.sequence()[1]}, {}};
  }
  static at::Tensor run(const op::FirstOfSequence&, const Running& in) {
    return in.x().select(1, 0);
  }
  static constexpr LayerPlan plan{
      .forward = keep_sizes,
      .backward =
          [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            return LayerGradients{.inputs = {at::select_backward(gradient, kept.sizes, 1, 0)}};
          },
      .gives_a_view = true};
  static onnx::Value to_onnx(const op::FirstOfSequence&, const NodeToOnnx& to) {
    const Array first = Array::zeros(DType::int64, {});
    return to.add("Gather", {to.x(), to.program.constant(first)}, {{"axis", int64_t{1}}});
  }
  static hlo::Value lower(const op::FirstOfSequence&, const NodeLowering& to) {
    const hlo::Value first =
        hlo::slice(to.x(), {0, 0, 0}, to.shape_with(/*dimension=*/1, /*size=*/1));
    return hlo::reshape(first, {to.size(0), to.size(2)});
  }
};

}  // namespace tutti::nn::detail
