// Model on what the caller has as tensors: all samples, or one batch.
#include <fmt/format.h>
#include <torch/types.h>

#include "tutti/base/error.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/detail/model_state.h"

namespace tutti {
namespace {

/// A column over a tensor's memory, or over a copy where its elements are not side by side.
Array column_of(std::string_view operation, const char* what, const at::Tensor& tensor) {
  const char* const rows = operation.ends_with("_on_batch") ? "batch" : "samples";
  if (!tensor.defined() || tensor.dim() == 0 || !tensor.is_cpu())
    throw UsageError(fmt::format(
        "{}: {}: expected a tensor [{}, ...] on the CPU, got {}", operation, what, rows,
        !tensor.defined()   ? "an undefined one"
        : tensor.dim() == 0 ? "a scalar"
                            : fmt::format("one on {}: every replica gets its part of it on its "
                                          "own device",
                                          tensor.device().str())));
  try {
    return array_of(tensor);
  } catch (const UsageError&) {
    throw UsageError(fmt::format(
        "{}: {}: expected a tensor of whole or floating-point numbers, got {}; convert it",
        operation, what, c10::toString(tensor.scalar_type())));
  }
}

/// All samples, as columns; `targets` may be none.
data::Dataset samples_of(std::string_view operation, const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& targets) {
  if (inputs.empty()) throw UsageError(fmt::format("{}: no inputs were given", operation));
  std::vector<Array> columns;
  const auto add = [&](const char* what, const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      columns.push_back(column_of(operation, what, tensor));
      const int64_t rows = columns.back().shape()[0], expected = columns.front().shape()[0];
      if (rows != expected)
        throw UsageError(
            fmt::format("{}: {} have {} samples (their first size), the first of the inputs has "
                        "{}; expected as "
                        "many",
                        operation, what, rows, expected));
    }
  };
  add("inputs", inputs);
  add("targets", targets);
  if (columns.front().shape()[0] == 0)
    throw UsageError(fmt::format("{}: inputs have no samples: their first size is 0", operation));
  return data::from_arrays(std::move(columns));
}

int64_t batch_of(std::string_view operation, int64_t batch) {
  if (batch < 1)
    throw UsageError(fmt::format("{}: batch is {}, must be 1 or more", operation, batch));
  return batch;
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

History Model::fit(const at::Tensor& inputs, const at::Tensor& targets, FitOptions options) {
  return fit(std::vector{inputs}, std::vector{targets}, std::move(options));
}

History Model::fit(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets,
                   FitOptions options) {
  const int64_t batch = batch_of("fit", options.batch);
  const data::Dataset samples = samples_of("fit", inputs, targets);
  return fit((options.shuffle ? samples.shuffle() : samples).batch(batch), std::move(options));
}

Scores Model::evaluate(const at::Tensor& inputs, const at::Tensor& targets,
                       const PassOptions& options) {
  return evaluate(std::vector{inputs}, std::vector{targets}, options);
}

Scores Model::evaluate(const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& targets, const PassOptions& options) {
  const int64_t batch = batch_of("evaluate", options.batch);
  return evaluate(samples_of("evaluate", inputs, targets).batch(batch), options.loader,
                  options.verbose, options.callbacks);
}

at::Tensor Model::predict(const at::Tensor& inputs, const PassOptions& options) {
  const int64_t batch = batch_of("predict", options.batch);
  return predict(samples_of("predict", {inputs}, {}).batch(batch), options.callbacks);
}

std::vector<at::Tensor> Model::predict_all(const std::vector<at::Tensor>& inputs,
                                           const PassOptions& options) {
  const int64_t batch = batch_of("predict", options.batch);
  return predict_all(samples_of("predict", inputs, {}).batch(batch), options.callbacks);
}

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
