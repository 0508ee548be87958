/// GPT-2 in plain LibTorch: what ours are held against.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tutti/models/gpt.h"

namespace tutti::test {

/// A GPT that shares no line with ours: GPT-2 as its paper has it, on these weights.
class PlainGpt {
 public:
  using Weights = std::map<std::string, at::Tensor>;

  PlainGpt(const Weights& weights, models::GptOptions options) : options_(options) {
    for (const auto& [name, weight] : weights)
      own_[name] = weight.detach().clone().requires_grad_();
  }

  at::Tensor logits(const at::Tensor& tokens) {
    at::Tensor x = torch::embedding(own_.at("transformer.wte.weight"), tokens) +
                   own_.at("transformer.wpe.weight");
    for (int64_t layer = 0; layer < options_.layers; ++layer) {
      const std::string name = "transformer.h." + std::to_string(layer);
      x = x + attention(norm(x, name + ".ln_1"), name + ".attn");
      const auto up = linear(norm(x, name + ".ln_2"), name + ".mlp.c_fc");
      x = x + linear(torch::gelu(up, "tanh"), name + ".mlp.c_proj");
    }
    x = norm(x, "transformer.ln_f");
    return x.matmul(own_.at(options_.tied ? "transformer.wte.weight" : "lm_head.weight").t());
  }

  const at::Tensor& gradient(const std::string& name) { return own_.at(name).grad(); }

 private:
  at::Tensor norm(const at::Tensor& x, const std::string& name) {
    return torch::layer_norm(x, {options_.features}, own_.at(name + ".weight"),
                             own_.at(name + ".bias"), options_.epsilon);
  }
  at::Tensor linear(const at::Tensor& x, const std::string& name) {
    return x.matmul(own_.at(name + ".weight").t()) + own_.at(name + ".bias");
  }
  at::Tensor attention(const at::Tensor& x, const std::string& name) {
    const int64_t length = x.size(1), width = options_.features / options_.heads;
    const auto parts = linear(x, name + ".c_attn").split(options_.features, -1);
    const auto hidden = torch::ones({length, length}, torch::kBool).triu(1);
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < options_.heads; ++head) {
      const auto of_head = [&](size_t part) { return parts[part].narrow(2, head * width, width); };
      const auto scores =
          of_head(0).matmul(of_head(1).transpose(1, 2)) / std::sqrt(static_cast<double>(width));
      heads.push_back(scores.masked_fill(hidden, -INFINITY).softmax(-1).matmul(of_head(2)));
    }
    return linear(torch::cat(heads, -1), name + ".c_proj");
  }

  models::GptOptions options_;
  Weights own_;
};

}  // namespace tutti::test
