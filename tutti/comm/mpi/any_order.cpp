// all_reduce with order = any: MPI_Iallreduce adds, in whatever order it finds fastest.
#include <algorithm>

#include "tutti/comm/mpi/mpi_engine.h"

namespace tutti::detail::mpi {
namespace {

// MPI_DATATYPE_NULL for the types that MPI does not have.
MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::uint8: return MPI_UINT8_T;
    case DType::int8: return MPI_INT8_T;
    case DType::uint16: return MPI_UINT16_T;
    case DType::int16: return MPI_INT16_T;
    case DType::uint32: return MPI_UINT32_T;
    case DType::int32: return MPI_INT32_T;
    case DType::uint64: return MPI_UINT64_T;
    case DType::int64: return MPI_INT64_T;
    case DType::float32: return MPI_FLOAT;
    case DType::float64: return MPI_DOUBLE;
    default: return MPI_DATATYPE_NULL;
  }
}

// MPI_OP_NULL for what MPI does not promise: which NaN or zero the least of floats is.
MPI_Op op_of(ReduceOp op, bool floating) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean: return MPI_SUM;
    case ReduceOp::product: return MPI_PROD;
    case ReduceOp::min: return floating ? MPI_OP_NULL : MPI_MIN;
    case ReduceOp::max: return floating ? MPI_OP_NULL : MPI_MAX;
    case ReduceOp::bit_and: return MPI_BAND;
    case ReduceOp::bit_or: return MPI_BOR;
    case ReduceOp::bit_xor: return MPI_BXOR;
    case ReduceOp::logical_and: return MPI_LAND;
    case ReduceOp::logical_or: return MPI_LOR;
    case ReduceOp::logical_xor: return MPI_LXOR;
  }
  return MPI_OP_NULL;
}

template <class T>
void divide(void* data, int64_t count, int by) {
  auto* const values = static_cast<T*>(data);
  for (int64_t i = 0; i < count; ++i) values[i] /= static_cast<T>(by);
}

}  // namespace

bool MpiEngine::has_any_order(const Operation& operation) const {
  return options_.any_order && operation.collective == Collective::all_reduce &&
         type_of(operation.output.dtype) != MPI_DATATYPE_NULL &&
         op_of(operation.reduce, is_floating(operation.output.dtype)) != MPI_OP_NULL;
}

// Elements that one MPI_Iallreduce takes.
int64_t MpiEngine::any_order_elements(const Operation& operation) const {
  return std::max<int64_t>(1, options_.message_bytes / size_of(operation.output.dtype));
}

int MpiEngine::num_any_order_steps(const Operation& operation) const {
  if (MpiPlan::is_inline(operation.output)) return 0;
  const int64_t each = any_order_elements(operation);
  return static_cast<int>((operation.output.num_elements + each - 1) / each);
}

void MpiEngine::start_any_order(const Operation& operation) {
  const MemorySpan& data = operation.output;
  const int64_t each = any_order_elements(operation);
  const int64_t begin = step_index_ * each;
  step_ = {};
  step_.num_elements = std::min(each, data.num_elements - begin);
  step_.output = static_cast<char*>(data.data) + begin * size_of(data.dtype);
  moving_.all_reduce(comms_.collectives, step_.output, static_cast<int>(step_.num_elements),
                     type_of(data.dtype), op_of(operation.reduce, is_floating(data.dtype)));
}

void MpiEngine::finish_any_order(const Operation& operation) {
  if (operation.reduce != ReduceOp::mean) return;
  if (operation.output.dtype == DType::float32)
    divide<float>(step_.output, step_.num_elements, size_);
  else
    divide<double>(step_.output, step_.num_elements, size_);
}

}  // namespace tutti::detail::mpi
