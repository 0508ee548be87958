#include "tutti/comm/tcp/messages.h"

#include <algorithm>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti::detail::tcp {
namespace {

// What a kept message costs its receiver beside its bytes.
constexpr int64_t kOverhead = 64;
// Announcements of one group that nobody has asked for; more are a program that only sends.
constexpr size_t kMostArrived = 1 << 20;
constexpr size_t kMostSpare = 64;

}  // namespace

Messages::Messages(int size, ControlLinks& control)
    : control_(control),
      credit_(static_cast<size_t>(size), kCredit),
      owed_(static_cast<size_t>(size)) {}

void Messages::post_send(const Operation& operation, uint64_t batch, uint64_t number) {
  const MemorySpan& data = operation.input;
  const int to = operation.root;
  const int64_t bytes = data.num_bytes();
  sends_.push_back({.id = next_id_++,
                    .batch = batch,
                    .number = number,
                    .to = to,
                    .tag = operation.tag,
                    .data = static_cast<const std::byte*>(data.data),
                    .bytes = bytes,
                    .pushed = 0,
                    .deadline = time_after(operation.limit),
                    .limit = operation.limit});
  Send& send = sends_.back();
  FrameHeader header{.call = static_cast<uint32_t>(send.tag), .number = send.id, .elements = bytes};
  int64_t& credit = credit_[static_cast<size_t>(to)];
  if (bytes > kShortMessageBytes || credit < bytes + kOverhead) {
    header.kind = FrameKind::announce;
    control_.push(to, header);
    return;
  }
  credit -= bytes + kOverhead;
  send.pushed = bytes;
  header.kind = FrameKind::message;
  header.length = static_cast<uint64_t>(bytes);
  control_.push(to, header, send.data, send.id);  // may end it: `send` is not used behind
}

void Messages::post_recv(const Operation& operation, uint64_t batch, uint64_t number) {
  const MemorySpan& data = operation.output;
  Recv recv{.batch = batch,
            .number = number,
            .from = operation.root,
            .tag = operation.tag,
            .data = static_cast<std::byte*>(data.data),
            .bytes = data.num_bytes(),
            .source = operation.source,
            .deadline = time_after(operation.limit),
            .limit = operation.limit};
  for (auto at = arrived_.begin(); at != arrived_.end(); ++at) {
    if (at->tag != recv.tag || (recv.from != kAnyRank && recv.from != at->from)) continue;
    Arrived arrived = std::move(*at);
    arrived_.erase(at);
    if (!match(recv, arrived)) recvs_.push_back(recv);
    return;
  }
  recvs_.push_back(recv);
}

void Messages::arrive(Arrived arrived) {
  for (auto at = recvs_.begin(); at != recvs_.end(); ++at) {
    if (at->granted || at->tag != arrived.tag) continue;
    if (at->from != kAnyRank && at->from != arrived.from) continue;
    if (match(*at, arrived)) recvs_.erase(at);
    return;
  }
  if (arrived_.size() >= kMostArrived)
    throw WrongLength{
        fmt::format("{} messages have come that nobody receives; the last from rank {} "
                    "under tag {}",
                    arrived_.size(), arrived.from, arrived.tag)};
  arrived_.push_back(std::move(arrived));
}

// True when the recv is done; else its message is on its way.
bool Messages::match(Recv& recv, Arrived& arrived) {
  if (arrived.bytes != recv.bytes)
    throw WrongLength{
        fmt::format("rank {} sent {} bytes under tag {}; recv #{} has room for {}\n"
                    "  the room must be exactly as long as the message",
                    arrived.from, arrived.bytes, arrived.tag, recv.number + 1, recv.bytes)};
  recv.from = arrived.from;
  if (recv.source != nullptr) *recv.source = arrived.from;
  if (!arrived.announced) {
    if (arrived.bytes > 0)
      std::memcpy(recv.data, arrived.data.data(), static_cast<size_t>(arrived.bytes));
    if (spare_.size() < kMostSpare) spare_.push_back(std::move(arrived.data));
    give_credit(arrived.from, arrived.bytes + kOverhead);
    return true;
  }
  control_.push(arrived.from, {.kind = FrameKind::grant, .number = arrived.id});
  recv.id = arrived.id;
  recv.granted = true;
  return recv.bytes == 0;
}

// Reported in quarters, so that small messages do not each cost a frame back.
void Messages::give_credit(int to, int64_t bytes) {
  int64_t& owed = owed_[static_cast<size_t>(to)];
  owed += bytes;
  if (owed < kCredit / 4) return;
  control_.push(to, {.kind = FrameKind::credit, .elements = owed});
  owed = 0;
}

