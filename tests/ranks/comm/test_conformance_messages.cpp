// Messages of all engines: every length, tags and sources in any order, beside collectives.
#include "tests/ranks/comm/conformance.h"

namespace tutti::test {
namespace {

constexpr int64_t kShortBytes = 64 << 10;  // up to here a send is done at once

Bytes message(int from, int to, int tag, int64_t bytes) {
  return ordinary_values(DType::uint8, bytes, static_cast<uint32_t>(from * 1000 + to * 10 + tag),
                         from);
}

TEST_P(Conformance, MessagesOfEveryLengthRoundARing) {
  if (ranks() < 2) return;
  const auto members = engines();
  for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{64}, int64_t{65}, int64_t{4'097},
                        kShortBytes - 1, kShortBytes, kShortBytes + 1, int64_t{1'000'003}})
    run_all_members(members, [&](Group group) {
      const int rank = group.rank();
      const int next = (rank + 1) % group.size();
      const int previous = (rank + group.size() - 1) % group.size();
      Bytes given = message(rank, next, 0, bytes);
      Bytes got(given.size(), 0xaa);
      Work send = group.send(span_of_bytes(given, DType::uint8), next);
      group.recv(span_of_bytes(got, DType::uint8), previous).wait();
      send.wait();
      EXPECT_EQ(got, message(previous, rank, 0, bytes)) << bytes;
    });
}

// Far more than fits into any buffer between them, and nobody asks before all is sent.
TEST_P(Conformance, MessagesByTagInAnyOrderOfAsking) {
  if (ranks() < 2) return;
  constexpr int kTags = 12;
  const auto bytes_of = [](int tag) { return tag % 4 == 3 ? int64_t{200'000} : 1 + tag * 4'000; };
  run_all_members(engines(), [&](Group group) {
    if (group.rank() > 1) return;
    const int other = 1 - group.rank();
    std::vector<Bytes> given, got;
    std::vector<Work> works;
    for (int tag = 0; tag < kTags; ++tag) {
      given.push_back(message(group.rank(), other, tag, bytes_of(tag)));
      works.push_back(group.send(span_of_bytes(given.back(), DType::uint8), other, tag));
    }
    for (int tag = kTags - 1; tag >= 0; --tag) got.emplace_back(bytes_of(tag));
    for (int i = 0; i < kTags; ++i)
      works.push_back(group.recv(span_of_bytes(got[i], DType::uint8), other, kTags - 1 - i));
    for (size_t i = works.size(); i-- > 0;) works[i].wait();
    for (int i = 0; i < kTags; ++i)
      EXPECT_EQ(got[i], message(other, group.rank(), kTags - 1 - i, bytes_of(kTags - 1 - i)));
  });
}

TEST_P(Conformance, MessagesOfOneTagKeepTheirOrder) {
  if (ranks() < 2) return;
  run_all_members(engines(), [&](Group group) {
    constexpr int kCount = 300;
    if (group.rank() == 0) {
      std::vector<Work> works;
      std::vector<Bytes> kept;
      for (int i = 0; i < kCount; ++i) {
        kept.push_back(message(0, 1, i, i % 50 == 49 ? 100'000 : 3));
        works.push_back(group.send(span_of_bytes(kept.back(), DType::uint8), 1, 5));
      }
      for (auto& work : works) work.wait();
    }
    if (group.rank() == 1)
      for (int i = 0; i < kCount; ++i) {
        Bytes got(i % 50 == 49 ? 100'000 : 3);
        group.recv(span_of_bytes(got, DType::uint8), 0, 5).wait();
        EXPECT_EQ(got, message(0, 1, i, static_cast<int64_t>(got.size())));
      }
  });
}

TEST_P(Conformance, MessagesFromAnySourceSayWhose) {
  if (ranks() < 2) return;
  for (int64_t bytes : {int64_t{8}, kShortBytes + 9})
    run_all_members(engines(), [&](Group group) {
      if (group.rank() != 0) {
        Bytes given = message(group.rank(), 0, 3, bytes);
        group.send(span_of_bytes(given, DType::uint8), 0, 3).wait();
        return;
      }
      std::vector<int> heard(static_cast<size_t>(group.size()));
      for (int i = 1; i < group.size(); ++i) {
        int source = -7;
        Bytes got(static_cast<size_t>(bytes));
        group.recv(span_of_bytes(got, DType::uint8), kAnyRank, 3, kDefaultTimeLimit, &source)
            .wait();
        ASSERT_GT(source, 0);
        ASSERT_LT(source, group.size());
        EXPECT_EQ(++heard[source], 1);
        EXPECT_EQ(got, message(source, 0, 3, bytes));
      }
    });
}

// A recv whose message comes late holds up no collective, and a collective that waits for a rank
// holds up no message to it.
TEST_P(Conformance, MessagesAndCollectivesDoNotWaitForEachOther) {
  if (ranks() < 2) return;
  for (int64_t bytes : {int64_t{100}, int64_t{500'000}})
    run_all_members(engines(), [&](Group group) {
      const int rank = group.rank();
      Bytes got(static_cast<size_t>(bytes));
      std::vector<float> data(20'000, 1.f);
      Work recv;
      if (rank == 1) recv = group.recv(span_of_bytes(got, DType::uint8), 0, 9);
      // Rank 1 is in a message while the others are in the collective, which it has submitted.
      Work reduced = group.all_reduce(span_of(std::span(data)), ReduceOp::sum);
      if (rank != 1) reduced.wait();
      if (rank == 0) {
        Bytes given = message(0, 1, 9, bytes);
        group.send(span_of_bytes(given, DType::uint8), 1, 9).wait();
      }
      if (rank == 1) {
        recv.wait();
        EXPECT_EQ(got, message(0, 1, 9, bytes));
      }
      reduced.wait();
      EXPECT_EQ(data[19'999], static_cast<float>(group.size()));
      group.barrier();
    });
}

TEST_P(Conformance, ManySendsBlockNobodyWhoseReceiverIsInABarrier) {
  if (ranks() < 2) return;
  run_all_members(engines(), [&](Group group) {
    constexpr int kCount = 10;
    if (group.rank() == 0)
      for (int i = 0; i < kCount; ++i) {
        Bytes given = message(0, 1, i, kShortBytes);
        group.send(span_of_bytes(given, DType::uint8), 1, i).wait();
      }
    group.barrier();
    if (group.rank() == 1)
      for (int i = kCount - 1; i >= 0; --i) {
        Bytes got(kShortBytes);
        group.recv(span_of_bytes(got, DType::uint8), 0, i).wait();
        EXPECT_EQ(got, message(0, 1, i, kShortBytes));
      }
  });
}

TEST_P(Conformance, BatchesOfMessagesAreDoneTogether) {
  if (ranks() < 2) return;
  run_all_members(engines(), [&](Group group) {
    std::vector<Bytes> given, got;
    std::vector<Operation> batch;
    for (int r = 0; r < group.size(); ++r) {
      given.push_back(message(group.rank(), r, 1, 70'000 * (r % 2) + 10));
      got.emplace_back(70'000 * (group.rank() % 2) + 10);
    }
    for (int r = 0; r < group.size(); ++r) {
      if (r == group.rank()) continue;
      batch.push_back({.collective = Collective::send,
                       .root = r,
                       .tag = 1,
                       .input = span_of_bytes(given[r], DType::uint8)});
      batch.push_back({.collective = Collective::recv,
                       .root = r,
                       .tag = 1,
                       .output = span_of_bytes(got[r], DType::uint8)});
    }
    Engine& engine = group.engine();
    const Ticket ticket = engine.submit(batch);
    engine.progress(ticket, Deadline(kDefaultTimeLimit));
    EXPECT_TRUE(engine.poll(ticket));
    for (int r = 0; r < group.size(); ++r)
      if (r != group.rank()) {
        EXPECT_EQ(got[r], message(r, group.rank(), 1, static_cast<int64_t>(got[r].size())));
      }
    group.barrier();
  });
}

TEST_P(Conformance, AMessageOfAnotherLengthIsAMismatch) {
  if (ranks() < 2) return;
  for (int64_t bytes : {int64_t{12}, int64_t{100'000}}) {
    const auto thrown = run_members(engines(), [&](Group group) {
      Bytes memory(static_cast<size_t>(bytes + group.rank()));
      if (group.rank() == 0) group.send(span_of_bytes(memory, DType::uint8), 1, 4).wait();
      if (group.rank() == 1) group.recv(span_of_bytes(memory, DType::uint8), 0, 4).wait();
      group.barrier();
    });
    for (const auto& each : thrown) {
      const std::string words = words_of(each);
      EXPECT_EQ(words.rfind("Mismatch: ", 0), 0u) << words;
      EXPECT_NE(words.find(fmt::format("sent {} bytes under tag 4", bytes)), words.npos) << words;
      EXPECT_NE(words.find(std::to_string(bytes + 1)), words.npos) << words;
    }
  }
}

TEST_P(Conformance, ARecvWithoutAMessageEndsAtItsLimit) {
  if (ranks() < 2) return;
  const auto thrown = run_members(engines(), [&](Group group) {
    float room = 0;
    if (group.rank() == 1)
      group.recv({&room, 1, DType::float32}, 0, 4, Millis{50}).wait();
    else
      group.barrier();
  });
  for (const auto& each : thrown) {
    const std::string words = words_of(each);
    EXPECT_EQ(words.rfind("Timeout: ", 0), 0u) << words;
    EXPECT_NE(words.find("limit of 50 ms"), words.npos) << words;
  }
  EXPECT_EQ(words_of(thrown[1]).rfind("Timeout: recv", 0), 0u) << words_of(thrown[1]);
  EXPECT_NE(words_of(thrown[1]).find("rank 0"), std::string::npos) << words_of(thrown[1]);
}

}  // namespace
}  // namespace tutti::test
