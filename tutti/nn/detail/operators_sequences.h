/// Operators on sequences, and softmax. Not for users: operators.h says how they are read.
#pragma once

#include <ATen/ExpandUtils.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tutti/nn/attention.h"
#include "tutti/nn/detail/layers.h"
#include "tutti/nn/detail/lowering.h"
#include "tutti/nn/detail/operators.h"

namespace tutti::nn::detail {

template <>
struct OperatorOf<op::Attention> : Stateless, LibTorchsOrder {
  static constexpr std::string_view kind = "attention";
  static constexpr std::tuple fields{Field{"features", &op::Attention::features},
                                     Field{"heads", &op::Attention::heads},
                                     Field{"causal", &op::Attention::causal}};
  static Resolved infer(op::Attention op, const Site& site) {
    const Shape& in = site.sequence();
    if (in[1] % 3 != 0)
      site.fail(
          fmt::format("got an input of shape {}, expected [length, 3 features]", to_string(in)));
    op.features = in[1] / 3;
    site.heads_of(op.features, op.heads);
    return {op, {in[0], op.features}, {}};
  }
  static at::Tensor run(const op::Attention& op, const Running& in) {
    return attend(in.x(), op.heads, op.causal);
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    const auto& op = std::get<op::Attention>(layer.op);
    Attended of = attend_forward(values[0], op.heads, op.causal);
    kept.x = values[0];
    kept.others = {std::move(of.of_heads), std::move(of.log_sums)};
    return std::move(of.y);
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    const auto& op = std::get<op::Attention>(layer.op);
    return {.inputs = {attend_backward(
                gradient, {.y = {}, .of_heads = kept.others[0], .log_sums = kept.others[1]}, kept.x,
                op.heads, op.causal)}};
  }
  static constexpr LayerPlan plan{
      .forward = forward, .backward = backward, .bfloat16 = InBfloat16::yes};
  static onnx::Value to_onnx(const op::Attention& op, const NodeToOnnx& to) {
    return attention(to, to.x(), to.shape()[0], op.features, op.heads, op.causal);
  }
  static hlo::Value lower(const op::Attention& op, const NodeLowering& to) {
    return lowered(to, to.x(), op.heads, op.causal);
  }
  /// a: [batch, length, 3 features], queries, keys and values side by side, to [batch, length,
  /// features].
  static hlo::Value lowered(const NodeLowering& to, hlo::Value a, int64_t heads, bool causal);
};

inline hlo::Value OperatorOf<op::Attention>::lowered(const NodeLowering& to, hlo::Value a,
                                                     int64_t heads, bool causal) {
  const int64_t batch = a.shape()[0], length = a.shape()[1], features = a.shape()[2] / 3;
  const int64_t width = features / heads;
  const auto part = [&](int64_t which) {
    const hlo::Value of =
        hlo::slice(a, {0, 0, which * features}, {batch, length, (which + 1) * features});
    return to.product_type(
        hlo::transpose(hlo::reshape(of, {batch, length, heads, width}), {0, 2, 1, 3}));
  };
  hlo::Value scores =
      hlo::dot(part(0), part(1),
               {.batch_a = {0, 1}, .batch_b = {0, 1}, .contract_a = {3}, .contract_b = {3}}) *
      (1 / std::sqrt(double(width)));
  if (causal) {
    const hlo::Type places{DType::int32, scores.shape()};
    const hlo::Value sees = hlo::compare(hlo::iota(a.program(), places, 3), hlo::Comparison::le,
                                         hlo::iota(a.program(), places, 2));
    constexpr double kUnseen = -1e30;  // its exponential is 0
    scores = hlo::select(sees, scores, hlo::constant(a.program(), scores.type(), kUnseen));
  }
  const hlo::Value mixed =
      hlo::dot(to.product_type(softmax(scores)), part(2),
               {.batch_a = {0, 1}, .batch_b = {0, 1}, .contract_a = {3}, .contract_b = {2}});
  return hlo::reshape(hlo::transpose(mixed, {0, 2, 1, 3}), {batch, length, features});
}

template <>
struct OperatorOf<op::SelfAttention> : LibTorchsOrder {
  static constexpr std::string_view kind = "self_attention";
  static constexpr std::tuple fields{Field{"features", &op::SelfAttention::features},
                                     Field{"heads", &op::SelfAttention::heads}};
  static Resolved infer(op::SelfAttention op, const Site& site) {
    const Shape& in = site.sequence();
    op.features = in[1];
    site.heads_of(op.features, op.heads);
    return {op,
            in,
            {{"in_proj_weight", {3 * op.features, op.features}},
             {"in_proj_bias", {3 * op.features}},
             {"out_proj.weight", {op.features, op.features}},
             {"out_proj.bias", {op.features}}}};
  }
  static LayerState state(const op::SelfAttention& op, int) {
    return {.module = std::make_shared<SelfAttentionImpl>(op.features, op.heads)};
  }
  static at::Tensor run(const op::SelfAttention&, const Running& in) {
    return in.by<SelfAttentionImpl>();
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    const Tensors& own = kept.parameters;
    const int64_t heads = std::get<op::SelfAttention>(layer.op).heads;
    kept.read = {own[0], own[2]};
    kept.x = rows_of(values[0]);
    const at::Tensor inside =
        shaped_as(values[0], dense_forward(kept.x, own[0], own[1], Activation::none));
    Attended of = attend_forward(inside, heads, /*causal=*/false);
    const at::Tensor rows = rows_of(of.y);
    kept.others = {inside, std::move(of.of_heads), std::move(of.log_sums), rows};
    return shaped_as(of.y, dense_forward(rows, own[2], own[3], Activation::none));
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    const Tensors& own = kept.parameters;
    const int64_t heads = std::get<op::SelfAttention>(layer.op).heads;
    const bool inner = kept.needs_input() || kept.needs_parameter(0) || kept.needs_parameter(1);
    auto out = dense_backward(rows_of(gradient), kept.others[3], own[2], {}, Activation::none,
                              {inner, kept.needs_parameter(2), kept.needs_parameter(3)});
    DenseGradients in;
    if (inner) {
      const at::Tensor of_inside =
          attend_backward(shaped_as(gradient, out.x),
                          {.y = {}, .of_heads = kept.others[1], .log_sums = kept.others[2]},
                          kept.others[0], heads, /*causal=*/false);
      in = dense_backward(rows_of(of_inside), kept.x, own[0], {}, Activation::none,
                          {kept.needs_input(), kept.needs_parameter(0), kept.needs_parameter(1)});
      if (in.x.defined()) in.x = shaped_as(gradient, in.x);
    }
    return {.inputs = {std::move(in.x)},
            .parameters = {std::move(in.weight), std::move(in.bias), std::move(out.weight),
                           std::move(out.bias)}};
  }
  static Tensors weights_of(const GraphStep& step) {
    return static_cast<SelfAttentionImpl*>(step.module)->weights();
  }
  static constexpr LayerPlan plan{.forward = forward,
                                  .backward = backward,
                                  .parameters = weights_of,
                                  .bfloat16 = InBfloat16::yes};
  static onnx::Value to_onnx(const op::SelfAttention& op, const NodeToOnnx& to) {
    const onnx::Value inside =
        to.dense(to.x(), to.shape().size(), to.state("in_proj_weight"), to.state("in_proj_bias"));
    const onnx::Value mixed =
        attention(to, inside, to.shape()[0], op.features, op.heads, /*causal=*/false);
    return to.dense(mixed, to.shape().size(), to.state("out_proj.weight"),
                    to.state("out_proj.bias"));
  }
  static hlo::Value lower(const op::SelfAttention& op, const NodeLowering& to) {
    const hlo::Value inside =
        to.dense(to.x(), to.state("in_proj_weight"), to.state("in_proj_bias"));
    const hlo::Value mixed =
        OperatorOf<op::Attention>::lowered(to, inside, op.heads, /*causal=*/false);
    return to.dense(mixed, to.state("out_proj.weight"), to.state("out_proj.bias"));
  }
};

/// LayerPlan::parameters of a layer that is one.
inline Tensors only_parameter(const GraphStep& step) { return {step.parameter}; }

template <>
struct OperatorOf<op::PrependToken> : LibTorchsOrder {
  static constexpr std::string_view kind = "prepend_token";
  static constexpr std::tuple fields{Field{"features", &op::PrependToken::features}};
  static Resolved infer(op::PrependToken op, const Site& site) {
    const Shape& in = site.sequence();
    op.features = in[1];
    return {op, {in[0] + 1, in[1]}, {{"", {1, 1, in[1]}}}};
  }
  static LayerState state(const op::PrependToken& op, int) {
    return {.parameter = torch::zeros({1, 1, op.features})};
  }
  static at::Tensor run(const op::PrependToken&, const Running& in) {
    const at::Tensor& x = in.x();
    return torch::cat({in.step.parameter.expand({x.size(0), 1, x.size(2)}), x}, 1);
  }
  static LayerGradients backward(const PlannedLayer&, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    LayerGradients of{.inputs = {gradient.narrow(1, 1, gradient.size(1) - 1)},
                      .parameters = {at::Tensor()}};
    if (kept.needs_parameter(0))
      of.parameters[0] = at::sum_to(gradient.narrow(1, 0, 1), kept.parameters[0].sizes());
    return of;
  }
  static constexpr LayerPlan plan{
      .forward = [](const PlannedLayer& layer, GraphStep::Values& values,
                    KeptOfLayer&) { return layer.step->run(values); },
      .backward = backward,
      .parameters = only_parameter};
  static onnx::Value to_onnx(const op::PrependToken& op, const NodeToOnnx& to) {
    const onnx::Value batch =
        to.add("Shape", {to.x()}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
    const onnx::Value sides =
        to.add("Concat", {batch, to.program.constant({1, op.features})}, {{"axis", int64_t{0}}});
    return to.add("Concat", {to.add("Expand", {to.state(""), sides}), to.x()},
                  {{"axis", int64_t{1}}});
  }
  static hlo::Value lower(const op::PrependToken& op, const NodeLowering& to) {
    const hlo::Value token = hlo::broadcast(to.state(""), {to.size(0), 1, op.features}, {0, 1, 2});
    return hlo::concatenate(std::vector{token, to.x()}, 1);
  }
};

template <>
struct OperatorOf<op::AddPosition> : LibTorchsOrder {
  static constexpr std::string_view kind = "add_position";
  static constexpr std::tuple fields{Field{"length", &op::AddPosition::length},
                                     Field{"features", &op::AddPosition::features}};
  static Resolved infer(op::AddPosition op, const Site& site) {
    const Shape& in = site.sequence();
    op.length = in[0];
    op.features = in[1];
    return {op, in, {{"", {1, in[0], in[1]}}}};
  }
  static LayerState state(const op::AddPosition& op, int) {
    return {.parameter = torch::randn({1, op.length, op.features}) * 0.02};
  }
  static at::Tensor run(const op::AddPosition&, const Running& in) {
    return in.x() + in.step.parameter;
  }
  static constexpr LayerPlan plan{
      .forward = [](const PlannedLayer& layer, GraphStep::Values& values,
                    KeptOfLayer&) { return layer.step->run(values); },
      .backward =
          [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            LayerGradients of{.inputs = {gradient}, .parameters = {at::Tensor()}};
            if (!kept.needs_parameter(0)) return of;
            of.parameters[0] = at::sum_to(gradient, kept.parameters[0].sizes());
            // Of one sample that is the gradient itself, which others add to.
            if (gradient.size(0) == 1)
              of.parameters[0] = of.parameters[0].clone(at::MemoryFormat::Contiguous);
            return of;
          },
      .parameters = only_parameter};
  static onnx::Value to_onnx(const op::AddPosition&, const NodeToOnnx& to) {
    return to.add("Add", {to.x(), to.state("")});
  }
  static hlo::Value lower(const op::AddPosition&, const NodeLowering& to) {
    return to.x() + hlo::broadcast(to.state(""), to.x().shape(), {0, 1, 2});
  }
};

template <>
struct OperatorOf<op::Softmax> : NoFields, SameShape, Stateless, LibTorchsOrder {
  static constexpr std::string_view kind = "softmax";
  static at::Tensor run(const op::Softmax&, const Running& in) {
    return torch::softmax(in.x(), -1);
  }
  static constexpr LayerPlan plan{
      .forward = keep_output,
      .backward =
          [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            return LayerGradients{
                .inputs = {at::_softmax_backward_data(gradient, kept.y, -1, kept.y.scalar_type())}};
          },
      .from_output = true};
  static onnx::Value to_onnx(const op::Softmax&, const NodeToOnnx& to) {
    return to.add("Softmax", {to.x()}, {{"axis", int64_t{-1}}});
  }
  static hlo::Value lower(const op::Softmax&, const NodeLowering& to) { return softmax(to.x()); }
};

}  // namespace tutti::nn::detail
