#include "tutti/nn/detail/lower_recurrent.h"

#include <utility>

namespace tutti::nn::detail {
namespace {

/// [batch, width] of [batch, n width]: number i.
hlo::Value gate_of(hlo::Value gates, int64_t width, int64_t i) {
  return hlo::slice(gates, {0, i * width}, {gates.shape()[0], (i + 1) * width});
}

struct CellState {
  hlo::Value h, c;  // c: of an LSTM
};

CellState lstm_step(hlo::Value gates, const CellState& before) {
  const int64_t units = before.h.shape()[1];
  const hlo::Value c = hlo::sigmoid(gate_of(gates, units, 1)) * before.c +
                       hlo::sigmoid(gate_of(gates, units, 0)) * hlo::tanh(gate_of(gates, units, 2));
  return {hlo::sigmoid(gate_of(gates, units, 3)) * hlo::tanh(c), c};
}

CellState gru_step(hlo::Value of_input, hlo::Value of_state, const CellState& before) {
  const int64_t units = before.h.shape()[1];
  const auto gate = [&](int64_t i) {
    return hlo::sigmoid(gate_of(of_input, units, i) + gate_of(of_state, units, i));
  };
  const hlo::Value fresh =
      hlo::tanh(gate_of(of_input, units, 2) + gate(0) * gate_of(of_state, units, 2));
  return {fresh + gate(1) * (before.h - fresh), before.c};
}

}  // namespace

hlo::Value where_there(hlo::Value there, hlo::Value value, hlo::Value before) {
  return hlo::select(hlo::broadcast(there, value.shape(), {0}), value, before);
}

hlo::Value where_there(hlo::Value there, hlo::Value value) {
  return where_there(there, value, hlo::constant(value.program(), value.type(), 0));
}

RecurrentSteps steps_of(const NodeLowering& to) {
  const int64_t batch = to.size(0), length = to.size(1), features = to.size(2);
  RecurrentSteps steps;
  for (int64_t t = 0; t < length; ++t) {
    if (to.all.size() == 2) {
      const hlo::Value& given = to.all[1];
      const bool counts = given.shape()[1] == 1 && length != 1;
      const int64_t column = counts ? 0 : t;
      const hlo::Value own =
          hlo::reshape(hlo::slice(given, {0, column}, {batch, column + 1}), {batch});
      steps.there.push_back(counts ? hlo::compare(own, hlo::Comparison::gt, double(t))
                            : own.dtype() == DType::boolean
                                ? own
                                : hlo::compare(own, hlo::Comparison::ne, 0));
    }
    const hlo::Value x =
        hlo::reshape(hlo::slice(to.x(), {0, t, 0}, {batch, t + 1, features}), {batch, features});
    steps.inputs.push_back(steps.there.empty() ? x : where_there(steps.there.back(), x));
  }
  return steps;
}

std::vector<hlo::Value> recurrent_states(const NodeLowering& to, bool lstm,
                                         const std::vector<hlo::Value>& inputs,
                                         const std::vector<hlo::Value>& there,
                                         const RecurrentWeights& weights, bool reverse) {
  const hlo::Value begin =
      hlo::constant(to.x().program(), {DType::float32, {to.size(0), weights.hidden.shape()[1]}}, 0);
  CellState state{begin, begin};
  std::vector<hlo::Value> states(inputs.size(), begin);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t t = reverse ? inputs.size() - 1 - i : i;
    const hlo::Value of_input = to.dense(inputs[t], weights.input, weights.input_bias);
    const hlo::Value of_state = to.dense(state.h, weights.hidden, weights.hidden_bias);
    CellState next =
        lstm ? lstm_step(of_input + of_state, state) : gru_step(of_input, of_state, state);
    if (!there.empty()) {
      next.h = where_there(there[t], next.h, state.h);
      if (lstm) next.c = where_there(there[t], next.c, state.c);
    }
    state = next;
    states[t] = state.h;
  }
  return states;
}

}  // namespace tutti::nn::detail
