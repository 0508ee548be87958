#include "tutti/comm/shm/call.h"

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

// Bits of a packed call.
constexpr int kReduceShift = 4, kDTypeShift = 8, kPartialShift = 12, kCountsShift = 13,
              kRootShift = 16;

}  // namespace

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

bool has_counts(const Operation& operation) noexcept {
  return !operation.input_counts.empty() || !operation.output_counts.empty();
}

uint64_t fingerprint(std::span<const int64_t> counts) noexcept {
  uint64_t mixed = 0xcbf2'9ce4'8422'2325;  // FNV-1a over words
  for (int64_t count : counts) mixed = (mixed ^ static_cast<uint64_t>(count)) * 0x100'0000'01b3;
  return mixed;
}

std::span<const int64_t> common_counts(const Operation& operation) noexcept {
  if (operation.collective == Collective::all_to_all) return {};
  return operation.input_counts.empty() ? operation.output_counts : operation.input_counts;
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

uint32_t pack_call(const Operation& operation) noexcept {
  const Collective collective = operation.collective;
  const auto bits = [](bool given, auto value, int shift) {
    return given ? static_cast<uint32_t>(value) << shift : 0;
  };
  return static_cast<uint32_t>(collective) |
         bits(reduces(collective), operation.reduce, kReduceShift) |
         bits(collective != Collective::barrier, dtype_of(operation), kDTypeShift) |
         bits(operation.partial, 1, kPartialShift) | bits(has_counts(operation), 1, kCountsShift) |
         bits(has_root(collective), operation.root, kRootShift);
}

std::string call_words(uint32_t call, int64_t num_elements) {
  const auto collective = static_cast<Collective>(call & 0xf);
  const auto reduce = static_cast<ReduceOp>(call >> kReduceShift & 0xf);
  const auto dtype = static_cast<DType>(call >> kDTypeShift & 0xf);
  const bool counts = (call >> kCountsShift & 1) != 0;
  std::string words(name_of(collective));
  if (collective == Collective::barrier) return words;
  if (reduces(collective)) words += fmt::format(" ({})", name_of(reduce));
  if (collective == Collective::all_to_all && counts)
    words += fmt::format(" of {} in parts of given lengths", name_of(dtype));
  else
    words += fmt::format(" of {} {}{}", num_elements, name_of(dtype),
                         counts ? " in parts of given lengths" : "");
  if ((call >> kPartialShift & 1) != 0) words += ", not rounded";
  if (has_root(collective)) {
    const bool to = collective == Collective::reduce || collective == Collective::gather;
    words += fmt::format(" {} rank {}", to ? "to" : "from", call >> kRootShift);
  }
  return words;
}

}  // namespace tutti::detail
