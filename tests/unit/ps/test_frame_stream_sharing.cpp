// Payloads that go as places in memory that both ends have mapped, and when they are let go.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/ps/wire/frame_stream.h"

#include "tests/support/message_of.h"
#include "tests/unit/ps/frame_ends.h"

namespace tutti::ps {
namespace {

using namespace test;
using ::testing::HasSubstr;
using tutti::test::message_of;
using namespace std::chrono_literals;

TEST(FrameSharing, APayloadInSharedMemoryGoesAsItsPlace) {
  Ends ends;
  ends.agree_on_memory();
  Bytes payload = block_of(*ends.worker_heap, kLong, 5);
  const std::weak_ptr<const void> block = payload.owner;
  ends.worker->send(with_payload(1, std::move(payload)));
  Message got = next_of(*ends.worker, *ends.server);
  EXPECT_EQ(got.sequence, 1) << "the head's own fields are untouched";
  EXPECT_EQ(got.payload.size(), kLong);
  EXPECT_TRUE(all_are(got.payload, 5));
  EXPECT_EQ(ends.server_heap->held_bytes(), 0) << "nothing was copied";
  EXPECT_EQ(ends.worker->shared_bytes_sent(), kLong);
  EXPECT_EQ(ends.server->shared_bytes_received(), kLong);
  EXPECT_EQ(ends.worker->bytes_sent() + ends.server->bytes_received(), 0);
  EXPECT_EQ(ends.worker->payloads_lent(), 1);
  EXPECT_FALSE(block.expired()) << "the sender keeps what is read";
  Bytes copy = got.payload;
  got = {};
  EXPECT_EQ(ends.wakes, 0) << "a copy lives";
  copy = {};
  EXPECT_EQ(ends.wakes, 1);
  EXPECT_NE(ends.server->wants() & POLLOUT, 0);
  EXPECT_TRUE(ends.server->flush());
  EXPECT_FALSE(ends.worker->receive().has_value()) << "that it is released is nobody else's matter";
  EXPECT_EQ(ends.worker->payloads_lent(), 0);
  EXPECT_TRUE(block.expired());
  EXPECT_EQ(ends.worker_heap->used_bytes(), 0);
}

TEST(FrameSharing, SeveralLoansOfOnePlaceEndInAnyOrder) {
  Ends ends;
  ends.agree_on_memory();
  Bytes payload = block_of(*ends.worker_heap, kLong, 5);
  std::vector<Bytes> got;
  for (int64_t i = 0; i < 4; ++i) {
    Bytes part = payload;
    part.span = part.span.first(static_cast<size_t>(kLong / (i + 1)));
    ends.worker->send(with_payload(i, part), static_cast<int>(-i));
  }
  payload = {};
  for (int64_t i = 3; i >= 0; --i) {
    got.push_back(next_of(*ends.worker, *ends.server).payload);
    EXPECT_EQ(got.back().size(), kLong / (i + 1));
  }
  int64_t left = 4;
  for (const size_t which : {1, 3, 0, 2}) {
    EXPECT_GT(ends.worker_heap->used_bytes(), 0);
    got[which] = {};
    ends.server->flush();
    EXPECT_FALSE(ends.worker->receive().has_value());
    EXPECT_EQ(ends.worker->payloads_lent(), --left);
  }
  EXPECT_EQ(ends.worker_heap->used_bytes(), 0);
}

TEST(FrameSharing, WhatCannotBeLentGoesAsBytes) {
  Ends ends;
  const Bytes long_one = block_of(*ends.worker_heap, kLong, 1);
  const Bytes short_one = block_of(*ends.worker_heap, 100, 2);
  ends.worker->send(with_payload(0, long_one));  // before it was agreed
  EXPECT_TRUE(all_are(next_of(*ends.worker, *ends.server).payload, 1));
  ends.agree_on_memory();
  ends.worker->send(with_payload(1, short_one));
  ends.worker->send(with_payload(2, Bytes::copy_of(long_one.span)));
  ends.worker->send(with_payload(3, {long_one.span, nullptr}));
  for (int64_t i = 1; i < 4; ++i) {
    EXPECT_TRUE(all_are(next_of(*ends.worker, *ends.server).payload, i == 1 ? 2 : 1));
  }
  ends.worker->send(with_payload(4, long_one));
  Message borrowed = next_of(*ends.worker, *ends.server);
  EXPECT_EQ(ends.worker->payloads_lent(), 1);
  ends.server->send(std::move(borrowed));  // back: it lies in the worker's heap, not the server's
  EXPECT_TRUE(all_are(next_of(*ends.server, *ends.worker).payload, 1));
  EXPECT_EQ(ends.server->bytes_sent(), kLong);
  EXPECT_TRUE(ends.server->flush());
  EXPECT_FALSE(ends.worker->receive().has_value());
  EXPECT_EQ(ends.worker->payloads_lent(), 0);
}

TEST(FrameSharing, BlocksAreUsedAgainRoundByRound) {
  for (const bool shared : {false, true}) {
    Ends ends;
    if (shared) ends.agree_on_memory();
    int64_t held = 0;
    for (int round = 0; round < 50; ++round) {
      ends.worker->send(with_payload(round, block_of(*ends.worker_heap, kLong, round)));
      EXPECT_TRUE(all_are(next_of(*ends.worker, *ends.server).payload, round));
      ends.server->send(with_payload(round, block_of(*ends.server_heap, 2 * kLong, round)));
      EXPECT_TRUE(all_are(next_of(*ends.server, *ends.worker).payload, round));
      const int64_t now = ends.worker_heap->held_bytes() + ends.server_heap->held_bytes();
      if (round > 0) {
        EXPECT_EQ(now, held);
      }
      held = now;
    }
  }
}

TEST(FrameSharing, OnePassOfReleasesWakesOnce) {
  Ends ends;
  ends.agree_on_memory();
  std::vector<Bytes> got;
  for (int64_t i = 0; i < 3; ++i) {
    ends.worker->send(with_payload(i, block_of(*ends.worker_heap, kLong, 1)));
    got.push_back(next_of(*ends.worker, *ends.server).payload);
  }
  got.pop_back();
  got.pop_back();
  EXPECT_EQ(ends.wakes, 1);
  ends.server->flush();
  got.pop_back();
  EXPECT_EQ(ends.wakes, 2);
}

TEST(FrameSharing, PayloadsAreReleasedInOtherThreads) {
  Ends ends;
  FileDescriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  auto [first, second] = make_link_pair("server 1", "worker 0");
  FrameStream worker(std::move(first), {.own = ends.worker_heap});
  FrameStream server(std::move(second), {.own = ends.server_heap,
                                         .peer = std::make_shared<PeerHeap>(
                                             ends.worker_heap->descriptor(), "worker 0"),
                                         .wake = [&] { eventfd_write(event.get(), 1); }});
  worker.lend_own();
  const Deadline deadline(30s);
  constexpr int kRounds = 200;
  std::atomic<int> right{0};

  std::thread serves([&] {
    for (int round = 0; round < kRounds;) {
      auto message = server.receive();
      if (!message) {
        pollfd entries[] = {{server.link().descriptor(), server.wants(), 0},
                            {event.get(), POLLIN, 0}};
        poll(entries, 2, 1000);
        eventfd_t count = 0;
        eventfd_read(event.get(), &count);
        ASSERT_FALSE(deadline.passed());
        server.flush();
        continue;
      }
      ++round;
      std::thread([&, message = std::move(*message)]() mutable {
        right += all_are(message.payload, static_cast<int>(message.sequence)) ? 1 : 0;
        message = {};
      }).join();
    }
    while (!server.flush()) ASSERT_FALSE(deadline.passed());
  });
  for (int round = 0; round < kRounds; ++round) {
    worker.send(with_payload(round, block_of(*ends.worker_heap, 8192, round)));
    worker.flush();
    worker.receive();
  }
  while (!worker.flush() || worker.payloads_lent() > 0) {
    pollfd entry{worker.link().descriptor(), worker.wants(), 0};
    poll(&entry, 1, 1000);
    worker.receive();
    ASSERT_FALSE(deadline.passed());
  }
  serves.join();
  EXPECT_EQ(right, kRounds);
  EXPECT_EQ(ends.worker_heap->used_bytes(), 0);
}

TEST(FrameSharing, ALostPeerLetsGoOfEverything) {
  Ends ends;
  ends.agree_on_memory();
  ends.worker->send(with_payload(1, block_of(*ends.worker_heap, kLong, 5)));
  ends.worker->send(with_payload(2, block_of(*ends.worker_heap, kLong, 6)));
  Message got = next_of(*ends.worker, *ends.server);
  EXPECT_GT(ends.worker_heap->used_bytes(), 0);
  ends.worker.reset();
  EXPECT_EQ(ends.worker_heap->used_bytes(), 0);
  EXPECT_EQ(ends.server->receive()->sequence, 2) << "what came before";
  EXPECT_THROW(ends.server->receive(), PeerLost);
  ends.worker_heap.reset();
  EXPECT_TRUE(all_are(got.payload, 5)) << "the memory stays mapped";
  got = {};
  EXPECT_THROW(ends.server->flush(), PeerLost);
}

TEST(FrameSharing, PayloadsOutliveTheirStream) {
  Ends ends;
  ends.agree_on_memory();
  ends.worker->send(with_payload(1, block_of(*ends.worker_heap, kLong, 5)));
  ends.server->send(with_payload(2, Bytes::copy_of(pattern(kLong, 3))));
  Message borrowed = next_of(*ends.worker, *ends.server);
  const Message copied = next_of(*ends.server, *ends.worker);
  ends.server.reset();
  ends.worker.reset();
  ends.worker_heap.reset();
  EXPECT_TRUE(all_are(borrowed.payload, 5));
  EXPECT_TRUE(holds(copied.payload, pattern(kLong, 3)));
  std::thread([&] { borrowed = {}; }).join();
  EXPECT_EQ(ends.wakes, 0) << "there is nobody to be woken";
}

TEST(FrameSharing, PlacesWithoutSharedMemoryAreRefused) {
  auto [raw, end] = make_link_pair("server 1", "worker 0");
  FrameStream stream(std::move(end), {.own = std::make_shared<SharedHeap>()});
  write_raw(*raw, raw_head(numbered(1), {0, 8, 0}));
  EXPECT_THAT(message_of<Error>([&] { stream.receive(); }), HasSubstr("was not shared"));
}

TEST(FrameSharing, ALoanIsGivenBackOnceAndWhereItIs) {
  for (const int64_t wrong_place : {0, 64}) {
    auto [end, raw] = make_link_pair("server 1", "worker 0");
    const auto heap = std::make_shared<SharedHeap>();
    FrameStream stream(std::move(end), {.own = heap});
    stream.lend_own();
    stream.send(with_payload(1, block_of(*heap, kLong, 1)));
    stream.flush();
    Message released;
    released.kind = Message::Kind::released;
    released.index = wrong_place;
    write_raw(*raw, raw_head(released, {0, 0, FrameHead::inline_payload}));
    if (wrong_place == 0) {  // the right one
      EXPECT_FALSE(stream.receive().has_value());
      EXPECT_EQ(stream.payloads_lent(), 0);
      write_raw(*raw, raw_head(released, {0, 0, FrameHead::inline_payload}));
    }
    EXPECT_THAT(message_of<Error>([&] { stream.receive(); }), HasSubstr("server 1: it gives back"));
  }
}

}  // namespace
}  // namespace tutti::ps
