/// Operators over the last dimension that own a weight. Not for users: operators.h says how they
/// are read.
#pragma once

#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/nn/dense.h"
#include "tutti/nn/detail/layers.h"
#include "tutti/nn/detail/operators.h"

namespace tutti::nn::detail {

template <>
struct OperatorOf<op::Linear> : LibTorchsOrder {
  static constexpr std::string_view kind = "linear";
  static constexpr std::tuple fields{
      Field{"in_features", &op::Linear::in_features}, Field{"units", &op::Linear::units},
      Field{"bias", &op::Linear::bias}, Field{"initial_deviation", &op::Linear::initial_deviation}};
  static Resolved infer(op::Linear op, const Site& site) {
    const Shape& in = site.only_input();
    site.at_least("units", op.units, 1);
    site.not_negative("initial_deviation", op.initial_deviation);
    op.in_features = in.back();
    Shape shape = in;
    shape.back() = op.units;
    Resolved out{op, shape, {{"weight", {op.units, op.in_features}}}};
    if (op.bias) out.parameters.push_back({"bias", {op.units}});
    return out;
  }
  static LayerState state(const op::Linear& op, int) {
    auto linear = std::make_shared<LinearImpl>(
        torch::nn::LinearOptions(op.in_features, op.units).bias(op.bias));
    if (op.initial_deviation > 0) {
      torch::nn::init::normal_(linear->weight, 0, op.initial_deviation);
      if (op.bias) torch::nn::init::zeros_(linear->bias);
    }
    return {.module = std::move(linear)};
  }
  static at::Tensor run(const op::Linear&, const Running& in) {
    const auto& layer = *static_cast<LinearImpl*>(in.step.module);
    return dense(in.x(), layer.weight, layer.bias, in.step.activation);
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    const at::Tensor &weight = kept.parameters[0], &bias = kept.parameters[1];
    if (kept.needs_any_input()) kept.read.push_back(weight);
    kept.x = rows_of(values[0]);
    const at::Tensor y = dense_forward(kept.x, weight, bias, layer.activation);
    if (layer.activation != Activation::none) kept.y = y;
    return shaped_as(values[0], y);
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool weights_first) {
    const bool needs_weight = kept.needs_parameter(0);
    const bool input_later = weights_first && kept.needs_input() && needs_weight;
    auto of =
        dense_backward(rows_of(gradient), kept.x, kept.parameters[0], kept.y, layer.activation,
                       {kept.needs_input() && !input_later, needs_weight, kept.needs_parameter(1)});
    if (of.x.defined()) of.x = shaped_as(gradient, of.x);
    return {.inputs = {std::move(of.x)},
            .parameters = {std::move(of.weight), std::move(of.bias)},
            .sum = input_later ? std::move(of.sum) : at::Tensor()};
  }
  static constexpr LayerPlan plan{.forward = forward,
                                  .backward = backward,
                                  .parameters = weight_and_bias<LinearImpl>,
                                  .bfloat16 = InBfloat16::yes};
  static onnx::Value to_onnx(const op::Linear& op, const NodeToOnnx& to) {
    return to.dense(to.x(), to.shape().size(), to.state("weight"),
                    op.bias ? std::optional(to.state("bias")) : std::nullopt);
  }
  static hlo::Value lower(const op::Linear& op, const NodeLowering& to) {
    return to.dense(to.x(), to.state("weight"),
                    op.bias ? std::optional(to.state("bias")) : std::nullopt);
  }
};

/// Of an Embedding or a TiedLinear, as the first that is applied makes it for both.
template <class O>
LayerState embedding_state(const O& op) {
  return {.module = std::make_shared<torch::nn::EmbeddingImpl>(
              torch::nn::EmbeddingOptions(op.vocabulary, op.features)
                  ._weight(torch::randn({op.vocabulary, op.features}) * op.initial_deviation))};
}

/// LayerPlan::parameters of both.
inline Tensors embedding_weight(const GraphStep& step) {
  return {static_cast<const torch::nn::EmbeddingImpl*>(step.module)->weight};
}

template <>
struct OperatorOf<op::Embedding> : LibTorchsOrder {
  static constexpr std::string_view kind = "embedding";
  static constexpr std::tuple fields{Field{"vocabulary", &op::Embedding::vocabulary},
                                     Field{"features", &op::Embedding::features},
                                     Field{"initial_deviation", &op::Embedding::initial_deviation}};
  static Resolved infer(const op::Embedding& op, const Site& site) {
    const Shape& in = site.only_input();
    if (in.size() != 1)
      site.fail(fmt::format("got an input of shape {}, expected [length]", to_string(in)));
    site.at_least("vocabulary", op.vocabulary, 1);
    site.at_least("features", op.features, 1);
    site.not_negative("initial_deviation", op.initial_deviation);
    return {op, {in[0], op.features}, {{"weight", {op.vocabulary, op.features}}}};
  }
  static LayerState state(const op::Embedding& op, int) { return embedding_state(op); }
  static at::Tensor run(const op::Embedding& op, const Running& in) {
    try {
      return in.by<torch::nn::EmbeddingImpl>();
    } catch (const c10::Error&) {  // which names no token
      if (in.x().is_cpu() && at::isIntegralType(in.x().scalar_type(), false))
        require_tokens(fmt::format("embedding of {} tokens", op.vocabulary), in.x(), op.vocabulary);
      throw;
    }
  }
  static constexpr LayerPlan plan{
      .forward = keep_input,
      .backward =
          [](const PlannedLayer& layer, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            constexpr int64_t kNoPadding = -1;
            return LayerGradients{
                .parameters = {at::embedding_dense_backward(
                    gradient, kept.x, std::get<op::Embedding>(layer.op).vocabulary, kNoPadding,
                    /*scale_grad_by_freq=*/false)}};
          },
      .parameters = embedding_weight};
  static onnx::Value to_onnx(const op::Embedding&, const NodeToOnnx& to) {
    return to.add("Gather", {to.state("weight"), to.x()}, {{"axis", int64_t{0}}});
  }
  static hlo::Value lower(const op::Embedding&, const NodeLowering& to) {
    return hlo::take_rows(to.state("weight"), to.x());
  }
};

template <>
struct OperatorOf<op::TiedLinear> : LibTorchsOrder {
  static constexpr std::string_view kind = "tied_linear";
  static constexpr std::tuple fields{
      Field{"vocabulary", &op::TiedLinear::vocabulary},
      Field{"features", &op::TiedLinear::features},
      Field{"initial_deviation", &op::TiedLinear::initial_deviation}};
  static Resolved infer(const op::TiedLinear& op, const Site& site) {
    Shape shape = site.only_input();
    if (shape.back() != op.features)
      site.fail(fmt::format("got an input of shape {}, expected the {} features of the embedding",
                            to_string(shape), op.features));
    shape.back() = op.vocabulary;
    return {op, shape, {{"weight", {op.vocabulary, op.features}}}};
  }
  static LayerState state(const op::TiedLinear& op, int) { return embedding_state(op); }
  static at::Tensor run(const op::TiedLinear&, const Running& in) {
    return dense(in.x(), static_cast<torch::nn::EmbeddingImpl*>(in.step.module)->weight);
  }
  static at::Tensor forward(const PlannedLayer&, GraphStep::Values& values, KeptOfLayer& kept) {
    const at::Tensor& weight = kept.parameters[0];
    if (kept.needs_any_input()) kept.read.push_back(weight);
    kept.x = rows_of(values[0]);
    return shaped_as(values[0], dense_forward(kept.x, weight, {}, Activation::none));
  }
  static LayerGradients backward(const PlannedLayer&, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    auto of = dense_backward(rows_of(gradient), kept.x, kept.parameters[0], {}, Activation::none,
                             {kept.needs_input(), kept.needs_parameter(0), /*bias=*/false});
    if (of.x.defined()) of.x = shaped_as(gradient, of.x);
    return {.inputs = {std::move(of.x)}, .parameters = {std::move(of.weight)}};
  }
  static constexpr LayerPlan plan{.forward = forward,
                                  .backward = backward,
                                  .parameters = embedding_weight,
                                  .bfloat16 = InBfloat16::yes};
  static onnx::Value to_onnx(const op::TiedLinear&, const NodeToOnnx& to) {
    return to.dense(to.x(), to.shape().size(), to.state("weight"));
  }
  static hlo::Value lower(const op::TiedLinear&, const NodeLowering& to) {
    return to.dense(to.x(), to.state("weight"));
  }
};

template <>
struct OperatorOf<op::LayerNorm> : LibTorchsOrder {
  static constexpr std::string_view kind = "layer_norm";
  static constexpr std::tuple fields{Field{"features", &op::LayerNorm::features},
                                     Field{"epsilon", &op::LayerNorm::epsilon}};
  static Resolved infer(op::LayerNorm op, const Site& site) {
    const Shape& in = site.only_input();
    if (!(op.epsilon > 0)) site.fail(fmt::format("epsilon is {}, must be above 0", op.epsilon));
    op.features = in.back();
    return {op, in, {{"weight", {op.features}}, {"bias", {op.features}}}};
  }
  static LayerState state(const op::LayerNorm& op, int) {
    return {.module = std::make_shared<torch::nn::LayerNormImpl>(
                torch::nn::LayerNormOptions({op.features}).eps(op.epsilon))};
  }
  static at::Tensor run(const op::LayerNorm&, const Running& in) {
    return in.by<torch::nn::LayerNormImpl>();
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    const auto& op = std::get<op::LayerNorm>(layer.op);
    const at::Tensor &weight = kept.parameters[0], &bias = kept.parameters[1];
    if (kept.needs_any_input()) kept.read.push_back(weight);
    auto [y, mean, deviation] =
        at::native_layer_norm(values[0], {op.features}, weight, bias, op.epsilon);
    kept.x = values[0];
    kept.others = {std::move(mean), std::move(deviation)};
    return y;
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    auto [x, weight, bias] = at::native_layer_norm_backward(
        gradient, kept.x, {std::get<op::LayerNorm>(layer.op).features}, kept.others[0],
        kept.others[1], kept.parameters[0], kept.parameters[1],
        {kept.needs_input(), kept.needs_parameter(0), kept.needs_parameter(1)});
    return {.inputs = {std::move(x)}, .parameters = {std::move(weight), std::move(bias)}};
  }
  static constexpr LayerPlan plan{.forward = forward,
                                  .backward = backward,
                                  .parameters = weight_and_bias<torch::nn::LayerNormImpl>};
  static onnx::Value to_onnx(const op::LayerNorm& op, const NodeToOnnx& to) {
    return to.add("LayerNormalization", {to.x(), to.state("weight"), to.state("bias")},
                  {{"axis", int64_t{-1}}, {"epsilon", static_cast<float>(op.epsilon)}});
  }
  static hlo::Value lower(const op::LayerNorm& op, const NodeLowering& to) {
    const hlo::Value x = to.x();
    const auto last = std::ssize(x.shape()) - 1;
    const auto features = double(op.features);
    std::vector<int64_t> others(static_cast<size_t>(last));
    std::iota(others.begin(), others.end(), 0);
    const auto back = [&](hlo::Value rows) { return hlo::broadcast(rows, x.shape(), others); };
    const hlo::Value apart = x - back(hlo::reduce_sum(x, {last}) / features);
    const hlo::Value variance = hlo::reduce_sum(apart * apart, {last}) / features;
    return apart * back(hlo::rsqrt(variance + op.epsilon)) * to.along(to.state("weight"), last) +
           to.along(to.state("bias"), last);
  }
};

}  // namespace tutti::nn::detail