std::vector<std::byte> Messages::kept_buffer(std::span<const std::byte> bytes) {
  std::vector<std::byte> buffer;
  if (!spare_.empty()) {
    buffer = std::move(spare_.back());
    spare_.pop_back();
  }
  buffer.assign(bytes.begin(), bytes.end());
  return buffer;
}

bool Messages::done(uint64_t batch) const noexcept {
  const auto of_batch = [&](const auto& one) { return one.batch == batch; };
  return std::none_of(sends_.begin(), sends_.end(), of_batch) &&
         std::none_of(recvs_.begin(), recvs_.end(), of_batch);
}

Messages::Recv* Messages::granted(int from, uint64_t id) {
  for (Recv& recv : recvs_)
    if (recv.granted && recv.from == from && recv.id == id) return &recv;
  return nullptr;
}

std::byte* Messages::room_for(int from, const FrameHeader& header) {
  Recv* const recv = granted(from, header.number);
  if (recv == nullptr || recv->received + static_cast<int64_t>(header.length) > recv->bytes)
    throw BadFrame{fmt::format("{} bytes of a message that was not asked for", header.length)};
  return recv->data + recv->received;
}

void Messages::on_frame(int from, const FrameHeader& header, std::span<const std::byte> payload) {
  const auto tag = static_cast<int>(header.call);
  switch (header.kind) {
    case FrameKind::message:
      return arrive({.from = from,
                     .tag = tag,
                     .bytes = static_cast<int64_t>(payload.size()),
                     .announced = false,
                     .id = header.number,
                     .data = kept_buffer(payload)});
    case FrameKind::announce:
      return arrive({.from = from,
                     .tag = tag,
                     .bytes = header.elements,
                     .announced = true,
                     .id = header.number,
                     .data = {}});
    case FrameKind::grant:
      for (size_t i = 0; i < sends_.size(); ++i) {
        Send& send = sends_[i];
        if (send.id != header.number || send.to != from) continue;
        if (send.bytes == 0)
          sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(i));
        else if (send.pushed == 0)
          push_part(send);
        return;
      }
      return;
    case FrameKind::part: {
      Recv* const recv = granted(from, header.number);
      if (recv == nullptr) return;
      recv->received += static_cast<int64_t>(header.length);
      if (recv->received == recv->bytes) recvs_.erase(recvs_.begin() + (recv - recvs_.data()));
      return;
    }
    case FrameKind::credit:
      credit_[static_cast<size_t>(from)] =
          std::min(kCredit, credit_[static_cast<size_t>(from)] + header.elements);
      return;
    default: return;
  }
}

void Messages::push_part(Send& send) {
  const std::byte* const from = send.data + send.pushed;
  const int64_t bytes = std::min(kMessagePartBytes, send.bytes - send.pushed);
  send.pushed += bytes;
  control_.push(
      send.to, {.kind = FrameKind::part, .number = send.id, .length = static_cast<uint64_t>(bytes)},
      from, send.id);
}

void Messages::on_written(int to, uint64_t message) {
  for (size_t i = 0; i < sends_.size(); ++i) {
    if (sends_[i].id != message || sends_[i].to != to) continue;
    if (sends_[i].pushed == sends_[i].bytes)
      sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(i));
    else
      push_part(sends_[i]);
    return;
  }
}

Messages::Late Messages::late_of(const Send& send) {
  return {Collective::send, send.to, send.tag, send.number, send.limit};
}

Messages::Late Messages::late_of(const Recv& recv) {
  return {Collective::recv, recv.from, recv.tag, recv.number, recv.limit};
}

std::optional<Messages::Late> Messages::late(TimePoint now) const {
  for (const Send& send : sends_)
    if (now >= send.deadline) return late_of(send);
  for (const Recv& recv : recvs_)
    if (now >= recv.deadline) return late_of(recv);
  return std::nullopt;
}

TimePoint Messages::next_deadline() const noexcept {
  TimePoint next = TimePoint::max();
  for (const Send& send : sends_) next = std::min(next, send.deadline);
  for (const Recv& recv : recvs_) next = std::min(next, recv.deadline);
  return next;
}

std::optional<Messages::Late> Messages::pending(uint64_t batch) const {
  for (const Send& send : sends_)
    if (send.batch == batch) return late_of(send);
  for (const Recv& recv : recvs_)
    if (recv.batch == batch) return late_of(recv);
  return std::nullopt;
}

// What a rank sent before it left has been read when its leaving has.
std::optional<Messages::Late> Messages::cut_off() const {
  const auto gone = [&](int rank) { return control_.state(rank) != ControlLinks::State::open; };
  for (const Send& send : sends_)
    if (gone(send.to)) return late_of(send);
  for (const Recv& recv : recvs_)
    if (recv.from != kAnyRank && gone(recv.from)) return late_of(recv);
  return std::nullopt;
}

}  // namespace tutti::detail::tcp
