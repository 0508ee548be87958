// Processes that own slices of state, gradients and parameters: the bits of one device that has
// all, with a stop in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/hosts.h"
#include "tests/support/run_workers.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::options_of;

optim::Recipe recipe() {
  return {optim::lamb({.learning_rate = 0.01, .weight_decay = 0.1}),
          {.global_norm = 0.05},
          {{.pattern = "*.bias", .weight_decay = 0}}};
}

NamedTensors copies_of(const NamedTensors& tensors) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().clone());
  return copies;
}

/// An epoch, then another one with a new model and optimizer that go on from what these were.
std::string train(StrategyOptions options, const std::string& shard) {
  options.shard = shard;
  Strategy strategy(options);
  auto batches = strategy.distribute(test::small_data());
  UpdaterState state;
  NamedTensors values;
  for (int epoch = 0; epoch < 2; ++epoch) {
    Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
    Optimizer optimizer(net, recipe());
    if (epoch > 0) optimizer.updater().restore(state, values);
    for (auto&& batch : batches.epoch(epoch)) test::train_step(strategy, net, optimizer, batch);
    state = optimizer.updater().state();
    state.tensors = copies_of(state.tensors);
    values = copies_of(unique_parameters(*net.modules().module(0)));
  }
  std::vector<at::Tensor> all;
  for (const NamedTensors* const tensors : {&values, &state.tensors})
    for (const auto& [name, tensor] : *tensors) all.push_back(tensor.contiguous());
  return test::sha_of(all);
}

/// arguments: replicas, what is cut, the mesh.
RANK_PROGRAM(train_shards) {
  StrategyOptions options = options_of("multi_worker", std::stoi(rank.arguments[0]));
  options.mesh = rank.arguments[2] == "none" ? "" : rank.arguments[2];
  rank.mark("trained " + train(options, rank.arguments[1]));
}

TEST(ShardsOfProcesses, HaveTheBitsOfThePartsInTurn) {
  struct Case {
    int workers, replicas;
    std::string shard, mesh;
  };
  for (const auto& [workers, replicas, shard, mesh] :
       {Case{2, 2, "state", "none"}, Case{2, 2, "parameters", "none"},
        Case{2, 4, "parameters", "data=2,shard=2"}, Case{3, 3, "gradients", "none"},
        Case{2, 4, "gradients", "data=2,shard=2"}}) {
    const auto out =
        test::run_workers(workers, "train_shards", {std::to_string(replicas), shard, mesh});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(test::lines_after(out.log, "trained "),
                ::testing::AllOf(::testing::SizeIs(workers),
                                 ::testing::Each(train(options_of("one_device", replicas), ""))))
        << shard << out.log;
  }
}

TEST(ShardsOfTwoHosts, HaveTheBitsOfThePartsInTurn) {
  if (const std::string why = test::TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  const test::TestHosts hosts(2);
  StrategyOptions in_turn = options_of("one_device", 4);
  in_turn.reduction_shape = "2x2";
  const std::string expected = train(in_turn, "");
  for (const std::string shard : {"state", "gradients", "parameters"})
    for (const auto& node : test::run_nodes(hosts, 2, "train_shards", {"4", shard, "none"})) {
      ASSERT_EQ(node.exit_code, 0) << node.log;
      EXPECT_THAT(test::lines_after(node.log, "trained "),
                  ::testing::AllOf(::testing::SizeIs(2), ::testing::Each(expected)))
          << shard;
    }
}

}  // namespace
}  // namespace tutti
