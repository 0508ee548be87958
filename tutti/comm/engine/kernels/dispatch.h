/// From a dtype and an operation to a kernel: what reduce_kernels.cpp uses, and what tests use to
/// run the variant they name.
/// Thread rule: any thread.
#pragma once

#include <span>

#include "tutti/base/cpu_variant.h"
#include "tutti/comm/engine/engine.h"
#include "tutti/comm/engine/kernels/reduce.h"

namespace tutti::detail {

/// The table of a variant that this CPU can run.
const ReduceTable& reduce_table_of(CpuVariant variant) noexcept;

/// Throws UsageError unless `op` is defined for `dtype`.
void require_reducible(DType dtype, ReduceOp op);

/// reduce_inputs_to_all() with a given table.
void reduce_with(const ReduceTable& table, DType dtype, ReduceOp op, const ReductionShape& shape,
                 std::span<const void* const> inputs, std::span<void* const> outs,
                 int64_t num_elements);

/// reduce_partial() with a given table.
void reduce_partial_with(const ReduceTable& table, DType dtype, ReduceOp op,
                         const ReductionShape& shape, std::span<const void* const> inputs,
                         void* out, int64_t num_elements);

/// finish_partial() with a given table.
void finish_with(const ReduceTable& table, DType dtype, ReduceOp op, const void* partial, void* out,
                 int64_t num_elements, int replicas);

}  // namespace tutti::detail
