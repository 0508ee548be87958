// How the shm engine moves data. n ranks, S bytes each.
//
// small   every rank copies its data beside its announcement; every rank reads all n. One wait, no
//         barrier at the end: two slots are used in turn.
// direct  every rank sees everyone's buffer. It reads its slice of all n, adds in registers, writes
// to
//         all n: 2nS bytes moved, the least possible. A second wait, for all to have finished.
// staged  buffers that peers cannot see pass through two cache-sized slots a rank, chunk by chunk.
#include <algorithm>
#include <cstring>

#include "tutti/base/check.h"
#include "tutti/comm/reduce_kernels.h"
#include "tutti/comm/shm/shm_engine.h"

namespace tutti::detail {
namespace {

std::byte* bytes_of(const MemorySpan& span) { return static_cast<std::byte*>(span.data); }

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Byte at which slice `rank` of `size` begins: on a line, on a page when slices are large.
int64_t slice_begin(int64_t bytes, int rank, int size) {
  const int64_t unit = bytes / size >= 16 * kPageBytes ? kPageBytes : 64;
  const int64_t units = (bytes + unit - 1) / unit;
  return std::min(bytes, units * rank / size * unit);
}

}  // namespace

uint64_t ShmEngine::place_of(const MemorySpan& span) const noexcept {
  if (all_threads_) return reinterpret_cast<uint64_t>(span.data);
  for (const Mapping& extent : extents_)
    if (extent.contains(span.data, span.num_bytes()))
      return static_cast<uint64_t>(extent.offset_of(span.data));
  return 0;
}

std::byte* ShmEngine::address_of(uint64_t place) const {
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
  const Operation& operation = entry.operation;
  const auto visible = [&](int r) {
    const auto& places = line_of(r, number).places;
    const bool input = operation.collective == Collective::reduce_scatter ||
                       operation.collective == Collective::all_gather;
    return (input ? places.input : places.output) != 0;
  };
  if (operation.collective == Collective::broadcast)
    return visible(operation.root) ? Path::direct : Path::staged;
  for (int r = 0; r < size_; ++r)
    if (!visible(r)) return Path::staged;
  return Path::direct;
}

void ShmEngine::transfer_small(const Entry& entry, uint64_t number) {
  const Operation& operation = entry.operation;
  const int64_t bytes = entry.payload_bytes;
  if (bytes == 0) return;
  const auto data_of = [&](int r) -> const std::byte* {
    return bytes <= kInlineBytes ? line_of(r, number).payload
                                 : state_.small_slot(r, number % kSlots);
  };
  std::byte* const output = bytes_of(operation.output);
  switch (operation.collective) {
    case Collective::all_reduce:
      for (int r = 0; r < size_; ++r) inputs_[r] = r == rank_ ? output : data_of(r);
      reduce_inputs(operation.output.dtype, operation.reduce, shape_, inputs_, output,
                    entry.num_elements);
      break;
    case Collective::reduce_scatter:
      for (int r = 0; r < size_; ++r)
        inputs_[r] = (r == rank_ ? bytes_of(operation.input) : data_of(r)) +
                     rank_ * operation.output.num_bytes();
      reduce_inputs(operation.output.dtype, operation.reduce, shape_, inputs_, output,
                    entry.num_elements);
      break;
    case Collective::all_gather:
      for (int r = 0; r < size_; ++r)
        copy_bytes(output + r * bytes, r == rank_ ? bytes_of(operation.input) : data_of(r), bytes);
      break;
    case Collective::broadcast:
      if (operation.root != rank_) copy_bytes(output, data_of(operation.root), bytes);
      break;
    default: break;
  }
}

void ShmEngine::transfer_direct(const Entry& entry, uint64_t number) {
  const Operation& operation = entry.operation;
  auto& busy = blocks_[rank_]->member.busy;
  if (all_threads_) {
    // A peer that fails frees its buffers only after it has seen this flag down.
    busy.store(1, std::memory_order_seq_cst);
    if (poison_.state.load(std::memory_order_seq_cst) != Poison::kNone) {
      busy.store(0, std::memory_order_release);
      throw_poison(number);
    }
  }
  const int64_t element_bytes = size_of(operation.output.dtype);
  const int64_t part_bytes = entry.num_elements * element_bytes;
  switch (operation.collective) {
    case Collective::all_reduce: {
      const int64_t begin = slice_begin(part_bytes, rank_, size_);
      const int64_t end = slice_begin(part_bytes, rank_ + 1, size_);
      for (int r = 0; r < size_; ++r)
        inputs_[r] = outputs_[r] = address_of(line_of(r, number).places.output) + begin;
      reduce_inputs_to_all(operation.output.dtype, operation.reduce, shape_, inputs_, outputs_,
                           (end - begin) / element_bytes);
      break;
    }
    case Collective::reduce_scatter:
      for (int r = 0; r < size_; ++r)
        inputs_[r] = address_of(line_of(r, number).places.input) + rank_ * part_bytes;
      reduce_inputs(operation.output.dtype, operation.reduce, shape_, inputs_,
                    operation.output.data, entry.num_elements);
      break;
    case Collective::all_gather:
      // Each begins with another rank's part, so that not all read one core's cache at once.
      for (int i = 0; i < size_; ++i) {
        const int r = (rank_ + i) % size_;
        copy_bytes(bytes_of(operation.output) + r * part_bytes,
                   address_of(line_of(r, number).places.input), part_bytes);
      }
      break;
    case Collective::broadcast:
      if (operation.root != rank_)
        copy_bytes(operation.output.data, address_of(line_of(operation.root, number).places.output),
                   part_bytes);
      break;
    default: break;
  }
  if (all_threads_) busy.store(0, std::memory_order_release);
}

int64_t ShmEngine::chunk_elements(const Entry& entry) const {
  const int64_t parts = entry.operation.collective == Collective::reduce_scatter ? size_ : 1;
  return state_.facts().slot_bytes / parts / size_of(entry.operation.output.dtype);
}

// Chunks are numbered through all operations. Chunk j lies in slot j % 2; it may be overwritten
// when all have drained chunk j - 2. A rank stages at most one chunk ahead of what it drains.
bool ShmEngine::transfer_staged(Entry& entry, uint64_t number) {
  const int64_t per_chunk = chunk_elements(entry);
  const int64_t chunks = (entry.num_elements + per_chunk - 1) / per_chunk;
  const bool broadcast = entry.operation.collective == Collective::broadcast;
  const bool is_root = entry.operation.root == rank_;
  if (broadcast && !is_root) entry.staged_chunks = chunks;
  if (broadcast && is_root) entry.drained_chunks = chunks;
  bool moved = true;
  while (moved && (entry.staged_chunks < chunks || entry.drained_chunks < chunks)) {
    moved = entry.staged_chunks < chunks && stage_chunk(entry, number, chunks);
    // Its own chunk is part of what it drains. When that could not be staged, the need stands.
    if (entry.drained_chunks < std::min(chunks, entry.staged_chunks))
      moved |= drain_chunk(entry, number);
  }
  if (!moved) return false;
  chunk_base_ += static_cast<uint32_t>(chunks);
  blocks_[rank_]->staged.flag.set(chunk_base_);
  blocks_[rank_]->drained.flag.set(chunk_base_);
  return true;
}

bool ShmEngine::stage_chunk(Entry& entry, uint64_t number, int64_t chunks) {
  const Operation& operation = entry.operation;
  const bool ahead = operation.collective != Collective::broadcast;
  if (ahead && entry.staged_chunks >= entry.drained_chunks + int64_t{kSlots}) return false;
  const auto chunk = chunk_base_ + static_cast<uint32_t>(entry.staged_chunks);
  for (int r = 0; r < size_; ++r) {
    Flag& drained = blocks_[r]->drained.flag;
    if (r == rank_ || drained.reached(chunk - (kSlots - 1))) continue;
    work_need_ = {&drained, chunk - (kSlots - 1), r, number};
    return false;
  }
  const MemorySpan& from = operation.input.data != nullptr ? operation.input : operation.output;
  const int64_t element_bytes = size_of(from.dtype);
  const int64_t per_chunk = chunk_elements(entry);
  const int64_t begin = entry.staged_chunks * per_chunk * element_bytes;
  const int64_t part_bytes = entry.num_elements * element_bytes;
  const int64_t bytes = std::min(per_chunk * element_bytes, part_bytes - begin);
  std::byte* const slot = state_.staging_slot(rank_, chunk % kSlots);
  const int parts = operation.collective == Collective::reduce_scatter ? size_ : 1;
  for (int part = 0; part < parts; ++part)
    copy_bytes(slot + part * bytes, bytes_of(from) + part * part_bytes + begin, bytes);
  TUTTI_CHECK(entry.staged_chunks < chunks, "chunk {} of {}", entry.staged_chunks, chunks);
  ++entry.staged_chunks;
  blocks_[rank_]->staged.flag.set(chunk + 1);
  return true;
}

bool ShmEngine::drain_chunk(Entry& entry, uint64_t number) {
  const Operation& operation = entry.operation;
  const auto chunk = chunk_base_ + static_cast<uint32_t>(entry.drained_chunks);
  const bool broadcast = operation.collective == Collective::broadcast;
  for (int r = 0; r < size_; ++r) {
    Flag& staged = blocks_[r]->staged.flag;
    if (r == rank_ || (broadcast && r != operation.root) || staged.reached(chunk + 1)) continue;
    work_need_ = {&staged, chunk + 1, r, number};
    return false;
  }
  const DType dtype = operation.output.dtype;
  const int64_t per_chunk = chunk_elements(entry);
  const int64_t first = entry.drained_chunks * per_chunk;
  const int64_t elements = std::min(per_chunk, entry.num_elements - first);
  const int64_t begin = first * size_of(dtype);
  const int64_t bytes = elements * size_of(dtype);
  const int64_t part_bytes = entry.num_elements * size_of(dtype);
  std::byte* const output = bytes_of(operation.output);
  const auto slot_of = [&](int r) { return state_.staging_slot(r, chunk % kSlots); };
  switch (operation.collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter: {
      const int part = operation.collective == Collective::reduce_scatter ? rank_ : 0;
      for (int r = 0; r < size_; ++r) inputs_[r] = slot_of(r) + part * bytes;
      reduce_inputs(dtype, operation.reduce, shape_, inputs_, output + begin, elements);
      break;
    }
    case Collective::all_gather:
      for (int r = 0; r < size_; ++r)
        copy_bytes(output + r * part_bytes + begin, slot_of(r), bytes);
      break;
    case Collective::broadcast: copy_bytes(output + begin, slot_of(operation.root), bytes); break;
    default: break;
  }
  ++entry.drained_chunks;
  blocks_[rank_]->drained.flag.set(chunk + 1);
  return true;
}

}  // namespace tutti::detail
