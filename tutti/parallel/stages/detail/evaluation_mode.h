/// A module in evaluation mode for a while. Not for users. Thread rule: that of the module.
#pragma once

#include <torch/nn/module.h>

#include <vector>

namespace tutti::parallel::detail {

/// Puts a module into evaluation mode until it goes out of scope; then each of its parts is in its
/// own mode again.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : module_(module) {
    for (const auto& part : module.modules()) was_training_.push_back(part->is_training());
    module.eval();
  }
  ~EvaluationMode() {  // parents before children, which may differ from them
    const auto parts = module_.modules();
    for (size_t i = 0; i < parts.size(); ++i) parts[i]->train(was_training_[i]);
  }
  EvaluationMode(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  std::vector<bool> was_training_;
};

}  // namespace tutti::parallel::detail
