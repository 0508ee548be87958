// Data that peers cannot see passes through two cache-sized slots a rank, chunk by chunk.
//
// Chunks are numbered through all operations. Chunk j of a rank lies in its slot j % 2; it may be
// overwritten when all who need it have drained chunk j - 2. A rank stages at most one chunk ahead
// of what it drains itself; where its memory alone decides for this path, the first one before it
// announces the operation. All ranks count the same chunks, also those who take no part: an
// operation has as many as its longest part needs.
//
// Where ranks get different parts of an input (reduce_scatter, scatter, all_to_all), a slot is cut
// into n fields, field p for rank p. What a rank gives itself it reads where it lies; its own field
// stays empty.
#include <algorithm>

#include "tutti/base/detail/check.h"
#include "tutti/comm/engine/detail/spans.h"
#include "tutti/comm/shm/shm_engine.h"

namespace tutti::detail {
namespace {

bool has_fields(const Operation& operation) {
  return operation.collective == Collective::reduce_scatter ||
         operation.collective == Collective::scatter ||
         operation.collective == Collective::all_to_all;
}

// Of a part of `elements`, those in the chunk that begins at `first`.
int64_t in_chunk(int64_t elements, int64_t first, int64_t per_chunk) {
  return std::clamp<int64_t>(elements - first, 0, per_chunk);
}

}  // namespace

int64_t ShmEngine::chunk_elements(const Operation& operation) const {
  const int64_t fields = has_fields(operation) ? size_ : 1;
  return state_.facts().slot_bytes / fields / size_of(dtype_of(operation));
}

int64_t ShmEngine::longest_part(const Operation& operation, uint64_t number) const {
  switch (operation.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast: return operation.output.num_elements;
    case Collective::all_to_all: {
      int64_t longest = 0;
      for (int r = 0; r < size_; ++r)
        longest = std::max(longest, sent_by(r, operation, number).largest());
      return longest;
    }
    default: return parts_of(operation, size_).largest();
  }
}

bool ShmEngine::transfer_staged(Entry& entry, uint64_t number) {
  const Operation& operation = *entry.operation;
  const int64_t per_chunk = chunk_elements(operation);
  const int64_t chunks = (entry.longest + per_chunk - 1) / per_chunk;
  if (!stages(operation, rank_)) entry.staged_chunks = chunks;
  if (!drains(operation, rank_)) entry.drained_chunks = chunks;
  bool moved = true;
  while (moved && (entry.staged_chunks < chunks || entry.drained_chunks < chunks)) {
    moved = entry.staged_chunks < chunks && stage_chunk(entry, number);
    // Its own chunk is part of what it drains. When that could not be staged, the need stands.
    if (entry.drained_chunks < std::min(chunks, entry.staged_chunks))
      moved |= drain_chunk(entry, number);
  }
  if (!moved) return false;
  if (operation.collective == Collective::scatter && operation.root == rank_)
    copy_bytes(operation.output.data,
               bytes_of(operation.input) +
                   parts_of(operation, size_).begin(rank_) * size_of(operation.output.dtype),
               operation.output.num_bytes());
  chunk_base_ += static_cast<uint32_t>(chunks);
  blocks_[rank_]->staged.flag.set(chunk_base_);
  blocks_[rank_]->drained.flag.set(chunk_base_);
  return true;
}

bool ShmEngine::stage_chunk(Entry& entry, uint64_t number) {
  const Operation& operation = *entry.operation;
  if (entry.staged_chunks >= entry.drained_chunks + int64_t{kSlots}) return false;
  const auto chunk = chunk_base_ + static_cast<uint32_t>(entry.staged_chunks);
  const uint32_t slot_free = chunk - (kSlots - 1);
  // Who drains nothing of this operation has drained all before it once it is here.
  const bool of_this = static_cast<int32_t>(slot_free - chunk_base_) > 0;
  for (int r = 0; r < size_; ++r) {
    Flag& drained = blocks_[r]->drained.flag;
    const uint32_t target = of_this && !drains(operation, r) ? chunk_base_ : slot_free;
    if (r == rank_ || drained.reached(target)) continue;
    work_need_ = {&drained, target, r, number};
    return false;
  }
  fill_slot(entry, state_.staging_slot(rank_, chunk % kSlots));
  ++entry.staged_chunks;
  blocks_[rank_]->staged.flag.set(chunk + 1);
  return true;
}

void ShmEngine::fill_slot(const Entry& entry, std::byte* slot) {
  const Operation& operation = *entry.operation;
  const MemorySpan& from = entry.announced.visible;
  const int64_t element_bytes = size_of(from.dtype);
  const int64_t per_chunk = chunk_elements(operation);
  const int64_t first = entry.staged_chunks * per_chunk;
  const auto put = [&](int field, int64_t before, int64_t count) {
    const int64_t elements = in_chunk(count, first, per_chunk);
    if (elements > 0)
      copy_bytes(slot + field * per_chunk * element_bytes,
                 bytes_of(from) + (before + first) * element_bytes, elements * element_bytes);
  };
  if (!has_fields(operation)) return put(0, 0, from.num_elements);
  const Parts parts = parts_of(operation, size_);
  int64_t before = 0;
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) put(r, before, parts.count(r));
    before += parts.count(r);
  }
}

