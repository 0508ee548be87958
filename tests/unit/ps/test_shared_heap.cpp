// Memory that peers can map: never two blocks in one place, no growth without need, no SIGBUS.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/ps/wire/host_memory.h"
#include "tutti/ps/wire/shared_heap.h"

#include "tests/support/message_of.h"
#include "tests/support/refusals.h"

namespace tutti::ps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tutti::test::message_of;
using namespace std::chrono_literals;

constexpr int64_t kMiB = int64_t{1} << 20;
using Block = std::shared_ptr<std::byte>;

bool all_are(const std::byte* bytes, int64_t count, std::byte value) {
  return std::all_of(bytes, bytes + count, [&](std::byte byte) { return byte == value; });
}

void fill(const Block& block, int64_t bytes, int value) {
  std::memset(block.get(), value, static_cast<size_t>(bytes));
}

TEST(SharedHeap, BlocksBeginOnLinesAndHaveAPlace) {
  SharedHeap heap;
  EXPECT_EQ(heap.held_bytes(), 0);
  std::vector<Block> blocks;
  for (const int64_t bytes : {0L, 1L, 63L, 64L, 65L, 4096L, 4097L, 3 * kMiB}) {
    blocks.push_back(heap.allocate(bytes));
    const Block& block = blocks.back();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.get()) % 64, 0U);
    const auto place = heap.place_of(block.get());
    ASSERT_TRUE(place.has_value());
    if (bytes > 0) {
      EXPECT_EQ(heap.place_of(block.get() + bytes - 1), *place + bytes - 1);
    }
    fill(block, bytes, 1);
  }
  EXPECT_GE(heap.held_bytes(), heap.used_bytes());
  const auto used = heap.used_bytes();
  blocks.pop_back();
  EXPECT_EQ(heap.used_bytes(), used - 3 * kMiB);
}

TEST(SharedHeap, OtherMemoryHasNoPlace) {
  SharedHeap heap, other;
  const Block block = heap.allocate(64), elsewhere = other.allocate(64);
  EXPECT_FALSE(heap.place_of(nullptr).has_value());
  EXPECT_FALSE(heap.place_of(&heap).has_value());
  EXPECT_FALSE(heap.place_of(elsewhere.get()).has_value());
  EXPECT_FALSE(heap.place_of(block.get() + heap.held_bytes()).has_value());
  EXPECT_FALSE(SharedHeap().place_of(block.get()).has_value());
}

TEST(SharedHeap, FreedMemoryIsUsedAgain) {
  SharedHeap heap;
  const std::byte* first = heap.allocate(2 * kMiB).get();
  const int64_t held = heap.held_bytes();
  for (int round = 0; round < 100; ++round) EXPECT_EQ(heap.allocate(2 * kMiB).get(), first);
  EXPECT_EQ(heap.held_bytes(), held);
}

TEST(SharedHeap, NeighboursThatAreFreeBecomeOne) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    SharedHeap heap;
    std::vector<Block> blocks;
    while (heap.held_bytes() == 0 || heap.used_bytes() < heap.held_bytes()) {
      blocks.push_back(heap.allocate(64 << 10));
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    blocks.clear();
    const int64_t held = heap.held_bytes();
    heap.allocate(held);
    EXPECT_EQ(heap.held_bytes(), held);
  }
}

TEST(SharedHeap, TheSmallestChunkThatFitsIsTaken) {
  SharedHeap heap;
  Block wide = heap.allocate(128 << 10), first = heap.allocate(64), narrow = heap.allocate(4096),
        second = heap.allocate(64);
  const std::byte* const in_narrow = narrow.get();
  wide.reset();
  narrow.reset();
  EXPECT_EQ(heap.allocate(4000).get(), in_narrow);
}

TEST(SharedHeap, BlocksNeverMeet) {
  struct Held {
    Block block;
    int64_t bytes;
    int value;
  };
  std::mt19937 random(2);
  SharedHeap heap;
  std::vector<Held> all;
  for (int round = 0; round < 4000; ++round) {
    if (all.size() > 60 || (!all.empty() && random() % 3 == 0)) {
      const size_t at = random() % all.size();
      std::swap(all[at], all.back());
      ASSERT_TRUE(all_are(all.back().block.get(), all.back().bytes,
                          static_cast<std::byte>(all.back().value)));
      all.pop_back();
      continue;
    }
    const int64_t bytes = random() % (int64_t{1} << (random() % 18));
    all.push_back({heap.allocate(bytes), bytes, round % 256});
    fill(all.back().block, bytes, all.back().value);
  }
  for (const Held& held : all)
    EXPECT_TRUE(all_are(held.block.get(), held.bytes, static_cast<std::byte>(held.value)));
  all.clear();
  EXPECT_EQ(heap.used_bytes(), 0);
}

