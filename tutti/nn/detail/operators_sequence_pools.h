/// Pools along sequences [length, features]. Not for users: operators.h says how they are read.
///
/// LibTorch and StableHLO compute along a sequence as in an image of one row whose channels are
/// innermost, which is how it lies in memory.
#pragma once

#include <torch/types.h>

#include <tuple>
#include <utility>
#include <vector>

#include "tutti/nn/detail/operators.h"

namespace tutti::nn::detail {

/// [batch, length, features] as [batch, features, 1, length], and back.
inline at::Tensor row_of_image(const at::Tensor& sequence) {
  return sequence.contiguous().unsqueeze(1).permute({0, 3, 1, 2});
}
inline at::Tensor sequence_of(const at::Tensor& row) {
  return row.squeeze(2).transpose(1, 2).contiguous();
}
/// The gradients of both.
inline at::Tensor through_row_of_image(const at::Tensor& gradient) {
  return gradient.permute({0, 2, 3, 1}).squeeze(1);
}
inline at::Tensor through_sequence_of(const at::Tensor& gradient) {
  return gradient.transpose(1, 2).unsqueeze(2);
}
/// [batch, length, features] as [batch, 1, length, features], and back.
inline hlo::Value row_of_image(hlo::Value sequence) {
  const hlo::Shape& s = sequence.shape();
  return hlo::reshape(sequence, {s[0], 1, s[1], s[2]});
}
inline hlo::Value sequence_of(hlo::Value row) {
  const hlo::Shape& s = row.shape();
  return hlo::reshape(row, {s[0], s[2], s[3]});
}
/// Features first, as ONNX has them.
inline onnx::Value turned(const NodeToOnnx& to, const onnx::Value& sequence) {
  return to.transpose(sequence, {0, 2, 1});
}
/// Of a max-pool or an average pool.
struct SequencePool : Stateless {
  template <class Pool>
  static Resolved infer(const Pool& op, const Site& site) {
    const Shape& in = site.sequence();
    site.at_most_half("padding", op.padding, op.kernel);
    return {op, {site.windows(in[0], op.kernel, op.stride, op.padding), in[1]}, {}};
  }
  template <class Pool>
  static std::vector<onnx::Attribute> onnx_window(const Pool& op) {
    return {{"kernel_shape", std::vector{op.kernel}},
            {"strides", std::vector{op.stride}},
            {"pads", std::vector{op.padding, op.padding}}};
  }
  template <class Pool>
  static hlo::WindowOptions window(const Pool& op) {
    return {.kernel_width = op.kernel,
            .stride_width = op.stride,
            .pad_width = op.padding,
            .order = hlo::ImageOrder::channels_last};
  }
};

template <>
struct OperatorOf<op::MaxPool1d> : SequencePool, LibTorchsOrder {
  static constexpr std::string_view kind = "max_pool1d";
  static constexpr std::tuple fields{Field{"kernel", &op::MaxPool1d::kernel},
                                     Field{"stride", &op::MaxPool1d::stride},
                                     Field{"padding", &op::MaxPool1d::padding}};
  static at::Tensor run(const op::MaxPool1d& op, const Running& in) {
    return sequence_of(
        at::max_pool2d(row_of_image(in.x()), {1, op.kernel}, {1, op.stride}, {0, op.padding}));
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    const auto& op = std::get<op::MaxPool1d>(layer.op);
    kept.x = row_of_image(values[0]);
    auto [y, places] = at::max_pool2d_with_indices(kept.x, {1, op.kernel}, {1, op.stride},
                                                   at::IntArrayRef{0, op.padding});
    kept.others = {std::move(places)};
    return sequence_of(y);
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    const auto& op = std::get<op::MaxPool1d>(layer.op);
    return {.inputs = {through_row_of_image(at::max_pool2d_with_indices_backward(
                through_sequence_of(gradient), kept.x, {1, op.kernel}, {1, op.stride},
                at::IntArrayRef{0, op.padding}, 1, /*ceil_mode=*/false, kept.others[0]))}};
  }
  static constexpr LayerPlan plan{.forward = forward, .backward = backward};
  static onnx::Value to_onnx(const op::MaxPool1d& op, const NodeToOnnx& to) {
    return turned(to, to.add("MaxPool", {turned(to, to.x())}, onnx_window(op)));
  }
  static hlo::Value lower(const op::MaxPool1d& op, const NodeLowering& to) {
    return sequence_of(hlo::window_max(row_of_image(to.x()), window(op)));
  }
};

template <>
struct OperatorOf<op::AvgPool1d> : SequencePool, LibTorchsOrder {
  static constexpr std::string_view kind = "avg_pool1d";
  static constexpr std::tuple fields{Field{"kernel", &op::AvgPool1d::kernel},
                                     Field{"stride", &op::AvgPool1d::stride},
                                     Field{"padding", &op::AvgPool1d::padding}};
  static at::Tensor run(const op::AvgPool1d& op, const Running& in) {
    return sequence_of(
        at::avg_pool2d(row_of_image(in.x()), {1, op.kernel}, {1, op.stride}, {0, op.padding}));
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    const auto& op = std::get<op::AvgPool1d>(layer.op);
    kept.x = row_of_image(values[0]);
    return sequence_of(
        at::avg_pool2d(kept.x, {1, op.kernel}, {1, op.stride}, at::IntArrayRef{0, op.padding}));
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    const auto& op = std::get<op::AvgPool1d>(layer.op);
    return {.inputs = {through_row_of_image(at::avg_pool2d_backward(
                through_sequence_of(gradient), kept.x, {1, op.kernel}, {1, op.stride},
                at::IntArrayRef{0, op.padding}, /*ceil_mode=*/false, /*count_include_pad=*/true,
                /*divisor_override=*/std::nullopt))}};
  }
  static constexpr LayerPlan plan{.forward = forward, .backward = backward};
  static onnx::Value to_onnx(const op::AvgPool1d& op, const NodeToOnnx& to) {
    auto attributes = onnx_window(op);
    attributes.push_back({"count_include_pad", int64_t{1}});
    return turned(to, to.add("AveragePool", {turned(to, to.x())}, std::move(attributes)));
  }
  static hlo::Value lower(const op::AvgPool1d& op, const NodeLowering& to) {
    return sequence_of(hlo::window_sum(row_of_image(to.x()), window(op))) / double(op.kernel);
  }
};

/// [length, features] to [features].
struct OverSequence : NoFields, Stateless {
  template <class O>
  static Resolved infer(const O& op, const Site& site) {
    return {op, {site.sequence()[1]}, {}};
  }
  static onnx::Value reduced(const NodeToOnnx& to, const char* op) {
    return to.add("Flatten", {to.add(op, {turned(to, to.x())})}, {{"axis", int64_t{1}}});
  }
};

template <>
struct OperatorOf<op::GlobalAvgPool1d> : OverSequence, LibTorchsOrder {
  static constexpr std::string_view kind = "global_avg_pool1d";
  static at::Tensor run(const op::GlobalAvgPool1d&, const Running& in) { return in.x().mean(1); }
  static constexpr LayerPlan plan{.forward = keep_input,
                                  .backward = [](const PlannedLayer&, const KeptOfLayer& kept,
                                                 const at::Tensor& gradient, bool) {
                                    const at::Tensor each =
                                        gradient.unsqueeze(1).expand(kept.x.sizes());
                                    return LayerGradients{.inputs = {each / kept.x.size(1)}};
                                  }};
  static onnx::Value to_onnx(const op::GlobalAvgPool1d&, const NodeToOnnx& to) {
    return reduced(to, "GlobalAveragePool");
  }
  static hlo::Value lower(const op::GlobalAvgPool1d&, const NodeLowering& to) {
    return hlo::reduce_sum(to.x(), {1}) / double(to.size(1));
  }
};

template <>
struct OperatorOf<op::GlobalMaxPool1d> : OverSequence, LibTorchsOrder {
  static constexpr std::string_view kind = "global_max_pool1d";
  static at::Tensor run(const op::GlobalMaxPool1d&, const Running& in) {
    return std::get<0>(in.x().max(1));
  }
  static constexpr LayerPlan plan{
      .forward =
          [](const PlannedLayer&, GraphStep::Values& values, KeptOfLayer& kept) {
            auto [y, places] = values[0].max(1);
            kept.x = values[0];
            kept.others = {std::move(places)};
            return y;
          },
      .backward =
          [](const PlannedLayer&, const KeptOfLayer& kept, const at::Tensor& gradient, bool) {
            return LayerGradients{.inputs = {at::value_selecting_reduction_backward(
                                      gradient, 1, kept.others[0], kept.x.sizes(),
                                      /*keepdim=*/false)}};
          }};
  static onnx::Value to_onnx(const op::GlobalMaxPool1d&, const NodeToOnnx& to) {
    return reduced(to, "GlobalMaxPool");
  }
  static hlo::Value lower(const op::GlobalMaxPool1d&, const NodeLowering& to) {
    return sequence_of_one(
        hlo::window_max(row_of_image(to.x()),
                        {.kernel_width = to.size(1), .order = hlo::ImageOrder::channels_last}));
  }

 private:
  static hlo::Value sequence_of_one(hlo::Value row) {
    return hlo::reshape(row, {row.shape()[0], row.shape()[3]});
  }
};

}  // namespace tutti::nn::detail
