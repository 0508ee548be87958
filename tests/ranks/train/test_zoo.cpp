// Every network of the zoo with replicas in several processes: the weights of the parts in turn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"
#include "tutti/nn/dense_kernel.h"
#include "tutti/nn/graph_module.h"
#include "tutti/strategy/modules/replicated.h"

#include "tests/support/command.h"
#include "tests/support/hosts.h"
#include "tests/support/random_graph.h"
#include "tests/support/random_image_graph.h"
#include "tests/support/run_workers.h"
#include "tests/support/zoo_training.h"

namespace tutti {
namespace {

std::string line_of(const test::SmallNetwork& network, const test::ZooTraining& training) {
  return fmt::format("{} {} {:.17g}", network.name, training.after, training.loss);
}

/// The strategy is the argument.
RANK_PROGRAM(train_the_zoo) {
  for (const auto& network : test::small_zoo())
    rank.mark(line_of(network, test::train_of_zoo(network, rank.arguments.at(0))));
}

/// Both workers must have what one process gets that does the parts in turn.
void expect_parts_in_turn(const test::SmallNetwork& network, const std::string& log) {
  const std::string line = line_of(network, test::train_of_zoo(network, "one_device"));
  EXPECT_THAT(test::lines_after(log, line), ::testing::SizeIs(2)) << line << "\n" << log;
}

TEST(ZooWorkers, TrainTheWeightsOfThePartsInTurn) {
  const auto out = test::run_workers(2, "train_the_zoo", {"multi_worker"});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  for (const auto& network : test::small_zoo()) expect_parts_in_turn(network, out.log);
}

/// The strategy is the argument; 50 networks that the planned step knows, 30 of images and 20 of
/// sequences.
std::string lines_of_random(const std::string& kind, bool planned = true) {
  const auto graph_of = [](unsigned number) {
    if (number < 20) return test::random_graph(number, 3);
    if (number < 30) return test::random_image_graph(number);
    return test::random_sequence_graph(number, 3);
  };
  std::string lines;
  for (unsigned number = 0; number < 50; ++number) {
    const auto training = test::train_graph(graph_of(number), kind, planned);
    lines += fmt::format("{} {} {:.17g}\n", number, training.after, training.loss);
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

TEST(ZooOverTwoHosts, TrainsTheWeightsOfThePartsInTurn) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  const test::TestHosts hosts(2);
  const auto nodes = test::run_nodes(hosts, 1, "train_the_zoo", {"multi_worker"});
  for (const auto& network : test::small_zoo()) {
    const std::string line = line_of(network, test::train_of_zoo(network, "one_device"));
    for (const auto& node : nodes)
      EXPECT_THAT(test::lines_after(node.log, line), ::testing::SizeIs(1)) << node.log;
  }
}

/// As on hosts with processors of two makers.
RANK_PROGRAM(train_by_two_kernels) {
  Strategy strategy({.kind = "multi_worker", .replicas = 2, .threads_per_replica = 1});
  nn::use_dense_kernel(strategy.world().first_rank == 0 ? nn::DenseKernel::blas
                                                        : nn::DenseKernel::onednn);
  Model model(strategy, [] { return models::model_by_name("mlp", {.classes = 3}); });
  model.compile({.loss = losses::sparse_categorical_crossentropy()});
  try {
    model.fit(test::zoo_data({1, 28, 28}), {.verbose = 0});
  } catch (const Mismatch& error) {
    rank.mark(std::string("mismatch: ") + error.what());
  }
}

TEST(DenseKernels, OfTwoWorkersAreTheSameOrAnError) {
  const nn::DenseKernel before = nn::dense_kernel();
  try {
    nn::use_dense_kernel(nn::DenseKernel::onednn);
  } catch (const UsageError& error) {
    GTEST_SKIP() << error.what();
  }
  nn::use_dense_kernel(before);
  const auto out = test::run_workers(2, "train_by_two_kernels");
  EXPECT_THAT(test::lines_after(out.log, "mismatch: "), ::testing::SizeIs(2)) << out.log;
  for (const char* words : {"worker 0 has dense kernel: blas", "worker 1 has dense kernel: onednn"})
    EXPECT_THAT(out.log, ::testing::HasSubstr(words));
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

/// Two heads, of which the loss of even steps uses one; a replica leaves steps out or has none.
std::string train_odd_steps(const std::string& kind, const std::string& reduction) {
  Strategy strategy(
      {.kind = kind, .replicas = 2, .threads_per_replica = 1, .seed = 5, .reduction = reduction});
  Replicated<nn::GraphModule> net(strategy, [] {
    const auto input = nn::input({20});
    const auto x = nn::relu()(nn::linear(64)(input));
    return nn::make_module(
        nn::Graph({{"in", input}}, {{"left", nn::linear(8)(x)}, {"right", nn::linear(9)(x)}}));
  });
  Optimizer optimizer(net, optim::adam({.learning_rate = 0.01}));
  for (int step = 0; step < 8; ++step)
    strategy.run([&](ReplicaContext& replica) {
      const bool odd_one = replica.rank() == step / 2 % 2;
      if (odd_one && step % 4 == 2) return optimizer.abstain(replica);
      const auto x = torch::full({3, 20}, 0.1 * (step + 1) * (replica.rank() + 1));
      const auto outputs = net.local(replica)->forward_all({x});
      auto loss = outputs[0].pow(2).sum();
      if (step % 2 == 1) loss = loss + outputs[1].pow(2).sum();
      if (odd_one && step % 4 == 3) return optimizer.leave_out(replica, loss);
      optimizer.minimize(replica, loss);
    });
  Sha256 sha;
  for (const auto& parameter : optimizer.updater().parameters(0))
    sha.update(parameter.data_ptr(), parameter.nbytes());
  return fmt::format("odd {} of version {}", sha.hex(), optimizer.version());
}

RANK_PROGRAM(train_odd_steps) { rank.mark(train_odd_steps("multi_worker", rank.arguments.at(0))); }

TEST(OddSteps, OfPlannedGraphsHaveTheBitsOfThePartsInTurn) {
  for (const std::string reduction : {"fused", "all_reduce"}) {
    const std::string expected = train_odd_steps("one_device", reduction);
    EXPECT_THAT(expected, ::testing::HasSubstr("of version 6"));
    EXPECT_EQ(train_odd_steps("mirrored", reduction), expected);
    const auto out = test::run_workers(2, "train_odd_steps", {reduction});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(test::lines_after(out.log, expected), ::testing::SizeIs(2)) << out.log;
  }
}

// One training after the other, all in one job.
TEST(ZooWorkers, WithServersTrainTheWeightsOfThePartsInTurn) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto out = test::run_command(
      {TUTTI_PROGRAM, "run", "-n", "2", "--servers", "1", self},
      {"TUTTI_TEST_PROGRAM=train_the_zoo", "TUTTI_TEST_ARGUMENTS=parameter_server\n"});
  ASSERT_EQ(out.exit_code, 0) << out.out << out.err;
  for (const auto& network : test::small_zoo()) expect_parts_in_turn(network, out.out + out.err);
}

}  // namespace
}  // namespace tutti