TEST(SharedHeap, TheLimitHoldsForWhatIsChargedToo) {
  SharedHeap heap(4 * kMiB);
  heap.charge(2 * kMiB);
  EXPECT_THAT(message_of<Error>([&] { heap.charge(3 * kMiB); }),
              AllOf(HasSubstr("memory of 3.0 MiB is asked for"),
                    HasSubstr("2.0 MiB of at most 4.0 MiB are held"),
                    HasSubstr("2.0 MiB in rows of embedding tables")));
  EXPECT_THAT(message_of<Error>([&] { heap.allocate(3 * kMiB); }), HasSubstr("a block of 3.0 MiB"));
  const Block block = heap.allocate(2 * kMiB);
  EXPECT_THROW(heap.charge(1), Error);
  heap.charge(-kMiB);
  heap.charge(kMiB);
  EXPECT_EQ(heap.held_bytes(), 2 * kMiB) << "the file's alone";
}

TEST(SharedHeap, TheLimitHoldsAndIsExplained) {
  SharedHeap heap(4 * kMiB);
  EXPECT_EQ(heap.limit_bytes(), 4 * kMiB);
  Block block = heap.allocate(3 * kMiB);
  EXPECT_THAT(message_of<Error>([&] { heap.allocate(2 * kMiB); }),
              AllOf(HasSubstr("a block of 2.0 MiB is asked for"),
                    HasSubstr("3.0 MiB of at most 4.0 MiB are held"), HasSubstr("--memory-limit")));
  const Block rest = heap.allocate(kMiB);
  EXPECT_EQ(heap.held_bytes(), 4 * kMiB);
  block.reset();
  block = heap.allocate(3 * kMiB);
  EXPECT_EQ(heap.held_bytes(), 4 * kMiB);
  EXPECT_THROW(SharedHeap(100).allocate(1), Error) << "less than a page";
}

TEST(SharedHeap, NonsenseIsRefused) {
  EXPECT_THROW(SharedHeap(-1), UsageError);
  EXPECT_THROW(SharedHeap().allocate(-1), UsageError);
  EXPECT_THROW(SharedHeap().allocate(int64_t{1} << 62), UsageError);
  EXPECT_THAT(message_of<Error>([] { SharedHeap().allocate(int64_t{1} << 49); }),
              HasSubstr("512.0 TiB"));
}

TEST(SharedHeap, BlocksOutliveIt) {
  auto heap = std::make_unique<SharedHeap>();
  Block block = heap->allocate(1000);
  heap.reset();
  fill(block, 1000, 3);
  std::thread last([block = std::move(block)]() mutable { block.reset(); });
  last.join();
}

