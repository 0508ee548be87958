/// What Model::compile() is told. Thread rule: values.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tutti/nn/precision.h"
#include "tutti/strategy/choice/measures.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/train/callbacks/schedules.h"
#include "tutti/train/losses/losses.h"
#include "tutti/train/metrics/metrics.h"
#include "tutti/train/model/large_batch.h"

namespace torch::nn {
class Module;
}

namespace tutti {

/// One of tutti's rules, with clipping and parameter groups where wanted, trained by the fused
/// step; or any torch optimizer.
using OptimizerChoice = std::variant<optim::Recipe, TorchOptimizerFactory>;

/// What trains and scores one output of a model that has several.
struct OutputOptions {
  std::string name;  ///< the graph's; before what History and Scores show: "kind_accuracy"
  Loss loss;
  double weight = 1;  ///< of this loss in the sum that is minimised: finite, >= 0
  std::vector<Metric> metrics{};
};

/// What a train_step or test_step of one's own is given: a replica's part of a batch, where the
/// replica computes. Valid during the call.
struct StepData {
  torch::nn::Module& module;               ///< the replica's own
  const std::vector<at::Tensor>& inputs;   ///< [samples, ...] each
  const std::vector<at::Tensor>& targets;  ///< [samples, ...] each
  bool training;                           ///< false: of evaluate(), without a graph of autograd
  /// The model's forward, in the precision of compile(); any number of times.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)> forward;
};

/// What it gives.
struct StepOutcome {
  at::Tensor losses;  ///< [samples]: one a sample, in training with a graph of autograd
  /// One tensor [samples, ...]: what the metrics are of, in the place of what forward gives. Empty
  /// where there are no metrics.
  std::vector<at::Tensor> outputs{};
};
using OwnStep = std::function<StepOutcome(const StepData&)>;

/// Columns of the data are inputs, then targets, then maybe weights of samples: one column an input
/// and one an output, in the order of the graph's inputs and of `outputs`.
struct CompileOptions {
  OptimizerChoice optimizer = optim::adam();
  std::optional<Loss> loss{};  ///< of the model's only output
  /// Take outputs for logits where the loss does, unless they say otherwise: then UsageError.
  std::vector<Metric> metrics{};
  /// Rate of each step, in place of the optimizer's own; step: updates applied before it.
  std::optional<RateSchedule> learning_rate{};
  /// Of forward passes in fit, evaluate and predict; parameters, losses and metrics are float32.
  Precision precision = Precision::float32;
  /// Of losses, before backward(); steps that overflow are left out (Optimizer::scale_losses).
  /// Unset: losses are not scaled, which float32 and bfloat16 do not need.
  std::optional<optim::LossScaling> loss_scaling{};
  /// In place of loss and metrics. Of a graph, those of its outputs that are trained; of a module
  /// of one's own, the first tensors that forward gives, in its order. "loss" is then the weighted
  /// sum, and each output has its "NAME_loss" beside its metrics.
  std::vector<OutputOptions> outputs{};
  int64_t num_inputs = 1;  ///< of a module of one's own: columns that go in; a graph knows its own
  std::optional<LargeBatch> large_batch{};  ///< for batches beyond those that a rate was found for
  Measures measures{};                      ///< what is measured beside the training
  /// tpu: steps, 1 to 1,000, that one run of a program makes; their figures, and what callbacks
  /// decide by them, come with the last. UsageError above 1 elsewhere.
  int64_t steps_per_execution = 1;
  /// In place of forward and loss, in fit() and in evaluate(): losses a sample, of which Model
  /// makes the mean over the global batch, times weights, gradients and updates as of `loss`, which
  /// may then be unset. Called by each replica in its own thread, where it has samples. For models
  /// with one loss; UsageError on meshes, with microbatches, step_graph and under tpu.
  OwnStep train_step{};
  OwnStep test_step{};
};

}  // namespace tutti
