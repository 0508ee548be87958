// How the shm engine moves data. n ranks, S bytes each.
//
// small   every rank copies its data beside its announcement; every rank reads what it needs. One
//         wait, no barrier at the end: two slots are used in turn.
// direct  buffers are seen by all who need them. In reductions every rank reads its slice of all n,
//         adds in registers, writes to all n: 2nS bytes moved, the least possible. A second wait,
//         for all to have finished.
// staged  buffers that peers cannot see pass through slots, chunk by chunk: staged.cpp.
#include <algorithm>

#include "tutti/base/detail/check.h"
#include "tutti/comm/engine/detail/spans.h"
#include "tutti/comm/engine/reduce_kernels.h"
#include "tutti/comm/shm/shm_engine.h"

namespace tutti::detail {
namespace {

// The place of a span of nothing, which all can see.
constexpr uint64_t kEmptyPlace = 1;

// Byte at which slice `rank` of `size` begins: on a line, on a page when slices are large.
int64_t slice_begin(int64_t bytes, int rank, int size) {
  const int64_t unit = bytes / size >= 16 * kPageBytes ? kPageBytes : 64;
  const int64_t units = (bytes + unit - 1) / unit;
  return std::min(bytes, units * rank / size * unit);
}

}  // namespace

uint64_t ShmEngine::place_of(const MemorySpan& span) const noexcept {
  if (span.num_elements == 0) return kEmptyPlace;
  if (all_threads_) return reinterpret_cast<uint64_t>(span.data);
  for (const Mapping& extent : extents_)
    if (extent.contains(span.data, span.num_bytes()))
      return static_cast<uint64_t>(extent.offset_of(span.data));
  return 0;
}

std::byte* ShmEngine::address_of(uint64_t place) const {
  if (place == kEmptyPlace) return nullptr;
  // The pointer itself, as place_of() sent it through a word of the segment.
  if (all_threads_)
    return reinterpret_cast<std::byte*>(place);  // NOLINT(performance-no-int-to-ptr)
  const auto offset = static_cast<int64_t>(place);
  for (const Mapping& extent : extents_)
    if (offset >= extent.offset() && offset < extent.offset() + extent.num_bytes())
      return extent.at(offset);
  check_failed(__FILE__, __LINE__, "offset lies in an extent", fmt::format("offset {}", offset));
}

// All ranks see the same announcements, so all choose the same path.
ShmEngine::Path ShmEngine::choose_path(const Entry& entry, uint64_t number) const {
  const Operation& operation = *entry.operation;
  const auto input = [&](int r) { return line_of(r, number).places.input != 0; };
  const auto output = [&](int r) { return line_of(r, number).places.output != 0; };
  const auto path = [](bool seen) { return seen ? Path::direct : Path::staged; };
  const auto of_all = [&](const auto& seen) {
    for (int r = 0; r < size_; ++r)
      if (!seen(r)) return Path::staged;
    return Path::direct;
  };
  switch (operation.collective) {
    case Collective::all_reduce:
    case Collective::reduce: return of_all(output);
    case Collective::broadcast:
    case Collective::gather: return path(output(operation.root));
    case Collective::scatter: return path(input(operation.root));
    default: return of_all(input);
  }
}

// Whether this rank's memory alone decides for Path::staged, and it has a first chunk to give: that
// can go with the announcement.
bool ShmEngine::forces_staging(const Entry& entry, const CallLine& line) const {
  const Operation& operation = *entry.operation;
  switch (operation.collective) {
    case Collective::all_reduce:
    case Collective::reduce: return line.places.output == 0;
    case Collective::reduce_scatter:
    case Collective::all_gather: return line.places.input == 0;
    // Counts of a pair are compared by its receiver alone, and who finds them wrong gives nothing.
    case Collective::all_to_all: return line.places.input == 0 && !has_counts(operation);
    case Collective::broadcast: return operation.root == rank_ && line.places.output == 0;
    case Collective::scatter: return operation.root == rank_ && line.places.input == 0;
    default: return false;
  }
}

// What rank `sender` gives to each rank in an all_to_all.
Parts ShmEngine::sent_by(int sender, const Operation& operation, uint64_t number) const {
  Parts parts = parts_of(operation, size_);
  if (sender == rank_ || parts.counts.empty()) return parts;
  const std::byte* const slot = state_.small_slot(sender, number % kSlots);
  parts.counts = {reinterpret_cast<const int64_t*>(slot), static_cast<size_t>(size_)};
  return parts;
}

// Reduces inputs_ to `out`.
void ShmEngine::combine(const Operation& operation, void* out, int64_t num_elements) {
  if (operation.partial)
    reduce_partial(dtype_of(operation), operation.reduce, shape_, inputs_, out, num_elements);
  else
    reduce_inputs(dtype_of(operation), operation.reduce, shape_, inputs_, out, num_elements);
}

void ShmEngine::transfer_small(const Entry& entry, uint64_t number) {
  const Operation& operation = *entry.operation;
  if (entry.announced.largest_bytes == 0) return;
  const int64_t element_bytes = size_of(dtype_of(operation));
  const MemorySpan& own = entry.announced.visible;
  const auto data_of = [&](int r) -> const std::byte* {
    if (r == rank_) return bytes_of(own);
    return entry.in_line ? line_of(r, number).payload : state_.small_slot(r, number % kSlots);
  };
  std::byte* const output = bytes_of(operation.output);
  if (operation.collective == Collective::all_reduce ||
      operation.collective == Collective::reduce) {
    if (!drains(operation, rank_)) return;
    for (int r = 0; r < size_; ++r) inputs_[r] = data_of(r);
    return combine(operation, output, operation.output.num_elements);
  }
  const Parts parts = parts_of(operation, size_);
  switch (operation.collective) {
    case Collective::reduce_scatter:
      for (int r = 0; r < size_; ++r) inputs_[r] = data_of(r) + parts.begin(rank_) * element_bytes;
      combine(operation, output, operation.output.num_elements);
      break;
    case Collective::all_gather:
    case Collective::gather:
      if (!drains(operation, rank_)) break;
      for (int r = 0; r < size_; ++r)
        copy_bytes(output + parts.begin(r) * element_bytes, data_of(r),
                   parts.count(r) * element_bytes);
      break;
    case Collective::broadcast:
      copy_bytes(output, data_of(operation.root), operation.output.num_bytes());
      break;
    case Collective::scatter:
      copy_bytes(output, data_of(operation.root) + parts.begin(rank_) * element_bytes,
                 operation.output.num_bytes());
      break;
    case Collective::all_to_all:
      for (int r = 0; r < size_; ++r)
        copy_bytes(output + r * parts.equal * element_bytes,
                   data_of(r) + rank_ * parts.equal * element_bytes, parts.equal * element_bytes);
      break;
    default: break;
  }
}

ShmEngine::MemoryOfOthers::MemoryOfOthers(ShmEngine& engine, uint64_t number)
    : engine_(engine), number_(number) {
  // A peer that fails gives its buffers up only after it has seen this flag down.
  engine_.blocks_[engine_.rank_]->member.busy.store(1, std::memory_order_seq_cst);
  if (engine_.poison_.state.load(std::memory_order_seq_cst) == Poison::kNone) return;
  lower();
  engine_.throw_poison(number_);
}

void ShmEngine::MemoryOfOthers::lower() noexcept {
  inside_ = false;
  engine_.blocks_[engine_.rank_]->member.busy.store(0, std::memory_order_seq_cst);
}

void ShmEngine::MemoryOfOthers::leave() {
  lower();
  // Who failed meanwhile has waited for the flag, but not for ever: what was read may be anything.
  if (engine_.poison_.state.load(std::memory_order_seq_cst) != Poison::kNone)
    engine_.throw_poison(number_);
}

void ShmEngine::transfer_direct(const Entry& entry, uint64_t number) {
  MemoryOfOthers memory(*this, number);
  switch (entry.operation->collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::reduce_scatter: reduce_direct(*entry.operation, number); break;
    default: copy_direct(*entry.operation, number); break;
  }
  memory.leave();
}

void ShmEngine::reduce_direct(const Operation& operation, uint64_t number) {
  const int64_t element_bytes = size_of(dtype_of(operation));
  const MemorySpan& output = operation.output;
  if (operation.collective == Collective::reduce_scatter) {
    const int64_t before = parts_of(operation, size_).begin(rank_) * element_bytes;
    for (int r = 0; r < size_; ++r)
      inputs_[r] = address_of(line_of(r, number).places.input) + before;
    return combine(operation, output.data, output.num_elements);
  }
  const int64_t begin = slice_begin(output.num_bytes(), rank_, size_);
  const int64_t elements =
      (slice_begin(output.num_bytes(), rank_ + 1, size_) - begin) / element_bytes;
  for (int r = 0; r < size_; ++r)
    inputs_[r] = outputs_[r] = address_of(line_of(r, number).places.output) + begin;
  if (operation.collective == Collective::reduce)
    return combine(operation, outputs_[operation.root], elements);
  const ReduceOp op = operation.partial ? partial_op(operation.reduce) : operation.reduce;
  reduce_inputs_to_all(output.dtype, op, shape_, inputs_, outputs_, elements);
}

void ShmEngine::copy_direct(const Operation& operation, uint64_t number) {
  const int64_t element_bytes = size_of(dtype_of(operation));
  const auto input_of = [&](int r) { return address_of(line_of(r, number).places.input); };
  const auto output_of = [&](int r) { return address_of(line_of(r, number).places.output); };
  std::byte* const output = bytes_of(operation.output);
  const Parts parts = parts_of(operation, size_);
  switch (operation.collective) {
    case Collective::broadcast:
      copy_bytes(output, output_of(operation.root), operation.output.num_bytes());
      break;
    case Collective::scatter:
      copy_bytes(output, input_of(operation.root) + parts.begin(rank_) * element_bytes,
                 operation.output.num_bytes());
      break;
    case Collective::gather:
      copy_bytes(output_of(operation.root) + parts.begin(rank_) * element_bytes,
                 operation.input.data, operation.input.num_bytes());
      break;
    case Collective::all_gather:
      // Each begins with another rank's part, so that not all read one core's cache at once.
      for (int i = 0; i < size_; ++i) {
        const int r = (rank_ + i) % size_;
        copy_bytes(output + parts.begin(r) * element_bytes, input_of(r),
                   parts.count(r) * element_bytes);
      }
      break;
    case Collective::all_to_all: {
      const Parts received = received_parts_of(operation, size_);
      for (int i = 0; i < size_; ++i) {
        const int r = (rank_ + i) % size_;
        const int64_t before = sent_by(r, operation, number).begin(rank_);
        copy_bytes(output + received.begin(r) * element_bytes, input_of(r) + before * element_bytes,
                   received.count(r) * element_bytes);
      }
      break;
    }
    default: break;
  }
}

}  // namespace tutti::detail
