/// The reduction kernels' table: one per instruction set, filled by reduce.cpp.
///
/// Plain structs and function pointers only: the kernel source is compiled with several instruction
/// sets, and no inline code of a header may come out of it.
/// Thread rule: the tables are constant; any thread may use them.
#pragma once

#include <cstdint>

namespace tutti::detail {

/// Rows of the table: the dtypes that can be reduced.
enum ReduceRow : int { kFloat32, kFloat64, kBFloat16, kFloat16, kInt32, kInt64, kReduceRows };
/// Columns: as ReduceOp. mean is empty for integers.
enum ReduceColumn : int { kSum, kMean, kMin, kMax, kReduceColumns };

/// The kernels of one dtype and operation. An accumulator is float for the 16-bit types, else the
/// type itself. n elements; an out may be one of the inputs, other overlaps are not allowed.
struct ReduceKernels {
  /// out = the reduction of 2, 3 or 4 inputs in tree order, in registers; index: count - 2.
  void (*to_one[3])(const void* const* inputs, void* const* outs, int64_t n);
  /// The same, written to as many outs as there are inputs.
  void (*to_all[3])(const void* const* inputs, void* const* outs, int64_t n);
  void (*load)(void* accumulator, const void* input, int64_t n);
  void (*add_input)(void* accumulator, const void* input, int64_t n);
  void (*add)(void* accumulator, const void* other_accumulator, int64_t n);
  /// Rounds once; mean divides by `replicas` first.
  void (*store)(void* out, const void* accumulator, int64_t n, int64_t replicas);
};

struct ReduceTable {
  ReduceKernels kernels[kReduceRows][kReduceColumns];
};

}  // namespace tutti::detail

namespace tutti::comm::baseline {
extern const detail::ReduceTable reduce_table;
}
namespace tutti::comm::avx2 {
extern const detail::ReduceTable reduce_table;
}
namespace tutti::comm::avx512 {
extern const detail::ReduceTable reduce_table;
}
