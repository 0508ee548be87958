// Adasum against the formula of its paper, a function as a reduction, objects of unequal lengths.
#include <gtest/gtest.h>

#include <cmath>

#include "tutti/comm/group/more_reductions.h"
#include "tutti/comm/group/objects.h"

#include "tests/support/comm.h"
#include "tests/support/expect.h"

namespace tutti {
namespace {

constexpr Millis kPatience{20'000};

// Rank r's part: none of length 0 or at right angles to all others, but for rank 2's zeros.
std::vector<double> part_of(int rank, int64_t n) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(rank == 2 ? 0 : std::sin(1.3 * static_cast<double>(i) + 0.4 * rank));
  return values;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Maleki et al. 2020: halves of the ranks first, then the two.
std::vector<double> adasum_of(int first, int count, int64_t n) {
  if (count == 1) return part_of(first, n);
  const auto a = adasum_of(first, count / 2, n), b = adasum_of(first + count / 2, count / 2, n);
  const double of_a = dot(a, a) == 0 ? 1 : 1 - dot(a, b) / (2 * dot(a, a));
  const double of_b = dot(b, b) == 0 ? 1 : 1 - dot(a, b) / (2 * dot(b, b));
  std::vector<double> sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = of_a * a[i] + of_b * b[i];
  return sum;
}

TEST(Adasum, IsThePapersOnEveryRankAndForReplicasThatTakeTurns) {
  for (const int size : {1, 2, 4, 8}) {
    for (const int64_t n : {0, 1, 1000}) {
      const auto expected = adasum_of(0, size, n);
      std::vector<std::vector<float>> all(static_cast<size_t>(size));
      test::run_all_members(test::make_engines("shm", size), [&](Group group) {
        const auto own = part_of(group.rank(), n);
        std::vector<float> mine(own.begin(), own.end());
        adasum()()
            ->reduce(group, span_of(std::span(mine)), ReduceOp::sum, kPatience)
            .wait(kPatience);
        all[static_cast<size_t>(group.rank())] = mine;
      });
      EXPECT_THAT(all, Each(all[0]));
      std::vector<std::vector<float>> in_turn;
      std::vector<MemorySpan> spans;
      for (int rank = 0; rank < size; ++rank) {
        const auto own = part_of(rank, n);
        in_turn.emplace_back(own.begin(), own.end());
      }
      for (auto& each : in_turn) spans.push_back(span_of(std::span(each)));
      adasum()()->reduce_in_turn(spans, ReduceOp::sum, ReductionShape::flat(size));
      EXPECT_EQ(in_turn, all) << size << " of " << n;
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(all[0][i], expected[i], 1e-5) << size << " of " << n;
    }
  }
}

TEST(Adasum, AveragesWhatIsAlikeAndAddsWhatIsAtRightAngles) {
  for (const bool alike : {true, false})
    test::run_all_members(test::make_engines("shm", 2), [&](Group group) {
      std::vector<double> mine{0, 0};
      mine[alike ? 0 : static_cast<size_t>(group.rank())] = 3;
      adasum()()->reduce(group, span_of(std::span(mine)), ReduceOp::sum, kPatience).wait(kPatience);
      EXPECT_EQ(mine, alike ? (std::vector<double>{3, 0}) : (std::vector<double>{3, 3}));
    });
}

TEST(Adasum, RefusesGroupsThatAreNoPowerOfTwoAndNarrowTypes) {
  test::run_all_members(test::make_engines("shm", 3), [&](Group group) {
    float value = 1;
    EXPECT_THAT(message_of<std::exception>([&] {
                  adasum()()->reduce(group, span_of(std::span(&value, 1)), ReduceOp::sum,
                                     kPatience);
                }),
                HasSubstr("the group has 3 members, expected a power of two"));
  });
  test::run_all_members(test::make_engines("shm", 2), [&](Group group) {
    uint16_t value = 1;
    EXPECT_THAT(message_of<std::exception>([&] {
                  adasum()()->reduce(group, {&value, 1, DType::bfloat16}, ReduceOp::sum, kPatience);
                }),
                HasSubstr("gradients are bfloat16, expected float32 or float64"));
  });
}

TEST(ReductionBy, IsTheFunction) {
  test::run_all_members(test::make_engines("shm", 2), [&](Group group) {
    const auto reduction = reduction_by(
        [](Group& all, MemorySpan bucket, ReduceOp op, Millis limit) {
          static_cast<float*>(bucket.data)[0] *= 2;
          return all.all_reduce(bucket, op, limit);
        },
        "twice")();
    EXPECT_EQ(reduction->name(), "twice");
    EXPECT_THAT(message_of<UsageError>(
                    [&] { reduction->reduce_in_turn({}, ReduceOp::sum, ReductionShape::flat(2)); }),
                AllOf(HasSubstr("reduction_by: \"twice\""), HasSubstr("take turns")));
    float value = 1;
    reduction->reduce(group, span_of(std::span(&value, 1)), ReduceOp::sum, kPatience)
        .wait(kPatience);
    EXPECT_EQ(value, 4);
  });
  EXPECT_THAT(message_of<std::exception>([] { reduction_by({}); }),
              HasSubstr("got an empty function"));
}

TEST(Objects, OfAnyLengthComeToAllRanks) {
  for (const int size : {1, 2, 3})
    test::run_all_members(test::make_engines("shm", size), [&](Group group) {
      const std::string own(static_cast<size_t>(group.rank()) * 70'000, 'x');
      EXPECT_EQ(broadcast_bytes(group, own, size - 1).size(),
                static_cast<size_t>(size - 1) * 70'000);
      const auto all = all_gather_bytes(group, own);
      ASSERT_EQ(all.size(), static_cast<size_t>(size));
      for (size_t rank = 0; rank < all.size(); ++rank) EXPECT_EQ(all[rank].size(), rank * 70'000);
      EXPECT_EQ(broadcast_object(group, Json{{"rank", group.rank()}}, size - 1).dump(),
                fmt::format("{{\"rank\":{}}}", size - 1));
      EXPECT_EQ(all_gather_object(group, Json(group.rank())).back().get<int>(), size - 1);
      EXPECT_THAT(message_of<std::exception>([&] { broadcast_object(group, Json(), size); }),
                  HasSubstr(fmt::format("root is {}, expected 0 to {}", size, size - 1)));
    });
}

// The others wait for a root that cannot write its value no longer than until it says so.
TEST(Objects, ARootThatHasNoJsonTellsTheOthers) {
  test::run_all_members(test::make_engines("shm", 2), [&](Group group) {
    const std::string said =
        message_of<std::exception>([&] { broadcast_object(group, Json("\xff"), 1); });
    EXPECT_THAT(said, HasSubstr(group.rank() == 1 ? "UTF-8" : "rank 1 could not write its value"));
    EXPECT_EQ(broadcast_object(group, Json(group.rank()), 1).get<int>(), 1);
  });
}

}  // namespace
}  // namespace tutti
