/// The steps of one direction of an LSTM or a GRU, and their gradients. Not for users.
///
/// B batch, T time, H units. Tensors are contiguous, time first; autograd sees none of this.
/// Thread rule: pure functions.
#pragma once

#include <torch/types.h>

namespace tutti::nn::detail {

/// What a forward pass is given and keeps.
struct CellRun {
  at::Tensor gates;   ///< [T, B, 4 H] or [T, B, 3 H]: x W' + b; becomes the gates, in torch's order
  at::Tensor states;  ///< [T, B, H], after each step
  at::Tensor kept;    ///< LSTM: tanh of the cell; GRU: what its new gate reads of the state
  at::Tensor cells;   ///< [T, B, H], of an LSTM after each step
  at::Tensor steps;   ///< boolean [T, B, 1], or undefined
  bool reverse = false;
};
/// hidden [4 H, H].
void lstm_forward(CellRun& run, const at::Tensor& hidden);
/// hidden [3 H, H], hidden_bias [3 H].
void gru_forward(CellRun& run, const at::Tensor& hidden, const at::Tensor& hidden_bias);

/// With respect to what gates were before their functions: the part that comes from the input, and
/// the part that comes from the state; of an LSTM they are one.
struct CellGradients {
  at::Tensor input, hidden;
};
/// of_states [T, B, H].
CellGradients lstm_backward(const CellRun& run, const at::Tensor& hidden,
                            const at::Tensor& of_states);
CellGradients gru_backward(const CellRun& run, const at::Tensor& hidden,
                           const at::Tensor& of_states);

}  // namespace tutti::nn::detail
