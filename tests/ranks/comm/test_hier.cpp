// The hier engine over hosts of unequal size, chunks and slices: what the conformance suite does
// not vary.
#include "tests/support/expect.h"
#include "tests/support/hier.h"
#include "tests/support/reduce_oracle.h"

namespace tutti {
namespace {

constexpr int64_t kChunkBytes = 4096;

MemorySpan span_of_bytes(Bytes& bytes, DType dtype) {
  return {bytes.data(), static_cast<int64_t>(bytes.size()) / size_of(dtype), dtype};
}

class HierHosts : public testing::TestWithParam<std::vector<int>> {
 protected:
  void SetUp() override {
    engines_ = make_hier_threads(GetParam(), kChunkBytes);
    shape_ = engines_[0]->reduction_shape();
  }
  std::vector<Bytes> inputs(DType dtype, int64_t n) const {
    std::vector<Bytes> all;
    for (int r = 0; r < shape_.replicas(); ++r) all.push_back(ordinary_values(dtype, n, 7, r));
    return all;
  }
  std::vector<std::shared_ptr<Engine>> engines_;
  ReductionShape shape_ = ReductionShape::flat(1);
};

TEST_P(HierHosts, SumsInTheOrderOfItsShape) {
  ASSERT_EQ(shape_, ReductionShape::hosts(GetParam()));
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float64, DType::int32})
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max})
      for (int64_t n : {0, 1, 5, 64, 1'023, 1'025, 9'001}) {
        if (op == ReduceOp::mean && !is_floating(dtype)) continue;
        const auto given = inputs(dtype, n);
        const Bytes expected = test::oracle(dtype, op, shape_, given);
        auto all = given;
        auto rooted = given;
        const int root = shape_.replicas() - 1;
        run_all_members(engines_, [&](Group group) {
          const auto r = static_cast<size_t>(group.rank());
          Work first = group.all_reduce(span_of_bytes(all[r], dtype), op);
          group.reduce(span_of_bytes(rooted[r], dtype), op, root).wait();
          first.wait();
        });
        for (int r = 0; r < shape_.replicas(); ++r) {
          const auto i = static_cast<size_t>(r);
          EXPECT_EQ(test::first_difference(dtype, all[i].data(), expected.data(), n), "")
              << name_of(op) << " of " << n << " " << name_of(dtype) << " on rank " << r;
          const Bytes& kept = r == root ? expected : given[i];
          EXPECT_EQ(test::first_difference(dtype, rooted[i].data(), kept.data(), n), "");
        }
      }
}

TEST_P(HierHosts, MovesPartsOfUnequalLength) {
  const int n = shape_.replicas();
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (int r = 0; r < n; ++r) counts.push_back(r == 1 ? 0 : 700 * r + 3);
  std::vector<int64_t> begins;
  for (int64_t count : counts) begins.push_back(total), total += count;
  const auto given = inputs(DType::float32, total);
  const Bytes expected = test::oracle(DType::float32, ReduceOp::sum, shape_, given);
  auto gathered = std::vector<Bytes>(given.size(), Bytes(static_cast<size_t>(total) * 4));
  run_all_members(engines_, [&](Group group) {
    const auto r = static_cast<size_t>(group.rank());
    Bytes input = given[r];
    Bytes part(static_cast<size_t>(counts[r]) * 4);
    group
        .reduce_scatter(span_of_bytes(input, DType::float32), span_of_bytes(part, DType::float32),
                        ReduceOp::sum, counts)
        .wait();
    EXPECT_EQ(test::first_difference(DType::float32, part.data(), expected.data() + 4 * begins[r],
                                     counts[r]),
              "")
        << "part of rank " << r;
    group
        .all_gather(span_of_bytes(part, DType::float32), span_of_bytes(gathered[r], DType::float32),
                    counts)
        .wait();
  });
  for (const Bytes& all : gathered)
    EXPECT_EQ(test::first_difference(DType::float32, all.data(), expected.data(), total), "");
}

TEST_P(HierHosts, BroadcastsFromEveryRank) {
  constexpr int64_t kElements = 2'500;
  for (int root = 0; root < shape_.replicas(); ++root) {
    auto data = inputs(DType::int64, kElements);
    const Bytes expected = data[static_cast<size_t>(root)];
    run_all_members(engines_, [&](Group group) {
      const auto r = static_cast<size_t>(group.rank());
      group.broadcast(span_of_bytes(data[r], DType::int64), root).wait();
      group.barrier();
    });
    for (const Bytes& all : data) EXPECT_EQ(all, expected) << "root " << root;
  }
}

TEST_P(HierHosts, FailureOnOneHostEndsAll) {
  const auto thrown = run_members(engines_, [&](Group group) {
    if (group.rank() == 0) return group.abort("enough");
    group.barrier();
  });
  for (size_t r = 1; r < thrown.size(); ++r)
    EXPECT_NE(test::words_of(thrown[r]).find("enough"), std::string::npos)
        << test::words_of(thrown[r]);
}

// Who waits for something else looks at the group now and then.
TEST_P(HierHosts, ANudgeThrowsWhatAnotherRankHasDone) {
  const auto thrown = run_members(engines_, [&](Group group) {
    if (group.rank() == 0) return group.abort("enough");
    const Deadline deadline(kDefaultTimeLimit);
    while (!deadline.passed()) group.engine().nudge();
  });
  for (size_t r = 1; r < thrown.size(); ++r)
    EXPECT_THAT(test::words_of(thrown[r]), AllOf(HasSubstr("PeerLost"), HasSubstr("enough")));
}

// Sums are divided only once they are whole: between the levels both calls are sums.
TEST(HierMismatch, MeanIsNoSumWhateverTheLengthAndWhoever) {
  const std::vector<std::vector<int>> odd_ones = {{1}, {0, 1}};  // of hosts {0, 1} and {2, 3}
  for (const std::vector<int>& odd : odd_ones)
    for (const int64_t n : {8, 40'000}) {
      const auto thrown = run_members(make_hier_threads({2, 2}, 4096), [&](Group group) {
        const bool is_odd = std::find(odd.begin(), odd.end(), group.rank()) != odd.end();
        std::vector<float> data(static_cast<size_t>(n), 1);
        group.all_reduce(span_of(std::span(data)), is_odd ? ReduceOp::mean : ReduceOp::sum).wait();
      });
      for (const auto& one : thrown)
        EXPECT_THAT(test::words_of(one),
                    AllOf(StartsWith("Mismatch: "), HasSubstr("(mean)"), HasSubstr("(sum)")))
            << n << " elements";
    }
}

INSTANTIATE_TEST_SUITE_P(Hosts, HierHosts,
                         testing::Values(std::vector{2, 2}, std::vector{3, 1}, std::vector{1, 3},
                                         std::vector{3, 3}, std::vector{2, 3, 1},
                                         std::vector{1, 1}));

}  // namespace
}  // namespace tutti
