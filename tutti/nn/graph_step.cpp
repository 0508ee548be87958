#include "tutti/nn/detail/graph_step.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "tutti/nn/attention.h"
#include "tutti/nn/dropout.h"
#include "tutti/nn/sync_batch_norm.h"

namespace tutti::nn::detail {
namespace {

/// Runs a layer on its inputs, of which most have one: x.
struct Runner {
  const GraphStep& step;
  const at::Tensor& x;
  const GraphStep::Values& all;

  template <class Module>
  at::Tensor by() const {
    return static_cast<Module*>(step.module)->forward(x);
  }

  at::Tensor operator()(const op::Input&) const { return x; }
  at::Tensor operator()(const op::Conv2d&) const {
    return static_cast<torch::nn::Conv2dImpl*>(step.module)->forward(channels_last(x));
  }
  at::Tensor operator()(const op::Linear&) const {
    const auto& layer = *static_cast<LinearImpl*>(step.module);
    return dense(x, layer.weight, layer.bias, step.activation);
  }
  at::Tensor operator()(const op::Embedding&) const { return by<torch::nn::EmbeddingImpl>(); }
  at::Tensor operator()(const op::TiedLinear&) const {
    return dense(x, static_cast<torch::nn::EmbeddingImpl*>(step.module)->weight);
  }
  at::Tensor operator()(const op::MaxPool2d& op) const {
    return torch::max_pool2d(x, op.kernel, op.stride, op.padding);
  }
  at::Tensor operator()(const op::AvgPool2d& op) const {
    return torch::avg_pool2d(x, op.kernel, op.stride, op.padding);
  }
  at::Tensor operator()(const op::AdaptiveAvgPool2d& op) const {
    return torch::adaptive_avg_pool2d(x, {op.size.height, op.size.width});
  }
  at::Tensor operator()(const op::Upsample2d& op) const {
    return torch::upsample_nearest2d(x, {x.size(2) * op.times, x.size(3) * op.times});
  }
  at::Tensor operator()(const op::BatchNorm2d& op) const {
    return op.synchronized ? by<SyncBatchNormImpl>() : by<torch::nn::BatchNorm2dImpl>();
  }
  at::Tensor operator()(const op::LayerNorm&) const { return by<torch::nn::LayerNormImpl>(); }
  at::Tensor operator()(const op::SelfAttention&) const { return by<SelfAttentionImpl>(); }
  at::Tensor operator()(const op::Attention& op) const { return attend(x, op.heads, op.causal); }
  at::Tensor operator()(const op::PrependToken&) const {
    return torch::cat({step.parameter.expand({x.size(0), 1, x.size(2)}), x}, 1);
  }
  at::Tensor operator()(const op::AddPosition&) const { return x + step.parameter; }
  at::Tensor operator()(const op::Dropout&) const { return by<DropoutImpl>(); }
  at::Tensor operator()(const op::RepeatChannels& op) const {
    return x.expand({x.size(0), op.times, x.size(2), x.size(3)});
  }
  at::Tensor operator()(const op::Relu&) const {
    if (!step.in_place) return torch::relu(x);
    at::Tensor over = x;
    return torch::relu_(over);
  }
  at::Tensor operator()(const op::Gelu& op) const {
    return torch::gelu(x, op.by_tanh ? "tanh" : "none");
  }
  at::Tensor operator()(const op::Tanh&) const { return torch::tanh(x); }
  at::Tensor operator()(const op::GlobalAvgPool2d&) const {
    return torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
  }
  at::Tensor operator()(const op::ToSequence&) const { return x.flatten(2).transpose(1, 2); }
  at::Tensor operator()(const op::FirstOfSequence&) const { return x.select(1, 0); }
  at::Tensor operator()(const op::Flatten&) const { return x.flatten(1); }
  at::Tensor operator()(const op::Softmax&) const { return torch::softmax(x, -1); }
  at::Tensor operator()(const op::Add&) const { return x + all[1]; }
  at::Tensor operator()(const op::Concat&) const {
    return torch::cat(at::TensorList(all.data(), all.size()), 1);
  }
};

}  // namespace

at::Tensor channels_last(const at::Tensor& x) {
  if (!x.is_cpu()) return x;
  if (x.size(1) == 1 && x.is_contiguous() && !x.requires_grad()) {
    // With one channel both layouts are the same memory; only the strides say which is meant.
    return x.as_strided(x.sizes(), {x.size(2) * x.size(3), 1, x.size(3), 1});
  }
  return x.contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor GraphStep::run(const Values& values) const {
  return passes ? values[0] : std::visit(Runner{*this, values[0], values}, op);
}

}  // namespace tutti::nn::detail
