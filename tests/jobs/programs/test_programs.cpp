// Each program as threads, as processes and in turn, and what trains often on servers, too: one
// sha.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/jobs/programs/programs.h"
#include "tests/support/command.h"
#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {

std::filesystem::path shared_data() {
  return std::filesystem::path(TUTTI_SOURCE_DIR).parent_path() / "shared/data";
}

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kReplicas = 2;

std::vector<NamedProgram> all_programs() {
  auto all = programs_that_fit();
  std::ranges::move(programs_that_loop(), std::back_inserter(all));
  std::ranges::move(programs_that_train_often(), std::back_inserter(all));
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
  rank.mark("sha " + run_as(rank.arguments.at(2), *program, rank.arguments.at(1)).weights);
}

RANK_PROGRAM(load_after_training) {
  const Strategy strategy({.kind = "parameter_server", .threads_per_replica = 1});
  Model model(strategy, [] { return models::mlp(); });
  model.compile({.loss = losses::sparse_categorical_crossentropy()});
  const std::filesystem::path file = std::filesystem::path(rank.arguments.at(0)) / "w.safetensors";
  model.save(file);
  model.load(file);
  model.fit(doodles(40).batch(20), {.verbose = 0});
  try {
    model.load(file);
  } catch (const UsageError& error) {
    rank.mark(std::string("refused: ") + error.what());
  }
}

Strategy strategy_of(const std::string& kind, bool in_step = true) {
  StrategyOptions options{.kind = kind, .replicas = 2, .threads_per_replica = 1, .seed = 3};
  if (!in_step) options.served.staleness = ps::Staleness::unbounded();
  return Strategy(options);
}

RANK_PROGRAM(mlp_alone) {
  rank.mark("alone " + weights_of_mlp(strategy_of("one_device"), std::stoi(rank.arguments.at(0))));
}

// Two trainings, of test_lost_between.cpp; the second waits for a file.
// arguments: that file, epochs of the second, "in step" or "out of step".
RANK_PROGRAM(two_trainings) {
  const Strategy strategy = strategy_of("parameter_server", rank.arguments.at(2) == "in step");
  rank.mark("first " + weights_of_mlp(strategy, 1));
  for (const Deadline soon(Millis{20'000}); !std::filesystem::exists(rank.arguments.at(0));)
    if (soon.passed()) throw Timeout("nobody wrote " + rank.arguments.at(0));
  rank.mark("second " + weights_of_mlp(strategy, std::stoi(rank.arguments.at(1)),
                                       [&] { rank.mark("epoch of the second"); }));
}

CommandResult run_served(const std::string& program, const std::string& arguments) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  return run_command({TUTTI_PROGRAM, "run", "-n", "2", "--servers", "2", self},
                     {"TUTTI_TEST_PROGRAM=" + program, "TUTTI_TEST_ARGUMENTS=" + arguments + "\n"});
}

class Programs : public ::testing::TestWithParam<NamedProgram> {};

TEST_P(Programs, TrainTheSameHoweverTheyRun) {
  if (GetParam().needs_shared_data && !std::filesystem::exists(shared_data()))
    GTEST_SKIP() << "there is no " << shared_data();
  const TempFolder threads, turns, processes;
  const Learnt expected = run_as("mirrored", GetParam(), threads.path());
  EXPECT_LT(expected.last, expected.first) << "nothing was learnt";
  EXPECT_EQ(run_as("one_device", GetParam(), turns.path()).weights, expected.weights);
  const auto job = run_workers(kReplicas, "run_program",
                               {GetParam().name, processes.path().string(), "multi_worker"});
  ASSERT_EQ(job.exit_code, 0) << job.log;
  EXPECT_THAT(lines_after(job.log, "sha "), AllOf(SizeIs(kReplicas), Each(expected.weights)))
      << job.log;
}

class SeveralTrainings : public ::testing::TestWithParam<NamedProgram> {};

// One job of two workers and two servers, and one host with its variables in one place.
TEST_P(SeveralTrainings, OfOneProgramAreTheSameOnServers) {
  const TempFolder threads, central, served;
  const Learnt expected = run_as("mirrored", GetParam(), threads.path());
  EXPECT_EQ(run_as("central_storage", GetParam(), central.path()).weights, expected.weights);
  const auto job = run_served("run_program", fmt::format("{}\n{}\nparameter_server",
                                                         GetParam().name, served.path().string()));
  ASSERT_EQ(job.exit_code, 0) << job.out << job.err;
  EXPECT_THAT(lines_after(job.out + job.err, "sha "),
              AllOf(SizeIs(kReplicas), Each(expected.weights)))
      << job.out << job.err;
  EXPECT_THAT(job.err, Not(HasSubstr("server "))) << "one whose training is over is not lost";
}

TEST(ServedModel, TakesNoWeightsOnceItHasTrained) {
  const TempFolder folder;
  const auto job = run_served("load_after_training", folder.path().string());
  ASSERT_EQ(job.exit_code, 0) << job.out << job.err;
  EXPECT_THAT(lines_after(job.out + job.err, "refused: "),
              AllOf(SizeIs(kReplicas), Each(HasSubstr("have trained this model for 2 steps"))))
      << job.out << job.err;
}

std::vector<NamedProgram> those_that_train_often() {
  auto all = all_programs();
  std::erase_if(all, [](const NamedProgram& program) { return !program.trains_often; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, SeveralTrainings, ::testing::ValuesIn(those_that_train_often()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(All, Programs, ::testing::ValuesIn(all_programs()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::test
