/// The steps of one direction of an LSTM or a GRU, and their gradients. Not for users.
///
/// B batch, T time, H units. Tensors are contiguous, time first; autograd sees none of this. Of
/// float32 on the CPU a step is a product with panels and one kernel for all of its gates; of
/// others it is LibTorch's operators one after the other. Thread rule: pure functions.
#pragma once

#include <torch/types.h>

#include "tutti/base/cpu_variant.h"
#include "tutti/nn/kernels/cells.h"

namespace tutti::nn::detail {

/// The table of an instruction set that runnable_variants() names.
const CellKernels& cell_kernels(CpuVariant variant) noexcept;
/// That of best_variant().
const CellKernels& cell_kernels();

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

/// With respect to states. Undefined: nothing comes from there.
struct StateGradients {
  at::Tensor all;   ///< [T, B, H]
  at::Tensor last;  ///< [B, H], of the last step that is made
};
/// With respect to what gates were before their functions: the part that comes from the input, and
/// the part that comes from the state; of an LSTM they are one.
struct CellGradients {
  at::Tensor input, hidden;
};
CellGradients lstm_backward(const CellRun& run, const at::Tensor& hidden, const StateGradients& of);
CellGradients gru_backward(const CellRun& run, const at::Tensor& hidden, const StateGradients& of);

/// Where the states of step i lie.
struct CellWalk {
  explicit CellWalk(const CellRun& run) : length(run.gates.size(0)), reverse(run.reverse) {}
  int64_t place(int64_t i) const { return reverse ? length - 1 - i : i; }
  int64_t length;
  bool reverse;
};

/// The same by the kernels: for float32 on the CPU.
namespace fused {
void lstm_forward(CellRun& run, const at::Tensor& hidden);
void gru_forward(CellRun& run, const at::Tensor& hidden, const at::Tensor& hidden_bias);
CellGradients lstm_backward(const CellRun& run, const at::Tensor& hidden, const StateGradients& of);
CellGradients gru_backward(const CellRun& run, const at::Tensor& hidden, const StateGradients& of);
}  // namespace fused

}  // namespace tutti::nn::detail
