// One suite for all engines: every collective against the slow oracle, byte for byte, on all ranks.
// A new engine is one line at the end.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/comm.h"
#include "tests/support/reduce_oracle.h"

namespace tutti {
namespace {

using test::Bytes;

struct Case {
  const char* engine;
  int ranks;
};

constexpr DType kReducible[] = {DType::float32, DType::float64, DType::bfloat16,
                                DType::float16, DType::int32,   DType::int64};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max};
constexpr int64_t kSlotBytes = 4096;

bool defined(DType dtype, ReduceOp op) { return op != ReduceOp::mean || is_floating(dtype); }

MemorySpan span_of_bytes(Bytes& bytes, DType dtype) {
  return {bytes.data(), static_cast<int64_t>(bytes.size()) / size_of(dtype), dtype};
}

class Conformance : public testing::TestWithParam<Case> {
 protected:
  int ranks() const { return GetParam().ranks; }

  std::vector<std::shared_ptr<Engine>> engines() const {
    return test::make_engines(GetParam().engine, ranks(), {.slot_bytes = kSlotBytes});
  }

  // Around every boundary: nothing, parts of one element, inline, small and staging slots.
  std::vector<int64_t> lengths(DType dtype) const {
    const int64_t n = ranks();
    std::vector<int64_t> all = {0, 1, n, n + 1, 997, n > 8 ? 3'001 : 20'011};
    if (n > 1) all.push_back(n - 1);
    for (int64_t bytes :
         {int64_t{40}, 2 * 8192 / std::max<int64_t>(n, 2), kSlotBytes, 3 * kSlotBytes})
      for (int64_t extra : {-1, 0, 1}) all.push_back(bytes / size_of(dtype) + extra);
    return all;
  }

