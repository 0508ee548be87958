// One suite for all engines: every collective against the slow oracle, byte for byte, on all ranks.
#include "tutti/comm/engine/reduce_kernels.h"

#include "tests/ranks/comm/conformance.h"

namespace tutti::test {
namespace {

std::vector<Bytes> inputs_of(int ranks, DType dtype, int64_t n, uint32_t seed) {
  std::vector<Bytes> all;
  for (int r = 0; r < ranks; ++r) all.push_back(ordinary_values(dtype, n, seed, r));
  return all;
}

TEST_P(Conformance, AllReduceOfEveryLength) {
  const auto members = engines();
  constexpr std::pair<DType, ReduceOp> kUsual[] = {{DType::float32, ReduceOp::sum},
                                                   {DType::bfloat16, ReduceOp::mean},
                                                   {DType::int64, ReduceOp::max}};
  for (const auto& [dtype, op] : kUsual)
    for (int64_t n : lengths(dtype))
      expect_conforms(members,
                      {.collective = Collective::all_reduce, .dtype = dtype, .op = op, .n = n});
}

TEST_P(Conformance, AllReduceOfEveryDtypeByEveryOperation) {
  const auto members = engines();
  for (DType dtype : kAllDTypes)
    for (ReduceOp op : kAllOps)
      if (is_defined(dtype, op))
        for (int64_t n : few_lengths(dtype))
          expect_conforms(members,
                          {.collective = Collective::all_reduce, .dtype = dtype, .op = op, .n = n});
}

TEST_P(Conformance, RootedCollectivesOfEveryRoot) {
  const auto members = engines();
  for (Collective collective :
       {Collective::reduce, Collective::broadcast, Collective::scatter, Collective::gather}) {
    for (int64_t n : lengths(DType::int16))
      expect_conforms(members, {.collective = collective,
                                .dtype = DType::int16,
                                .op = ReduceOp::bit_xor,
                                .root = static_cast<int>(n % ranks()),
                                .n = n});
    for (int root = 0; root < ranks(); ++root)
      for (int64_t n : {7, 700, 7'000})
        expect_conforms(members, {.collective = collective, .root = root, .n = n}, 3);
  }
}

TEST_P(Conformance, PartsOfEveryLengthAlsoInPlace) {
  const auto members = engines();
  for (Collective collective : {Collective::reduce_scatter, Collective::all_gather,
                                Collective::scatter, Collective::gather, Collective::all_to_all})
    for (DType dtype : {DType::uint8, DType::float16})
      for (bool in_place : {false, true}) {
        if (in_place && collective == Collective::all_to_all) continue;
        for (int64_t n : ranks() > 5 ? few_lengths(dtype) : lengths(dtype))
          expect_conforms(members, {.collective = collective,
                                    .dtype = dtype,
                                    .root = ranks() - 1,
                                    .n = n,
                                    .in_place = in_place});
      }
}

TEST_P(Conformance, UnequalPartsAlsoOfNothing) {
  const auto members = engines();
  uint32_t seed = 0;
  for (Collective collective : {Collective::reduce_scatter, Collective::all_gather,
                                Collective::scatter, Collective::gather, Collective::all_to_all})
    for (bool in_place : {false, true})
      for (int64_t longest : {0, 1, 30, 700, 5'000}) {
        if (in_place && collective == Collective::all_to_all) continue;
        Call call{.collective = collective, .root = ranks() / 2, .in_place = in_place};
        const int lists = collective == Collective::all_to_all ? ranks() : 1;
        for (int s = 0; s < lists; ++s) call.counts.push_back(some_counts(++seed, longest));
        expect_conforms(members, call, seed);
      }
}

// Between the levels of a hierarchy: float32 of 16-bit input, neither rounded nor divided.
TEST_P(Conformance, PartialReduceScatter) {
  const auto members = engines();
  for (DType dtype : {DType::bfloat16, DType::float16, DType::float32})
    for (int64_t n : lengths(dtype)) {
      const Call call{.collective = Collective::reduce_scatter, .dtype = dtype, .n = n};
      const auto before = make_all_buffers(call, ranks(), 5);
      std::vector<std::vector<float>> results(ranks(), std::vector<float>(n));
      run_all_members(members, [&](Group group) {
        Bytes input = before[group.rank()].input;
        group.engine().run({.collective = Collective::reduce_scatter,
                            .reduce = ReduceOp::mean,
                            .input = span_of_bytes(input, dtype),
                            .output = span_of(std::span(results[group.rank()])),
                            .partial = true});
      });
      std::vector<Bytes> wide;
      for (const auto& each : before) {
        wide.emplace_back(static_cast<size_t>(n * ranks() * 4));
        const void* const input = each.input.data();
        reduce_partial(dtype, ReduceOp::sum, ReductionShape::flat(1), {&input, 1},
                       wide.back().data(), n * ranks());
      }
      const Bytes sum = oracle(DType::float32, ReduceOp::sum, ReductionShape::flat(ranks()), wide);
      for (int r = 0; r < ranks(); ++r)
        EXPECT_EQ(first_difference(DType::float32, results[r].data(), sum.data() + r * n * 4, n),
                  "")
            << n << " " << name_of(dtype);
    }
}

TEST_P(Conformance, ManyInFlightUnderRandomDelays) {
  const auto members = engines();
  constexpr int kOperations = 150;  // more than fit in the ring
  std::vector<std::vector<Bytes>> data(kOperations);
  std::vector<Bytes> expected;
  for (int i = 0; i < kOperations; ++i) {
    const int64_t n = int64_t{1} << (i % 14);
    data[i] = inputs_of(ranks(), DType::float32, n, static_cast<uint32_t>(i));
    expected.push_back(
        oracle(DType::float32, ReduceOp::mean, ReductionShape::flat(ranks()), data[i]));
  }
  run_all_members(members, [&](Group group) {
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
    const auto given = inputs_of(ranks(), DType::float64, n, 6);
    auto data = given;
    run_all_members(members, [&](Group group) {
      Work work =
          group.all_reduce(span_of_bytes(data[group.rank()], DType::float64), ReduceOp::max);
      Work again = group.all_reduce({}, ReduceOp::sum);
      while (!again.test()) std::this_thread::yield();
      EXPECT_TRUE(work.test());
    });
    const Bytes expected =
        oracle(DType::float64, ReduceOp::max, ReductionShape::flat(ranks()), given);
    for (const auto& result : data) expect_same(DType::float64, result, expected, "polled");
  }
}

TEST_P(SharedMemoryConformance, AllocatesMemoryThatAllSeeAndThatOutlivesTheGroup) {
  std::vector<SharedParts> kept(ranks());
  run_all_members(engines(), [&](Group group) {
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

TEST_P(SharedMemoryConformance, ReducesAllocatedMemoryAtAnyOffset) {
  const auto members = engines();
  const int64_t n = 30'000;
  const auto given = inputs_of(ranks(), DType::float32, n, 8);
  const Bytes expected =
      oracle(DType::float32, ReduceOp::sum, ReductionShape::flat(ranks()), given);
  run_all_members(members, [&](Group group) {
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

}  // namespace
}  // namespace tutti::test
