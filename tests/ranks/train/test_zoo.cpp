// Every network of the zoo with replicas in several processes: the weights of the parts in turn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/command.h"
#include "tests/support/run_workers.h"
#include "tests/support/zoo_training.h"

namespace tutti {
namespace {

std::string line_of(const test::SmallNetwork& network, const test::ZooTraining& training) {
  return fmt::format("{} {} {:.17g}", network.name, training.after, training.loss);
}

/// arguments: strategy, and the network, or "all".
RANK_PROGRAM(train_the_zoo) {
  for (const auto& network : test::small_zoo()) {
    if (rank.arguments.at(1) != "all" && rank.arguments.at(1) != network.name) continue;
    rank.mark(line_of(network, test::train_of_zoo(network, rank.arguments.at(0))));
  }
}

/// Both workers must have what one process gets that does the parts in turn.
void expect_parts_in_turn(const test::SmallNetwork& network, const std::string& log) {
  const std::string line = line_of(network, test::train_of_zoo(network, "one_device"));
  EXPECT_THAT(test::lines_after(log, line), ::testing::SizeIs(2)) << line << "\n" << log;
}

TEST(ZooWorkers, TrainTheWeightsOfThePartsInTurn) {
  const auto out = test::run_workers(2, "train_the_zoo", {"multi_worker", "all"});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  for (const auto& network : test::small_zoo()) expect_parts_in_turn(network, out.log);
}

// Servers hold one model a job.
TEST(ZooWorkers, WithServersTrainTheWeightsOfThePartsInTurn) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const auto& network : test::small_zoo()) {
    const auto out =
        test::run_command({TUTTI_PROGRAM, "run", "-n", "2", "--servers", "1", self},
                          {"TUTTI_TEST_PROGRAM=train_the_zoo",
                           "TUTTI_TEST_ARGUMENTS=parameter_server\n" + network.name + "\n"});
    ASSERT_EQ(out.exit_code, 0) << out.out << out.err;
    expect_parts_in_turn(network, out.out + out.err);
  }
}

}  // namespace
}  // namespace tutti