  std::vector<Bytes> inputs(DType dtype, int64_t n, uint32_t seed) const {
    std::vector<Bytes> all;
    for (int r = 0; r < ranks(); ++r) all.push_back(test::ordinary_values(dtype, n, seed, r));
    return all;
  }
};

void expect_same(DType dtype, const Bytes& got, const Bytes& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_EQ(test::first_difference(dtype, got.data(), expected.data(),
                                   static_cast<int64_t>(got.size()) / size_of(dtype)),
            "")
      << what;
}

TEST_P(Conformance, AllReduce) {
  const auto members = engines();
  for (DType dtype : kReducible)
    for (ReduceOp op : kOps) {
      if (!defined(dtype, op)) continue;
      for (int64_t n : lengths(dtype)) {
        const auto given = inputs(dtype, n, 1);
        auto data = given;
        test::run_all_members(members, [&](Group group) {
          (void)group.all_reduce(span_of_bytes(data[group.rank()], dtype), op).wait();
        });
        const Bytes expected = test::oracle(dtype, op, ReductionShape::flat(ranks()), given);
        for (const auto& result : data)
          expect_same(dtype, result, expected,
                      fmt::format("{} of {} {}", name_of(op), n, name_of(dtype)));
      }
    }
}

TEST_P(Conformance, ReduceScatterAlsoInPlace) {
  const auto members = engines();
  for (DType dtype : {DType::float32, DType::float16, DType::int64})
    for (bool in_place : {false, true})
      for (int64_t n : lengths(dtype)) {
        const auto given = inputs(dtype, n * ranks(), 2);
        auto data = given;
        std::vector<Bytes> parts(ranks(), Bytes(n * size_of(dtype)));
        test::run_all_members(members, [&](Group group) {
          const int rank = group.rank();
          MemorySpan output = span_of_bytes(parts[rank], dtype);
          if (in_place) output.data = data[rank].data() + rank * output.num_bytes();
          (void)group.reduce_scatter(span_of_bytes(data[rank], dtype), output, ReduceOp::sum)
              .wait();
          if (in_place && n > 0) std::memcpy(parts[rank].data(), output.data, output.num_bytes());
        });
        const Bytes whole =
            test::oracle(dtype, ReduceOp::sum, ReductionShape::flat(ranks()), given);
        for (int r = 0; r < ranks(); ++r)
          expect_same(dtype, parts[r],
                      Bytes(whole.begin() + r * n * size_of(dtype),
                            whole.begin() + (r + 1) * n * size_of(dtype)),
                      fmt::format("part {} of {} {}", r, n, name_of(dtype)));
      }
}

TEST_P(Conformance, AllGatherOfAnyDtypeAlsoInPlace) {
  const auto members = engines();
  for (DType dtype : {DType::uint8, DType::boolean, DType::float64})
    for (bool in_place : {false, true})
      for (int64_t n : lengths(dtype)) {
        const auto given = inputs(dtype, n, 3);
        std::vector<Bytes> results(ranks(), Bytes(n * size_of(dtype) * ranks()));
        Bytes expected;
        for (const auto& part : given) expected.insert(expected.end(), part.begin(), part.end());
        test::run_all_members(members, [&](Group group) {
          const int rank = group.rank();
          Bytes mine = given[rank];
          MemorySpan input = span_of_bytes(mine, dtype);
          if (in_place) {
            input.data = results[rank].data() + rank * input.num_bytes();
            if (n > 0) std::memcpy(input.data, mine.data(), mine.size());
          }
          (void)group.all_gather(input, span_of_bytes(results[rank], dtype)).wait();
        });
        for (const auto& result : results)
          expect_same(dtype, result, expected, name_of(dtype).data());
      }
}

TEST_P(Conformance, BroadcastFromEveryRoot) {
  const auto members = engines();
  for (int64_t n : lengths(DType::int16))
    for (int root = 0; root < ranks(); ++root) {
      const auto given = inputs(DType::int16, n, 4);
      auto data = given;
      test::run_all_members(members, [&](Group group) {
        (void)group.broadcast(span_of_bytes(data[group.rank()], DType::int16), root).wait();
      });
      for (const auto& result : data) expect_same(DType::int16, result, given[root], "broadcast");
    }
}

// Ranks stumble at random between operations; many are in flight; waits come in any order. Results
// stay bit-equal, and equal to those of a calm run.
TEST_P(Conformance, ManyInFlightUnderRandomDelays) {
  const auto members = engines();
  constexpr int kOperations = 150;  // more than fit in the ring
  std::vector<std::vector<Bytes>> data(kOperations);
  std::vector<Bytes> expected;
  for (int i = 0; i < kOperations; ++i) {
    const int64_t n = int64_t{1} << (i % 14);
    data[i] = inputs(DType::float32, n, static_cast<uint32_t>(i));
    expected.push_back(
        test::oracle(DType::float32, ReduceOp::mean, ReductionShape::flat(ranks()), data[i]));
  }
  test::run_all_members(members, [&](Group group) {
    std::mt19937 random(static_cast<uint32_t>(group.rank()) + 99);
    std::vector<Work> works;
    for (int i = 0; i < kOperations; ++i) {
      for (uint32_t yields = random() % 20; yields > 0; --yields) std::this_thread::yield();
      works.push_back(
          group.all_reduce(span_of_bytes(data[i][group.rank()], DType::float32), ReduceOp::mean));
      if (random() % 8 == 0) works[random() % works.size()].wait();
      if (random() % 8 == 0) (void)works[random() % works.size()].test();
    }
    group.barrier();
    for (auto& work : works) EXPECT_TRUE(work.test()) << "a barrier comes after all before it";
  });
  for (int i = 0; i < kOperations; ++i)
    for (const auto& result : data[i])
      expect_same(DType::float32, result, expected[i], fmt::format("operation {}", i));
}

TEST_P(Conformance, CompletesWhenOnlyPolled) {
  const auto members = engines();
  for (int64_t n : {3, 500, 50'000}) {
    const auto given = inputs(DType::float64, n, 6);
    auto data = given;
    test::run_all_members(members, [&](Group group) {
      Work work =
          group.all_reduce(span_of_bytes(data[group.rank()], DType::float64), ReduceOp::max);
      Work again = group.all_reduce({}, ReduceOp::sum);
      while (!again.test()) std::this_thread::yield();
      EXPECT_TRUE(work.test());
    });
    const Bytes expected =
        test::oracle(DType::float64, ReduceOp::max, ReductionShape::flat(ranks()), given);
    for (const auto& result : data) expect_same(DType::float64, result, expected, "polled");
  }
}

TEST_P(Conformance, AllocatesMemoryThatAllSeeAndThatOutlivesTheGroup) {
  std::vector<SharedParts> kept(ranks());
  test::run_all_members(engines(), [&](Group group) {
    const int rank = group.rank();
    for (int64_t unit :
         {0, 1000, 90'000}) {  // also one where rank 0 and one where all want nothing
      SharedParts shared = group.allocate(unit * rank);
      ASSERT_EQ(static_cast<int>(shared.parts.size()), group.size());
      for (int r = 0; r < group.size(); ++r) {
        const MemorySpan& part = shared.parts[r];
        ASSERT_EQ(part.num_elements, unit * r);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(part.data) % 64, 0u);
        const auto* bytes = static_cast<const char*>(part.data);
        EXPECT_TRUE(std::all_of(bytes, bytes + part.num_elements, [](char x) { return x == 0; }));
      }
      group.barrier();
      if (unit * rank > 0)
        std::memset(shared.parts[rank].data, rank + 1, shared.parts[rank].num_elements);
      group.barrier();
      for (int r = 0; r < group.size(); ++r) {
        const auto* bytes = static_cast<const char*>(shared.parts[r].data);
        EXPECT_TRUE(std::all_of(bytes, bytes + unit * r, [r](char x) { return x == r + 1; }));
      }
      group.barrier();
      kept[rank] = shared;
    }
  });
  for (const auto& shared : kept)
    for (int r = 0; r < ranks(); ++r) {
      const auto* bytes = static_cast<const char*>(shared.parts[r].data);
      EXPECT_TRUE(std::all_of(bytes, bytes + shared.parts[r].num_elements,
                              [r](char x) { return x == r + 1; }));
    }
}

TEST_P(Conformance, ReducesAllocatedMemoryAtAnyOffset) {
  const auto members = engines();
  const int64_t n = 30'000;
  const auto given = inputs(DType::float32, n, 8);
  const Bytes expected =
      test::oracle(DType::float32, ReduceOp::sum, ReductionShape::flat(ranks()), given);
  test::run_all_members(members, [&](Group group) {
    const int rank = group.rank();
    SharedParts shared = group.allocate(n * 4 + 400);
    // Ranks lie at different offsets; the last keeps its data in memory of its own.
    auto* mine = static_cast<unsigned char*>(shared.parts[rank].data) + rank * 12;
    std::memcpy(mine, given[rank].data(), given[rank].size());
    (void)group.all_reduce({mine, n, DType::float32}, ReduceOp::sum).wait();
    EXPECT_EQ(std::memcmp(mine, expected.data(), expected.size()), 0);
    Bytes own = given[rank];
    void* data = rank + 1 == group.size() ? own.data() : mine;
    std::memcpy(mine, given[rank].data(), given[rank].size());
    (void)group.all_reduce({data, n, DType::float32}, ReduceOp::sum).wait();
    EXPECT_EQ(std::memcmp(data, expected.data(), expected.size()), 0) << "seen by some only";
  });
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = fmt::format("{}_{}", info.param.engine, info.param.ranks);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Solo, Conformance, testing::Values(Case{"solo", 1}), case_name);
INSTANTIATE_TEST_SUITE_P(Shm, Conformance,
                         testing::Values(Case{"shm", 1}, Case{"shm", 2}, Case{"shm", 3},
                                         Case{"shm", 4}, Case{"shm", 7}, Case{"shm", 18}),
                         case_name);
INSTANTIATE_TEST_SUITE_P(ShmStaged, Conformance,
                         testing::Values(Case{"shm staged", 2}, Case{"shm staged", 3},
                                         Case{"shm staged", 5}, Case{"shm staged", 18}),
                         case_name);

// Threads and blocks of one segment cost little, so that 64 ranks need no other code.
TEST(ManyRanks, SixtyFour) {
  const auto members = make_shm_threads(64);
  std::vector<Bytes> given;
  for (int r = 0; r < 64; ++r) given.push_back(test::ordinary_values(DType::float32, 5000, 9, r));
  auto data = given;
  test::run_all_members(members, [&](Group group) {
    (void)group.all_reduce(span_of_bytes(data[group.rank()], DType::float32), ReduceOp::sum).wait();
  });
  const Bytes expected =
      test::oracle(DType::float32, ReduceOp::sum, ReductionShape::flat(64), given);
  for (const auto& result : data) expect_same(DType::float32, result, expected, "64 ranks");
}

}  // namespace
}  // namespace tutti
