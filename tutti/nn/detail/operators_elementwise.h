/// Operators that work element by element. Not for users: operators.h says how they are read.
#pragma once

#include <torch/types.h>

#include <memory>

#include "tutti/nn/detail/batch_norm.h"
#include "tutti/nn/detail/bfloat16_layers.h"
#include "tutti/nn/detail/layers.h"
#include "tutti/nn/detail/lowering.h"
#include "tutti/nn/detail/operators.h"
#include "tutti/nn/dropout.h"

namespace tutti::nn::detail {

template <>
struct OperatorOf<op::Relu> : NoFields, SameShape, Stateless, BothOrders {
  static constexpr std::string_view kind = "relu";
  static at::Tensor run(const op::Relu&, const Running& in) {
    if (!in.step.in_place) return at::relu(in.x());
    at::Tensor over = in.x();
    return at::relu_(over);
  }
  static constexpr LayerPlan plan{
      .forward = keep_output,
      .backward =
          [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            return LayerGradients{.inputs = {at::threshold_backward(gradient, kept.y, 0)}};
          },
      .from_output = true,
      .bfloat16 = InBfloat16::as_given};
  static onnx::Value to_onnx(const op::Relu&, const NodeToOnnx& to) {
    return to.add("Relu", {to.x()});
  }
  static hlo::Value lower(const op::Relu&, const NodeLowering& to) {
    return hlo::maximum(to.x(), 0);
  }
};

template <>
struct OperatorOf<op::Gelu> : SameShape, Stateless, BothOrders {
  static constexpr std::string_view kind = "gelu";
  static constexpr std::tuple fields{Field{"by_tanh", &op::Gelu::by_tanh}};
  static const char* formula(const op::Gelu& op) { return op.by_tanh ? "tanh" : "none"; }
  static at::Tensor run(const op::Gelu& op, const Running& in) {
    return at::gelu(in.x(), formula(op));
  }
  static bool by_our_kernel(const op::Gelu& op, const at::Tensor& x) {
    return op.by_tanh && x.scalar_type() == at::kBFloat16 && x.is_contiguous();
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    if (!by_our_kernel(std::get<op::Gelu>(layer.op), values[0]))
      return keep_input(layer, values, kept);
    kept.x = values[0];
    return gelu_in_bfloat16(kept.x);
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    const auto& op = std::get<op::Gelu>(layer.op);
    if (by_our_kernel(op, kept.x))
      return {.inputs = {gelu_gradient_in_bfloat16(gradient.contiguous(), kept.x)}};
    return {.inputs = {at::gelu_backward(gradient, kept.x, formula(op))}};
  }
  static constexpr LayerPlan plan{
      .forward = forward, .backward = backward, .bfloat16 = InBfloat16::yes};
  static onnx::Value to_onnx(const op::Gelu& op, const NodeToOnnx& to) {
    return gelu(to, op.by_tanh);
  }
  static hlo::Value lower(const op::Gelu& op, const NodeLowering& to) {
    return gelu(to.x(), op.by_tanh);
  }
};

template <>
struct OperatorOf<op::Tanh> : NoFields, SameShape, Stateless, BothOrders {
  static constexpr std::string_view kind = "tanh";
  static at::Tensor run(const op::Tanh&, const Running& in) { return at::tanh(in.x()); }
  static constexpr LayerPlan plan{
      .forward = keep_output,
      .backward =
          [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            return LayerGradients{.inputs = {at::tanh_backward(gradient, kept.y)}};
          },
      .from_output = true};
  static onnx::Value to_onnx(const op::Tanh&, const NodeToOnnx& to) {
    return to.add("Tanh", {to.x()});
  }
  static hlo::Value lower(const op::Tanh&, const NodeLowering& to) { return hlo::tanh(to.x()); }
};

template <>
struct OperatorOf<op::Dropout> : BothOrders {
  static constexpr std::string_view kind = "dropout";
  static constexpr std::tuple fields{Field{"probability", &op::Dropout::probability}};
  static Resolved infer(const op::Dropout& op, const Site& site) {
    if (!(op.probability >= 0 && op.probability < 1))
      site.fail(fmt::format("probability is {}, must be from 0 to below 1", op.probability));
    return {op, site.only_input(), {}};
  }
  static LayerState state(const op::Dropout& op, int place) {
    return {.module = std::make_shared<DropoutImpl>(DropoutOptions{op.probability, place})};
  }
  static at::Tensor run(const op::Dropout&, const Running& in) { return in.by<DropoutImpl>(); }
  /// Without a mask it passes its input on.
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    at::Tensor mask = static_cast<const DropoutImpl*>(layer.step->module)->mask_of(values[0]);
    if (!mask.defined()) return values[0];
    kept.others = {std::move(mask)};
    return values[0] * kept.others[0];
  }
  static LayerGradients backward(const PlannedLayer&, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    return {.inputs = {kept.others.empty() ? gradient : gradient * kept.others[0]}};
  }
  static constexpr LayerPlan plan{.forward = forward, .backward = backward, .gives_a_view = true};
  static onnx::Value to_onnx(const op::Dropout&, const NodeToOnnx& to) { return to.x(); }
  static hlo::Value lower(const op::Dropout& op, const NodeLowering& to) {
    if (!to.from.training || op.probability == 0) return to.x();
    return to.x() * drawn_mask(to, op.probability);
  }
};

