// What tutti doctor makes of a launcher's variables.
#include <gmock/gmock.h>

#include "tutti/cli/doctor.h"

namespace tutti::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Examination healthy() {
  Examination facts;
  facts.host.memory_total_bytes = facts.host.memory_available_bytes = int64_t{8} << 30;
  facts.descriptor_limit = 4096;
  facts.torch.version = "2.13.0";
  facts.torch.tried = "2.6,2.13";
  return facts;
}

TEST(Doctor, AJobThatIsUnderstoodIsNoProblem) {
  Examination facts = healthy();
  facts.cluster = ClusterSpec{.source = "torchrun", .num_workers = 4};
  EXPECT_TRUE(problems_of(facts).empty());
}

TEST(Doctor, ContradictionsBetweenVariablesAreFatal) {
  Examination facts = healthy();
  facts.cluster_error = "RANK=4 contradicts WORLD_SIZE=4";
  const auto problems = problems_of(facts);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_TRUE(problems[0].fatal);
  EXPECT_THAT(problems[0].what, HasSubstr("RANK=4 contradicts WORLD_SIZE=4"));
}

TEST(Doctor, ALibTorchThatWasNotTriedIsNamedAndNotFatal) {
  for (const char* version : {"2.6.0", "2.6.1", "2.13.0+cpu"}) {
    Examination facts = healthy();
    facts.torch.version = version;
    EXPECT_TRUE(problems_of(facts).empty()) << version;
  }
  for (const char* version : {"2.11.0", "2.60.0", "2.1.3", "12.6.0", "2", ""}) {
    Examination facts = healthy();
    facts.torch.version = version;
    const auto problems = problems_of(facts);
    ASSERT_EQ(problems.size(), 1u) << version;
    EXPECT_FALSE(problems[0].fatal);
    EXPECT_THAT(problems[0].what,
                AllOf(HasSubstr("LibTorch " + std::string(version)), HasSubstr("2.6,2.13")));
  }
}

TEST(Doctor, WhatAPersonHasSetWronglyIsFatal) {
  Examination facts = healthy();
  facts.environment_error = "TUTTI_INTERFACE \"eth99\": this machine has no interface of that name";
  const auto problems = problems_of(facts);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_TRUE(problems[0].fatal);
  EXPECT_THAT(problems[0].what, HasSubstr("eth99"));
}

TEST(TorchFacts, KnowTheVersionsThatWereTried) {
  const TorchFacts facts = torch_facts();
  EXPECT_FALSE(facts.tried.empty());
  EXPECT_TRUE(was_tried("2.6.0", facts.tried)) << "the oldest that works";
}

}  // namespace
}  // namespace tutti::cli
