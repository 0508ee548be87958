#include "tutti/comm/mpi/plan.h"

#include <algorithm>

#include "tutti/comm/engine/detail/call.h"
#include "tutti/comm/engine/detail/spans.h"

namespace tutti::detail::mpi {
namespace {

int64_t rounded_up(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Nothing, where it has no such elements.
MemorySpan cut(const MemorySpan& span, int64_t begin, int64_t end) {
  if (span.data == nullptr || begin >= end) return {nullptr, 0, span.dtype};
  return part_of(span, begin, end - begin);
}

// Elements [first, second) of slice `rank` of `count`, on a line of a buffer that begins on one.
std::pair<int64_t, int64_t> slice(int64_t count, DType dtype, int rank, int size) {
  const int64_t unit = kLine / size_of(dtype);
  const int64_t units = (count + unit - 1) / unit;
  return {std::min(count, units * rank / size * unit),
          std::min(count, units * (rank + 1) / size * unit)};
}

void add(std::vector<MpiTransfer>& transfers, int peer, const MemorySpan& span) {
  if (span.num_elements > 0) transfers.push_back({peer, span.data, span.num_bytes()});
}

}  // namespace

MemorySpan MpiPlan::outgoing(const Operation& operation, int peer) const {
  const bool is_root = operation.root == rank_;
  switch (operation.collective) {
    case Collective::all_reduce: return operation.output;
    case Collective::reduce: return operation.root == peer ? operation.output : MemorySpan{};
    case Collective::broadcast: return is_root ? operation.output : MemorySpan{};
    case Collective::reduce_scatter:
    case Collective::all_to_all:
      return part_of(operation.input, operation.input_counts, peer, size_);
    case Collective::scatter:
      return is_root ? part_of(operation.input, operation.input_counts, peer, size_) : MemorySpan{};
    case Collective::all_gather: return operation.input;
    case Collective::gather: return operation.root == peer ? operation.input : MemorySpan{};
    default: return {};
  }
}

MemorySpan MpiPlan::incoming(const Operation& operation, int peer) const {
  const bool is_root = operation.root == rank_;
  switch (operation.collective) {
    case Collective::all_reduce: return operation.output;
    case Collective::reduce: return is_root ? operation.output : MemorySpan{};
    case Collective::broadcast: return operation.root == peer ? operation.output : MemorySpan{};
    // As long as the result, which may be of the accumulator's type.
    case Collective::reduce_scatter:
      return part_of(operation.input, operation.input_counts, rank_, size_);
    case Collective::all_to_all:
    case Collective::all_gather:
      return part_of(operation.output, operation.output_counts, peer, size_);
    case Collective::scatter: return operation.root == peer ? operation.output : MemorySpan{};
    case Collective::gather:
      return is_root ? part_of(operation.output, operation.output_counts, peer, size_)
                     : MemorySpan{};
    default: return {};
  }
}

// Of one part in reduce_scatter, of the whole otherwise; a multiple of a line.
int64_t MpiPlan::chunk_elements(const Operation& operation) const {
  const bool parts = operation.collective == Collective::reduce_scatter;
  const MemorySpan& data = parts ? operation.input : operation.output;
  const int64_t bytes = parts ? chunk_bytes_ / size_ : chunk_bytes_;
  return std::max<int64_t>(1, bytes / kLine) * kLine / size_of(data.dtype);
}

int MpiPlan::num_steps(const Operation& operation) const {
  if (size_ == 1) return 0;
  const int64_t chunk = reduces(operation.collective) ? chunk_elements(operation) : 1;
  switch (operation.collective) {
    case Collective::barrier: return 0;
    case Collective::all_reduce:
    case Collective::reduce:
      if (is_inline(operation.output)) return 0;
      return static_cast<int>(2 * ((operation.output.num_elements + chunk - 1) / chunk));
    case Collective::broadcast: return is_inline(operation.output) ? 0 : 2;
    case Collective::reduce_scatter: {
      int64_t longest = 0;
      for (int r = 0; r < size_; ++r) {
        const MemorySpan part_r = part_of(operation.input, operation.input_counts, r, size_);
        if (!is_inline(part_r)) longest = std::max(longest, part_r.num_elements);
      }
      return static_cast<int>((longest + chunk - 1) / chunk);
    }
    default: return 1;
  }
}

int64_t MpiPlan::scratch_bytes(const Operation& operation) const {
  if (!reduces(operation.collective)) return 0;
  const bool parts = operation.collective == Collective::reduce_scatter;
  const MemorySpan whole =
      parts ? part_of(operation.input, operation.input_counts, rank_, size_) : operation.output;
  const int64_t chunk =
      std::min(whole.num_elements, chunk_elements(operation)) * size_of(whole.dtype);
  // A slice is at most two lines longer than an even share.
  const int64_t piece = parts ? chunk : chunk / size_ + 2 * kLine;
  return rounded_up(piece) * size_;
}

MpiStep MpiPlan::step(const Operation& operation, int index, std::byte* scratch) const {
  MpiStep step;
  switch (operation.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
      if (index % 2 == 0)
        add_slices(operation, index / 2, scratch, step);
      else
        spread_slices(operation, index / 2, scratch, step);
      break;
    case Collective::broadcast: broadcast_step(operation, index, step); break;
    case Collective::reduce_scatter: scatter_parts(operation, index, scratch, step); break;
    default: direct_step(operation, step); break;
  }
  return step;
}

// Every rank's slice r to rank r, where they are added: into the data itself, or into scratch where
// the data must stay as it was.
void MpiPlan::add_slices(const Operation& operation, int index, std::byte* scratch,
                         MpiStep& step) const {
  const int64_t chunk = chunk_elements(operation);
  const MemorySpan& data = operation.output;
  const MemorySpan here =
      cut(data, index * chunk, std::min(data.num_elements, (index + 1) * chunk));
  const auto [begin, end] = slice(here.num_elements, data.dtype, rank_, size_);
  const MemorySpan mine = cut(here, begin, end);
  const int64_t stride = rounded_up(mine.num_bytes());
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) {
      step.inputs.push_back(mine.data);
      continue;
    }
    const auto [theirs_begin, theirs_end] = slice(here.num_elements, data.dtype, r, size_);
    add(step.sends, r, cut(here, theirs_begin, theirs_end));
    add(step.receives, r, {scratch + r * stride, mine.num_elements, mine.dtype});
    step.inputs.push_back(scratch + r * stride);
  }
  const bool in_place = operation.collective == Collective::all_reduce || operation.root == rank_;
  step.output = in_place ? mine.data : scratch + rank_ * stride;
  step.num_elements = mine.num_elements;
}

