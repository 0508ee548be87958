#include "tutti/comm/shm/call.h"

namespace tutti::detail {
Parts parts_of(const Operation& operation, int size) {
  const MemorySpan& input = operation.input;
  const MemorySpan& output = operation.output;
  switch (operation.collective) {
    case Collective::reduce_scatter:
    case Collective::scatter: return {operation.input_counts, output.num_elements};
    case Collective::all_to_all: return {operation.input_counts, input.num_elements / size};
    case Collective::all_gather:
    case Collective::gather: return {operation.output_counts, input.num_elements};
    default: return {};
  }
}

Parts received_parts_of(const Operation& operation, int size) {
  return {operation.output_counts, operation.output.num_elements / size};
}

Announced announced_of(const Operation& operation, int rank, int size) {
  const MemorySpan& input = operation.input;
  const MemorySpan& output = operation.output;
  if (operation.collective == Collective::all_reduce || operation.collective == Collective::reduce)
    return {output.num_elements, output, output.num_bytes()};
  const int64_t element_bytes = size_of(dtype_of(operation));
  const Parts parts = parts_of(operation, size);
  const bool equal = parts.counts.empty();
  const int64_t whole = parts.begin(size - 1) + parts.count(size - 1);
  switch (operation.collective) {
    case Collective::broadcast:
      return {output.num_elements, operation.root == rank ? output : MemorySpan{},
              output.num_bytes()};
    case Collective::reduce_scatter:
    case Collective::scatter: return {equal ? parts.equal : whole, input, whole * element_bytes};
    case Collective::all_gather:
    case Collective::gather:
      return {equal ? parts.equal : whole, input, parts.largest() * element_bytes};
    case Collective::all_to_all:
      // Only its own counts are known to a rank.
      if (!equal) return {0, input, -1};
      return {input.num_elements, input, input.num_bytes()};
    default: return {};
  }
}

bool stages(const Operation& operation, int rank) noexcept {
  const bool from_root =
      operation.collective == Collective::broadcast || operation.collective == Collective::scatter;
  return !from_root || operation.root == rank;
}

bool drains(const Operation& operation, int rank) noexcept {
  const bool from_root =
      operation.collective == Collective::broadcast || operation.collective == Collective::scatter;
  const bool to_root =
      operation.collective == Collective::reduce || operation.collective == Collective::gather;
  if (from_root) return operation.root != rank;
  return !to_root || operation.root == rank;
}

}  // namespace tutti::detail
