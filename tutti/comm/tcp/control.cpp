#include "tutti/comm/tcp/control.h"

#include <algorithm>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/log.h"

namespace tutti::detail::tcp {
namespace {

// Frames of one peer in one go, so that all get their turn.
constexpr int kFramesPerCall = 64;
// Times the limit of flush() that a peer may take which reads little by little.
constexpr int kMostQuiet = 20;
// What stands in for the bytes of a frame that was given up: longer than any frame's payload.
const std::byte* zeros() {
  static const auto block = std::make_unique<std::byte[]>(kMessagePartBytes);
  return block.get();
}

}  // namespace

ControlLinks::ControlLinks(std::vector<std::unique_ptr<Link>> links, ControlHandler& handler)
    : handler_(handler) {
  zeros();
  for (auto& link : links) {
    Peer peer;
    peer.link = std::move(link);
    peer.closed = peer.link == nullptr;
    if (peer.link != nullptr) peer.name = peer.link->peer();
    peers_.push_back(std::move(peer));
  }
}

ControlLinks::OutFrame ControlLinks::make_frame(const FrameHeader& header, const std::byte* payload,
                                                uint64_t message) const {
  OutFrame frame;
  encode_header(header, frame.header);
  frame.payload = payload;
  frame.bytes = static_cast<int64_t>(header.length);
  frame.message = message;
  return frame;
}

void ControlLinks::push(int to, const FrameHeader& header, const std::byte* payload,
                        uint64_t message) {
  {
    const std::scoped_lock lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (told_ || peer.closed) return;
    peer.out.push_back(make_frame(header, payload, message));
  }
  // A part that follows the one just written is written by the loop that wrote that.
  if (!writing_) write(to, true);
}

void ControlLinks::service() {
  for (size_t r = 0; r < peers_.size(); ++r) service(static_cast<int>(r));
}

void ControlLinks::service_ready(std::span<const pollfd> polls) {
  size_t next = 0;
  for (size_t r = 0; r < peers_.size() && next < polls.size(); ++r)
    if (!peers_[r].closed && polls[next++].revents != 0) service(static_cast<int>(r));
}

void ControlLinks::service(int rank) {
  if (closed(rank)) return;
  read(rank);
  if (!closed(rank)) write(rank, true);
}

void ControlLinks::lose(int rank, const std::string& why) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.closed = true;
  if (peer.state == State::left) return;
  peer.state = State::lost;
  if (lost_rank_ >= 0) return;
  lost_rank_ = rank;
  why_lost_ = why;
}

void ControlLinks::read(int rank) {
  try {
    for (int i = 0; i < kFramesPerCall; ++i)
      if (!read_frame(rank)) return;
  } catch (const Error& broken) {  // closed; or TLS: its bytes were changed on the way
    lose(rank, broken.what());
  } catch (const BadFrame& bad) {
    lose(rank, fmt::format("{} sent what is no frame of this engine: {}", name(rank), bad.why));
  }
}

void ControlLinks::begin_payload(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.received = 0;
  peer.room = nullptr;
  if (peer.header.kind == FrameKind::part) peer.room = handler_.room_for(rank, peer.header);
  if (peer.room != nullptr) return;
  peer.payload.resize(static_cast<size_t>(peer.header.length));
  peer.room = peer.payload.data();
}

// True when a whole frame was read and handed on.
bool ControlLinks::read_frame(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  // A link is used by one thread at a time, and tell_all() may be writing.
  const auto read = [&](std::byte* to, int64_t bytes) {
    const std::scoped_lock lock(mutex_);
    return peer.link->read_some(to, bytes);
  };
  if (!peer.has_header) {
    if (!peer.ahead.header(peer.header, read)) return false;
    if (peer.header.kind == FrameKind::data)
      throw BadFrame{"a frame of a data link on the control link"};
    peer.has_header = true;
    begin_payload(rank);
  }
  const auto bytes = static_cast<int64_t>(peer.header.length);
  while (peer.received < bytes) {
    const int64_t got = peer.ahead.take(peer.room + peer.received, bytes - peer.received, read);
    if (got == 0) return false;
    peer.received += got;
  }
  peer.has_header = false;
  if (peer.header.kind == FrameKind::leave) peer.state = State::left;
  const bool kept = peer.header.kind != FrameKind::part;
  handler_.on_frame(rank, peer.header,
                    kept ? std::span<const std::byte>(peer.payload.data(),
                                                      static_cast<size_t>(peer.header.length))
                         : std::span<const std::byte>());
  return true;
}

