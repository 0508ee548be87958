/// Activation functions, beside ReLU, GELU and tanh. Not for users: operators.h says how they are
/// read.
#pragma once

#include <torch/types.h>

#include "tutti/nn/detail/lowering.h"
#include "tutti/nn/detail/operators.h"

namespace tutti::nn::detail {

struct Activates : SameShape, Stateless, BothOrders {};

/// Planned: what LibTorch gives for the gradient by the input.
template <class O,
          at::Tensor (*backward)(const O&, const at::Tensor& gradient, const at::Tensor& x)>
constexpr LayerPlan by_input() {
  return {.forward = keep_input,
          .backward = [](const PlannedLayer& layer, const KeptOfLayer& kept,
                         const at::Tensor& gradient, bool) {
            return LayerGradients{.inputs = {backward(std::get<O>(layer.op), gradient, kept.x)}};
          }};
}

template <>
struct OperatorOf<op::Sigmoid> : Activates, NoFields {
  static constexpr std::string_view kind = "sigmoid";
  static at::Tensor run(const op::Sigmoid&, const Running& in) { return at::sigmoid(in.x()); }
  static constexpr LayerPlan plan{
      .forward = keep_output,
      .backward =
          [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            return LayerGradients{.inputs = {at::sigmoid_backward(gradient, kept.y)}};
          },
      .from_output = true};
  static onnx::Value to_onnx(const op::Sigmoid&, const NodeToOnnx& to) {
    return to.add("Sigmoid", {to.x()});
  }
  static hlo::Value lower(const op::Sigmoid&, const NodeLowering& to) {
    return hlo::sigmoid(to.x());
  }
};

/// `yes` where x is above 0, else `no`.
inline hlo::Value above_zero(hlo::Value x, hlo::Value yes, hlo::Value no) {
  return hlo::select(hlo::compare(x, hlo::Comparison::gt, 0), yes, no);
}
/// exp(x) - 1 up to 0, with its slope of 1 there; above it, where nobody reads, 0.
inline hlo::Value exp_less_one(hlo::Value x) {
  return hlo::exp(above_zero(x, hlo::constant(x.program(), x.type(), 0), x)) - 1;
}

template <>
struct OperatorOf<op::LeakyRelu> : Activates {
  static constexpr std::string_view kind = "leaky_relu";
  static constexpr std::tuple fields{Field{"slope", &op::LeakyRelu::slope}};
  static Resolved infer(const op::LeakyRelu& op, const Site& site) {
    site.not_negative("slope", op.slope);
    return SameShape::infer(op, site);
  }
  static at::Tensor run(const op::LeakyRelu& op, const Running& in) {
    return at::leaky_relu(in.x(), op.slope);
  }
  static at::Tensor backward(const op::LeakyRelu& op, const at::Tensor& gradient,
                             const at::Tensor& x) {
    return at::leaky_relu_backward(gradient, x, op.slope, /*self_is_result=*/false);
  }
  static constexpr LayerPlan plan = by_input<op::LeakyRelu, backward>();
  static onnx::Value to_onnx(const op::LeakyRelu& op, const NodeToOnnx& to) {
    return to.add("LeakyRelu", {to.x()}, {{"alpha", static_cast<float>(op.slope)}});
  }
  static hlo::Value lower(const op::LeakyRelu& op, const NodeLowering& to) {
    return above_zero(to.x(), to.x(), to.x() * op.slope);
  }
};

template <>
struct OperatorOf<op::Elu> : Activates {
  static constexpr std::string_view kind = "elu";
  static constexpr std::tuple fields{Field{"alpha", &op::Elu::alpha}};
  static Resolved infer(const op::Elu& op, const Site& site) {
    site.not_negative("alpha", op.alpha);
    return SameShape::infer(op, site);
  }
  static at::Tensor run(const op::Elu& op, const Running& in) { return at::elu(in.x(), op.alpha); }
  static at::Tensor backward(const op::Elu& op, const at::Tensor& gradient, const at::Tensor& x) {
    return at::elu_backward(gradient, op.alpha, 1, 1, /*is_result=*/false, x);
  }
  static constexpr LayerPlan plan = by_input<op::Elu, backward>();
  static onnx::Value to_onnx(const op::Elu& op, const NodeToOnnx& to) {
    return to.add("Elu", {to.x()}, {{"alpha", static_cast<float>(op.alpha)}});
  }
  static hlo::Value lower(const op::Elu& op, const NodeLowering& to) {
    return above_zero(to.x(), to.x(), exp_less_one(to.x()) * op.alpha);
  }
};

template <>
struct OperatorOf<op::Selu> : Activates, NoFields {
  static constexpr std::string_view kind = "selu";
  static constexpr double kAlpha = 1.6732632423543772848170429916717;
  static constexpr double kScale = 1.0507009873554804934193349852946;
  static at::Tensor run(const op::Selu&, const Running& in) { return at::selu(in.x()); }
  static at::Tensor backward(const op::Selu&, const at::Tensor& gradient, const at::Tensor& x) {
    return at::elu_backward(gradient, kAlpha, kScale, 1, /*is_result=*/false, x);
  }
  static constexpr LayerPlan plan = by_input<op::Selu, backward>();
  static onnx::Value to_onnx(const op::Selu&, const NodeToOnnx& to) {
    return to.add("Selu", {to.x()});
  }
  static hlo::Value lower(const op::Selu&, const NodeLowering& to) {
    return above_zero(to.x(), to.x(), exp_less_one(to.x()) * kAlpha) * kScale;
  }
};

template <>
struct OperatorOf<op::Silu> : Activates, NoFields {
  static constexpr std::string_view kind = "silu";
  static at::Tensor run(const op::Silu&, const Running& in) { return at::silu(in.x()); }
  static at::Tensor backward(const op::Silu&, const at::Tensor& gradient, const at::Tensor& x) {
    return at::silu_backward(gradient, x);
  }
  static constexpr LayerPlan plan = by_input<op::Silu, backward>();
  static onnx::Value to_onnx(const op::Silu&, const NodeToOnnx& to) {
    return to.add("Mul", {to.x(), to.add("Sigmoid", {to.x()})});
  }
  static hlo::Value lower(const op::Silu&, const NodeLowering& to) {
    return to.x() * hlo::sigmoid(to.x());
  }
};

/// At least 0, and at most `most`. Gradients as LibTorch's: none at the ends.
inline hlo::Value between_zero_and(hlo::Value x, double most) {
  return hlo::minimum(hlo::maximum(x, 0), most);
}

template <>
struct OperatorOf<op::HardSigmoid> : Activates, NoFields {
  static constexpr std::string_view kind = "hard_sigmoid";
  static at::Tensor run(const op::HardSigmoid&, const Running& in) {
    return at::hardsigmoid(in.x());
  }
  static at::Tensor backward(const op::HardSigmoid&, const at::Tensor& gradient,
                             const at::Tensor& x) {
    return at::hardsigmoid_backward(gradient, x);
  }
  static constexpr LayerPlan plan = by_input<op::HardSigmoid, backward>();
  static onnx::Value to_onnx(const op::HardSigmoid&, const NodeToOnnx& to) {
    return to.add("HardSigmoid", {to.x()}, {{"alpha", 1.0F / 6}, {"beta", 0.5F}});
  }
  static hlo::Value lower(const op::HardSigmoid&, const NodeLowering& to) {
    return between_zero_and(to.x() + 3, 6) / 6;
  }
};

template <>
struct OperatorOf<op::HardSwish> : Activates, NoFields {
  static constexpr std::string_view kind = "hard_swish";
  static at::Tensor run(const op::HardSwish&, const Running& in) { return at::hardswish(in.x()); }
  static at::Tensor backward(const op::HardSwish&, const at::Tensor& gradient,
                             const at::Tensor& x) {
    return at::hardswish_backward(gradient, x);
  }
  static constexpr LayerPlan plan = by_input<op::HardSwish, backward>();
  static onnx::Value to_onnx(const op::HardSwish&, const NodeToOnnx& to) {
    return to.add("HardSwish", {to.x()});
  }
  static hlo::Value lower(const op::HardSwish&, const NodeLowering& to) {
    return to.x() * between_zero_and(to.x() + 3, 6) / 6;
  }
};

template <>
struct OperatorOf<op::Softplus> : Activates, NoFields {
  static constexpr std::string_view kind = "softplus";
  static constexpr int kThreshold = 20;  // LibTorch's: from there it is x
  static at::Tensor run(const op::Softplus&, const Running& in) { return at::softplus(in.x()); }
  static at::Tensor backward(const op::Softplus&, const at::Tensor& gradient, const at::Tensor& x) {
    return at::softplus_backward(gradient, x, 1, kThreshold);
  }
  static constexpr LayerPlan plan = by_input<op::Softplus, backward>();
  static onnx::Value to_onnx(const op::Softplus&, const NodeToOnnx& to) {
    return to.add("Softplus", {to.x()});
  }
  static hlo::Value lower(const op::Softplus&, const NodeLowering& to) { return softplus(to.x()); }
};

template <>
struct OperatorOf<op::Mish> : Activates, NoFields {
  static constexpr std::string_view kind = "mish";
  static at::Tensor run(const op::Mish&, const Running& in) { return at::mish(in.x()); }
  static at::Tensor backward(const op::Mish&, const at::Tensor& gradient, const at::Tensor& x) {
    return at::mish_backward(gradient, x);
  }
  static constexpr LayerPlan plan = by_input<op::Mish, backward>();
  static onnx::Value to_onnx(const op::Mish&, const NodeToOnnx& to) {
    return to.add("Mish", {to.x()});
  }
  static hlo::Value lower(const op::Mish&, const NodeLowering& to) {
    return to.x() * hlo::tanh(softplus(to.x()));
  }
};

template <>
struct OperatorOf<op::Relu6> : Activates, NoFields {
  static constexpr std::string_view kind = "relu6";
  static constexpr int kMost = 6;
  static at::Tensor run(const op::Relu6&, const Running& in) {
    return at::hardtanh(in.x(), 0, kMost);
  }
  static at::Tensor backward(const op::Relu6&, const at::Tensor& gradient, const at::Tensor& x) {
    return at::hardtanh_backward(gradient, x, 0, kMost);
  }
  static constexpr LayerPlan plan = by_input<op::Relu6, backward>();
  static onnx::Value to_onnx(const op::Relu6&, const NodeToOnnx& to) {
    return to.add("Clip", {to.x(), to.program.constant(0.0F), to.program.constant(6.0F)});
  }
  static hlo::Value lower(const op::Relu6&, const NodeLowering& to) {
    return between_zero_and(to.x(), kMost);
  }
};

template <>
struct OperatorOf<op::LogSoftmax> : NoFields, SameShape, Stateless, LibTorchsOrder {
  static constexpr std::string_view kind = "log_softmax";
  static at::Tensor run(const op::LogSoftmax&, const Running& in) {
    return at::log_softmax(in.x(), -1);
  }
  static constexpr LayerPlan plan{
      .forward = keep_output,
      .backward =
          [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            return LayerGradients{.inputs = {at::_log_softmax_backward_data(gradient, kept.y, -1,
                                                                            kept.y.scalar_type())}};
          },
      .from_output = true};
  static onnx::Value to_onnx(const op::LogSoftmax&, const NodeToOnnx& to) {
    return to.add("LogSoftmax", {to.x()}, {{"axis", int64_t{-1}}});
  }
  static hlo::Value lower(const op::LogSoftmax&, const NodeLowering& to) {
    return log_softmax(to.x());
  }
};

}  // namespace tutti::nn::detail
