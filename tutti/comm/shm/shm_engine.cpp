#include "tutti/comm/shm/shm_engine.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

bool at_least(uint32_t count, uint64_t target) {
  return static_cast<int32_t>(count - static_cast<uint32_t>(target)) >= 0;
}

// The elements that ranks compare, and the span of this rank's memory that peers must see.
std::pair<int64_t, MemorySpan> essentials(const Operation& operation) {
  switch (operation.collective) {
    case Collective::all_reduce:
    case Collective::broadcast: return {operation.output.num_elements, operation.output};
    case Collective::reduce_scatter: return {operation.output.num_elements, operation.input};
    case Collective::all_gather: return {operation.input.num_elements, operation.input};
    default: break;
  }
  return {0, {}};
}

}  // namespace

void ShmEngine::add_entry(const Operation& operation) {
  if (operation.collective > Collective::barrier || operation.partial ||
      !operation.input_counts.empty() || !operation.output_counts.empty())
    throw UsageError(
        fmt::format("{}: engine \"shm\" cannot do this", name_of(operation.collective)));
  while (submitted_ - completed_ == kRingLines) {
    const Ticket oldest = completed_ + 1;
    while (!advance(oldest)) wait(complete_need_, nullptr);
  }
  Entry& entry = entry_of(submitted_);
  const auto [num_elements, visible] = essentials(operation);
  entry.operation = operation;
  entry.call = pack_call(operation);
  entry.num_elements = num_elements;
  entry.payload_bytes = visible.num_bytes();
  entry.path = entry.payload_bytes <= state_.facts().small_bytes ? Path::small : Path::undecided;
  entry.next_rank = 0;
  entry.staged_chunks = 0;
  entry.drained_chunks = 0;
  entry.deadline.reset();
  throw_if_poisoned(submitted_);
  ++submitted_;
}

Ticket ShmEngine::submit(std::span<const Operation> batch) {
  for (const auto& operation : batch) {
    add_entry(operation);
    entry_of(submitted_ - 1).deadline = time_after(operation.limit);
  }
  advance(submitted_);
  return submitted_;
}

void ShmEngine::run(const Operation& operation) {
  add_entry(operation);
  const Ticket ticket = submitted_;
  while (!advance(ticket)) wait(complete_need_, nullptr);
}

void ShmEngine::progress(Ticket ticket, const Deadline& deadline) {
  TUTTI_CHECK(ticket <= submitted_, "ticket {} of {}", ticket, submitted_);
  while (!advance(ticket)) wait(complete_need_, &deadline);
}

bool ShmEngine::poll(Ticket ticket) {
  if (completed_ >= ticket || advance(ticket)) return true;
  throw_if_poisoned(completed_);
  // A loop of polls never sleeps, so it looks for lost ranks and passed limits here.
  const TimePoint now = Clock::now();
  if (now >= next_look_) {
    next_look_ = now + Millis{100};
    look_for_failure(complete_need_, nullptr);
    look_for_lost(complete_need_);
  }
  return false;
}

bool ShmEngine::advance(Ticket ticket) {
  while (completed_ < ticket) {
    bool moved = publish();
    while (worked_ < published_ && work()) moved = true;
    moved |= complete();
    if (moved) continue;
    // Wait for what stands in the way of the oldest operation.
    if (completed_ == worked_) complete_need_ = worked_ < published_ ? work_need_ : publish_need_;
    return false;
  }
  return true;
}

bool ShmEngine::publish() {
  const uint64_t before = published_;
  while (published_ < submitted_) {
    Entry& entry = entry_of(published_);
    // The line and the slot are free once all have finished the operation that had them last.
    const bool in_slot = entry.path == Path::small && entry.payload_bytes > kInlineBytes;
    const uint64_t turns = in_slot ? kSlots : kRingLines;
    if (published_ >= turns && !peers_finished(published_ - turns + 1, published_, publish_need_))
      break;
    throw_if_poisoned(published_);
    announce(entry, published_);
    ++published_;
  }
  return published_ != before;
}

void ShmEngine::announce(Entry& entry, uint64_t number) {
  CallLine& line = line_of(rank_, number);
  line.finished = static_cast<uint32_t>(worked_);
  line.call.store(entry.call, std::memory_order_relaxed);
  line.num_elements.store(entry.num_elements, std::memory_order_relaxed);
  const MemorySpan visible = essentials(entry.operation).second;
  if (entry.path != Path::small) {
    line.places.input = place_of(entry.operation.input);
    line.places.output = place_of(entry.operation.output);
  } else if (entry.payload_bytes > 0) {
    const bool silent =
        entry.operation.collective == Collective::broadcast && entry.operation.root != rank_;
    std::byte* const to = entry.payload_bytes <= kInlineBytes
                              ? line.payload
                              : state_.small_slot(rank_, number % kSlots);
    if (!silent) std::memcpy(to, visible.data, static_cast<size_t>(entry.payload_bytes));
  }
  line.ticket.set(static_cast<uint32_t>(number + 1));
}

// True when every rank's announcement of operation `number` is here and says the same call.
bool ShmEngine::all_announced(Entry& entry, uint64_t number) {
  for (int& r = entry.next_rank; r < size_; ++r) {
    if (r == rank_) continue;
    CallLine& line = line_of(r, number);
    const auto target = static_cast<uint32_t>(number + 1);
    if (!line.ticket.reached(target)) {
      work_need_ = {&line.ticket, target, r, number};
      return false;
    }
    finished_[r] = line.finished;
    if (line.call.load(std::memory_order_relaxed) != entry.call ||
        line.num_elements.load(std::memory_order_relaxed) != entry.num_elements)
      fail_mismatch(r, number);
  }
  return true;
}

bool ShmEngine::work() {
  const uint64_t number = worked_;
  Entry& entry = entry_of(number);
  if (entry.next_rank < size_ && !all_announced(entry, number)) return false;
  if (entry.path == Path::undecided) entry.path = choose_path(entry, number);
  if (entry.path == Path::small)
    transfer_small(entry, number);
  else if (entry.path == Path::direct)
    transfer_direct(entry, number);
  else if (!transfer_staged(entry, number))
    return false;
  ++worked_;
  Flag& finished = blocks_[rank_]->finished.flag;
  // Slots are what a peer waits for after a small operation, and it learns of them from the next
  // announcement, unless that was made before.
  if (entry.path == Path::small && published_ == worked_)
    finished.set_unwatched(static_cast<uint32_t>(worked_));
  else
    finished.set(static_cast<uint32_t>(worked_));
  return true;
}

bool ShmEngine::complete() {
  const uint64_t before = completed_;
  while (completed_ < worked_) {
    // Only the direct path lets others touch this rank's buffers after its own work is done.
    if (entry_of(completed_).path == Path::direct &&
        !peers_finished(completed_ + 1, completed_, complete_need_))
      break;
    ++completed_;
  }
  return completed_ != before;
}

// True when every other rank has finished `target` operations.
bool ShmEngine::peers_finished(uint64_t target, uint64_t number, Need& need) {
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || at_least(finished_[r], target)) continue;
    Flag& flag = blocks_[r]->finished.flag;
    finished_[r] = flag.value();
    if (at_least(finished_[r], target)) continue;
    need = {&flag, static_cast<uint32_t>(target), r, number};
    return false;
  }
  return true;
}

}  // namespace tutti::detail
