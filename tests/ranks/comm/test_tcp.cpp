// The tcp engine beyond the conformance suite: every algorithm over real streams, many stripes,
// options, splitting, messages in numbers.
#include <atomic>
#include <map>
#include <numeric>
#include <thread>

#include "tests/support/comm.h"
#include "tests/support/expect.h"
#include "tests/support/reduce_oracle.h"
#include "tests/support/tcp_members.h"

namespace tutti {
namespace {

MemorySpan span_of_bytes(Bytes& bytes, DType dtype) {
  return {bytes.data(), static_cast<int64_t>(bytes.size()) / size_of(dtype), dtype};
}

// Small chunks and stripes, so that small buffers go through every path.
TcpOptions small_pieces(Algorithm algorithm, Collective collective, Order order) {
  return {.order = order,
          .table = {{{.collective = collective, .order = order, .algorithm = algorithm}}},
          .chunk_bytes = 4096,
          .min_stripe_bytes = 4096};
}

constexpr Algorithm kAll[] = {Algorithm::direct,           Algorithm::pairwise, Algorithm::doubling,
                              Algorithm::halving_doubling, Algorithm::tree,     Algorithm::ring,
                              Algorithm::double_tree};

TEST(Tcp, AllReduceByEveryAlgorithm) {
  for (Algorithm algorithm : kAll) {
    const bool any = algorithm == Algorithm::ring || algorithm == Algorithm::double_tree;
    for (int ranks : {2, 3, 4, 6, 8}) {
      TcpOptions options =
          small_pieces(algorithm, Collective::all_reduce, any ? Order::any : Order::fixed);
      const auto members = make_tcp_members(ranks, options, 3);
      for (DType dtype : {DType::float32, DType::bfloat16, DType::int64})
        for (ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max})
          for (int64_t n : {1, 5, 1024, 1025, 30'011}) {
            if (op == ReduceOp::mean && !is_floating(dtype)) continue;
            // Integers add in any order to the same.
            if (any && is_floating(dtype) && op != ReduceOp::max) continue;
            std::vector<Bytes> data;
            for (int r = 0; r < ranks; ++r) data.push_back(ordinary_values(dtype, n, 7, r));
            const Bytes expected = test::oracle(dtype, op, ReductionShape::flat(ranks), data);
            run_all_members(members, [&](Group group) {
              group.all_reduce(span_of_bytes(data[group.rank()], dtype), op).wait();
            });
            for (int r = 0; r < ranks; ++r)
              ASSERT_EQ(test::first_difference(dtype, data[r].data(), expected.data(), n), "")
                  << name_of(algorithm) << ", " << ranks << " ranks, rank " << r << ", "
                  << name_of(op) << " of " << n << " " << name_of(dtype);
          }
    }
  }
}

// As one after the other, whoever is late, and whatever memory they have in common.
TEST(Tcp, SumsBesideEachOtherAreThoseInOrder) {
  constexpr int kRanks = 3, kSums = 24;
  for (const int64_t n : {3, 1'000, 30'000})
    run_all_members(make_engines("tcp loopback", kRanks), [&](Group group) {
      std::vector<std::vector<int64_t>> data(kSums / 2);
      for (auto& one : data) one.assign(static_cast<size_t>(n), group.rank() + 1);
      std::vector<int64_t> told(5, group.rank());
      std::vector<Work> works;
      for (int i = 0; i < kSums; ++i) {
        // The second half sums what the first half has summed: two at a time touch the same.
        auto& one = data[static_cast<size_t>(i % 4 == 3 ? i / 2 - 1 : i / 2)];
        works.push_back(group.all_reduce(span_of(std::span(one)), ReduceOp::sum));
        if (i % 8 == 7) works.push_back(group.broadcast(span_of(std::span(told)), i % kRanks));
        if (group.rank() == i % kRanks) works.back().wait();
      }
      for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
      std::vector<int64_t> sums(kSums / 2, 0), expected(kSums / 2, 0);
      for (int i = 0; i < kSums; ++i) ++sums[static_cast<size_t>(i % 4 == 3 ? i / 2 - 1 : i / 2)];
      for (size_t k = 0; k < data.size(); ++k) {
        int64_t value = kRanks * (kRanks + 1) / 2;  // of the first; then times the ranks
        for (int64_t more = 1; more < sums[k]; ++more) value *= kRanks;
        if (sums[k] == 0) value = group.rank() + 1;
        EXPECT_EQ(data[k], std::vector<int64_t>(static_cast<size_t>(n), value)) << k;
      }
      EXPECT_EQ(told, std::vector<int64_t>(5, 7 % kRanks)) << "the first root's";
    });
}

// More frames than one look takes have been read by then, of which the last is waited for.
TEST(Tcp, FramesThatWereReadAheadAreNotLeftInLargeGroups) {
  constexpr int kRanks = 9, kBefore = 80;
  const auto members = make_tcp_members(kRanks, {});
  std::atomic<bool> sent{false};
  run_all_members(members, [&](Group group) {
    std::vector<int32_t> numbers(kBefore + 1);
    std::vector<Work> works;
    if (group.rank() == 1) {
      for (int i = 0; i <= kBefore; ++i) {
        numbers[i] = i;
        const MemorySpan one = span_of(std::span(numbers).subspan(i, 1));
        works.push_back(group.send(one, 0, i == kBefore ? 1 : 0));
      }
      for (Work& work : works) work.wait();
      sent = true;
    } else if (group.rank() == 0) {
      while (!sent) std::this_thread::yield();
      group.recv(span_of(std::span(numbers).last(1)), 1, 1).wait(Millis{5'000});
      EXPECT_EQ(numbers[kBefore], kBefore);
      for (int i = 0; i < kBefore; ++i) {
        group.recv(span_of(std::span(numbers).subspan(i, 1)), 1, 0).wait();
        EXPECT_EQ(numbers[i], i);
      }
    }
    group.barrier();
  });
}

TEST(Tcp, ShapesOfUnequalHostsAreFollowed) {
  for (const char* text : {"3+1", "2x3", "1+2"}) {
    const auto shape = ReductionShape::parse(text);
    const auto members = make_tcp_members(
        shape.replicas(), {.shape = shape, .chunk_bytes = 4096, .min_stripe_bytes = 4096}, 2);
    for (DType dtype : {DType::float32, DType::float16})
      for (int64_t n : {1, 300, 20'000}) {
        std::vector<Bytes> data;
        for (int r = 0; r < shape.replicas(); ++r) data.push_back(ordinary_values(dtype, n, 3, r));
        const Bytes expected = test::oracle(dtype, ReduceOp::sum, shape, data);
        run_all_members(members, [&](Group group) {
          EXPECT_EQ(group.reduction_shape(), shape);
          group.all_reduce(span_of_bytes(data[group.rank()], dtype), ReduceOp::sum).wait();
        });
        for (const Bytes& result : data)
          ASSERT_EQ(test::first_difference(dtype, result.data(), expected.data(), n), "")
              << text << ", " << n;
      }
  }
}

TEST(Tcp, SplitsIntoGroupsThatLiveForThemselves) {
  const auto members = make_tcp_members(5, {.shape = ReductionShape::parse("2+3")});
  run_all_members(members, [&](Group group) {
    // Colours 0: ranks 4, 2, 0 in this order; 1: ranks 1, 3.
    const auto part = group.split(group.rank() % 2, -group.rank());
    ASSERT_TRUE(part.has_value());
    EXPECT_EQ(part->size(), group.rank() % 2 == 0 ? 3 : 2);
    EXPECT_EQ(part->rank(),
              group.rank() % 2 == 0 ? (4 - group.rank()) / 2 : (3 - group.rank()) / 2);
    EXPECT_EQ(part->reduction_shape().to_string(), group.rank() % 2 == 0 ? "2+1" : "2x1");
    std::vector<int> sum = {group.rank()};
    Group copy = *part;
    copy.all_reduce(span_of(std::span(sum)), ReduceOp::sum).wait();
    EXPECT_EQ(sum[0], group.rank() % 2 == 0 ? 6 : 4);
    // Beside the large group, in another order on different ranks.
    std::vector<int> whole = {1};
    Work first = group.all_reduce(span_of(std::span(whole)), ReduceOp::sum);
    copy.barrier();
    first.wait();
    EXPECT_EQ(whole[0], 5);
    // Alone, not at all, and once more.
    EXPECT_EQ(group.split(group.rank(), 0)->size(), 1);
    EXPECT_EQ(group.split(group.rank() == 1 ? -1 : 7, 0).has_value(), group.rank() != 1);
    if (group.rank() % 2 == 0) copy.abort("this one ends");
    group.barrier();
  });
}

// Who waits for one sum while the others have gone on to the next ones does not wait for those.
TEST(Tcp, ALaterSumNeedsNotHaveBegunEverywhere) {
  run_all_members(make_engines("tcp loopback", 2), [&](Group group) {
    std::vector<float> a(50'000, 1.f), b(50'000, 2.f);
    Work first = group.all_reduce(span_of(std::span(a)), ReduceOp::sum);
    if (group.rank() == 0) {
      Work second = group.all_reduce(span_of(std::span(b)), ReduceOp::sum);
      first.wait();
      second.wait();
    } else {
      first.wait();
      EXPECT_EQ(a[49'999], 2.f);
      group.all_reduce(span_of(std::span(b)), ReduceOp::sum).wait();
    }
    EXPECT_EQ(b[49'999], 4.f);
  });
}

TEST(Tcp, SplitNeedsAWayToConnect) {
  auto links = tcp_links(2);
  const auto first = make_tcp(std::move(links[0])), second = make_tcp(std::move(links[1]));
  for (const auto& thrown : run_members({first, second}, [](Group group) { (void)group.split(0); }))
    EXPECT_THAT(test::words_of(thrown),
                AllOf(StartsWith("UsageError: split, rank "), HasSubstr("TcpOptions::connect")));
}

// Short and long messages, from named senders and from any, under many tags, taken in another order
// than they were sent.
TEST(Tcp, MessagesOfEveryLengthInAnyOrder) {
  constexpr int kRanks = 4;
  const std::vector<int64_t> lengths = {0, 1, 100, 65'536, 65'537, 700'000};
  for (const char* engine : {"tcp", "tcp loopback"})
    run_all_members(make_engines(engine, kRanks), [&](Group group) {
      const auto value = [&](int from, int64_t length) {
        return static_cast<unsigned char>(from * 37 + length % 251 + 1);
      };
      std::vector<std::vector<unsigned char>> out, in;
      std::vector<Work> works;
      for (int to = 0; to < kRanks; ++to)
        for (size_t tag = 0; tag < lengths.size() && to != group.rank(); ++tag) {
          out.emplace_back(lengths[tag], value(group.rank(), lengths[tag]));
          works.push_back(group.send(span_of(std::span(out.back())), to, static_cast<int>(tag)));
        }
      std::vector<int> sources(kRanks * lengths.size(), -2);
      std::vector<std::pair<int, int64_t>> expected;
      for (size_t tag = lengths.size(); tag-- > 0;)
        for (int from = kRanks; from-- > 0;) {
          if (from == group.rank()) continue;
          in.emplace_back(lengths[tag]);
          const bool any = tag % 2 == 0;
          works.push_back(group.recv(span_of(std::span(in.back())), any ? kAnyRank : from,
                                     static_cast<int>(tag), kDefaultTimeLimit,
                                     &sources[in.size() - 1]));
          expected.emplace_back(any ? kAnyRank : from, lengths[tag]);
        }
      group.barrier();  // a collective between goes its own way
      for (Work& work : works) work.wait();
      std::map<int64_t, int> sum_of_any;
      for (size_t i = 0; i < in.size(); ++i) {
        if (expected[i].first == kAnyRank)
          sum_of_any[expected[i].second] += sources[i];
        else
          EXPECT_EQ(sources[i], expected[i].first);
        for (unsigned char byte : in[i]) ASSERT_EQ(byte, value(sources[i], expected[i].second));
      }
      for (const auto& [length, sum] : sum_of_any) EXPECT_EQ(sum, 6 - group.rank()) << length;
    });
}

// More than a receiver keeps for one sender: the sender is held back, and all arrive in order.
TEST(Tcp, ManyShortMessagesArriveInOrder) {
  constexpr int kMessages = 2'000;
  run_all_members(make_engines("tcp", 2), [&](Group group) {
    std::vector<std::vector<int>> data(kMessages, std::vector<int>(1'000));
    if (group.rank() == 0) {
      std::vector<Work> works;
      for (int i = 0; i < kMessages; ++i) {
        data[i][999] = i;
        works.push_back(group.send(span_of(std::span(data[i])), 1));
      }
      for (Work& work : works) work.wait();
      group.barrier();
      return;
    }
    for (int i = 0; i < kMessages; ++i) {
      group.recv(span_of(std::span(data[i])), kAnyRank).wait();
      ASSERT_EQ(data[i][999], i);
    }
    group.barrier();
  });
}

TEST(Tcp, AMessageOfAnotherLengthIsAMismatch) {
  for (int64_t length : {10, 100'000}) {
    const auto thrown = run_members(make_engines("tcp", 2), [&](Group group) {
      std::vector<float> data(length), room(length + 1);
      if (group.rank() == 0)
        group.send(span_of(std::span(data)), 1, 3).wait();
      else
        group.recv(span_of(std::span(room)), 0, 3).wait();
      group.barrier();
    });
    for (const auto& one : thrown)
      EXPECT_THAT(test::words_of(one),
                  AllOf(StartsWith("Mismatch: "),
                        HasSubstr(fmt::format("rank 0 sent {} bytes under tag 3", length * 4))));
  }
}

// A long-lived buffer of a send may be reused once its Work is done, and not before.
TEST(Tcp, CrossedLongMessagesDoNotBlock) {
  run_all_members(make_engines("tcp loopback", 3), [&](Group group) {
    const int next = (group.rank() + 1) % 3, previous = (group.rank() + 2) % 3;
    std::vector<int> out(2'000'000, group.rank()), in(2'000'000);
    for (int round = 0; round < 3; ++round) {
      Work send = group.send(span_of(std::span(out)), next, round);
      Work recv = group.recv(span_of(std::span(in)), previous, round);
      send.wait();
      recv.wait();
      EXPECT_EQ(in, std::vector<int>(2'000'000, previous));
    }
  });
}

}  // namespace
}  // namespace tutti
