// B batch, T time, F features, H units; G gates: 4 H of an LSTM, 3 H of a GRU.
#include "tutti/nn/detail/recurrent_stack.h"

#include <algorithm>
#include <array>

#include "tutti/nn/detail/layers.h"
#include "tutti/nn/detail/recurrent_cells.h"

namespace tutti::nn::detail {
namespace {

// By name: `sum({0, 1})` would be ambiguous, for {0, 1} is a null pointer and a length, too.
constexpr std::array<int64_t, 2> kStepsAndRows = {0, 1};
constexpr size_t kWeights = 4;  // of a layer in one direction
constexpr size_t kKept = 5;     // of the same

at::Tensor all_rows(const at::Tensor& x_TBF) { return x_TBF.reshape({-1, x_TBF.size(2)}); }

bool takes_dense_kernels(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.numel() > 0;
}

// Over all steps at once, by the kernels of dense layers where these take it.
at::Tensor over_steps(const at::Tensor& x_TBF, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor rows = all_rows(x_TBF);
  const at::Tensor y = takes_dense_kernels(x_TBF)
                           ? dense_forward(rows, weight, bias, Activation::none)
                           : at::addmm(bias, rows, weight.t());
  return y.view({x_TBF.size(0), x_TBF.size(1), weight.size(0)});
}
at::Tensor gradient_of_weight(const at::Tensor& gates_TBG, const at::Tensor& x_TBF) {
  const at::Tensor rows = all_rows(gates_TBG), x = all_rows(x_TBF);
  return takes_dense_kernels(x) ? dense_weight_gradient(rows, x) : rows.t().mm(x);
}
at::Tensor gradient_of_input(const at::Tensor& gates_TBG, const at::Tensor& weight) {
  const at::Tensor rows = all_rows(gates_TBG);
  const at::Tensor of_x =
      takes_dense_kernels(rows) ? dense_input_gradient(rows, weight) : rows.mm(weight);
  return of_x.view({gates_TBG.size(0), gates_TBG.size(1), weight.size(1)});
}

/// One layer in one direction, as it ran.
struct Ran {
  at::Tensor x_TBF;
  CellRun run;
};

Ran forward_of(RecurrentCell cell, const at::Tensor& x_TBF, at::TensorList weights,
               const at::Tensor& there, bool reverse) {
  const at::Tensor &input = weights[0], &hidden = weights[1], &input_bias = weights[2],
                   &hidden_bias = weights[3];
  const bool lstm = cell == RecurrentCell::lstm;
  Ran ran{.x_TBF = x_TBF,
          .run = {.gates = over_steps(x_TBF, input, lstm ? input_bias + hidden_bias : input_bias),
                  .steps = there,
                  .reverse = reverse}};
  if (lstm)
    lstm_forward(ran.run, hidden);
  else
    gru_forward(ran.run, hidden, hidden_bias);
  return ran;
}

/// Of the input too, [T, B, F], where it is needed.
at::Tensor backward_of(RecurrentCell cell, const Ran& ran, at::TensorList weights,
                       const StateGradients& of_states, bool needs_x, const bool* needs,
                       at::Tensor* of_weights) {
  const bool lstm = cell == RecurrentCell::lstm;
  const at::Tensor &input = weights[0], &hidden = weights[1];
  const CellRun& run = ran.run;
  const CellGradients of =
      lstm ? lstm_backward(run, hidden, of_states) : gru_backward(run, hidden, of_states);
  // Of the state before the first step, which is zeros, nothing comes.
  const int64_t length = run.gates.size(0) - 1;
  const int64_t later = run.reverse ? 0 : 1, earlier = 1 - later;
  at::Tensor of_x;
  if (needs_x) of_x = gradient_of_input(of.input, input);
  if (needs[0]) of_weights[0] = gradient_of_weight(of.input, ran.x_TBF);
  if (needs[1])
    of_weights[1] = length == 0 ? at::zeros_like(hidden)
                                : gradient_of_weight(of.hidden.narrow(0, later, length),
                                                     run.states.narrow(0, earlier, length));
  if (needs[2]) of_weights[2] = of.input.sum(kStepsAndRows);
  if (needs[3])
    of_weights[3] =
        lstm && needs[2] ? of_weights[2].clone() : at::Tensor(of.hidden.sum(kStepsAndRows));
  return of_x;
}

/// Zeros at steps that there are not.
at::Tensor where_there(const at::Tensor& there, const at::Tensor& x) {
  return there.defined() ? at::where(there, x, at::zeros({}, x.options())) : x;
}

void keep(const Ran& ran, std::vector<at::Tensor>& kept) {
  const CellRun& run = ran.run;
  kept.insert(kept.end(), {ran.x_TBF, run.gates, run.states, run.kept, run.cells});
}
Ran as_kept(at::TensorList kept, const at::Tensor& there, bool reverse) {
  return {.x_TBF = kept[0],
          .run = {.gates = kept[1],
                  .states = kept[2],
                  .kept = kept[3],
                  .cells = kept[4],
                  .steps = there,
                  .reverse = reverse}};
}

}  // namespace

at::Tensor recurrent_forward(const RecurrentOptions& options, const at::Tensor& x,
                             const at::Tensor& steps, at::TensorList weights,
                             std::vector<at::Tensor>* kept) {
  at::Tensor there;
  if (steps.defined()) there = steps.t().unsqueeze(2).contiguous();  // [T, B, 1]
  if (kept != nullptr) kept->push_back(there);
  at::Tensor now = where_there(there, x.transpose(0, 1).contiguous());
  const size_t directions = options.bidirectional ? 2 : 1;
  std::vector<at::Tensor> lasts;
  for (size_t i = 0; i < weights.size() / kWeights; i += directions) {
    std::vector<at::Tensor> sides;
    lasts.clear();
    for (size_t direction = 0; direction < directions; ++direction) {
      const bool reverse = direction == 1;
      const Ran ran = forward_of(
          options.cell, now, weights.slice((i + direction) * kWeights, kWeights), there, reverse);
      if (kept != nullptr) keep(ran, *kept);
      sides.push_back(ran.run.states);
      lasts.push_back(sides.back().select(0, reverse ? 0 : x.size(1) - 1));
    }
    now = where_there(there, directions == 1 ? sides[0] : at::cat(sides, 2));
  }
  // Of one row or one step it would be the memory of the states, which backward reads.
  if (options.sequences) return now.transpose(0, 1).clone(at::MemoryFormat::Contiguous);
  return directions == 1 ? lasts[0].clone() : at::cat(lasts, 1);
}

RecurrentGradients recurrent_backward(const RecurrentOptions& options, at::TensorList weights,
                                      at::TensorList kept, const at::Tensor& gradient,
                                      const RecurrentNeeds& needs) {
  const size_t directions = options.bidirectional ? 2 : 1;
  const int64_t units = options.units;
  const at::Tensor& there = kept[0];
  RecurrentGradients of{.x = {}, .weights = std::vector<at::Tensor>(weights.size())};
  at::Tensor above;  // of the states of the layer at hand; at first those of `lasts` are given
  if (options.sequences) above = where_there(there, gradient.transpose(0, 1));
  for (size_t layer = weights.size() / kWeights / directions; layer-- > 0;) {
    at::Tensor of_now;
    for (size_t direction = 0; direction < directions; ++direction) {
      const size_t i = layer * directions + direction;
      const auto own = [&](const at::Tensor& both) {
        if (!both.defined()) return at::Tensor();
        return both.narrow(-1, static_cast<int64_t>(direction) * units, units).contiguous();
      };
      const StateGradients of_states{.all = own(above),
                                     .last = above.defined() ? at::Tensor() : own(gradient)};
      std::array<bool, kWeights> asked{};
      std::copy_n(needs.weights.begin() + static_cast<std::ptrdiff_t>(i * kWeights), kWeights,
                  asked.begin());
      const at::Tensor of_x = backward_of(
          options.cell, as_kept(kept.slice(1 + i * kKept, kKept), there, direction == 1),
          weights.slice(i * kWeights, kWeights), of_states, layer > 0 || needs.x, asked.data(),
          &of.weights[i * kWeights]);
      if (of_x.defined()) of_now = of_now.defined() ? of_now + of_x : of_x;
    }
    if (of_now.defined()) above = where_there(there, of_now);
  }
  if (needs.x) of.x = above.transpose(0, 1).contiguous();
  return of;
}

}  // namespace tutti::nn::detail
