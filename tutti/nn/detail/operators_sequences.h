/// Operators on sequences, and softmax. Not for users: operators.h says how they are read.
#pragma once

#include <torch/types.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tutti/nn/attention.h"
#include "tutti/nn/detail/lowering.h"
#include "tutti/nn/detail/operators.h"

namespace tutti::nn::detail {

template <>
struct OperatorOf<op::Attention> : Stateless, NotPlanned, LibTorchsOrder {
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
struct OperatorOf<op::SelfAttention> : NotPlanned, LibTorchsOrder {
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

template <>
struct OperatorOf<op::PrependToken> : NotPlanned, LibTorchsOrder {
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
struct OperatorOf<op::AddPosition> : NotPlanned, LibTorchsOrder {
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
  static onnx::Value to_onnx(const op::AddPosition&, const NodeToOnnx& to) {
    return to.add("Add", {to.x(), to.state("")});
  }
  static hlo::Value lower(const op::AddPosition&, const NodeLowering& to) {
    return to.x() + hlo::broadcast(to.state(""), to.x().shape(), {0, 1, 2});
  }
};

template <>
struct OperatorOf<op::Softmax> : NoFields, SameShape, Stateless, NotPlanned, LibTorchsOrder {
  static constexpr std::string_view kind = "softmax";
  static at::Tensor run(const op::Softmax&, const Running& in) {
    return torch::softmax(in.x(), -1);
  }
  static onnx::Value to_onnx(const op::Softmax&, const NodeToOnnx& to) {
    return to.add("Softmax", {to.x()}, {{"axis", int64_t{-1}}});
  }
  static hlo::Value lower(const op::Softmax&, const NodeLowering& to) { return softmax(to.x()); }
};

}  // namespace tutti::nn::detail