/// Of two inputs of one shape.
struct OfTwo : NoFields, Stateless, OfValues, BothOrders {
  template <class O>
  static Resolved infer(const O& op, const Site& site) {
    if (site.inputs.size() != 2)
      site.fail(fmt::format("got {} inputs, expected two", site.inputs.size()));
    if (site.inputs[0] != site.inputs[1])
      site.fail(fmt::format("got shapes {} and {}, expected equal ones", to_string(site.inputs[0]),
                            to_string(site.inputs[1])));
    return {op, site.inputs[0], {}};
  }
};

/// Forward by the step; what is kept is both inputs.
inline at::Tensor keep_both(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
  kept.x = values[0];
  kept.others = {values[1]};
  return layer.step->run(values);
}
/// Of a maximum or a minimum: the gradient but where `lost`, and half of it where both are equal.
inline at::Tensor of_chosen(const at::Tensor& gradient, const KeptOfLayer& kept,
                            const at::Tensor& lost) {
  return at::where(kept.x == kept.others[0], gradient / 2, gradient).masked_fill_(lost, 0);
}

template <>
struct OperatorOf<op::Add> : OfTwo {
  static constexpr std::string_view kind = "add";
  static at::Tensor run(const op::Add&, const Running& in) { return in.x() + in.all[1]; }
  /// Beside a ReLU that was taken along, by a kernel of ours.
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    at::Tensor y;
    const bool is_put_off = layer.norm >= 0 && values.size() == 3;  // the norm's columns
    const bool at_once = is_put_off && gives_channels_last(values[1 - layer.norm]);
    if (is_put_off && !at_once)
      values[layer.norm] = apply_norm(values[layer.norm], values[2], {}, Activation::none);
    if (at_once)
      y = apply_norm(values[layer.norm], values[2], values[1 - layer.norm].to(at::kFloat),
                     layer.activation);  // the norm is float32
    else if (layer.activation == Activation::relu)
      y = add_relu(values[0], values[1]);
    else
      y = values[0] + values[1];
    if (layer.activation == Activation::relu) kept.y = y;
    return y;
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    if (layer.activation == Activation::none) return {.inputs = {gradient}};
    return {.inputs = {at::threshold_backward(gradient, kept.y, 0)}};
  }
  static constexpr LayerPlan plan{.forward = forward,
                                  .backward = backward,
                                  .takes_relu = [](const Op&) { return true; },
                                  .bfloat16 = InBfloat16::as_given};
  static onnx::Value to_onnx(const op::Add&, const NodeToOnnx& to) { return to.add("Add", to.all); }
  static hlo::Value lower(const op::Add&, const NodeLowering& to) { return to.x() + to.all[1]; }

 private:
  /// Whether LibTorch's sum of it and a value with channels innermost has them innermost, too: not
  /// where the other order comes first, or where both are the same.
  static bool gives_channels_last(const at::Tensor& other) {
    return other.is_contiguous(at::MemoryFormat::ChannelsLast) && !other.is_contiguous();
  }
};

