/// The rules of gradients.cpp, an instruction's each. Not for users.
#pragma once

#include "tutti/hlo/instruction.h"
#include "tutti/hlo/program.h"

namespace tutti::hlo {

/// An instruction on the way back from the loss. Rules ask for what goes into one operand; those of
/// integers and booleans get nothing, and are never asked for.
struct BackwardStep {
  const Instruction& i;
  Value result;    ///< what the instruction made
  Value incoming;  ///< d loss / d result

  Program& program() const { return result.program(); }
  Value operand(size_t which) const { return program().value(i.operands[which]); }
};

/// d loss / d operand.
Value gradient_of_elementwise(const BackwardStep& step, size_t which);
Value gradient_of_shape(const BackwardStep& step);  ///< of instructions of one floating operand
Value gradient_of_concatenate(const BackwardStep& step, size_t which);
Value gradient_of_reduce_max(const BackwardStep& step);
Value gradient_of_dot(const BackwardStep& step, size_t which);
Value gradient_of_convolution(const BackwardStep& step, size_t which);
Value gradient_of_window_max(const BackwardStep& step);
Value gradient_of_window_sum(const BackwardStep& step);
Value gradient_of_take_rows(const BackwardStep& step);

}  // namespace tutti::hlo
