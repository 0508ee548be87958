// B batch, T time, F features, H units; G gates: 4 of an LSTM, 3 of a GRU.
#include "tutti/nn/recurrent.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <cmath>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/data/detail/row_error.h"
#include "tutti/nn/detail/layers.h"
#include "tutti/nn/detail/recurrent_cells.h"

namespace tutti::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// By name: `sum({0, 1})` would be ambiguous, for {0, 1} is a null pointer and a length, too.
constexpr std::array<int64_t, 2> kStepsAndRows = {0, 1};

at::Tensor all_rows(const at::Tensor& x_TBF) { return x_TBF.reshape({-1, x_TBF.size(2)}); }

bool takes_dense_kernels(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat;
}

// Over all steps at once, by the kernels of dense layers where these take it.
at::Tensor over_steps(const at::Tensor& x_TBF, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor rows = all_rows(x_TBF);
  const at::Tensor y = takes_dense_kernels(x_TBF)
                           ? detail::dense_forward(rows, weight, bias, Activation::none)
                           : at::addmm(bias, rows, weight.t());
  return y.view({x_TBF.size(0), x_TBF.size(1), weight.size(0)});
}
at::Tensor weight_gradient(const at::Tensor& gates_TBG, const at::Tensor& x_TBF) {
  const at::Tensor rows = all_rows(gates_TBG), x = all_rows(x_TBF);
  return takes_dense_kernels(x) ? detail::dense_weight_gradient(rows, x) : rows.t().mm(x);
}
at::Tensor input_gradient(const at::Tensor& gates_TBG, const at::Tensor& weight) {
  const at::Tensor rows = all_rows(gates_TBG);
  const at::Tensor of_x =
      takes_dense_kernels(rows) ? detail::dense_input_gradient(rows, weight) : rows.mm(weight);
  return of_x.view({gates_TBG.size(0), gates_TBG.size(1), weight.size(1)});
}

/// [batch, length, features] with time first. The gradient lies in memory as x does, so that layers
/// before it compute the same whether it has travelled or not.
struct TimeFirst : torch::autograd::Function<TimeFirst> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) {
    return x.transpose(0, 1).contiguous();
  }
  static variable_list backward(AutogradContext*, variable_list above) {
    return {above[0].transpose(0, 1).contiguous()};
  }
};

/// One layer in one direction, to the states after all steps.
struct RecurrentFunction : torch::autograd::Function<RecurrentFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& input,
                            const at::Tensor& hidden, const at::Tensor& input_bias,
                            const at::Tensor& hidden_bias, const std::optional<at::Tensor>& steps,
                            int64_t cell, bool reverse) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const bool lstm = static_cast<RecurrentCell>(cell) == RecurrentCell::lstm;
    const at::Tensor bias = lstm ? input_bias + hidden_bias : input_bias;
    detail::CellRun run{.gates = over_steps(x, input, bias),
                        .steps = steps.value_or(at::Tensor()),
                        .reverse = reverse};
    if (lstm)
      detail::lstm_forward(run, hidden);
    else
      detail::gru_forward(run, hidden, hidden_bias);
    context->save_for_backward(
        {x, run.steps, input, hidden, hidden_bias, run.gates, run.states, run.kept, run.cells});
    context->saved_data["cell"] = cell;
    context->saved_data["reverse"] = reverse;
    return run.states;
  }

  static variable_list backward(AutogradContext* context, variable_list above) {
    if (at::GradMode::is_enabled())
      throw UsageError(
          "nn lstm, gru: got a backward pass that is to have gradients itself (create_graph), "
          "expected one without");
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &input = saved[2], &hidden = saved[3];
    const bool lstm =
        static_cast<RecurrentCell>(context->saved_data["cell"].toInt()) == RecurrentCell::lstm;
    const detail::CellRun run{.gates = saved[5],
                              .states = saved[6],
                              .kept = saved[7],
                              .cells = saved[8],
                              .steps = saved[1],
                              .reverse = context->saved_data["reverse"].toBool()};
    const at::Tensor states = above[0].contiguous();
    const detail::CellGradients of = lstm ? detail::lstm_backward(run, hidden, states)
                                          : detail::gru_backward(run, hidden, states);
    // Of the state before the first step, which is zeros, nothing comes.
    const int64_t length = run.gates.size(0) - 1;
    const int64_t later = run.reverse ? 0 : 1, earlier = 1 - later;
    const auto asked = [&](size_t at) { return context->needs_input_grad(at); };
    at::Tensor of_x, of_input, of_hidden, of_input_bias, of_hidden_bias;
    if (asked(0)) of_x = input_gradient(of.input, input);
    if (asked(1)) of_input = weight_gradient(of.input, x);
    if (asked(2))
      of_hidden = length == 0 ? at::zeros_like(hidden)
                              : weight_gradient(of.hidden.narrow(0, later, length),
                                                run.states.narrow(0, earlier, length));
    if (asked(3)) of_input_bias = of.input.sum(kStepsAndRows);
    if (asked(4)) of_hidden_bias = of.hidden.sum(kStepsAndRows);
    return {of_x, of_input, of_hidden, of_input_bias, of_hidden_bias, {}, {}, {}};
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
      Weights own;
      own.input = add("weight_ih" + suffix, {rows, features});
      own.hidden = add("weight_hh" + suffix, {rows, options.units});
      own.input_bias = add("bias_ih" + suffix, {rows});
      own.hidden_bias = add("bias_hh" + suffix, {rows});
      weights_.push_back(std::move(own));
    }
}

at::Tensor& RecurrentImpl::add(const std::string& name, at::IntArrayRef shape) {
  const double most = 1 / std::sqrt(static_cast<double>(options_.units));
  return register_parameter(name, at::empty(shape).uniform_(-most, most));
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
  at::Tensor now = TimeFirst::apply(x.to(weights_[0].input.scalar_type()));
  at::Tensor there;
  if (steps.defined()) {
    there = steps.t().unsqueeze(2).contiguous();  // [T, B, 1]
    now = at::where(there, now, at::zeros({}, now.options()));
  }
  const size_t directions = options_.bidirectional ? 2 : 1;
  std::vector<at::Tensor> lasts;
  for (size_t i = 0; i < weights_.size(); i += directions) {
    std::vector<at::Tensor> sides;
    lasts.clear();
    for (size_t direction = 0; direction < directions; ++direction) {
      const Weights& own = weights_[i + direction];
      sides.push_back(
          RecurrentFunction::apply(now, own.input, own.hidden, own.input_bias, own.hidden_bias,
                                   there.defined() ? std::optional(there) : std::nullopt,
                                   static_cast<int64_t>(options_.cell), direction == 1));
      lasts.push_back(sides.back().select(0, direction == 1 ? 0 : x.size(1) - 1));
    }
    if (i + directions == weights_.size() && !options_.sequences) break;
    now = directions == 1 ? sides[0] : at::cat(sides, 2);
    if (there.defined()) now = at::where(there, now, at::zeros({}, now.options()));
  }
  if (options_.sequences) return now.transpose(0, 1).contiguous();
  return directions == 1 ? lasts[0].contiguous() : at::cat(lasts, 1);
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