template <>
struct OperatorOf<op::Subtract> : OfTwo {
  static constexpr std::string_view kind = "subtract";
  static at::Tensor run(const op::Subtract&, const Running& in) { return in.x() - in.all[1]; }
  static LayerGradients backward(const PlannedLayer&, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    LayerGradients of{.inputs = {at::Tensor(), at::Tensor()}};
    if (kept.needs_input(0)) of.inputs[0] = gradient;
    if (kept.needs_input(1)) of.inputs[1] = gradient.neg();
    return of;
  }
  static constexpr LayerPlan plan{
      .forward = [](const PlannedLayer& layer, GraphStep::Values& values,
                    KeptOfLayer&) { return layer.step->run(values); },
      .backward = backward};
  static onnx::Value to_onnx(const op::Subtract&, const NodeToOnnx& to) {
    return to.add("Sub", to.all);
  }
  static hlo::Value lower(const op::Subtract&, const NodeLowering& to) {
    return to.x() - to.all[1];
  }
};

template <>
struct OperatorOf<op::Multiply> : OfTwo {
  static constexpr std::string_view kind = "multiply";
  static at::Tensor run(const op::Multiply&, const Running& in) { return in.x() * in.all[1]; }
  static LayerGradients backward(const PlannedLayer&, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    LayerGradients of{.inputs = {at::Tensor(), at::Tensor()}};
    if (kept.needs_input(0)) of.inputs[0] = gradient * kept.others[0];
    if (kept.needs_input(1)) of.inputs[1] = gradient * kept.x;
    return of;
  }
  static constexpr LayerPlan plan{.forward = keep_both, .backward = backward};
  static onnx::Value to_onnx(const op::Multiply&, const NodeToOnnx& to) {
    return to.add("Mul", to.all);
  }
  static hlo::Value lower(const op::Multiply&, const NodeLowering& to) {
    return to.x() * to.all[1];
  }
};

template <>
struct OperatorOf<op::Maximum> : OfTwo {
  static constexpr std::string_view kind = "maximum";
  static at::Tensor run(const op::Maximum&, const Running& in) {
    return at::maximum(in.x(), in.all[1]);
  }
  static LayerGradients backward(const PlannedLayer&, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    LayerGradients of{.inputs = {at::Tensor(), at::Tensor()}};
    if (kept.needs_input(0)) of.inputs[0] = of_chosen(gradient, kept, kept.x < kept.others[0]);
    if (kept.needs_input(1)) of.inputs[1] = of_chosen(gradient, kept, kept.x > kept.others[0]);
    return of;
  }
  static constexpr LayerPlan plan{.forward = keep_both, .backward = backward};
  static onnx::Value to_onnx(const op::Maximum&, const NodeToOnnx& to) {
    return to.add("Max", to.all);
  }
  static hlo::Value lower(const op::Maximum&, const NodeLowering& to) {
    return hlo::maximum(to.x(), to.all[1]);
  }
};

template <>
struct OperatorOf<op::Minimum> : OfTwo {
  static constexpr std::string_view kind = "minimum";
  static at::Tensor run(const op::Minimum&, const Running& in) {
    return at::minimum(in.x(), in.all[1]);
  }
  static LayerGradients backward(const PlannedLayer&, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    LayerGradients of{.inputs = {at::Tensor(), at::Tensor()}};
    if (kept.needs_input(0)) of.inputs[0] = of_chosen(gradient, kept, kept.x > kept.others[0]);
    if (kept.needs_input(1)) of.inputs[1] = of_chosen(gradient, kept, kept.x < kept.others[0]);
    return of;
  }
  static constexpr LayerPlan plan{.forward = keep_both, .backward = backward};
  static onnx::Value to_onnx(const op::Minimum&, const NodeToOnnx& to) {
    return to.add("Min", to.all);
  }
  static hlo::Value lower(const op::Minimum&, const NodeLowering& to) {
    return hlo::minimum(to.x(), to.all[1]);
  }
};

}  // namespace tutti::nn::detail
