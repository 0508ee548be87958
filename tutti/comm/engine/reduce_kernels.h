/// Elementwise reductions of n inputs in the order of a ReductionShape, one pass, in registers or
/// L1.
///
/// The same bits on every instruction set and wherever a slice is cut. 16-bit types are added in
/// float32 and rounded once (to nearest even); mean divides the sum by n, in float32 for 16-bit
/// types.
#pragma once

#include <span>

#include "tutti/comm/engine/engine.h"

namespace tutti {

/// out[i] = op over r of inputs[r][i], for i in [0, num_elements). `out` may be one of the inputs.
///
/// dtype   any that Group allows with `op` (else UsageError)
/// inputs  shape.replicas() pointers; a null input counts as zeros and is left out (sum, mean only)
void reduce_inputs(DType dtype, ReduceOp op, const ReductionShape& shape,
                   std::span<const void* const> inputs, void* out, int64_t num_elements);

/// The same, with the result written to every pointer of `outs` (which may be the inputs).
void reduce_inputs_to_all(DType dtype, ReduceOp op, const ReductionShape& shape,
                          std::span<const void* const> inputs, std::span<void* const> outs,
                          int64_t num_elements);

/// In what elements of `dtype` are added: float32 for the 16-bit floating types, else `dtype`.
DType accumulator_of(DType dtype) noexcept;

/// The operation between partial results: sum for mean, else `op`. With it, reduce_inputs() of
/// accumulator_of(dtype) combines partial results further.
ReduceOp partial_op(ReduceOp op) noexcept;

/// As reduce_inputs(), for a part of the tree: `out` is of accumulator_of(dtype), neither rounded
/// nor divided.
void reduce_partial(DType dtype, ReduceOp op, const ReductionShape& shape,
                    std::span<const void* const> inputs, void* out, int64_t num_elements);

/// From the root of the tree to the result: divides by `replicas` (mean) and rounds to `dtype`.
/// `partial` is of accumulator_of(dtype). `out` may be `partial` where the types are the same.
void finish_partial(DType dtype, ReduceOp op, const void* partial, void* out, int64_t num_elements,
                    int replicas);

}  // namespace tutti
