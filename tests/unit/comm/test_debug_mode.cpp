// Debug mode names the first rank that differs, before data moves.
#include <gmock/gmock.h>

#include "tutti/comm/engine/debug_mode.h"

#include "tests/support/comm.h"
#include "tests/support/fake_engine.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

struct DebugMode {
  DebugMode() { set_debug_mode(true); }
  ~DebugMode() { set_debug_mode(false); }
};

/// What each of three ranks threw, and that its data was not touched.
std::vector<std::string> outcomes(const std::function<void(Group&, MemorySpan)>& body) {
  const DebugMode on;
  std::vector<std::string> words;
  for (const auto& thrown : test::run_members(make_shm_threads(3), [&](Group group) {
         std::vector<float> data(8, static_cast<float>(group.rank() + 1));
         try {
           body(group, span_of(std::span(data)));
         } catch (const Error&) {
           EXPECT_THAT(data, testing::Each(static_cast<float>(group.rank() + 1)));
           throw;
         }
       })) {
    words.push_back(test::words_of(thrown));
  }
  return words;
}

TEST(DebugMode, CallsThatAgreeGoThrough) {
  const auto words = outcomes([](Group& group, MemorySpan data) {
    group.all_reduce(data, ReduceOp::sum).wait();
    EXPECT_EQ(static_cast<float*>(data.data)[7], 6.f);
    group.broadcast(data, 2).wait();
    group.all_reduce_now(data, ReduceOp::max);
    group.barrier();
  });
  EXPECT_THAT(words, testing::Each(""));
}

TEST(DebugMode, WhatDiffersIsNamedOnEveryRank) {
  using Body = std::function<void(Group&, MemorySpan, bool odd)>;
  const struct {
    const char* name;
    Body body;
    const char* first;
    const char* second;
  } cases[] = {
      {"operation",
       [](Group& group, MemorySpan data, bool odd) {
         odd ? group.broadcast(data, 0).wait() : group.all_reduce(data, ReduceOp::sum).wait();
       },
       "rank 0 called all_reduce (sum) of 8 float32", "rank 1 called broadcast of 8 float32 from"},
      {"dtype",
       [](Group& group, MemorySpan data, bool odd) {
         if (odd) data.dtype = DType::int32;
         group.all_reduce(data, ReduceOp::sum).wait();
       },
       "rank 0 called all_reduce (sum) of 8 float32", "rank 1 called all_reduce (sum) of 8 int32"},
      {"length",
       [](Group& group, MemorySpan data, bool odd) {
         if (odd) data.num_elements = 7;
         group.all_reduce_now(data, ReduceOp::sum);
       },
       "of 8 float32", "rank 1 called all_reduce (sum) of 7 float32"},
      {"reduction",
       [](Group& group, MemorySpan data, bool odd) {
         group.all_reduce_now(data, odd ? ReduceOp::mean : ReduceOp::sum);
       },
       "(sum)", "rank 1 called all_reduce (mean)"},
      {"root",
       [](Group& group, MemorySpan data, bool odd) { group.broadcast(data, odd ? 1 : 2).wait(); },
       "from rank 2 at", "rank 1 called broadcast of 8 float32 from rank 1 at"},
  };
  for (const auto& c : cases) {
    const auto words =
        outcomes([&](Group& group, MemorySpan data) { c.body(group, data, group.rank() == 1); });
    for (const std::string& text : words) {
      EXPECT_THAT(text, AllOf(StartsWith("Mismatch: "), HasSubstr("ranks disagree on call #1: "),
                              HasSubstr(c.first), HasSubstr(c.second),
                              HasSubstr("at test_debug_mode.cpp:")))
          << c.name;
    }
  }
}

TEST(DebugMode, TheFirstThatDiffersIsTheOneNamed) {
  const auto words = outcomes([](Group& group, MemorySpan data) {
    group.barrier();
    group.all_reduce_now(data, group.rank() == 0 ? ReduceOp::sum : ReduceOp::max);
  });
  for (size_t rank = 0; rank < words.size(); ++rank) {
    EXPECT_THAT(words[rank],
                AllOf(HasSubstr("all_reduce #2, rank " + std::to_string(rank) + " of 3"),
                      HasSubstr("rank 1 called all_reduce (max)")));
  }
}

TEST(DebugMode, AnotherPlaceIsADifference) {
  const auto words = outcomes([](Group& group, MemorySpan) {
    if (group.rank() == 2)
      group.barrier();
    else
      group.barrier();
  });
  EXPECT_THAT(words[0], AllOf(StartsWith("Mismatch: "), HasSubstr("rank 2 called barrier at"),
                              HasSubstr("from the same place of the program")));
}

TEST(DebugMode, ACallThatOneRankSkipsIsSeenAtTheNext) {
  const auto words = outcomes([](Group& group, MemorySpan data) {
    if (group.rank() != 1) group.barrier();
    group.all_reduce_now(data, ReduceOp::sum);
  });
  for (const std::string& text : words) {
    EXPECT_THAT(text, AllOf(StartsWith("Mismatch: "), HasSubstr("rank 0 called barrier at"),
                            HasSubstr("rank 1 called all_reduce (sum) of 8 float32")));
  }
}

TEST(DebugMode, TheGroupHasFailedAfterwards) {
  const auto words = outcomes([](Group& group, MemorySpan data) {
    try {
      group.all_reduce_now(data, group.rank() == 0 ? ReduceOp::sum : ReduceOp::max);
    } catch (const Mismatch&) {
      group.barrier();
    }
  });
  EXPECT_THAT(words, testing::Each(
                         AllOf(StartsWith("Mismatch: "), HasSubstr("ranks disagree on call #1"))));
}

TEST(DebugMode, MessagesAreNotCompared) {
  const DebugMode on;
  const auto engine = std::make_shared<test::FakeEngine>(0, 2);
  Group group(engine);
  std::vector<float> data(4);
  group.send(span_of(std::span(data)), 1).wait();
  group.recv(span_of(std::span(data)), 1).wait();
  EXPECT_THAT(engine->run_at_once, testing::IsEmpty());
  group.broadcast(span_of(std::span(data)), 0).wait();
  EXPECT_THAT(engine->run_at_once, testing::ElementsAre(Collective::all_gather));
}

}  // namespace
}  // namespace tutti
