/// Two ends of a FrameStream, and messages for them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/ps/wire/frame_stream.h"

namespace tutti::ps::test {

constexpr int64_t kLong = 100'000;  ///< a payload that is worth a place

/// A worker and a server, each with a heap, over a socket pair.
struct Ends {
  explicit Ends(int64_t server_limit_bytes = 0)
      : worker_heap(std::make_shared<SharedHeap>()),
        server_heap(std::make_shared<SharedHeap>(server_limit_bytes)) {
    auto [first, second] = make_link_pair("server 1", "worker 0");
    worker = std::make_unique<FrameStream>(std::move(first), options(worker_heap));
    server = std::make_unique<FrameStream>(std::move(second), options(server_heap));
  }
  FrameStreamOptions options(std::shared_ptr<SharedHeap> heap) {
    return {.max_payload_bytes = 64 << 20, .own = std::move(heap), .wake = [this] { ++wakes; }};
  }
  void agree_on_memory() {
    worker->share(std::make_shared<PeerHeap>(server_heap->descriptor(), "server 1"));
    server->share(std::make_shared<PeerHeap>(worker_heap->descriptor(), "worker 0"));
    worker->lend_own();
    server->lend_own();
  }

  std::atomic<int> wakes{0};
  std::shared_ptr<SharedHeap> worker_heap, server_heap;
  std::unique_ptr<FrameStream> worker, server;
};

inline Message numbered(int64_t sequence) {
  Message message;
  message.kind = Message::Kind::push;
  message.sequence = sequence;
  return message;
}

inline Bytes block_of(SharedHeap& heap, int64_t bytes, int value) {
  auto block = heap.allocate(bytes);
  std::memset(block.get(), value, static_cast<size_t>(bytes));
  return {{block.get(), static_cast<size_t>(bytes)}, block};
}

inline Message with_payload(int64_t sequence, Bytes payload) {
  Message message = numbered(sequence);
  message.payload = std::move(payload);
  return message;
}

inline std::vector<std::byte> pattern(int64_t bytes, int64_t seed) {
  std::vector<std::byte> made;
  for (int64_t i = 0; i < bytes; ++i) made.push_back(static_cast<std::byte>(seed + i * i / 7));
  return made;
}

inline bool holds(const Bytes& payload, const std::vector<std::byte>& expected) {
  return std::equal(payload.span.begin(), payload.span.end(), expected.begin(), expected.end());
}

inline bool all_are(const Bytes& payload, int value) {
  return std::all_of(payload.span.begin(), payload.span.end(),
                     [&](std::byte byte) { return byte == static_cast<std::byte>(value); });
}

/// The next message; both ends work until it is there.
inline Message next_of(FrameStream& from, FrameStream& to) {
  while (true) {
    from.flush();
    if (auto message = to.receive()) return std::move(*message);
  }
}

/// Puts bytes on a link as they are.
inline void write_raw(Link& link, std::string_view bytes) {
  const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  ASSERT_EQ(link.write_some({&piece, 1}), static_cast<int64_t>(bytes.size()));
}

inline std::string raw_head(const Message& message, const FrameHead& frame) {
  const auto bytes = encode_head(message, frame);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace tutti::ps::test
