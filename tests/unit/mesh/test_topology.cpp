// Topology: whose replica, stage and piece a rank is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/mesh/topology.h"

namespace tutti::mesh {
namespace {

using testing::ElementsAre;

TEST(Topology, EveryRankIsAReplicaUntilAMeshSaysOtherwise) {
  const Topology two{.size = 4, .first_rank = 2, .local = 2};
  EXPECT_EQ(two.num_replicas(), 4);
  EXPECT_EQ(two.replica_of(3), 3);
  EXPECT_EQ(two.processes(), 2);
  EXPECT_EQ(two.process(), 1);
  EXPECT_EQ(Topology{}.processes(), 1);
  EXPECT_TRUE(two.gives_outputs(0));
}

TEST(Topology, RanksSideBySideComputeOneReplica) {
  const Topology second{
      .size = 8, .first_rank = 4, .local = 4, .mesh = Mesh::parse("data=2,stage=2,tensor=2", 8)};
  EXPECT_EQ(second.model_ranks(), 4);
  EXPECT_EQ(second.num_replicas(), 2);
  EXPECT_EQ(second.replica_of(3), 0);
  EXPECT_EQ(second.replica_of(4), 1);
  EXPECT_THAT(second.place_of_local(3), ElementsAre(1, 0, 1, 1));
  std::vector<int> leads, outputs;
  for (int local = 0; local < second.local; ++local) {
    if (second.leads_stage(local)) leads.push_back(local);
    if (second.gives_outputs(local)) outputs.push_back(local);
  }
  EXPECT_THAT(leads, ElementsAre(0, 2)) << "the first piece of each stage";
  EXPECT_THAT(outputs, ElementsAre(2)) << "of the last stage";
}

}  // namespace
}  // namespace tutti::mesh
