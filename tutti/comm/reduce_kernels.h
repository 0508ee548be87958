/// Elementwise reductions of n inputs in the order of a ReductionShape, one pass, in registers or
/// L1.
///
/// The same bits on every instruction set and wherever a slice is cut. 16-bit types are added in
/// float32 and rounded once (to nearest even); mean divides the sum by n, in float32 for 16-bit
/// types.
#pragma once

#include <span>

#include "tutti/comm/engine.h"

namespace tutti {

/// out[i] = op over r of inputs[r][i], for i in [0, num_elements). `out` may be one of the inputs.
///
/// dtype   float32, float64, bfloat16, float16, int32, int64 (else UsageError); mean not of
/// integers inputs  shape.replicas() pointers; a null input counts as zeros and is left out (sum,
/// mean only)
void reduce_inputs(DType dtype, ReduceOp op, const ReductionShape& shape,
                   std::span<const void* const> inputs, void* out, int64_t num_elements);

/// The same, with the result written to every pointer of `outs` (which may be the inputs).
void reduce_inputs_to_all(DType dtype, ReduceOp op, const ReductionShape& shape,
                          std::span<const void* const> inputs, std::span<void* const> outs,
                          int64_t num_elements);

}  // namespace tutti
