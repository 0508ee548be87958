// Model on one batch that the caller has as tensors.
#include <fmt/format.h>
#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti {
namespace {

/// A column over a tensor's memory, or over a copy where its elements are not side by side.
Array column_of(std::string_view operation, const char* what, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.dim() == 0 || !tensor.is_cpu())
    throw UsageError(fmt::format(
        "{}: {}: expected a tensor [batch, ...] on the CPU, got {}", operation, what,
        !tensor.defined()   ? "an undefined one"
        : tensor.dim() == 0 ? "a scalar"
                            : fmt::format("one on {}: every replica gets its part of it on its "
                                          "own device",
                                          tensor.device().str())));
  return array_of(tensor);
}

data::Dataset one_batch(std::string_view operation, const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& targets, const at::Tensor& weights) {
  std::vector<Array> columns;
  for (const auto& input : inputs) columns.push_back(column_of(operation, "inputs", input));
  for (const auto& target : targets) columns.push_back(column_of(operation, "targets", target));
  if (weights.defined()) columns.push_back(column_of(operation, "sample_weights", weights));
  if (inputs.empty() || inputs[0].size(0) == 0)
    throw UsageError(fmt::format("{}: the batch has no samples", operation));
  return data::from_arrays(std::move(columns)).batch(inputs[0].size(0));
}

}  // namespace

Scores Model::train_on_batch(const at::Tensor& inputs, const at::Tensor& targets,
                             const BatchWeights& weights) {
  return train_on_batch(std::vector{inputs}, std::vector{targets}, weights);
}

Scores Model::train_on_batch(const std::vector<at::Tensor>& inputs,
                             const std::vector<at::Tensor>& targets, const BatchWeights& weights) {
  const auto data = one_batch("train_on_batch", inputs, targets, weights.sample_weights);
  const FitOptions options{.verbose = 0, .class_weight = weights.class_weight};
  take_input_of(data);
  state_->check_fit(data, options);
  if (const auto& large = state_->compiled->large_batch; large && large->options.warm_up.epochs > 0)
    throw UsageError(fmt::format(
        "train_on_batch: large_batch: warm_up is {} epochs, but one batch has none; give it in "
        "steps: .warm_up = {{.steps = ...}}",
        large->options.warm_up.epochs));
  return detail::scores_of(detail::train_on_batch(*state_, data, options), state_->compiled->goals);
}

Scores Model::test_on_batch(const at::Tensor& inputs, const at::Tensor& targets,
                            const at::Tensor& sample_weights) {
  return test_on_batch(std::vector{inputs}, std::vector{targets}, sample_weights);
}

Scores Model::test_on_batch(const std::vector<at::Tensor>& inputs,
                            const std::vector<at::Tensor>& targets,
                            const at::Tensor& sample_weights) {
  return evaluate(one_batch("test_on_batch", inputs, targets, sample_weights));
}

}  // namespace tutti