TEST(SharedHeap, ThreadsShareIt) {
  SharedHeap heap;
  std::mutex mutex;
  std::vector<std::pair<Block, int>> given;  // to whichever thread comes next
  const auto work = [&](int value) {
    std::mt19937 random(static_cast<unsigned>(value));
    for (int round = 0; round < 500; ++round) {
      Block block = heap.allocate(4096 + static_cast<int64_t>(random() % 4096));
      fill(block, 4096, value);
      EXPECT_TRUE(heap.place_of(block.get()).has_value());
      std::pair<Block, int> other;
      {
        std::lock_guard lock(mutex);
        given.emplace_back(std::move(block), value);
        std::swap(given[random() % given.size()], given.back());
        if (given.size() > 8) {
          other = std::move(given.back());
          given.pop_back();
        }
      }
      if (other.first) {
        EXPECT_TRUE(all_are(other.first.get(), 4096, static_cast<std::byte>(other.second)));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int value = 1; value <= 4; ++value) threads.emplace_back(work, value);
  for (auto& thread : threads) thread.join();
  given.clear();
  EXPECT_EQ(heap.used_bytes(), 0);
  EXPECT_LE(heap.held_bytes(), kMiB);
}

TEST(PeerHeap, SeesBlocksAndFollowsGrowth) {
  SharedHeap heap;
  PeerHeap peer(heap.descriptor(), "server 1");
  std::vector<Block> blocks;
  for (int round = 1; round < 12; ++round) {
    const int64_t bytes = int64_t{round} * 300'000;
    blocks.push_back(heap.allocate(bytes));
    fill(blocks.back(), bytes, round);
    const auto seen = peer.at(*heap.place_of(blocks.back().get()), bytes);
    EXPECT_TRUE(all_are(seen.get(), bytes, static_cast<std::byte>(round)));
    EXPECT_NE(seen.get(), blocks.back().get());
  }
  EXPECT_EQ(peer.mapped_bytes(), heap.held_bytes()) << "each page once";
}

TEST(PeerHeap, MemoryStaysWhileAPointerLives) {
  auto heap = std::make_unique<SharedHeap>();
  Block block = heap->allocate(5000);
  fill(block, 5000, 9);
  auto peer = std::make_unique<PeerHeap>(heap->descriptor(), "server 1");
  const auto seen = peer->at(*heap->place_of(block.get()), 5000);
  peer.reset();
  block.reset();
  heap.reset();
  EXPECT_TRUE(all_are(seen.get(), 5000, std::byte{9}));
}

TEST(PeerHeap, PlacesOutsideOfTheFileAreRefused) {
  SharedHeap heap;
  const Block block = heap.allocate(kMiB);
  PeerHeap peer(heap.descriptor(), "server 1");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const int64_t held = heap.held_bytes();
  const std::pair<int64_t, int64_t> lies[] = {
      {held, 1},  {held - 1, 2},  {0, held + 1}, {-1, 1},         {-1, kMost},
      {0, kMost}, {kMost, kMost}, {kMost, 1},    {-kMost - 1, 1}, {held + 4096, 1},
      {0, 0},     {0, -1},        {held, -kMost}};
  for (int mapped = 0; mapped < 2; ++mapped) {
    for (const auto& [place, bytes] : lies) {
      EXPECT_THAT(message_of<Error>([&, p = place, b = bytes] { peer.at(p, b); }),
                  HasSubstr("server 1 names"));
    }
    EXPECT_NE(peer.at(held - 1, 1), nullptr);
  }
}

TEST(PeerHeap, APlaceAcrossAFormerEndIsStillMapped) {
  SharedHeap heap;
  PeerHeap peer(heap.descriptor(), "server 1");
  const Block first = heap.allocate(kMiB);
  peer.at(0, 1);
  const Block second = heap.allocate(kMiB);
  fill(first, kMiB, 1);
  fill(second, kMiB, 2);
  const auto both = peer.at(kMiB - 1, 2);
  EXPECT_EQ(both.get()[0], std::byte{1});
  EXPECT_EQ(both.get()[1], std::byte{2});
}

TEST(PeerHeap, AFileWithHolesIsRefused) {
  const SharedFile file = SharedFile::create("test");
  ASSERT_TRUE(file.reserve(0, kPageBytes));
  ASSERT_EQ(ftruncate(file.descriptor(), int64_t{1} << 45), 0);
  PeerHeap peer(file.descriptor(), "server 1");
  EXPECT_THAT(message_of<Error>([&] { peer.at(0, 1); }), HasSubstr("server 1 has holes"));
}

TEST(PeerHeap, WhatCanBeCutIsNoHeap) {
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const FileDescriptor device(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const auto* file : {&unsealed, &device}) {
    EXPECT_THAT(message_of<Error>([&] { PeerHeap(file->get(), "server 1"); }),
                HasSubstr("server 1 passed is no memory"));
  }
}

TEST(HostMemory, ProcessesOfOneHostMapEachOther) {
  const Token token = Token::random();
  const HostMemory here(token, std::make_shared<SharedHeap>());
  const HostMemory there(token, std::make_shared<SharedHeap>());
  const Block block = here.heap()->allocate(100);
  fill(block, 100, 4);
  const auto peer = there.open(here.name(), "worker 2", Deadline(30s));
  ASSERT_NE(peer, nullptr);
  EXPECT_EQ(peer->who(), "worker 2");
  EXPECT_TRUE(all_are(peer->at(*here.heap()->place_of(block.get()), 100).get(), 100, std::byte{4}));
}

TEST(HostMemory, OfAnotherHostIsNone) {
  const Token token = Token::random();
  const HostMemory here(token, std::make_shared<SharedHeap>());
  EXPECT_EQ(here.open("", "worker 2", Deadline(30s)), nullptr);
  EXPECT_EQ(here.open("tutti-nobody", "worker 2", Deadline(30s)), nullptr);
}

TEST(HostMemory, AnotherTokenIsAMismatch) {
  test::Refusals refusals;
  const HostMemory here(Token::random(), std::make_shared<SharedHeap>());
  const HostMemory there(Token::random(), std::make_shared<SharedHeap>());
  EXPECT_THROW(there.open(here.name(), "worker 2", Deadline(30s)), Mismatch);
}

}  // namespace
}  // namespace tutti::ps
