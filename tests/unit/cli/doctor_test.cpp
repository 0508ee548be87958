// What tutti doctor makes of a launcher's variables.
#include "tutti/cli/doctor.h"

#include <gmock/gmock.h>

namespace tutti::cli {
namespace {

using testing::HasSubstr;

Examination healthy() {
  Examination facts;
  facts.host.memory_total_bytes = facts.host.memory_available_bytes = int64_t{8} << 30;
  facts.descriptor_limit = 4096;
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

}  // namespace
}  // namespace tutti::cli
