/// add_loss and add_metric: what a module adds to the loss and to what is watched from inside its
/// forward, as Keras's Layer does.
///
///   at::Tensor forward(const at::Tensor& x) {
///     const at::Tensor hidden = torch::relu(first(x));
///     tutti::add_loss(0.01 * hidden.square().mean(1));
///     tutti::add_metric("active", hidden.gt(0).to(torch::kFloat).mean(1));
///     return last(hidden);
///   }
///   ...
///   model.compile({.metrics = {tutti::metrics::added("active")}, ...});
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tutti/train/metrics/metrics.h"

namespace tutti {

/// Adds to the losses of the samples of the forward pass that calls it, in fit(), train_on_batch(),
/// evaluate() and test_on_batch(): before weights of samples and classes, and in what "loss" and
/// "val_loss" show. In predict(), and in a loop of one's own without AddedLosses, it does nothing.
///
/// losses  floats [samples], one for each sample of the pass, or [], which is added to each; in
///         training with a graph of autograd, on the device of the replica
///
/// Called several times, all are added; of a train_step those of all its passes. Throws UsageError
/// for other tensors; for models with several outputs and losses that leave labels out, whose means
/// are not over samples; with microbatches, on meshes and with step_graph.
/// Thread rule: the thread that calls forward().
void add_loss(const at::Tensor& losses);

/// What metrics::added(name) of compile() is the mean of: over the samples of all replicas, each
/// counted as often as it is given, in fit(), train_on_batch(), evaluate() and test_on_batch().
/// Sample weights do not count. In predict(), and in a loop of one's own without AddedLosses, it
/// does nothing.
///
/// values  floats, integers or bools [samples], one for each sample of the pass, or [], which is
///         each one's; autograd does not follow them
///
/// Throws UsageError for other tensors, for a name that compile() has no metric of, and where
/// add_loss() has no place but outputs and labels that do not count: with microbatches, on meshes
/// and with step_graph. Thread rule: the thread that calls forward().
void add_metric(const std::string& name, const at::Tensor& values);

namespace metrics {

/// The mean of what forward gives add_metric(name, ...). Named `name`. A forward pass of samples
/// that does not give it is a UsageError, so that no column of History is of some batches only.
Metric added(const std::string& name);

}  // namespace metrics

/// By name, what a forward pass has given add_metric(), one value a sample and call.
using AddedMetrics = std::map<std::string, at::Tensor>;

/// Takes what add_loss() and add_metric() are given by this thread while it lives, in loops of
/// one's own; of several the last that was made.
class AddedLosses {
 public:
  AddedLosses();
  /// One that has both throw UsageError, with the reason.
  explicit AddedLosses(std::string refusal);
  ~AddedLosses();
  AddedLosses(const AddedLosses&) = delete;
  AddedLosses& operator=(const AddedLosses&) = delete;

  /// The sum of all, [samples]; undefined: none were added. UsageError for those of another number
  /// of samples.
  at::Tensor of(int64_t samples) const;
  /// What was given add_metric(), float64 [samples], or several times that; UsageError as of().
  AddedMetrics metrics(int64_t samples) const;

 private:
  friend void add_loss(const at::Tensor& losses);
  friend void add_metric(const std::string& name, const at::Tensor& values);
  AddedLosses* const outer_;
  std::string refusal_;
  std::vector<at::Tensor> all_;
  std::map<std::string, std::vector<at::Tensor>> metrics_;
};

}  // namespace tutti
