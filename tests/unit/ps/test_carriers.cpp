#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/ps/spec/carriers.h"

#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing {
namespace {

Spec eight_pieces(const char* hosts, bool host_sums) {
  const ReductionShape shape = ReductionShape::parse(hosts);
  Spec spec = small_spec(shape.replicas(), Staleness(0));
  spec.variables = {{"w", {8, 1024}, DType::float32}};
  spec.pieces = pieces_of(spec.variables, place(spec.variables, {}), 4096);
  spec.shape = shape;
  spec.host_sums = host_sums;
  check(spec);
  return spec;
}

TEST(Carriers, WithoutHostSumsEveryWorkerCarriesAll) {
  const Carriers carriers(eight_pieces("2+1", false));
  EXPECT_EQ(carriers.hosts(), (std::vector<HostWorkers>{{0, 1}, {1, 1}, {2, 1}}));
  for (int worker = 0; worker < 3; ++worker)
    for (int piece = 0; piece < 8; ++piece) EXPECT_TRUE(carriers.carries(worker, piece));
}

TEST(Carriers, OneWorkerOfAHostCarriesAPiece) {
  const Carriers carriers(eight_pieces("2+3", true));
  EXPECT_EQ(carriers.hosts(), (std::vector<HostWorkers>{{0, 2}, {2, 3}}));
  std::vector<int> carried(5);
  for (int piece = 0; piece < 8; ++piece)
    for (int host = 0; host < 2; ++host) {
      const int carrier = carriers.carrier(host, piece);
      EXPECT_EQ(carriers.host_of(carrier), host);
      for (int worker = 0; worker < 5; ++worker)
        EXPECT_TRUE(carriers.host_of(worker) != host ||
                    carriers.carries(worker, piece) == (worker == carrier));
      ++carried[carrier];
    }
  EXPECT_EQ(carried, (std::vector<int>{4, 4, 3, 3, 2}));
}

TEST(Carriers, ReplicasOfAWorkerAreOnItsHost) {
  Spec spec = eight_pieces("4+2", true);
  spec.num_workers = 3;
  EXPECT_EQ(Carriers(spec).hosts(), (std::vector<HostWorkers>{{0, 2}, {2, 1}}));
  spec.num_workers = 2;  // 3 replicas each
  EXPECT_THROW(check(spec), UsageError);
}

// A round of a piece waits for hosts; one push of whoever carries it is all of a host's.
TEST(Carriers, ARoundIsFullWhenEveryHostHasPushed) {
  Spec spec = small_spec(3, Staleness(0));
  spec.shape = ReductionShape::parse("2+1");
  spec.host_sums = true;
  PartitionState state = begun(spec);
  EXPECT_THAT(state.objection(push(spec, 1, 1, 0, {1})), ::testing::HasSubstr("worker 0 carries"));
  EXPECT_EQ(state.waits_for(0, 1), (std::vector<int>{0, 1, 2}));
  ASSERT_EQ(state.objection(push(spec, 0, 1, 0, {1})), "");
  EXPECT_TRUE(state.apply(push(spec, 0, 1, 0, {1})).empty());
  EXPECT_EQ(state.waits_for(0, 1), std::vector<int>{2});
  ASSERT_EQ(state.objection(push(spec, 2, 1, 0, {2})), "");
  EXPECT_EQ(state.apply(push(spec, 2, 1, 0, {2})).size(), 2U);
  EXPECT_EQ(first_of(state.piece(0).parameters()), -3);
}

}  // namespace
}  // namespace tutti::ps::testing
