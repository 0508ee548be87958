#include "tutti/train/model/detail/joined_predictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/exported/module.h"
#include "tutti/train/losses/detail/loss_parts.h"

namespace tutti::detail {
namespace {

using Outputs = std::vector<at::Tensor>;

struct Asked : JoinedCall {
  explicit Asked(at::TensorList given) : inputs(given.vec()) {}
  int64_t rows() const { return inputs.front().size(0); }

  const std::vector<at::Tensor> inputs;
  Outputs outputs;
  bool shared = false;  // the outputs are views of those of several calls
};
using Pass = std::span<Asked* const>;

bool is_one_batch_with(const Asked& one, const Asked& other) {
  return std::ranges::equal(one.inputs, other.inputs, [](const at::Tensor& a, const at::Tensor& b) {
    return a.scalar_type() == b.scalar_type() && a.dim() == b.dim() &&
           a.sizes().slice(1) == b.sizes().slice(1);
  });
}

void answer_alone(const JoinedPredictions::Forward& forward, Asked& asked) {
  try {
    asked.outputs = forward(asked.inputs);
  } catch (...) {
    asked.error = std::current_exception();
  }
}

void answer_together(const JoinedPredictions::Forward& forward, Pass pass) {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < pass.front()->inputs.size(); ++i) {
    std::vector<at::Tensor> parts;
    for (const Asked* asked : pass) parts.push_back(asked->inputs[i]);
    inputs.push_back(at::cat(parts));
  }
  const Outputs outputs = forward(inputs);
  for (const at::Tensor& output : outputs)
    if (output.dim() == 0 || output.size(0) != inputs.front().size(0))
      throw UsageError(
          fmt::format("predict: the model gave {} for {} rows; calls are joined of "
                      "models that give as many",
                      tensor_words(output), inputs.front().size(0)));
  int64_t row = 0;
  for (Asked* asked : pass) {
    for (const at::Tensor& output : outputs)
      asked->outputs.push_back(output.narrow(0, row, asked->rows()));
    asked->shared = true;
    row += asked->rows();
  }
}

// What fails together is computed anew one by one: each gets its own answer, or its own error.
void answer_alike(const JoinedPredictions::Forward& forward, Pass pass) {
  if (pass.size() > 1) try {
      return answer_together(forward, pass);
    } catch (...) {
      for (Asked* asked : pass) asked->outputs.clear();
    }
  for (Asked* asked : pass) answer_alone(forward, *asked);
}

void answer(const JoinedPredictions::Forward& forward,
            std::span<const std::shared_ptr<JoinedCall>> calls) {
  const at::NoGradGuard no_grad;
  std::vector<Asked*> left;
  for (const auto& call : calls) left.push_back(static_cast<Asked*>(call.get()));
  for (auto begin = left.begin(); begin != left.end();) {
    const Asked& first = **begin;
    const auto end = std::stable_partition(
        begin, left.end(), [&](const Asked* asked) { return is_one_batch_with(first, *asked); });
    answer_alike(forward, {begin, end});
    begin = end;
  }
}

}  // namespace

void require_joinable(const ExportedModule& module, int64_t most) {
  const auto inputs = module.input_shapes();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto refuse = [&](const std::string& why) {
      throw UsageError(fmt::format(
          "predict: calls cannot be joined: input \"{}\" was exported as {}, {}; export it with a "
          "dynamic first size, or call without batched()",
          module.input_names()[i], inputs[i].words, why));
    };
    const auto& sizes = inputs[i].sizes;
    if (sizes.empty() || sizes[0].symbol().empty()) refuse("whose first size is fixed");
    if (sizes[0].symbol() != inputs[0].sizes[0].symbol())
      refuse(fmt::format("whose first size is not that of \"{}\"", module.input_names()[0]));
    const auto range = module.program().ranges.find(std::string(sizes[0].symbol()));
    if (range != module.program().ranges.end() && range->second.max.value_or(most) < most)
      refuse(fmt::format("fewer rows than max_batch, {}", most));
  }
}

JoinedPredictions::JoinedPredictions(Forward forward, const BatchingOptions& options)
    : limit_(options.limit),
      calls_("predict", {.max_units = options.max_batch, .max_wait = options.max_wait},
             [forward = std::move(forward)](auto calls) { answer(forward, calls); }) {}

std::vector<at::Tensor> JoinedPredictions::ask(at::TensorList inputs) {
  const auto asked = std::make_shared<Asked>(inputs);
  calls_.ask(asked, asked->rows(), Deadline(limit_));
  if (asked->shared)
    for (at::Tensor& output : asked->outputs) output = output.clone();
  return std::move(asked->outputs);
}

}  // namespace tutti::detail
