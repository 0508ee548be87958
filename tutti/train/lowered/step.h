/// A whole training step as StableHLO: forward pass, loss, backward pass, sums over replicas and
/// update, for a compiler that makes one program of it. docs/design/pjrt.md.
/// Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "tutti/hlo/program.h"
#include "tutti/nn/graph.h"
#include "tutti/optim/rule.h"
#include "tutti/train/losses/losses.h"

namespace tutti {

/// What a place of main()'s arguments or results is for.
enum class Slot {
  parameter,     ///< trained; also its place among the results
  fixed,         ///< a parameter that is frozen
  state,         ///< of the optimizer
  left_out,      ///< float32: steps since one whose loss was not finite; 0: none was
  buffer,        ///< of the model, such as running statistics
  input,         ///< of the model: [batch, shape...]
  target,        ///< [batch, ...]
  row_weights,   ///< float32 [batch]: 1; 0 where a row fills the batch up
  loss_weights,  ///< float32 [batch]: what a row's loss is multiplied by
  scale,         ///< float32: 1 / the samples of the global batch
  scalars,       ///< nn::lowered_scalars() of the step
  dropout_keys,  ///< as nn::LoweringInputs has them
  first_row,
  loss,    ///< a result: the sum of losses times their weights, of all replicas
  output,  ///< a result: of this replica's rows
};

struct SlotOf {
  Slot slot = Slot::input;
  std::string name;  ///< "conv1.weight", of states "conv1.weight.exp_avg"
  hlo::Type type;
};

/// A program, and what main() takes and gives, in order. Of several steps the types are those of
/// one; what is not kept on the devices is then [steps, ...] (hlo::Program::text).
struct LoweredProgram {
  std::string text;
  std::vector<SlotOf> arguments, results;
};

struct LoweredStepOptions {
  int64_t batch = 1;               ///< rows of a replica, >= 1
  int replicas = 1;                ///< >= 1
  DType product = DType::float32;  ///< or bfloat16, as nn::LoweringInputs has it
  hlo::Type target;                ///< of the loss, with the batch
  bool outputs = false;            ///< outputs are results too, for metrics
  /// Once a loss is not finite, that step and those after it leave everything as it is.
  bool leaves_out_bad = false;
  int64_t steps = 1;  ///< >= 1, one after the other in one run of the program
};

/// Whether what a slot has stays on the devices from step to step.
bool is_kept(Slot slot) noexcept;

/// One update of every parameter. Memory of parameters, states and buffers becomes that of what
/// they are after it.
///
/// UsageError before anything runs for a graph of several outputs, a loss that is not written as
/// StableHLO, or a rule that is not.
LoweredProgram lower_step(const nn::Graph& graph, const Loss& loss, const optim::Rule& rule,
                          const LoweredStepOptions& options);

/// What the model gives in evaluation, of each replica's rows.
LoweredProgram lower_prediction(const nn::Graph& graph, int64_t batch,
                                DType product = DType::float32, int replicas = 1);

/// What targets of this loss are for the outputs of a graph, with the batch: int64 labels, or
/// float32 of the outputs' shape.
hlo::Type target_type(const nn::Graph& graph, const Loss& loss, int64_t batch);

}  // namespace tutti
