#include "tutti/nn/recurrent.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/detail/row_error.h"
#include "tutti/nn/detail/recurrent_stack.h"

namespace tutti::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<int64_t> as_numbers(const RecurrentOptions& options) {
  return {static_cast<int64_t>(options.cell),
          options.features,
          options.units,
          options.layers,
          options.bidirectional,
          options.sequences};
}
RecurrentOptions options_of(const std::vector<int64_t>& numbers) {
  return {.cell = static_cast<RecurrentCell>(numbers[0]),
          .features = numbers[1],
          .units = numbers[2],
          .layers = numbers[3],
          .bidirectional = numbers[4] != 0,
          .sequences = numbers[5] != 0};
}

/// All layers as one node of autograd.
struct RecurrentFunction : torch::autograd::Function<RecurrentFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                            const std::optional<at::Tensor>& steps,
                            const RecurrentOptions& options) {
    const at::AutoDispatchBelowADInplaceOrView below;
    std::vector<at::Tensor> kept;
    at::Tensor y =
        detail::recurrent_forward(options, x, steps.value_or(at::Tensor()), weights, &kept);
    // What it keeps may be the memory of these: behind it they are seen when they are written to.
    for (const auto& [read, given] :
         {std::pair(kept[0], steps.value_or(at::Tensor())), {kept[1], x}})
      if (read.defined() && read.is_alias_of(given)) kept.push_back(given);
    kept.insert(kept.begin(), weights.begin(), weights.end());
    context->save_for_backward(std::move(kept));
    context->saved_data["options"] = as_numbers(options);
    context->saved_data["weights"] = static_cast<int64_t>(weights.size());
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list above) {
    if (at::GradMode::is_enabled())
      throw UsageError(
          "nn lstm, gru: got a backward pass that is to have gradients itself (create_graph), "
          "expected one without");
    const auto saved = context->get_saved_variables();
    const auto num_weights = static_cast<size_t>(context->saved_data["weights"].toInt());
    detail::RecurrentNeeds needs{.x = context->needs_input_grad(0), .weights = {}};
    for (size_t i = 0; i < num_weights; ++i)
      needs.weights.push_back(context->needs_input_grad(1 + i));
    const at::TensorList all(saved);
    auto of = detail::recurrent_backward(options_of(context->saved_data["options"].toIntVector()),
                                         all.slice(0, num_weights), all.slice(num_weights),
                                         above[0], needs);
    variable_list gradients{of.x};
    gradients.insert(gradients.end(), of.weights.begin(), of.weights.end());
    gradients.resize(gradients.size() + 2);  // of the steps and the options
    return gradients;
  }
};

void require(bool holds, const std::string& what) {
  if (!holds) throw UsageError("nn::Recurrent: " + what);
}

std::string suffix_of(int64_t layer, bool reverse) {
  return fmt::format("_l{}{}", layer, reverse ? "_reverse" : "");
}

}  // namespace

RecurrentImpl::RecurrentImpl(const RecurrentOptions& options) : options_(options) {
  const auto at_least_one = [](const char* name, int64_t value) {
    require(value >= 1, fmt::format("{} is {}, must be 1 or more", name, value));
  };
  at_least_one("features", options.features);
  at_least_one("units", options.units);
  at_least_one("layers", options.layers);
  const int64_t directions = options.bidirectional ? 2 : 1;
  const int64_t rows = (options.cell == RecurrentCell::lstm ? 4 : 3) * options.units;
  for (int64_t layer = 0; layer < options.layers; ++layer)
    for (int64_t direction = 0; direction < directions; ++direction) {
      const std::string suffix = suffix_of(layer, direction == 1);
      const int64_t features = layer == 0 ? options.features : directions * options.units;
      add("weight_ih" + suffix, {rows, features});
      add("weight_hh" + suffix, {rows, options.units});
      add("bias_ih" + suffix, {rows});
      add("bias_hh" + suffix, {rows});
    }
}

void RecurrentImpl::add(const std::string& name, at::IntArrayRef shape) {
  const double most = 1 / std::sqrt(static_cast<double>(options_.units));
  weights_.push_back(register_parameter(name, at::empty(shape).uniform_(-most, most)));
}

at::Tensor RecurrentImpl::forward(const at::Tensor& x, const at::Tensor& steps) {
  require(x.dim() == 3 && x.size(2) == options_.features && x.size(1) >= 1,
          fmt::format("got an input of shape {}, expected [batch, length, {}]", c10::str(x.sizes()),
                      options_.features));
  require(!steps.defined() ||
              (steps.scalar_type() == at::kBool && steps.sizes() == x.sizes().slice(0, 2)),
          fmt::format("got steps of shape {}, expected booleans [{}, {}]",
                      steps.defined() ? c10::str(steps.sizes()) : "", x.size(0), x.size(1)));
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Tensor given = x.to(weights_[0].scalar_type());
  if (!at::GradMode::is_enabled())
    return detail::recurrent_forward(options_, given, steps, weights_, /*kept=*/nullptr);
  return RecurrentFunction::apply(given, at::TensorList(weights_),
                                  steps.defined() ? std::optional(steps) : std::nullopt, options_);
}

void require_steps(const at::Tensor& given, int64_t length, const std::string& who) {
  const bool counts = given.size(1) == 1 && length != 1;
  if (!counts && given.scalar_type() == at::kBool) return;
  const at::Tensor bad = at::nonzero(at::logical_not(
      counts ? given.ge(0).logical_and(given.le(length)).logical_and(given.eq(given.to(at::kLong)))
             : given.eq(0).logical_or(given.eq(1))));
  if (bad.size(0) == 0) return;
  const auto row = bad[0][0].item<int64_t>(), place = bad[0][1].item<int64_t>();
  const auto value = given[row][place].item<double>();
  throw tutti::detail::RowError(
      who, row,
      counts ? fmt::format("{} steps, expected a whole number from 0 to {}", value, length)
             : fmt::format("a mask of {} at step {}, expected 1 or 0", value, place));
}

at::Tensor steps_of_sequences(const at::Tensor& given, int64_t length, const std::string& who) {
  const bool counts = given.size(1) == 1 && length != 1;
  if (given.is_cpu()) require_steps(given, length, who);
  if (!counts) return given.scalar_type() == at::kBool ? given : given.ne(0);
  return at::arange(length, given.options().dtype(at::kLong)).unsqueeze(0).lt(given);
}

}  // namespace tutti::nn
