#include "tutti/comm/mpi/mpi_engine.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/detail/check.h"
#include "tutti/base/log.h"
#include "tutti/comm/engine/detail/call.h"
#include "tutti/comm/engine/detail/spans.h"
#include "tutti/comm/engine/reduce_kernels.h"

namespace tutti::detail::mpi {
namespace {

constexpr int kCallTag = 1;
constexpr int kDataTag = 2;
// How far a rank may run ahead of one that has not come: what its announcements may fill there.
constexpr size_t kMaxOpen = 64;
constexpr int64_t kCallBytes = sizeof(MpiCall);
constexpr int64_t kInboxBytes = kCallBytes + kMpiInlineBytes;
// Set in the tickets of messages.
constexpr Ticket kMessageBit = Ticket{1} << 63;

MpiCall call_of(const Operation& operation, uint64_t number) {
  const std::span<const int64_t> counts = common_counts(operation);
  return {.number = number,
          .call = pack_call(operation),
          .num_elements = detail::call_of(operation).elements,
          .counts = counts.empty() ? 0 : fingerprint(counts)};
}

bool is_same_for_all(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::all_gather ||
         collective == Collective::broadcast || collective == Collective::barrier;
}

}  // namespace

std::string MpiCall::words() const {
  const std::string text = call_words(call, num_elements);
  return counts == 0 ? text : fmt::format("{} (list {:04x})", text, counts & 0xffff);
}

MpiEngine::MpiEngine(MpiProcess& process, GroupComms comms, std::vector<int> world_ranks,
                     ReductionShape shape, const MpiOptions& options)
    : process_(process),
      comms_(comms),
      world_ranks_(std::move(world_ranks)),
      rank_(static_cast<int>(std::find(world_ranks_.begin(), world_ranks_.end(), process.rank()) -
                             world_ranks_.begin())),
      size_(static_cast<int>(world_ranks_.size())),
      shape_(std::move(shape)),
      options_(options),
      plan_(rank_, size_, options.chunk_bytes),
      control_(std::make_unique<Control>(process, comms.control)),
      inbox_(Array::zeros(DType::uint8, {size_ * kInboxBytes})),
      last_calls_(static_cast<size_t>(size_)),
      sent_(static_cast<size_t>(size_)),
      taken_(static_cast<size_t>(size_)) {}

std::byte* MpiEngine::inbox(int peer) const {
  return static_cast<std::byte*>(inbox_.data()) + peer * kInboxBytes;
}

bool MpiEngine::is_done(Ticket ticket) const {
  if ((ticket & kMessageBit) != 0) return !open_batches_.contains(ticket);
  return completed_ >= ticket;
}

Ticket MpiEngine::submit(std::span<const Operation> batch) {
  if (batch.empty()) return completed_;
  throw_if_failed(fmt::format("{} #{}", name_of(batch[0].collective), submitted_ + 1));
  try {
    if (is_message(batch[0].collective)) {
      const Ticket ticket = ++batches_ | kMessageBit;
      for (const Operation& operation : batch) add_message(operation, ticket);
      advance();
      return ticket;
    }
    for (const Operation& operation : batch) add_entry(operation);
    advance();
  } catch (const MpiError& error) {
    fail(FailureKind::aborted, error.what(), oldest_words());
  }
  return submitted_;
}

void MpiEngine::progress(Ticket ticket, const Deadline& deadline) {
  TUTTI_CHECK(is_done(ticket) || (ticket & kMessageBit) != 0 || ticket <= submitted_,
              "ticket {} of {}", ticket, submitted_);
  Backoff backoff(process_.spins());
  try {
    while (!is_done(ticket)) {
      if (advance()) {
        backoff.reset();
        continue;
      }
      throw_if_failed(oldest_words());
      if (backoff.slow()) look(&deadline);
      backoff.pause();
    }
  } catch (const MpiError& error) {
    fail(FailureKind::aborted, error.what(), oldest_words());
  }
}

bool MpiEngine::poll(Ticket ticket) {
  if (is_done(ticket)) return true;
  try {
    advance();
    if (is_done(ticket)) return true;
    throw_if_failed(oldest_words());
    look(nullptr);
  } catch (const MpiError& error) {
    fail(FailureKind::aborted, error.what(), oldest_words());
  }
  return false;
}

void MpiEngine::run(const Operation& operation) {
  progress(submit({&operation, 1}), Deadline(kLongestLimit));
}

void MpiEngine::add_entry(const Operation& operation) {
  if (entries_.size() == kMaxOpen) progress(completed_ + 1, Deadline(kLongestLimit));
  counter_.count(operation);
  Entry& entry = entries_.emplace_back();
  entry.operation = operation;
  entry.call = call_of(operation, ++submitted_);
  entry.deadline = time_after(operation.limit);
  announce(entry);
}

void MpiEngine::announce(Entry& entry) {
  if (size_ == 1) return;
  const Operation& operation = entry.operation;
  const bool same = is_same_for_all(operation.collective);
  const int64_t stride = same ? 0 : kInboxBytes;
  entry.announcement.resize(static_cast<size_t>(same ? kInboxBytes : size_ * kInboxBytes));
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    std::byte* const block = entry.announcement.data() + r * stride;
    const MemorySpan part = plan_.outgoing(operation, r);
    const int64_t payload = MpiPlan::is_inline(part) ? part.num_bytes() : 0;
    MpiCall call = entry.call;
    if (operation.collective == Collective::all_to_all) call.num_elements = part.num_elements;
    std::memcpy(block, &call, sizeof call);
    copy_bytes(block + kCallBytes, part.data, payload);
    entry.announcing.send(comms_.collectives, block, kCallBytes + payload, r, kCallTag);
  }
}

