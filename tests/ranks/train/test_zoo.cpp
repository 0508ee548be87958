// Every network of the zoo with replicas in several processes: the weights of the parts in turn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "tests/support/command.h"
#include "tests/support/hosts.h"
#include "tests/support/random_graph.h"
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

/// The strategy is the argument; 20 networks that the planned step knows.
std::string lines_of_random(const std::string& kind, bool planned = true) {
  std::string lines;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto training = test::train_graph(test::random_graph(seed, 3), kind, planned);
    lines += fmt::format("{} {} {:.17g}\n", seed, training.after, training.loss);
  }
  return lines;
}

RANK_PROGRAM(train_random_networks) {
  std::istringstream lines(lines_of_random(rank.arguments.at(0)));
  for (std::string line; std::getline(lines, line);) rank.mark("network " + line);
}

std::string random_lines_in(const std::string& log) {
  std::map<int, std::string> lines;  // each once, if all workers have the same
  for (const auto& line : test::lines_after(log, "network ")) {
    const auto [known, fresh] = lines.emplace(std::stoi(line), line);
    EXPECT_EQ(known->second, line);
  }
  std::string all;
  for (const auto& [seed, line] : lines) all += line + "\n";
  return all;
}

TEST(RandomNetworks, HaveTheBitsOfAutogradInTurnEverywhere) {
  const std::string expected = lines_of_random("one_device", /*planned=*/false);
  EXPECT_EQ(lines_of_random("one_device"), expected);
  EXPECT_EQ(lines_of_random("mirrored"), expected);
  const auto out = test::run_workers(2, "train_random_networks", {"multi_worker"});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_EQ(random_lines_in(out.log), expected);
}

TEST(RandomNetworks, HaveTheSameBitsOverTwoHosts) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  const test::TestHosts hosts(2);
  const auto nodes = test::run_nodes(hosts, 1, "train_random_networks", {"multi_worker"});
  const std::string expected = lines_of_random("one_device");
  for (const auto& node : nodes) {
    ASSERT_EQ(node.exit_code, 0) << node.log;
    EXPECT_EQ(random_lines_in(node.log), expected);
  }
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
