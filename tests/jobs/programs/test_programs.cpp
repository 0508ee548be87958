// Each program as threads, as processes and in turn: one sha.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/jobs/programs/programs.h"
#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {

std::filesystem::path shared_data() {
  return std::filesystem::path(TUTTI_SOURCE_DIR).parent_path() / "shared/data";
}

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::SizeIs;

constexpr int kReplicas = 2;

std::vector<NamedProgram> all_programs() {
  auto all = programs_that_fit();
  std::ranges::move(programs_that_loop(), std::back_inserter(all));
  return all;
}

Learnt run_as(const std::string& kind, const NamedProgram& program,
              const std::filesystem::path& folder) {
  return program.run(
      Strategy({.kind = kind, .replicas = kReplicas, .threads_per_replica = 1, .seed = 11}),
      folder);
}

RANK_PROGRAM(run_program) {
  const auto all = all_programs();
  const auto program = std::ranges::find(all, rank.arguments.at(0), &NamedProgram::name);
  rank.mark("sha " + run_as("multi_worker", *program, rank.arguments.at(1)).weights);
}

class Programs : public ::testing::TestWithParam<NamedProgram> {};

TEST_P(Programs, TrainTheSameHoweverTheyRun) {
  if (GetParam().needs_shared_data && !std::filesystem::exists(shared_data()))
    GTEST_SKIP() << "there is no " << shared_data();
  const TempFolder threads, turns, processes;
  const Learnt expected = run_as("mirrored", GetParam(), threads.path());
  EXPECT_LT(expected.last, expected.first) << "nothing was learnt";
  EXPECT_EQ(run_as("one_device", GetParam(), turns.path()).weights, expected.weights);
  const auto job =
      run_workers(kReplicas, "run_program", {GetParam().name, processes.path().string()});
  ASSERT_EQ(job.exit_code, 0) << job.log;
  EXPECT_THAT(lines_after(job.log, "sha "), AllOf(SizeIs(kReplicas), Each(expected.weights)))
      << job.log;
}

INSTANTIATE_TEST_SUITE_P(All, Programs, ::testing::ValuesIn(all_programs()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::test
