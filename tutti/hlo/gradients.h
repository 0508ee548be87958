/// Gradients of a program's values: reverse-mode differentiation by a rule for each instruction.
///
/// Griewank and Walther 2008, doi:10.1137/1.9780898717761. Where a value has no derivative (a
/// corner of maximum, abs) the rules are LibTorch's: the gradient of maximum(a, b) goes in halves
/// where they are equal, that of a relu (maximum with a number) is 0 there, that of abs 0 at 0,
/// that of reduce_max goes in equal parts to all of the largest, that of a window's to the first of
/// them.
#pragma once

#include <span>
#include <vector>

#include "tutti/hlo/program.h"

namespace tutti::hlo {

/// d loss / d each of `values`, with their types: added to the program after its instructions.
///
/// loss    a scalar of float32
/// values  of floating types, of the same program; one on which the loss does not depend gets zeros
///
/// UsageError for another loss, and for an instruction without a rule on the way (a gradient of a
/// gradient of window_max), which it names.
std::vector<Value> gradients(Value loss, std::span<const Value> values);

}  // namespace tutti::hlo
