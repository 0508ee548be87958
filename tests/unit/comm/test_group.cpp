// What Group refuses before anything reaches an engine, and the group of one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/comm/group/group.h"
#include "tutti/comm/shm/shm.h"

namespace tutti {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Numbers {
  std::array<float, 8> memory{};
  MemorySpan span(int64_t n, int64_t first = 0) {
    return {memory.data() + first, n, DType::float32};
  }
};

// Nothing is published for a refused call, so one member alone can make it.
Group first_of_two() {
  static const auto engines = make_shm_threads(2);
  return Group(engines[0]);
}

TEST(GroupArguments, NegativeLengthsAndMissingDataAreRefused) {
  Group group = first_of_two();
  EXPECT_THAT(
      [&] { (void)group.all_reduce({nullptr, -1, DType::float32}, ReduceOp::sum); },
      ThrowsMessage<UsageError>(HasSubstr("all_reduce, rank 0 of 2: data has -1 elements")));
  EXPECT_THAT([&] { (void)group.broadcast({nullptr, 3, DType::float32}, 0); },
              ThrowsMessage<UsageError>(HasSubstr("3 elements and no data")));
  EXPECT_THAT(
      [&] { (void)group.all_reduce({nullptr, INT64_MAX / 2, DType::int64}, ReduceOp::sum); },
      ThrowsMessage<UsageError>(HasSubstr("elements")));
}

TEST(GroupArguments, ReductionsWithoutMeaningAreRefused) {
  Group group = first_of_two();
  std::vector<int64_t> whole(2);
  EXPECT_THAT([&] { group.all_reduce_now(span_of(std::span(whole)), ReduceOp::mean); },
              ThrowsMessage<UsageError>(HasSubstr("mean of int64")));
  EXPECT_THAT(
      [&] { (void)group.reduce({whole.data(), 1, DType::float32}, ReduceOp::bit_or, 0); },
      ThrowsMessage<UsageError>(HasSubstr("bit_or of float32: expected bool or an integer")));
}

TEST(GroupArguments, UnequalPartsAndDtypesAreRefused) {
  Group group = first_of_two();
  Numbers a, b;
  EXPECT_THAT(
      [&] { (void)group.all_gather(a.span(2), b.span(5)); },
      ThrowsMessage<UsageError>(HasSubstr("output has 5 elements; expected 2 times the 2")));
  EXPECT_THAT([&] { (void)group.reduce_scatter(a.span(3), b.span(2), ReduceOp::sum); },
              ThrowsMessage<UsageError>(HasSubstr("input has 3 elements; expected 2 times the 2")));
  EXPECT_THAT([&] { (void)group.all_gather({a.memory.data(), 2, DType::int32}, b.span(4)); },
              ThrowsMessage<UsageError>(HasSubstr("output is float32, input is int32")));
}

TEST(GroupArguments, OverlapOtherThanOnesOwnPartIsRefused) {
  Group group = first_of_two();
  Numbers a;
  EXPECT_THAT([&] { (void)group.all_gather(a.span(2, 2), a.span(4)); },
              ThrowsMessage<UsageError>(HasSubstr("output and input overlap; allowed only where")));
  EXPECT_THAT([&] { (void)group.reduce_scatter(a.span(4), a.span(2, 1), ReduceOp::sum); },
              ThrowsMessage<UsageError>(HasSubstr("part 0 of input")));
}

TEST(GroupArguments, RootsLimitsAndAlignmentAreChecked) {
  Group group = first_of_two();
  Numbers a;
  EXPECT_THAT([&] { (void)group.broadcast(a.span(2), 2); },
              ThrowsMessage<UsageError>(HasSubstr("root 2; expected 0 to 1")));
  EXPECT_THROW((void)group.broadcast(a.span(2), -1), UsageError);
  EXPECT_THROW(group.barrier(Millis{0}), UsageError);
  EXPECT_THROW((void)group.allocate(-1), UsageError);
  EXPECT_THROW((void)group.allocate(INT64_MAX), UsageError);
  auto* odd = reinterpret_cast<char*>(a.memory.data()) + 1;
  EXPECT_THAT([&] { (void)group.all_reduce({odd, 2, DType::float32}, ReduceOp::sum); },
              ThrowsMessage<UsageError>(HasSubstr("not aligned to its float32")));
  MemorySpan device = a.span(2);
  device.place.kind = Place::Kind::cuda;
  EXPECT_THAT([&] { (void)group.all_reduce(device, ReduceOp::sum); },
              ThrowsMessage<UsageError>(HasSubstr("device memory")));
  EXPECT_THROW(Group{std::shared_ptr<Engine>{}}, UsageError);
}

TEST(GroupArguments, CountsOfPartsAreChecked) {
  Group group = first_of_two();
  Numbers a, b;
  using Counts = std::vector<int64_t>;
  const auto all_gather = [&](Counts counts, int64_t mine, int64_t all) {
    return [&, counts, mine, all] { (void)group.all_gather(a.span(mine), b.span(all), counts); };
  };
  EXPECT_THAT(all_gather({2}, 2, 2),
              ThrowsMessage<UsageError>(HasSubstr("1 counts; expected one")));
  EXPECT_THAT(all_gather({}, 2, 4), ThrowsMessage<UsageError>(HasSubstr("no counts")));
  EXPECT_THAT(all_gather({-1, 3}, 2, 2), ThrowsMessage<UsageError>(HasSubstr("counts hold -1")));
  EXPECT_THAT(all_gather({INT64_MAX, 1}, 2, 2), ThrowsMessage<UsageError>(HasSubstr("hold 9223")));
  EXPECT_THAT(all_gather({1, 3}, 1, 5),
              ThrowsMessage<UsageError>(HasSubstr("output has 5 elements; expected 4")));
  EXPECT_THAT(all_gather({1, 3}, 2, 4),
              ThrowsMessage<UsageError>(
                  HasSubstr("input has 2 elements; expected 1, the count of rank 0")));
  EXPECT_THAT([&] { (void)group.gather(a.span(2), {}, 1, {1, 3}); },
              ThrowsMessage<UsageError>(HasSubstr("expected 1, the count of rank 0")));
  EXPECT_THAT([&] { (void)group.scatter(a.span(4), a.span(3, 1), 0, {3, 1}); },
              ThrowsMessage<UsageError>(HasSubstr("overlap; allowed only where output is part 0")));
}

TEST(GroupArguments, ExchangesAreChecked) {
  Group group = first_of_two();
  Numbers a, b;
  EXPECT_THAT([&] { (void)group.all_to_all(a.span(4), a.span(4, 2)); },
              ThrowsMessage<UsageError>(HasSubstr("input and output overlap")));
  EXPECT_THAT([&] { (void)group.all_to_all(a.span(3), b.span(3)); },
              ThrowsMessage<UsageError>(HasSubstr("3 elements cannot be cut into 2 equal parts")));
  EXPECT_THAT([&] { (void)group.all_to_all(a.span(4), b.span(2)); },
              ThrowsMessage<UsageError>(HasSubstr("input has 4 elements, output 2")));
  EXPECT_THAT([&] { (void)group.all_to_all(a.span(4), b.span(4), {2, 2}); },
              ThrowsMessage<UsageError>(HasSubstr("give both or none")));
  EXPECT_THAT([&] { (void)group.all_to_all(a.span(4), b.span(4), {1, 3}, {2, 2}); },
              ThrowsMessage<UsageError>(HasSubstr("1 elements from this rank to itself, 2")));
}

TEST(GroupArguments, MessagesAreChecked) {
  Group group = first_of_two();
  Numbers a;
  EXPECT_THAT([&] { (void)group.send(a.span(1), 0); },
              ThrowsMessage<UsageError>(HasSubstr("to 0 is this rank itself")));
  EXPECT_THAT([&] { (void)group.recv(a.span(1), 2); },
              ThrowsMessage<UsageError>(HasSubstr("from 2; expected 0 to 1")));
  EXPECT_THAT([&] { (void)group.send(a.span(1), 1, -1); },
              ThrowsMessage<UsageError>(HasSubstr("tag -1; expected 0 or more")));
  Group alone;
  EXPECT_THAT([&] { (void)alone.recv(a.span(1), kAnyRank); },
              ThrowsMessage<UsageError>(HasSubstr("from any rank, and there is no other")));
}

TEST(SoloGroup, DoesEverythingAtOnce) {
  Group group;
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.reduction_shape(), ReductionShape::flat(1));
  Numbers a, b;
  std::iota(a.memory.begin(), a.memory.end(), 1.f);
  Work work = group.all_gather(a.span(8), b.span(8));
  EXPECT_TRUE(work.test());
  EXPECT_EQ(b.memory, a.memory);
  group.all_reduce_now(b.span(8), ReduceOp::mean);
  EXPECT_EQ(b.memory, a.memory);
  for (auto collective : {0, 1, 2}) {
    b = {};
    if (collective == 0) group.scatter(a.span(8), b.span(8), 0).wait();
    if (collective == 1) group.gather(a.span(8), b.span(8), 0, {8}).wait();
    if (collective == 2) group.all_to_all(a.span(8), b.span(8), {8}, {8}).wait();
    EXPECT_EQ(b.memory, a.memory);
  }
  group.reduce(b.span(8), ReduceOp::product, 0).wait();
  EXPECT_EQ(b.memory, a.memory);
  std::vector<int32_t> numbers = {5, 0, -1};
  group.all_reduce_now(span_of(std::span(numbers)), ReduceOp::logical_or);
  EXPECT_EQ(numbers, (std::vector<int32_t>{1, 0, 1}));
  group.barrier();
  EXPECT_EQ(group.split(3)->size(), 1);
  EXPECT_FALSE(group.split(-1).has_value());
  Work().wait();
}

TEST(SoloGroup, AllocatesZeroedAlignedMemoryThatOutlivesIt) {
  SharedParts parts;
  {
    Group group;
    parts = group.allocate(100);
  }
  ASSERT_EQ(parts.parts.size(), 1u);
  EXPECT_EQ(parts.parts[0].num_elements, 100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(parts.parts[0].data) % 64, 0u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(static_cast<char*>(parts.parts[0].data)[i], 0);
}

TEST(SoloGroup, StaysAbortedWithTheFirstReason) {
  Group group;
  group.abort("the loader failed");
  group.abort("later");
  EXPECT_THAT([&] { group.barrier(); }, ThrowsMessage<Error>(HasSubstr("the loader failed")));
}

TEST(SoloGroup, FailsInTheWayThatItsEngineWasTold) {
  Group group;
  group.engine().abort(FailureKind::peer_lost, "worker 1 died");
  EXPECT_THAT([&] { group.barrier(); }, ThrowsMessage<PeerLost>(HasSubstr("worker 1 died")));
}

}  // namespace
}  // namespace tutti
