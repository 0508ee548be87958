#include "tutti/comm/shm/messages.h"

#include <algorithm>
#include <bit>

#include "tutti/base/detail/check.h"
#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/comm/engine/detail/spans.h"
#include "tutti/comm/shm/shm_engine.h"

namespace tutti::detail {
namespace {

constexpr int64_t kUnit = 64;
// Room for a short message, and as much again while that is read.
constexpr uint32_t kChannelUnits = 2048;
constexpr int64_t kShortBytes = 64 << 10;
// Of a long message in passing: half of what a channel holds, so that both sides work at once.
constexpr int64_t kStreamBytes = 32 << 10;
constexpr int64_t kChannelHeaderBytes = kPageBytes;
constexpr int64_t kChannelBytes = kChannelHeaderBytes + kChannelUnits * kUnit;
static_assert(kShortBytes + kUnit <= kChannelUnits * kUnit);

uint32_t units_of(int64_t bytes) { return static_cast<uint32_t>((bytes + kUnit - 1) / kUnit); }

}  // namespace

struct ShmMessages::Channel {
  FlagLine head;  ///< units written, by the sender
  FlagLine tail;  ///< units read, by the receiver
  alignas(64) std::atomic<uint32_t> sender_waits;

  std::byte* unit(uint32_t number) const {
    auto* const start = reinterpret_cast<std::byte*>(const_cast<Channel*>(this));
    return start + kChannelHeaderBytes + number % kChannelUnits * kUnit;
  }
  // Data may go on at the start of the ring.
  static int64_t to_end(uint32_t first, int64_t bytes) {
    return std::min<int64_t>(bytes, (kChannelUnits - first % kChannelUnits) * kUnit);
  }
  void write(uint32_t first, const std::byte* data, int64_t bytes) {
    const int64_t before = to_end(first, bytes);
    copy_bytes(unit(first), data, before);
    if (bytes > before) copy_bytes(unit(0), data + before, bytes - before);
  }
  void read(uint32_t first, std::byte* data, int64_t bytes) const {
    const int64_t before = to_end(first, bytes);
    copy_bytes(data, unit(first), before);
    if (bytes > before) copy_bytes(data + before, unit(0), bytes - before);
  }
};

ShmMessages::ShmMessages(ShmEngine& engine)
    : engine_(engine),
      state_(engine.state_),
      doorbell_(engine.blocks_[engine.rank_]->doorbell.flag),
      peers_(static_cast<size_t>(engine.size_)) {}

Ticket ShmMessages::submit(std::span<const Operation> batch) {
  const Ticket ticket = ++next_ticket_;
  if (!batch.empty()) batches_[ticket] = static_cast<int64_t>(batch.size());
  for (const Operation& operation : batch) {
    const bool sends = operation.collective == Collective::send;
    PendingList& list = sends ? sends_ : receives_;
    list.push_back({operation, ticket, time_after(operation.limit), ++next_id_});
    sends ? post_send(std::prev(list.end())) : post_receive(std::prev(list.end()));
  }
  advance();
  return ticket;
}

void ShmMessages::post_send(PendingList::iterator send) {
  const MemorySpan& data = send->operation.input;
  const bool is_short = data.num_bytes() <= kShortBytes;
  Outgoing outgoing{.frame = {.kind = is_short ? Frame::is_short : Frame::is_long,
                              .tag = send->operation.tag,
                              .bytes = data.num_bytes(),
                              .id = send->id,
                              .place = is_short ? 0 : engine_.place_of(data)},
                    .completes = is_short ? &sends_ : nullptr,
                    .operation = send};
  if (is_short) {
    outgoing.data = bytes_of(data);
    outgoing.left = data.num_bytes();
  }
  enqueue(send->operation.root, outgoing);
}

void ShmMessages::enqueue(int to, const Outgoing& outgoing) {
  Peer& peer = peers_[to];
  if (peer.queue.empty()) ++queues_;
  peer.queue.push_back(outgoing);
}

void ShmMessages::post_receive(PendingList::iterator receive) {
  const Operation& operation = receive->operation;
  const auto it = std::find_if(arrived_.begin(), arrived_.end(), [&](const Arrived& message) {
    return message.tag == operation.tag &&
           (operation.root == kAnyRank || operation.root == message.from);
  });
  if (it == arrived_.end()) return;
  Arrived message = std::move(*it);
  arrived_.erase(it);
  accept(receive, std::move(message));
}

bool ShmMessages::advance() {
  bool moved = false;
  while (called()) {
    heard_ = doorbell_.value();
    auto& from = engine_.blocks_[engine_.rank_]->channels_from;
    for (int word = 0; word * 64 < engine_.size_; ++word)
      for (uint64_t bits = from[word].load(std::memory_order_acquire); bits != 0; bits &= bits - 1)
        moved |= drain(word * 64 + std::countr_zero(bits));
  }
  for (int to = 0; queues_ > 0 && to < engine_.size_; ++to)
    if (!peers_[to].queue.empty()) moved |= flush(to);
  return moved;
}

// Reserved on first use: n^2 channels would be much, and few pairs talk.
ShmMessages::Channel& ShmMessages::open_channel(int to) {
  const int64_t offset = state_.take(kChannelBytes);
  if (!state_.file().reserve(offset, kChannelBytes))
    engine_.fail(FailureKind::aborted,
                 fmt::format("no memory for messages from rank {} to rank {}: {} wanted",
                             engine_.rank_, to, size_words(kChannelBytes)),
                 ShmEngine::kMessage);
  Channel* const channel = reinterpret_cast<Channel*>(state_.extent(offset, kChannelBytes).data());
  state_.channel_table(engine_.rank_)[to].store(offset, std::memory_order_release);
  const uint64_t bit = uint64_t{1} << (engine_.rank_ % 64);
  engine_.blocks_[to]->channels_from[engine_.rank_ / 64].fetch_or(bit, std::memory_order_acq_rel);
  return *channel;
}

bool ShmMessages::flush(int to) {
  Peer& peer = peers_[to];
  if (peer.out == nullptr) peer.out = &open_channel(to);
  Channel& channel = *peer.out;
  uint32_t head = channel.head.flag.value();
  const uint32_t before = head;
  while (!peer.queue.empty()) {
    Outgoing& next = peer.queue.front();
    const bool stream = next.frame.kind == Frame::data;
    const int64_t bytes = stream ? std::min(next.left, kStreamBytes) : next.left;
    const uint32_t units = 1 + units_of(bytes);
    const auto room = [&] { return kChannelUnits - (head - channel.tail.flag.value()); };
    // Either this sees the units that were read, or their reader sees that somebody waits.
    if (room() < units && (channel.sender_waits.exchange(1), room() < units)) break;
    Frame frame = next.frame;
    if (stream) frame.bytes = bytes;
    std::memcpy(channel.unit(head), &frame, sizeof frame);
    channel.write(head + 1, next.data, bytes);
    head += units;
    channel.head.flag.set_unwatched(head);
    if (bytes > 0) next.data += bytes;
    next.left -= bytes;
    if (next.left > 0) continue;
    if (next.completes != nullptr) complete(*next.completes, next.operation);
    peer.queue.pop_front();
  }
  if (peer.queue.empty()) --queues_;
  if (head == before) return false;
  engine_.blocks_[to]->doorbell.flag.add_one();
  return true;
}

bool ShmMessages::drain(int from) {
  Peer& peer = peers_[from];
  if (peer.in == nullptr) {
    const int64_t offset =
        state_.channel_table(from)[engine_.rank_].load(std::memory_order_acquire);
    peer.in = reinterpret_cast<Channel*>(state_.extent(offset, kChannelBytes).data());
  }
  Channel& channel = *peer.in;
  uint32_t tail = channel.tail.flag.value();
  const uint32_t before = tail;
  while (tail != channel.head.flag.value()) {
    Frame frame;
    std::memcpy(&frame, channel.unit(tail), sizeof frame);
    handle(from, frame, channel, tail + 1);
    const bool has_data = frame.kind == Frame::is_short || frame.kind == Frame::data;
    tail += 1 + (has_data ? units_of(frame.bytes) : 0);
    channel.tail.flag.set_unwatched(tail);
  }
  if (tail == before) return false;
  if (channel.sender_waits.exchange(0) != 0) engine_.blocks_[from]->doorbell.flag.add_one();
  return true;
}

void ShmMessages::handle(int from, const Frame& frame, const Channel& channel, uint32_t unit) {
  const auto with_id = [&](PendingList& list, int whose) {
    const auto it = std::find_if(list.begin(), list.end(), [&](const Pending& each) {
      return each.id == frame.id && each.from == whose;
    });
    TUTTI_CHECK(it != list.end(), "message {} of rank {}", frame.id, from);
    return it;
  };
  switch (frame.kind) {
    case Frame::is_short:
    case Frame::is_long: return take_message(from, frame, channel, unit);
    case Frame::granted: {
      const auto send = with_id(sends_, kAnyRank);
      const MemorySpan& data = send->operation.input;
      return enqueue(from, {.frame = {.kind = Frame::data, .id = frame.id},
                            .data = bytes_of(data),
                            .left = data.num_bytes(),
                            .completes = &sends_,
                            .operation = send});
    }
    case Frame::data: {
      const auto receive = with_id(receives_, from);
      channel.read(unit, bytes_of(receive->operation.output) + receive->received, frame.bytes);
      receive->received += frame.bytes;
      if (receive->received == receive->operation.output.num_bytes()) complete(receives_, receive);
      return;
    }
    case Frame::taken: return complete(sends_, with_id(sends_, kAnyRank));
    default: check_failed(__FILE__, __LINE__, "a known frame", fmt::format("{}", frame.kind));
  }
}

void ShmMessages::take_message(int from, const Frame& frame, const Channel& channel,
                               uint32_t unit) {
  const auto receive = receive_for(from, frame.tag);
  Arrived message{.from = from,
                  .tag = frame.tag,
                  .bytes = frame.bytes,
                  .id = frame.id,
                  .place = frame.place,
                  .is_long = frame.kind == Frame::is_long};
  if (message.is_long) {
    if (receive != receives_.end()) return accept(receive, std::move(message));
  } else if (receive != receives_.end()) {
    check_length(*receive, from, frame.bytes);
    channel.read(unit, bytes_of(receive->operation.output), frame.bytes);
    receive->from = from;
    return complete(receives_, receive);
  } else {
    message.data.resize(static_cast<size_t>(frame.bytes));
    channel.read(unit, message.data.data(), frame.bytes);
  }
  arrived_.push_back(std::move(message));
}

// The first recv that waits for such a message.
ShmMessages::PendingList::iterator ShmMessages::receive_for(int from, int tag) {
  return std::find_if(receives_.begin(), receives_.end(), [&](const Pending& each) {
    return each.from == kAnyRank && each.operation.tag == tag &&
           (each.operation.root == kAnyRank || each.operation.root == from);
  });
}

void ShmMessages::accept(PendingList::iterator receive, Arrived message) {
  check_length(*receive, message.from, message.bytes);
  receive->from = message.from;
  std::byte* const room = bytes_of(receive->operation.output);
  if (!message.is_long) {
    copy_bytes(room, message.data.data(), message.bytes);
    return complete(receives_, receive);
  }
  receive->id = message.id;
  if (message.place == 0)
    return enqueue(message.from, {.frame = {.kind = Frame::granted, .id = message.id}});
  ShmEngine::MemoryOfOthers memory(engine_, ShmEngine::kMessage);
  copy_bytes(room, engine_.address_of(message.place), message.bytes);
  memory.leave();
  // The sender waits for this word, so the recv is not done before it is in the channel.
  enqueue(message.from, {.frame = {.kind = Frame::taken, .id = message.id},
                         .completes = &receives_,
                         .operation = receive});
}

void ShmMessages::complete(PendingList& list, PendingList::iterator done) {
  if (done->operation.source != nullptr) *done->operation.source = done->from;
  const auto batch = batches_.find(done->ticket);
  if (--batch->second == 0) batches_.erase(batch);
  list.erase(done);
}

int64_t ShmMessages::channel_bytes() { return kChannelBytes; }

const ShmMessages::Pending* ShmMessages::first_of(Ticket ticket) const {
  for (const PendingList* list : {&receives_, &sends_})
    for (const Pending& each : *list)
      if (each.ticket == ticket) return &each;
  return nullptr;
}

int ShmMessages::awaited(Ticket ticket) const {
  const Pending* const first = first_of(ticket);
  if (first == nullptr) return kAnyRank;
  return first->from != kAnyRank ? first->from : first->operation.root;
}

std::string ShmMessages::words_of(const Operation& operation) const {
  const bool sends = operation.collective == Collective::send;
  const std::string other =
      operation.root == kAnyRank ? "any rank" : engine_.rank_words(operation.root);
  return fmt::format("{} of {} {} {} {}, tag {}", name_of(operation.collective),
                     (sends ? operation.input : operation.output).num_elements,
                     name_of((sends ? operation.input : operation.output).dtype),
                     sends ? "to" : "from", other, operation.tag);
}

std::string ShmMessages::words(Ticket ticket) const {
  const Pending* const first = first_of(ticket);
  return first == nullptr ? "messages" : words_of(first->operation);
}

void ShmMessages::check_length(const Pending& receive, int from, int64_t bytes) {
  const int64_t room = receive.operation.output.num_bytes();
  if (room == bytes) return;
  engine_.fail(
      FailureKind::mismatch,
      fmt::format("{} sent {} bytes under tag {} to rank {}, which expected {}\n"
                  "  a recv must be exactly as long as the message",
                  engine_.rank_words(from), bytes, receive.operation.tag, engine_.rank_, room),
      ShmEngine::kMessage);
}

Millis ShmMessages::look_at_limits(Ticket ticket, const Deadline* outer) {
  const TimePoint now = Clock::now();
  TimePoint first = outer == nullptr ? now + kLongestLimit : outer->at();
  for (const PendingList* list : {&receives_, &sends_})
    for (const Pending& each : *list) {
      if (each.ticket != ticket) continue;
      first = std::min(first, each.deadline);
      const bool own = now >= each.deadline;
      if (!own && (outer == nullptr || !outer->passed())) continue;
      const int other = each.from != kAnyRank ? each.from : each.operation.root;
      engine_.fail(
          FailureKind::timeout,
          fmt::format("not done within its limit of {} ms; silent: {}\n"
                      "  look at what the silent ranks are doing, or give a longer limit",
                      (own ? each.operation.limit : outer->limit()).count(), silent_words(other)),
          ShmEngine::kMessage);
    }
  return std::chrono::ceil<Millis>(first - now);
}

// Rank `rank`, or all others.
std::string ShmMessages::silent_words(int rank) const {
  std::string words;
  for (int r = 0; r < engine_.size_; ++r) {
    if (r == engine_.rank_ || (rank != kAnyRank && r != rank)) continue;
    words += fmt::format("{}{}{}: {}{}", words.empty() ? "" : "; ", engine_.rank_words(r),
                         engine_.is_stopped(r) ? ", which is stopped" : "",
                         engine_.last_call_words(r), engine_.awaited_words(r));
  }
  return words;
}

// A rank that left may have sent before, so what it wrote is drained first.
void ShmMessages::look_for_lost(Ticket ticket) {
  for (const PendingList* list : {&receives_, &sends_})
    for (const Pending& each : *list) {
      if (each.ticket != ticket) continue;
      const int other = each.from != kAnyRank ? each.from : each.operation.root;
      const std::string lost = other == kAnyRank ? loss_of_any() : engine_.loss_of(other);
      if (lost.empty()) continue;
      const bool moved = advance();
      if (moved) return;
      engine_.fail(FailureKind::peer_lost, fmt::format("{}: {}", words_of(each.operation), lost),
                   ShmEngine::kMessage);
    }
}

// Of all the others one that died; or, when all have left, the last.
std::string ShmMessages::loss_of_any() const {
  std::string lost;
  int left = 0;
  for (int r = 0; r < engine_.size_; ++r) {
    if (r == engine_.rank_) continue;
    const std::string words = engine_.loss_of(r);
    if (words.empty()) continue;
    if (!engine_.has_left(r)) return words;
    lost = words;
    ++left;
  }
  return left + 1 == engine_.size_ ? lost : "";
}

}  // namespace tutti::detail
