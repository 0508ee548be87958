/// Kernels of recurrent cells: what a step does with its gates, forward and backward, one table an
/// instruction set, filled by cells.cpp. All float32; all variants give the same bits.
///
/// Sigmoids and hyperbolic tangents are within 2.5 units in the last place, but that a sigmoid
/// below e^-87 is 0; of NaN they are NaN. Plain structs and function pointers only, as in layers.h.
#pragma once

#include <cstdint>

namespace tutti::nn::detail {

/// One step of `rows` sequences, in one direction. A matrix is contiguous, [rows, units] where not
/// said otherwise. `there` says which rows have the step, or is null: all. What was before the
/// first step is null: zeros.
struct LstmStep {
  int64_t rows, units;
  const bool* there;
  float* gates;  ///< [rows, 4 units]: sums of input, forget, cell and output gate; become the gates
  const float* cell_before;
  const float* state_before;  ///< read where a row has no step
  float* cell;
  float* tanh;  ///< of the cell
  float* state;
};
/// The same step's, backward. `of_state` and `of_cell` are gradients with respect to the state and
/// the cell after the step, by what comes later; they become those before it, but that the products
/// with the weights are missing in `of_state`: it becomes 0 where a row has the step.
struct LstmStepGradient {
  int64_t rows, units;
  const bool* there;
  const float* gates;
  const float* cell_before;
  const float* tanh;
  const float* of_output;  ///< added to of_state; null: nothing
  float* of_state;
  float* of_cell;
  float* of_gates;  ///< [rows, 4 units], of the sums; 0 where a row has no step
};

struct GruStep {
  int64_t rows, units;
  const bool* there;
  float* gates;           ///< [rows, 3 units]: sums over the input of reset, update and new gate
  const float* of_state;  ///< [rows, 3 units]: those over the state, with their biases
  const float* before;    ///< the state
  float* kept;            ///< what the new gate reads of the state
  float* state;
};
/// `of_state` as an LSTM's; where a row has the step it becomes the part that goes past the gates.
struct GruStepGradient {
  int64_t rows, units;
  const bool* there;
  const float* gates;
  const float* before;
  const float* kept;
  const float* of_output;  ///< as an LSTM's
  float* of_state;
  float* of_input;   ///< [rows, 3 units], of the sums over the input; 0 without the step
  float* of_hidden;  ///< [rows, 3 units], of those over the state
};

struct CellKernels {
  void (*lstm)(const LstmStep& step);
  void (*lstm_gradient)(const LstmStepGradient& step);
  void (*gru)(const GruStep& step);
  void (*gru_gradient)(const GruStepGradient& step);
};

}  // namespace tutti::nn::detail

namespace tutti::nn::baseline {
extern const detail::CellKernels cell_kernels;
}
namespace tutti::nn::avx2 {
extern const detail::CellKernels cell_kernels;
}
namespace tutti::nn::avx512 {
extern const detail::CellKernels cell_kernels;
}
