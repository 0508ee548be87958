/// Predictor: a trained model that answers, for programs that do nothing else with it.
///
///   const auto predictor = tutti::Predictor::load("runs/doodles");
///   at::Tensor logits = predictor.predict(batch);           // from any thread, at the same time
///
/// Thread rule: const functions may be called from any threads at the same time; copies share the
/// weights, which nobody changes. Each call computes on LibTorch's threads, as others do meanwhile:
/// at::set_num_threads(1) where many threads predict.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/nn/graph.h"

namespace tutti {

class Predictor {
 public:
  /// What find_saved_model() (saved_model.h) finds: the folder of a training, a checkpoint, or a
  /// file of weights with its graph beside it. On the CPU, in evaluation mode. Throws as
  /// find_saved_model() and module_of().
  static Predictor load(const std::filesystem::path& place);

  /// Of a model with one input and output: [batch, input_shape...] to [batch, output_shape...], any
  /// batch, without gradients. Values as they go into the network: what becomes of photos and rows
  /// before is the caller's. UsageError for another shape or dtype, and for a model with several.
  at::Tensor predict(const at::Tensor& batch) const;

  /// A tensor for each of graph().inputs(), all of one batch, to one for each of graph().outputs().
  std::vector<at::Tensor> predict_all(const std::vector<at::Tensor>& inputs) const;

  const nn::Graph& graph() const noexcept { return parts_->graph; }

 private:
  struct Parts {
    nn::Graph graph;
    std::function<std::vector<at::Tensor>(at::TensorList)> forward;
  };
  explicit Predictor(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const Parts> parts_;
};

}  // namespace tutti
