#include "tutti/comm/shm/shm_engine.h"

#include "tutti/base/detail/check.h"
#include "tutti/comm/engine/detail/spans.h"

namespace tutti::detail {
namespace {

bool at_least(uint32_t count, uint64_t target) {
  return static_cast<int32_t>(count - static_cast<uint32_t>(target)) >= 0;
}

}  // namespace

ShmEngine::Entry& ShmEngine::add_entry(const Operation& operation) {
  while (submitted_ - completed_ == kRingLines) {
    const Ticket oldest = completed_ + 1;
    while (!advance(oldest)) wait(complete_need_, nullptr);
  }
  counter_.count(operation);
  Entry& entry = entry_of(submitted_);
  entry.operation = &operation;
  entry.call = pack_call(operation);
  entry.announced = announced_of(operation, rank_, size_);
  const int64_t bytes = entry.announced.largest_bytes;
  const bool small = bytes >= 0 && bytes <= state_.facts().small_bytes;
  const bool counts = has_counts(operation);
  entry.in_line = small && !counts && bytes <= kInlineBytes;
  entry.in_slot = (small && !entry.in_line) || (counts && bytes < 0);
  entry.path = small ? Path::small : Path::undecided;
  entry.next_rank = 0;
  entry.staged_chunks = 0;
  entry.drained_chunks = 0;
  entry.deadline.reset();
  throw_if_poisoned(submitted_);
  ++submitted_;
  return entry;
}

// For as long as the entry is in use, and for words about it after a failure.
void ShmEngine::keep(Entry& entry) {
  entry.kept = *entry.operation;
  entry.operation = &entry.kept;
}

Ticket ShmEngine::submit(std::span<const Operation> batch) {
  if (!batch.empty() && batch.front().collective >= Collective::send) {
    throw_if_poisoned(kMessage);
    return messages_->submit(batch);
  }
  for (const auto& operation : batch) {
    Entry& entry = add_entry(operation);
    keep(entry);
    entry.deadline = time_after(operation.limit);
  }
  advance(submitted_);
  return submitted_;
}

void ShmEngine::run(const Operation& operation) {
  if (operation.collective >= Collective::send)
    return wait_for_message(submit({&operation, 1}), Deadline(operation.limit));
  if (messages_->called()) messages_->advance();
  Entry& entry = add_entry(operation);
  const Ticket ticket = submitted_;
  try {
    if (run_alone(entry)) return;
    while (!advance(ticket)) wait(complete_need_, nullptr);
  } catch (...) {
    keep(entry);
    throw;
  }
}

// The four stages of the only operation in flight, when it is small.
bool ShmEngine::run_alone(const Entry& entry) {
  if (entry.path != Path::small || completed_ + 1 != submitted_) return false;
  while (!publish()) wait(publish_need_, nullptr);
  while (!work()) wait(work_need_, nullptr);
  completed_ = worked_;
  return true;
}

void ShmEngine::progress(Ticket ticket, const Deadline& deadline) {
  if ((ticket & ShmMessages::kBit) != 0) return wait_for_message(ticket, deadline);
  TUTTI_CHECK(ticket <= submitted_, "ticket {} of {}", ticket, submitted_);
  while (!advance(ticket)) wait(complete_need_, &deadline);
}

void ShmEngine::nudge() {
  throw_if_poisoned(kMessage);
  if (messages_->in_use()) messages_->advance();
  advance(submitted_);
}

bool ShmEngine::poll(Ticket ticket) {
  const bool message = (ticket & ShmMessages::kBit) != 0;
  if (message) message_ticket_ = ticket;
  if (messages_->in_use()) messages_->advance();
  if (message) advance(submitted_);
  if (message ? messages_->done(ticket) : completed_ >= ticket || advance(ticket)) return true;
  throw_if_poisoned(message ? kMessage : completed_);
  // A loop of polls never sleeps, so it looks for lost ranks and passed limits here.
  const TimePoint now = Clock::now();
  if (now >= next_look_) {
    next_look_ = now + Millis{100};
    if (message) {
      messages_->look_at_limits(ticket, nullptr);
      messages_->look_for_lost(ticket);
    } else {
      look_for_failure(complete_need_, nullptr);
      look_for_lost(complete_need_);
    }
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
    const uint64_t turns = entry.in_slot ? kSlots : kRingLines;
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
  line.num_elements.store(entry.announced.num_elements, std::memory_order_relaxed);
  const MemorySpan& visible = entry.announced.visible;
  if (entry.in_line) {
    copy_bytes(line.payload, visible.data, visible.num_bytes());
  } else {
    line.places.input = place_of(entry.operation->input);
    line.places.output = place_of(entry.operation->output);
    line.places.counts = fingerprint(common_counts(*entry.operation));
    if (number == worked_ && entry.path == Path::undecided && forces_staging(entry, line))
      stage_chunk(entry, number);
  }
  std::byte* const slot = state_.small_slot(rank_, number % kSlots);
  const auto& counts = entry.operation->input_counts;
  if (entry.in_slot && entry.path == Path::small)
    copy_bytes(slot, visible.data, visible.num_bytes());
  else if (entry.in_slot)
    copy_bytes(slot, counts.data(), static_cast<int64_t>(counts.size() * sizeof(int64_t)));
  line.ticket.set(static_cast<uint32_t>(number + 1));
}

// True when every rank's announcement of operation `number` is here and says the same call.
bool ShmEngine::all_announced(Entry& entry, uint64_t number) {
  const uint64_t own_counts = entry.in_line ? 0 : line_of(rank_, number).places.counts;
  const bool counts_differ_by_pair = entry.announced.largest_bytes < 0;
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
        line.num_elements.load(std::memory_order_relaxed) != entry.announced.num_elements ||
        (!entry.in_line && line.places.counts != own_counts))
      fail_mismatch(r, number);
    if (counts_differ_by_pair) {
      const int64_t sent = sent_by(r, *entry.operation, number).count(rank_);
      if (sent != entry.operation->output_counts[r])
        fail_counts(r, sent, entry.operation->output_counts[r], number);
    }
  }
  return true;
}

bool ShmEngine::work() {
  const uint64_t number = worked_;
  Entry& entry = entry_of(number);
  if (entry.next_rank < size_ && !all_announced(entry, number)) return false;
  if (entry.path == Path::undecided) {
    entry.path = choose_path(entry, number);
    if (entry.path == Path::staged) entry.longest = longest_part(*entry.operation, number);
  }
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
