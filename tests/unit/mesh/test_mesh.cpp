// Meshes: text to sizes, ranks to places and back, and who is whose member.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/mesh/mesh.h"

#include "tests/support/message_of.h"

namespace tutti::mesh {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Mesh, IsReadFromText) {
  const Mesh mesh = Mesh::parse("tensor=2,data=2,stage=3", 12);
  EXPECT_EQ(mesh.size(Axis::data), 2);
  EXPECT_EQ(mesh.size(Axis::shard), 1);
  EXPECT_EQ(mesh.size(Axis::stage), 3);
  EXPECT_EQ(mesh.size(Axis::tensor), 2);
  EXPECT_EQ(mesh.to_string(), "data=2,stage=3,tensor=2");
  EXPECT_EQ(mesh.sentence(), "12 replicas: data 2 x stage 3 x tensor 2");
  EXPECT_EQ(Mesh::parse(mesh.to_string(), 12), mesh);
  EXPECT_EQ(Mesh::parse("stage=3,tensor=2", 12), mesh);
  EXPECT_EQ(Mesh::parse("", 4), Mesh(4));
  EXPECT_EQ(Mesh().sentence(), "1 replica: data 1");
  EXPECT_EQ(Mesh::parse("shard=2,data=3", 6).data_replicas(), 6);
}

TEST(Mesh, WrongTextIsAnswered) {
  const auto told = [](std::string_view text, int replicas) {
    return test::message_of<UsageError>([&] { Mesh::parse(text, replicas); });
  };
  EXPECT_EQ(told("data=2,stage=2,tensor=2", 6),
            "--mesh data=2,stage=2,tensor=2: needs 8 replicas, got 6");
  EXPECT_EQ(told("stage=4", 6), "--mesh stage=4: needs a multiple of 4 replicas, got 6");
  EXPECT_THAT(told("stages=2", 2), HasSubstr("did you mean \"stage\"?"));
  EXPECT_EQ(told("stage=2,stage=2", 4), "--mesh stage=2,stage=2: stage is there twice");
  for (const char* text :
       {"stage", "stage=", "stage=0", "stage=-1", "stage=2x", "stage=99999999999"})
    EXPECT_THAT(told(text, 2), HasSubstr("expected stage=N, N 1 to 32768")) << text;
  EXPECT_THAT(told("stage=2,", 2), HasSubstr("unknown axis \"\""));
  EXPECT_THAT(told(",", 2), HasSubstr("unknown axis \"\""));
  EXPECT_THAT(told("data=30000,stage=30000,shard=30000,tensor=30000", 1),
              HasSubstr("needs 810000000000000000 replicas"));
}

TEST(Mesh, RanksAndPlaces) {
  for (const char* text : {"data=2,shard=3,stage=2,tensor=2", "tensor=24", "stage=4,shard=6"}) {
    const Mesh mesh = Mesh::parse(text, 24);
    for (int rank = 0; rank < 24; ++rank) {
      EXPECT_EQ(mesh.rank_at(mesh.place_of(rank)), rank);
      EXPECT_THAT(mesh.members(rank, {}), ElementsAre(rank));
      EXPECT_EQ(
          std::ssize(mesh.members(rank, {Axis::data, Axis::shard, Axis::stage, Axis::tensor})), 24);
    }
  }
  const Mesh mesh = Mesh::parse("data=2,stage=2,tensor=2", 8);
  EXPECT_EQ(mesh.place_of(5), (Place{1, 0, 0, 1}));
  EXPECT_THAT(mesh.members(5, {Axis::tensor}), ElementsAre(4, 5));
  EXPECT_THAT(mesh.members(5, {Axis::stage}), ElementsAre(5, 7));
  EXPECT_THAT(mesh.members(5, {Axis::data}), ElementsAre(1, 5));
  EXPECT_THAT(mesh.members(5, {Axis::stage, Axis::tensor}), ElementsAre(4, 5, 6, 7));
}

}  // namespace
}  // namespace tutti::mesh
