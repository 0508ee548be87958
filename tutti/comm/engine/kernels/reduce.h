/// The reduction kernels' table: one per instruction set, filled by reduce.cpp.
///
/// Plain structs and function pointers only: the kernel source is compiled with several instruction
/// sets, and no inline code of a header may come out of it.
/// Thread rule: the tables are constant; any thread may use them.
#pragma once

#include <cstdint>

namespace tutti::detail {

/// Rows of the table, as DType.
// clang-format off
enum ReduceRow : int {
  kBool, kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kUint64, kInt64,
  kFloat16, kBFloat16, kFloat32, kFloat64, kReduceRows
};
/// Columns, as ReduceOp.
enum ReduceColumn : int {
  kSum, kMean, kMin, kMax, kProduct, kBitAnd, kBitOr, kBitXor,
  kLogicalAnd, kLogicalOr, kLogicalXor, kReduceColumns
};
// clang-format on

/// The kernels of one dtype and operation. An accumulator is float for the 16-bit types, else the
/// type itself. n elements; an out may be one of the inputs, other overlaps are not allowed. All
/// null where the operation is not defined for the dtype.
struct ReduceKernels {
  /// out = the reduction of 2, 3 or 4 inputs in tree order, in registers; index: count - 2. Null
  /// for seldom types and operations, which take the way of the functions below.
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