bool ShmEngine::drain_chunk(Entry& entry, uint64_t number) {
  const auto chunk = chunk_base_ + static_cast<uint32_t>(entry.drained_chunks);
  for (int r = 0; r < size_; ++r) {
    Flag& staged = blocks_[r]->staged.flag;
    if (r == rank_ || !stages(*entry.operation, r) || staged.reached(chunk + 1)) continue;
    work_need_ = {&staged, chunk + 1, r, number};
    return false;
  }
  read_slots(entry, chunk % kSlots);
  ++entry.drained_chunks;
  blocks_[rank_]->drained.flag.set(chunk + 1);
  return true;
}

void ShmEngine::read_slots(const Entry& entry, uint32_t turn) {
  const Operation& operation = *entry.operation;
  const int64_t element_bytes = size_of(operation.output.dtype);
  const int64_t input_bytes = size_of(dtype_of(operation));
  const int64_t per_chunk = chunk_elements(operation);
  const int64_t first = entry.drained_chunks * per_chunk;
  const int64_t field = has_fields(operation) ? rank_ : 0;
  const int64_t own = has_fields(operation) ? parts_of(operation, size_).begin(rank_) : 0;
  const auto data_of = [&](int r) -> const std::byte* {
    if (r == rank_) return bytes_of(entry.announced.visible) + (own + first) * input_bytes;
    return state_.staging_slot(r, turn) + field * per_chunk * input_bytes;
  };
  // Of the part of the output that begins after `before` elements.
  const auto take = [&](int r, int64_t before, int64_t count) {
    const int64_t elements = in_chunk(count, first, per_chunk);
    if (elements > 0)
      copy_bytes(bytes_of(operation.output) + (before + first) * element_bytes, data_of(r),
                 elements * element_bytes);
  };
  switch (operation.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::reduce_scatter: {
      const int64_t elements = in_chunk(operation.output.num_elements, first, per_chunk);
      if (elements == 0) break;
      for (int r = 0; r < size_; ++r) inputs_[r] = data_of(r);
      combine(operation, bytes_of(operation.output) + first * element_bytes, elements);
      break;
    }
    case Collective::broadcast:
    case Collective::scatter: take(operation.root, 0, operation.output.num_elements); break;
    default: {
      const Parts parts = operation.collective == Collective::all_to_all
                              ? received_parts_of(operation, size_)
                              : parts_of(operation, size_);
      int64_t before = 0;
      for (int r = 0; r < size_; ++r) {
        take(r, before, parts.count(r));
        before += parts.count(r);
      }
    }
  }
}

}  // namespace tutti::detail
