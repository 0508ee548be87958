/// Networks of the zoo by LibTorch's operators alone, one after the other: what a program without
/// tutti would call to get their answers. They share no line with ours.
/// Thread rule: functions of constants, any threads.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>

namespace tutti::bench {

using Weights = std::map<std::string, at::Tensor>;
using BareNetwork = std::function<at::Tensor(const at::Tensor&)>;

/// flatten, 128 units, ReLU, 10 units.
inline BareNetwork bare_mlp(const Weights& of) {
  return [=](const at::Tensor& x) {
    const at::Tensor hidden =
        at::relu(at::linear(x.flatten(1), of.at("linear_1.weight"), of.at("linear_1.bias")));
    return at::linear(hidden, of.at("linear_2.weight"), of.at("linear_2.bias"));
  };
}

/// Three times convolution, ReLU and pool, then two dense layers.
inline BareNetwork bare_cnn(const Weights& of) {
  return [=](const at::Tensor& images) {
    at::Tensor x = images;
    for (const char* name : {"conv2d_1", "conv2d_2", "conv2d_3"}) {
      const std::string conv = name;
      x = at::conv2d(x, of.at(conv + ".weight"), of.at(conv + ".bias"), 1, 1);
      x = at::max_pool2d(at::relu(x), 2);
    }
    return bare_mlp(of)(x);
  };
}

class BareResnet18 {
 public:
  explicit BareResnet18(Weights of) : of_(std::move(of)) {}

  at::Tensor operator()(const at::Tensor& images) const {
    at::Tensor x = at::relu(conv_norm(images, "conv1", "bn1", 2, 3));
    x = at::max_pool2d(x, 3, 2, 1);
    for (int layer = 1; layer <= 4; ++layer)
      for (int block = 0; block < 2; ++block) {
        const std::string name = "layer" + std::to_string(layer) + "." + std::to_string(block);
        const int stride = layer > 1 && block == 0 ? 2 : 1;
        at::Tensor y = at::relu(conv_norm(x, name + ".conv1", name + ".bn1", stride, 1));
        y = conv_norm(y, name + ".conv2", name + ".bn2", 1, 1);
        if (of_.contains(name + ".downsample.0.weight"))
          x = conv_norm(x, name + ".downsample.0", name + ".downsample.1", stride, 0);
        x = at::relu(y.add_(x));
      }
    x = at::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
    return at::linear(x, of_.at("fc.weight"), of_.at("fc.bias"));
  }

 private:
  at::Tensor conv_norm(const at::Tensor& x, const std::string& conv, const std::string& norm,
                       int64_t stride, int64_t padding) const {
    const at::Tensor y = at::conv2d(x, of_.at(conv + ".weight"), {}, stride, padding);
    return at::batch_norm(y, of_.at(norm + ".weight"), of_.at(norm + ".bias"),
                          of_.at(norm + ".running_mean"), of_.at(norm + ".running_var"), false, 0.1,
                          1e-5, true);
  }
  Weights of_;
};

/// GPT-2 with a tied head.
class BareGpt {
 public:
  BareGpt(Weights of, int64_t layers, int64_t heads)
      : of_(std::move(of)), layers_(layers), heads_(heads) {}

  at::Tensor operator()(const at::Tensor& tokens) const {
    const at::Tensor& table = of_.at("transformer.wte.weight");
    at::Tensor x = at::embedding(table, tokens) + of_.at("transformer.wpe.weight");
    for (int64_t layer = 0; layer < layers_; ++layer) {
      const std::string name = "transformer.h." + std::to_string(layer);
      x = x + attention(norm(x, name + ".ln_1"), name + ".attn");
      const at::Tensor up = linear(norm(x, name + ".ln_2"), name + ".mlp.c_fc");
      x = x + linear(at::gelu(up, "tanh"), name + ".mlp.c_proj");
    }
    return at::linear(norm(x, "transformer.ln_f"), table);
  }

 private:
  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return at::layer_norm(x, {x.size(-1)}, of_.at(name + ".weight"), of_.at(name + ".bias"));
  }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    return at::linear(x, of_.at(name + ".weight"), of_.at(name + ".bias"));
  }
  at::Tensor attention(const at::Tensor& x, const std::string& name) const {
    const auto parts = linear(x, name + ".c_attn").chunk(3, -1);
    const auto by_head = [&](size_t part) {
      return parts[part].view({x.size(0), x.size(1), heads_, -1}).transpose(1, 2);
    };
    const at::Tensor y = at::scaled_dot_product_attention(by_head(0), by_head(1), by_head(2), {}, 0,
                                                          /*is_causal=*/true);
    return linear(y.transpose(1, 2).reshape(x.sizes()), name + ".c_proj");
  }
  Weights of_;
  int64_t layers_, heads_;
};

}  // namespace tutti::bench
