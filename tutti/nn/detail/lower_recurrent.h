/// Pieces of which LSTM and GRU are lowered. Not for users. Thread rule: that of the program.
#pragma once

#include <vector>

#include "tutti/nn/detail/node_lowering.h"

namespace tutti::nn::detail {

/// What a recurrent layer is given, step by step.
struct RecurrentSteps {
  std::vector<hlo::Value> inputs;  ///< [batch, features], zeros where a step is not there
  std::vector<hlo::Value> there;   ///< boolean [batch]; none: all are
};
/// Of the node's inputs: a sequence and, maybe, which steps there are.
RecurrentSteps steps_of(const NodeLowering& to);

/// Zeros where a step is not there; or `before`.
hlo::Value where_there(hlo::Value there, hlo::Value value);
hlo::Value where_there(hlo::Value there, hlo::Value value, hlo::Value before);

struct RecurrentWeights {
  hlo::Value input, hidden, input_bias, hidden_bias;
};
/// The states after each of `inputs`, in their order, of one layer in one direction.
std::vector<hlo::Value> recurrent_states(const NodeLowering& to, bool lstm,
                                         const std::vector<hlo::Value>& inputs,
                                         const std::vector<hlo::Value>& there,
                                         const RecurrentWeights& weights, bool reverse);

}  // namespace tutti::nn::detail
