#include "tutti/ps/wire/frame_stream.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <mutex>
#include <utility>

#include "tutti/base/detail/check.h"

namespace tutti::ps {
namespace {

// What one read may bring beside a payload: a few dozen heads.
constexpr size_t kInputBytes = size_t{16} << 10;
// What one call takes of a payload before it returns: some socket buffers' worth.
constexpr size_t kReadBytes = size_t{1} << 20;
// Small frames go together in one call, as long as these are not reached: a TLS record's worth.
constexpr int64_t kTogetherBytes = int64_t{16} << 10;
constexpr size_t kMostTogether = 32;
constexpr size_t kPiecesPerFrame = 3;
constexpr int kAtOnce = INT_MIN;

iovec piece_of(const void* bytes, size_t count) { return {const_cast<void*>(bytes), count}; }

}  // namespace

/// Loans that are over. Outlives its stream in the deleters of payloads.
class FrameStream::Releases {
 public:
  struct Loan {
    int64_t number = 0;
    int64_t place = 0;
  };

  explicit Releases(std::function<void()> wake) : wake_(std::move(wake)) {}

  // The lock is held while waking, so that nobody is woken after close().
  void add(Loan loan) noexcept {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    over_.push_back(loan);
    if (over_.size() == 1 && wake_) wake_();
  }
  bool any() const noexcept {
    std::lock_guard lock(mutex_);
    return !over_.empty();
  }
  std::vector<Loan> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(over_, {});
  }
  void close() noexcept {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

 private:
  mutable std::mutex mutex_;
  const std::function<void()> wake_;
  std::vector<Loan> over_;
  bool closed_ = false;
};

int64_t FrameStream::Frame::wire_bytes() const noexcept {
  const size_t inline_bytes = place ? 0 : payload.span.size();
  return static_cast<int64_t>(head.size() + text.size() + inline_bytes);
}

FrameStream::FrameStream(std::unique_ptr<Link> link, FrameStreamOptions options)
    : link_(std::move(link)),
      options_(std::move(options)),
      releases_(std::make_shared<Releases>(options_.wake)),
      input_(kInputBytes) {
  if (!options_.own || options_.max_payload_bytes < 0) {
    throw UsageError("frame stream: it needs a heap for payloads and a limit of 0 or more bytes");
  }
}

FrameStream::~FrameStream() { releases_->close(); }

void FrameStream::share(std::shared_ptr<PeerHeap> peer) { options_.peer = std::move(peer); }

// By value: what is moved in is given up, and a loan with it.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void FrameStream::send(Message message, int priority) {
  const int64_t bytes = message.payload.size();
  if (bytes > options_.max_payload_bytes) {
    throw UsageError(fmt::format("send to {}: a {} frame with {} bytes; at most {} are possible",
                                 link_->peer(), name_of(message.kind), bytes,
                                 options_.max_payload_bytes));
  }
  if (message.kind == Message::Kind::released) {
    throw UsageError("frame stream: released frames are its own");
  }
  std::optional<int64_t> place;
  if (lends_ && message.payload.owner && bytes > 0 && bytes >= options_.min_shared_bytes) {
    place = options_.own->place_of(message.payload.span.data());
  }
  enqueue(message, place, priority);
}

void FrameStream::enqueue(const Message& message, std::optional<int64_t> place, int priority) {
  Frame frame{.head = {}, .text = encode_text(message), .payload = message.payload, .place = place};
  if (frame.text.size() > kMaxTextBytes) {
    throw UsageError(
        fmt::format("send to {}: a {} frame with {} bytes of text; at most {} are "
                    "possible",
                    link_->peer(), name_of(message.kind), frame.text.size(), kMaxTextBytes));
  }
  frame.head = encode_head(
      message, {.text_bytes = frame.text.size(),
                .payload_bytes = frame.payload.span.size(),
                .place = place ? static_cast<uint64_t>(*place) : FrameHead::inline_payload});
  waiting_bytes_ += frame.wire_bytes();
  waiting_[priority].push_back(std::move(frame));
}

void FrameStream::queue_releases() {
  for (const auto& loan : releases_->take()) {
    Message released;
    released.kind = Message::Kind::released;
    released.sequence = loan.number;
    released.index = loan.place;
    enqueue(released, std::nullopt, kAtOnce);
  }
}

// The link may have taken bytes that it did not report (a TLS record that waits): from the first
// call on, the order of what it was shown stays. So a frame that was shown has begun.
bool FrameStream::begin_frames() {
  queue_releases();
  while (!waiting_.empty() && begun_bytes_ < kTogetherBytes && begun_.size() < kMostTogether) {
    const auto first = waiting_.begin();
    Frame& frame = begun_.emplace_back(std::move(first->second.front()));
    first->second.pop_front();
    if (first->second.empty()) waiting_.erase(first);
    waiting_bytes_ -= frame.wire_bytes();
    begun_bytes_ += frame.wire_bytes();
    if (frame.place) lent_[next_lent_++] = {*frame.place, frame.payload.owner};
  }
  return !begun_.empty();
}

bool FrameStream::flush() {
  while (begin_frames()) {
    std::array<iovec, kMostTogether * kPiecesPerFrame> pieces;
    const int64_t taken = link_->write_some({pieces.data(), gather(pieces)});
    if (taken == 0) return false;
    drop_sent(taken);
  }
  return true;
}

