// What each layer of a planned graph computes: forward, with what it keeps, and its gradients. They
// are autograd's operators, called as autograd calls them, but for the kernels of ours.

#include <torch/nn/modules/conv.h>
#include <torch/types.h>

#include <array>
#include <tuple>
#include <utility>
#include <variant>

#include "tutti/nn/detail/graph_plan.h"
#include "tutti/nn/detail/layers.h"

namespace tutti::nn::detail {
namespace {

bool has_channels_innermost(const at::Tensor& x) {
  return x.size(1) > 1 && x.is_contiguous(at::MemoryFormat::ChannelsLast);
}

PoolShape pool_shape(const at::Tensor& x, int64_t kernel) {
  return {.images = x.size(0),
          .height = x.size(2),
          .width = x.size(3),
          .channels = x.size(1),
          .kernel = kernel};
}

/// `x` with its last dimension as rows, and those of `rows` in the shape of `x` again.
at::Tensor rows_of(const at::Tensor& x) {
  return x.dim() == 2 ? x.contiguous() : x.reshape({-1, x.size(-1)}).contiguous();
}
at::Tensor shaped_as(const at::Tensor& x, const at::Tensor& rows) {
  if (x.dim() == 2) return rows;
  auto sizes = x.sizes().vec();
  sizes.back() = rows.size(1);
  return rows.view(sizes);
}

}  // namespace

struct GraphPlan::Forward {
  const Layer& layer;
  GraphStep::Values& values;
  Kept& kept;

  at::Tensor operator()(const op::Conv2d&) const {
    values[0] = channels_last(values[0]);
    return keeping_input();
  }
  at::Tensor operator()(const op::Linear&) const {
    const auto& linear = *static_cast<LinearImpl*>(layer.step->module);
    kept.x = rows_of(values[0]);
    const at::Tensor y = dense_forward(kept.x, linear.weight, linear.bias, layer.activation);
    if (layer.activation != Activation::none) kept.y = y;
    return shaped_as(values[0], y);
  }
  at::Tensor operator()(const op::MaxPool2d& pool) const {
    const at::Tensor& x = kept.x = values[0];
    if (layer.activation == Activation::none || !has_channels_innermost(x)) {
      std::tie(kept.y, kept.places) =
          at::max_pool2d_with_indices(x, pool.kernel, pool.stride, pool.padding);
      if (layer.activation == Activation::relu) at::relu_(kept.y);
      return kept.y;
    }
    kept.y = at::empty({x.size(0), x.size(1), x.size(2) / pool.kernel, x.size(3) / pool.kernel},
                       x.options().memory_format(at::MemoryFormat::ChannelsLast));
    kept.places = at::empty({kept.y.numel()}, at::kByte);
    layer_kernels().pool_relu(pool_shape(x, pool.kernel), x.const_data_ptr<float>(),
                              kept.y.mutable_data_ptr<float>(),
                              kept.places.mutable_data_ptr<uint8_t>());
    return kept.y;
  }
  at::Tensor operator()(const op::Relu&) const { return keeping_output(); }
  at::Tensor operator()(const op::Tanh&) const { return keeping_output(); }
  at::Tensor operator()(const op::Add&) const { return layer.step->run(values); }
  template <class Other>
  at::Tensor operator()(const Other&) const {
    return keeping_input();
  }

 private:
  at::Tensor keeping_input() const {
    kept.x = values[0];
    return layer.step->run(values);
  }
  at::Tensor keeping_output() const { return kept.y = layer.step->run(values); }
};

struct GraphPlan::Backward {
  const Layer& layer;
  const Kept& kept;
  const at::Tensor& gradient;
  bool weights_first;

  Gradients operator()(const op::Conv2d& conv) const {
    const std::array<int64_t, 1> bias{conv.out_channels};
    const auto of = at::convolution_backward(
        gradient, kept.x, kept.weight,
        conv.bias ? at::OptionalIntArrayRef(bias) : at::OptionalIntArrayRef(),
        {conv.stride, conv.stride}, {conv.padding.height, conv.padding.width}, {1, 1},
        /*transposed=*/false, {0, 0}, conv.groups,
        {kept.needs_input, kept.needs_weight, kept.needs_bias});
    return {std::get<0>(of), std::get<1>(of), std::get<2>(of)};
  }
  Gradients operator()(const op::Linear&) const {
    const bool input_later = weights_first && kept.needs_input && kept.needs_weight;
    auto of =
        dense_backward(rows_of(gradient), kept.x, kept.weight, kept.y, layer.activation,
                       {kept.needs_input && !input_later, kept.needs_weight, kept.needs_bias});
    if (of.x.defined()) of.x = shaped_as(gradient, of.x);
    return {std::move(of.x), std::move(of.weight), std::move(of.bias),
            input_later ? std::move(of.sum) : at::Tensor()};
  }
  Gradients operator()(const op::MaxPool2d& pool) const {
    if (kept.places.scalar_type() != at::kByte) {
      const bool relu = layer.activation == Activation::relu;
      const at::Tensor dy = relu ? at::threshold_backward(gradient, kept.y, 0) : gradient;
      return {.input = at::max_pool2d_with_indices_backward(dy, kept.x, pool.kernel, pool.stride,
                                                            pool.padding, 1, false, kept.places)};
    }
    const at::Tensor dy = gradient.contiguous(at::MemoryFormat::ChannelsLast);
    at::Tensor dx =
        at::empty(kept.x.sizes(), kept.x.options().memory_format(at::MemoryFormat::ChannelsLast));
    layer_kernels().pool_relu_gradient(
        pool_shape(kept.x, pool.kernel), dy.const_data_ptr<float>(), kept.y.const_data_ptr<float>(),
        kept.places.const_data_ptr<uint8_t>(), dx.mutable_data_ptr<float>());
    return {.input = std::move(dx)};
  }
  Gradients operator()(const op::AvgPool2d& pool) const {
    return {.input = at::avg_pool2d_backward(gradient, kept.x, pool.kernel, pool.stride,
                                             pool.padding, /*ceil_mode=*/false,
                                             /*count_include_pad=*/true, std::nullopt)};
  }
  Gradients operator()(const op::Relu&) const {
    return {.input = at::threshold_backward(gradient, kept.y, 0)};
  }
  Gradients operator()(const op::Tanh&) const {
    return {.input = at::tanh_backward(gradient, kept.y)};
  }
  Gradients operator()(const op::Gelu& op) const {
    return {.input = at::gelu_backward(gradient, kept.x, op.by_tanh ? "tanh" : "none")};
  }
  Gradients operator()(const op::Flatten&) const {
    return {.input = gradient.reshape(kept.x.sizes())};
  }
  Gradients operator()(const op::Add&) const { return {.input = gradient}; }
  template <class Other>
  Gradients operator()(const Other&) const {
    return {};  // graphs with other layers are not planned
  }
};

at::Tensor GraphPlan::forward(const Layer& layer, GraphStep::Values& values, Kept& kept) {
  return layer.passes ? values[0] : std::visit(Forward{layer, values, kept}, layer.op);
}

GraphPlan::Gradients GraphPlan::backward(const Layer& layer, const Kept& kept,
                                         const at::Tensor& gradient, bool weights_first) {
  if (layer.passes) return {.input = gradient};
  return std::visit(Backward{layer, kept, gradient, weights_first}, layer.op);
}

at::Tensor GraphPlan::input_gradient(const Kept& kept, const at::Tensor& gradient,
                                     const at::Tensor& of_sum) {
  return shaped_as(gradient, dense_input_gradient(of_sum, kept.weight));
}

}  // namespace tutti::nn::detail