void MpiPlan::spread_slices(const Operation& operation, int index, std::byte* scratch,
                            MpiStep& step) const {
  const int64_t chunk = chunk_elements(operation);
  const MemorySpan& data = operation.output;
  const MemorySpan here =
      cut(data, index * chunk, std::min(data.num_elements, (index + 1) * chunk));
  const auto slice_of = [&](int r) {
    const auto [begin, end] = slice(here.num_elements, data.dtype, r, size_);
    return cut(here, begin, end);
  };
  const bool to_all = operation.collective == Collective::all_reduce;
  MemorySpan mine = slice_of(rank_);
  if (!to_all && operation.root != rank_)
    mine.data = scratch + rank_ * rounded_up(mine.num_bytes());
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    if (to_all || operation.root == r) add(step.sends, r, mine);
    if (to_all || operation.root == rank_) add(step.receives, r, slice_of(r));
  }
}

void MpiPlan::broadcast_step(const Operation& operation, int index, MpiStep& step) const {
  const MemorySpan& data = operation.output;
  const bool is_root = operation.root == rank_;
  const auto slice_of = [&](int r) {
    const auto [begin, end] = slice(data.num_elements, data.dtype, r, size_);
    return cut(data, begin, end);
  };
  if (index == 0) {
    if (!is_root) return add(step.receives, operation.root, slice_of(rank_));
    for (int r = 0; r < size_; ++r)
      if (r != rank_) add(step.sends, r, slice_of(r));
    return;
  }
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    if (r != operation.root) add(step.sends, r, slice_of(rank_));
    if (!is_root) add(step.receives, r, slice_of(r));
  }
}

void MpiPlan::scatter_parts(const Operation& operation, int index, std::byte* scratch,
                            MpiStep& step) const {
  const int64_t chunk = chunk_elements(operation);
  const auto chunk_of = [&](int r) {
    const MemorySpan whole = part_of(operation.input, operation.input_counts, r, size_);
    if (is_inline(whole)) return MemorySpan{};
    return cut(whole, index * chunk, std::min(whole.num_elements, (index + 1) * chunk));
  };
  const MemorySpan mine = chunk_of(rank_);
  const int64_t stride = rounded_up(mine.num_bytes());
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) {
      step.inputs.push_back(mine.data);
      continue;
    }
    add(step.sends, r, chunk_of(r));
    add(step.receives, r, {scratch + r * stride, mine.num_elements, mine.dtype});
    step.inputs.push_back(scratch + r * stride);
  }
  step.num_elements = mine.num_elements;
  if (mine.num_elements > 0) step.output = part_of(operation.output, index * chunk, 0).data;
}

void MpiPlan::direct_step(const Operation& operation, MpiStep& step) const {
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const MemorySpan out = outgoing(operation, r);
    const MemorySpan in = incoming(operation, r);
    if (!is_inline(out)) add(step.sends, r, out);
    if (!is_inline(in)) add(step.receives, r, in);
  }
}

}  // namespace tutti::detail::mpi