size_t FrameStream::gather(std::span<iovec> pieces) {
  size_t count = 0;
  auto skip = static_cast<size_t>(sent_);
  const auto add = [&](const void* bytes, size_t length) {
    const size_t skipped = std::min(skip, length);
    skip -= skipped;
    if (skipped == length) return;
    pieces[count++] = piece_of(static_cast<const std::byte*>(bytes) + skipped, length - skipped);
  };
  for (const Frame& frame : begun_) {
    add(frame.head.data(), frame.head.size());
    add(frame.text.data(), frame.text.size());
    if (!frame.place) add(frame.payload.span.data(), frame.payload.span.size());
  }
  return count;
}

void FrameStream::drop_sent(int64_t bytes) {
  begun_bytes_ -= bytes;
  sent_ += bytes;
  while (!begun_.empty() && sent_ >= begun_.front().wire_bytes()) {
    const Frame& frame = begun_.front();
    sent_ -= frame.wire_bytes();
    (frame.place ? shared_bytes_sent_ : bytes_sent_) += frame.payload.size();
    begun_.pop_front();
  }
}

std::optional<Message> FrameStream::receive() {
  while (true) {
    if (!incoming_) {
      if (!have_head()) return std::nullopt;
      begin_incoming();
    }
    Incoming& in = *incoming_;
    const size_t inline_bytes = in.block ? in.head.payload_bytes : 0;
    if (!read_into(in.text.data(), in.text.size(), in.text_done, in.text.size()) ||
        !read_into(in.block.get(), inline_bytes, in.payload_done, kReadBytes)) {
      return std::nullopt;
    }
    Message message = finish_incoming();
    incoming_.reset();
    if (message.kind != Message::Kind::released) return message;
    settle(message);
  }
}

bool FrameStream::have_head() {
  while (input_end_ - input_begin_ < kHeadBytes) {
    std::memmove(input_.data(), input_.data() + input_begin_, input_end_ - input_begin_);
    input_end_ -= std::exchange(input_begin_, 0);
    const int64_t got = link_->read_some(input_.data() + input_end_,
                                         static_cast<int64_t>(input_.size() - input_end_));
    if (got == 0) return false;
    input_end_ += static_cast<size_t>(got);
  }
  return true;
}

// Checks everything that a head says before memory is taken for what it announces.
void FrameStream::begin_incoming() {
  Incoming in;
  try {
    const auto head = std::span<const std::byte>(input_).subspan(input_begin_);
    in.head = decode_head(head.first<kHeadBytes>(),
                          static_cast<uint64_t>(options_.max_payload_bytes), in.message);
    const bool as_bytes = in.head.place == FrameHead::inline_payload;
    const bool is_released = in.message.kind == Message::Kind::released;
    if (is_released && in.head.text_bytes + in.head.payload_bytes > 0) wrong("it says too much");
    if (!as_bytes && in.head.payload_bytes == 0) wrong("nothing lies at the place that it names");
    if (!as_bytes && !options_.peer) wrong("it names a place in memory that was not shared");
    in.text.resize(in.head.text_bytes);
    if (as_bytes && in.head.payload_bytes > 0) {
      in.block = options_.own->allocate(static_cast<int64_t>(in.head.payload_bytes));
    }
  } catch (const Error& error) {
    throw Error(fmt::format("receive from {}: {}", link_->peer(), error.what()));
  }
  input_begin_ += kHeadBytes;
  incoming_ = std::move(in);
}

bool FrameStream::read_into(void* to, size_t bytes, size_t& done, size_t most) {
  auto* const start = static_cast<std::byte*>(to);
  const size_t here = std::min(bytes - done, input_end_ - input_begin_);
  if (here > 0) std::memcpy(start + done, input_.data() + input_begin_, here);
  input_begin_ += here;
  done += here;
  const size_t end = std::min(bytes, done + most);
  while (done < end) {
    const int64_t got = link_->read_some(start + done, static_cast<int64_t>(end - done));
    if (got == 0) return false;
    done += static_cast<size_t>(got);
  }
  return done == bytes;
}

Message FrameStream::finish_incoming() {
  Incoming& in = *incoming_;
  const auto bytes = static_cast<int64_t>(in.head.payload_bytes);
  try {
    decode_text(in.text, in.message);
    if (in.head.place != FrameHead::inline_payload) {
      in.message.payload = borrow(static_cast<int64_t>(in.head.place), bytes);
      shared_bytes_received_ += bytes;
    } else if (in.block) {
      in.message.payload = {{in.block.get(), static_cast<size_t>(bytes)}, in.block};
      bytes_received_ += bytes;
    }
  } catch (const Error& error) {
    throw Error(fmt::format("receive from {}: {}", link_->peer(), error.what()));
  }
  return std::move(in.message);
}

Bytes FrameStream::borrow(int64_t place, int64_t bytes) {
  const auto mapped = options_.peer->at(place, bytes);
  const Releases::Loan loan{next_borrowed_, place};
  const std::shared_ptr<const void> owner(
      mapped.get(), [mapped, loan, releases = releases_](const void*) { releases->add(loan); });
  ++next_borrowed_;
  return {{mapped.get(), static_cast<size_t>(bytes)}, owner};
}

void FrameStream::settle(const Message& released) {
  const auto lent = lent_.find(released.sequence);
  if (lent == lent_.end() || lent->second.place != released.index) {
    throw Error(fmt::format("receive from {}: it gives back memory at {} that it does not have",
                            link_->peer(), released.index));
  }
  lent_.erase(lent);
}

void FrameStream::wrong(std::string_view words) const {
  throw Error(fmt::format("a frame is wrong: {}", words));
}

short FrameStream::wants() const noexcept {
  const bool writes = !begun_.empty() || !waiting_.empty() || releases_->any();
  return static_cast<short>(link_->wants_to_read() | (writes ? link_->wants_to_write() : 0));
}

}  // namespace tutti::ps