void ControlLinks::write(int rank, bool report) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  try {
    while (true) {
      uint64_t message = 0;
      {
        const std::scoped_lock lock(mutex_);
        if (peer.out.empty()) return;
        OutFrame& frame = peer.out.front();
        const int64_t header_left = std::max(int64_t{0}, kHeaderBytes - frame.written);
        const int64_t payload_done = std::max(int64_t{0}, frame.written - kHeaderBytes);
        const auto* payload = frame.payload != nullptr
                                  ? frame.payload
                                  : reinterpret_cast<const std::byte*>(frame.text.data());
        const iovec pieces[2] = {
            {frame.header + (kHeaderBytes - header_left), static_cast<size_t>(header_left)},
            {const_cast<std::byte*>(payload + payload_done),
             static_cast<size_t>(frame.bytes - payload_done)}};
        frame.written += peer.link->write_some(pieces);
        if (frame.written < kHeaderBytes + frame.bytes) return;
        message = frame.message;
        peer.out.pop_front();
      }
      if (!report || message == 0) continue;
      writing_ = true;
      handler_.on_written(rank, message);
      writing_ = false;
    }
  } catch (const std::exception& broken) {  // whatever it is, the others are told and heard
    if (report) return lose(rank, broken.what());
    log(LogLevel::debug, "tcp engine: nothing more to {}: {}", peer.name, broken.what());
    const std::scoped_lock lock(mutex_);
    peer.out.clear();
  }
}

// The rest of a frame whose bytes nobody needs any more.
void ControlLinks::fill_up(OutFrame& frame) const {
  frame.payload = zeros();
  frame.message = 0;
}

void ControlLinks::tell_all(const FrameHeader& header, std::string_view text) noexcept {
  try {
    text = text.substr(0, kFailureTextBytes);
    FrameHeader own = header;
    own.length = text.size();
    {
      const std::scoped_lock lock(mutex_);
      told_ = true;
      for (Peer& peer : peers_) {
        if (peer.link == nullptr) continue;
        // A frame none of which is written may lie in a TLS record that has begun to go.
        const bool begun = peer.link->keep_begun() > 0;
        const bool half = !peer.out.empty() && (begun || peer.out.front().written > 0);
        peer.out.resize(half ? 1 : 0);
        if (half) fill_up(peer.out.front());
        OutFrame frame = make_frame(own, nullptr, 0);
        frame.text = text;
        peer.out.push_back(std::move(frame));
      }
    }
    for (size_t r = 0; r < peers_.size(); ++r)
      if (peers_[r].link != nullptr) write(static_cast<int>(r), false);
  } catch (const std::exception& error) {  // short of memory: the peers will see the links close
    log(LogLevel::warning, "tcp engine: could not tell why the group failed: {}", error.what());
  }
}

int64_t ControlLinks::bytes_left() {
  const std::scoped_lock lock(mutex_);
  int64_t bytes = 0;
  for (const Peer& peer : peers_)
    for (const OutFrame& frame : peer.out) bytes += kHeaderBytes + frame.bytes - frame.written;
  return bytes;
}

void ControlLinks::flush(Millis quiet) noexcept {
  const Deadline most(kMostQuiet * quiet);
  Deadline deadline(quiet);
  try {
    int64_t left = bytes_left();
    while (true) {
      std::vector<pollfd> polls;
      for (size_t r = 0; r < peers_.size(); ++r) {
        Peer& peer = peers_[r];
        if (peer.link == nullptr) continue;
        write(static_cast<int>(r), false);
        const std::scoped_lock lock(mutex_);
        if (!peer.out.empty())
          polls.push_back({peer.link->descriptor(), peer.link->wants_to_write(), 0});
      }
      const bool moved = bytes_left() < left;
      if (moved) deadline = Deadline(quiet);
      if (polls.empty() || deadline.passed() || most.passed()) return;
      left = bytes_left();
      const Millis longest = std::min(deadline.left(), most.left());
      ::poll(polls.data(), polls.size(), static_cast<int>(longest.count()));
    }
  } catch (const std::exception& error) {  // short of memory: then the peers see the links close
    log(LogLevel::debug, "tcp engine: leaving: {}", error.what());
  }
}

void ControlLinks::drain() noexcept {
  std::byte sink[4096];
  for (Peer& peer : peers_) {
    if (peer.link == nullptr || peer.closed) continue;
    try {
      for (int i = 0; i < kFramesPerCall; ++i)
        if (peer.link->read_some(sink, sizeof sink) == 0) break;
    } catch (const Error& gone) {  // nothing can be lost on the way to it
      log(LogLevel::trace, "tcp engine: leaving: {}", gone.what());
    }
  }
}

void ControlLinks::add_polls(std::vector<pollfd>& polls) {
  const std::scoped_lock lock(mutex_);
  for (const Peer& peer : peers_) {
    if (peer.closed) continue;
    short events = peer.link->wants_to_read();
    if (!peer.out.empty()) events |= peer.link->wants_to_write();
    polls.push_back({peer.link->descriptor(), events, 0});
  }
}

bool ControlLinks::has_buffered() {
  return std::ranges::any_of(peers_, [](const Peer& peer) {
    return !peer.closed &&
           (peer.link->has_buffered() || peer.ahead.has(peer.has_header ? 1 : kHeaderBytes));
  });
}

}  // namespace tutti::detail::tcp