bool MpiEngine::advance() {
  bool moved = false;
  while (!failure_.happened()) {
    const bool collectives = advance_collectives();
    const bool messages = advance_messages();
    if (!collectives && !messages) break;
    moved = true;
  }
  control_->poll();
  if (const auto& failure = control_->failure())
    store_failure(failure->kind, failure->by, failure->text);
  return moved;
}

bool MpiEngine::advance_collectives() {
  bool moved = false;
  for (; !entries_.empty(); moved = true) {
    Entry& entry = entries_.front();
    switch (stage_) {
      case Stage::idle:
        expect_announcements();
        stage_ = Stage::announced;
        break;
      case Stage::announced:
        moved |= headers_.test(
            [&](const Requests::Done& done) { take_announcement(done.source, done.bytes); });
        if (!headers_.idle()) return moved;
        use_announcements();
        stage_ = start_step() ? Stage::stepping : Stage::finishing;
        break;
      case Stage::stepping:
        moved |= moving_.test();
        if (!moving_.idle()) return moved;
        finish_step();
        ++step_index_;
        if (!start_step()) stage_ = Stage::finishing;
        break;
      case Stage::finishing:
        moved |= entry.announcing.test();
        if (!entry.announcing.idle()) return moved;
        entries_.pop_front();
        ++completed_;
        stage_ = Stage::idle;
        break;
    }
  }
  return moved;
}

void MpiEngine::expect_announcements() {
  for (int r = 0; r < size_; ++r)
    if (r != rank_) headers_.receive(comms_.collectives, inbox(r), kInboxBytes, r, kCallTag);
}

void MpiEngine::take_announcement(int peer, int64_t bytes) {
  const Entry& entry = entries_.front();
  MpiCall& theirs = last_calls_[peer];
  std::memcpy(&theirs, inbox(peer), sizeof theirs);
  const MemorySpan part = plan_.incoming(entry.operation, peer);
  MpiCall expected = entry.call;
  if (entry.operation.collective == Collective::all_to_all)
    expected.num_elements = part.num_elements;
  if (theirs != expected)
    fail(FailureKind::mismatch,
         fmt::format("ranks disagree on operation #{}: rank {} called {}, rank {} called {}\n"
                     "  every rank must make the same calls in the same order",
                     entry.call.number, std::min(rank_, peer),
                     (rank_ < peer ? expected : theirs).words(), std::max(rank_, peer),
                     (rank_ < peer ? theirs : expected).words()),
         entry_words(entry));
  const int64_t payload = MpiPlan::is_inline(part) ? part.num_bytes() : 0;
  TUTTI_CHECK(bytes == kCallBytes + payload, "{} bytes from rank {}, {} announced", bytes, peer,
              payload);
}

// Every rank has called: what came with the announcements is used, and the steps are counted.
void MpiEngine::use_announcements() {
  const Operation& operation = entries_.front().operation;
  if (reduces(operation.collective)) {
    add_inline(operation);
  } else {
    for (int r = 0; r < size_; ++r) {
      const MemorySpan part = plan_.incoming(operation, r);
      if (r != rank_ && MpiPlan::is_inline(part))
        copy_bytes(part.data, inbox(r) + kCallBytes, part.num_bytes());
    }
    copy_own_part(operation);
  }
  step_index_ = 0;
  const bool any_order = has_any_order(operation);
  num_steps_ = any_order ? num_any_order_steps(operation) : plan_.num_steps(operation);
  if (num_steps_ == 0 || any_order) return;
  const int64_t wanted = plan_.scratch_bytes(operation);
  if (scratch_.num_bytes() < wanted) scratch_ = Array::zeros(DType::uint8, {wanted});
}

void MpiEngine::add_inline(const Operation& operation) {
  if (operation.collective == Collective::reduce && operation.root != rank_) return;
  const MemorySpan mine = plan_.incoming(operation, rank_);
  if (mine.num_elements == 0 || (size_ > 1 && !MpiPlan::is_inline(mine))) return;
  step_ = {};
  for (int r = 0; r < size_; ++r)
    step_.inputs.push_back(r == rank_ ? mine.data : inbox(r) + kCallBytes);
  step_.output = operation.output.data;
  step_.num_elements = mine.num_elements;
  finish_step();
}

void MpiEngine::copy_own_part(const Operation& operation) const {
  if (operation.collective == Collective::broadcast) return;
  const MemorySpan to = plan_.incoming(operation, rank_);
  copy_bytes(to.data, plan_.outgoing(operation, rank_).data, to.num_bytes());
}

// False when no step is left.
bool MpiEngine::start_step() {
  if (step_index_ >= num_steps_) return false;
  const Operation& operation = entries_.front().operation;
  if (has_any_order(operation)) {
    start_any_order(operation);
    return true;
  }
  step_ = plan_.step(operation, step_index_, static_cast<std::byte*>(scratch_.data()));
  for (const MpiTransfer& in : step_.receives)
    moving_.receive(comms_.collectives, in.data, in.bytes, in.peer, kDataTag,
                    options_.message_bytes);
  for (const MpiTransfer& out : step_.sends)
    moving_.send(comms_.collectives, out.data, out.bytes, out.peer, kDataTag,
                 options_.message_bytes);
  return true;
}

void MpiEngine::finish_step() {
  const Operation& operation = entries_.front().operation;
  if (step_.inputs.empty()) {
    if (has_any_order(operation)) finish_any_order(operation);
    return;
  }
  if (step_.num_elements == 0) return;
  const DType dtype = dtype_of(operation);
  const auto add = operation.partial ? reduce_partial : reduce_inputs;
  add(dtype, operation.reduce, shape_, step_.inputs, step_.output, step_.num_elements);
}

}  // namespace tutti::detail::mpi
