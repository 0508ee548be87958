/// What evaluate() and predict() share; not for users. Thread rule: that of Model.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti::detail {

/// Evaluation mode with merged buffers in every replica; afterwards each has its own buffers again,
/// and every module, whose parts may differ, the mode it was in.
class EvaluationMode {
 public:
  explicit EvaluationMode(ReplicatedModules& modules) : modules_(modules) {
    const NamedTensors merged = modules.merged_buffers();
    at::NoGradGuard no_grad;
    for (int local = 0; local < modules.size(); ++local) {
      const NamedTensors buffers = unique_buffers(*modules.module(local));
      for (size_t i = 0; i < buffers.size(); ++i) {
        own_.emplace_back(buffers[i].second, buffers[i].second.clone());
        at::Tensor buffer = buffers[i].second;
        buffer.copy_(merged[i].second);
      }
      // A module comes before its parts, so train() of a part has the last word.
      for (auto& module : modules.module(local)->modules()) {
        modes_.emplace_back(module, module->is_training());
      }
    }
    modules.train(false);
  }
  ~EvaluationMode() {
    at::NoGradGuard no_grad;
    for (auto& [buffer, value] : own_) buffer.copy_(value);
    modules_.train(modes_.front().second);  // also what replicas of a grown world begin with
    for (auto& [module, training] : modes_) module->train(training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  ReplicatedModules& modules_;
  std::vector<std::pair<at::Tensor, at::Tensor>> own_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

/// Samples as they lie: epoch 0.
inline std::shared_ptr<const data::Epoch> first_epoch(const Strategy& strategy,
                                                      const data::Dataset& dataset) {
  return std::make_shared<const data::Epoch>(
      dataset.epoch({.epoch = 0, .seed = strategy.options().seed}));
}

}  // namespace tutti::detail
