// Strategies and optimizers, as programs make them, hold to the table of choices.txt: what choose()
// refuses is refused by who makes the objects, in its words, and what it takes trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/strategy/choice/choice.h"
#include "tutti/strategy/modules/replicated.h"

#include "tests/support/message_of.h"
#include "tests/support/plain_training.h"

namespace tutti {
namespace {

using Net = Replicated<torch::nn::Linear>;

struct MadeObjects {
  const char* name;
  StrategyOptions strategy;
  RecipeFacts recipe;
  std::function<Optimizer(const Net&)> make;
};

StrategyOptions two(std::string kind) {
  return {.kind = std::move(kind), .replicas = 2, .threads_per_replica = 1, .seed = 5};
}

StrategyOptions with(StrategyOptions options, const std::function<void(StrategyOptions&)>& change) {
  change(options);
  return options;
}

Optimizer plain(const Net& net) { return Optimizer(net, optim::sgd({.learning_rate = 0.1})); }

Optimizer clipped(const Net& net) {
  return Optimizer(net, {optim::sgd({.learning_rate = 0.1}), {.norm = 0.5}});
}

Optimizer of_torch(const Net& net) {
  return Optimizer(net, [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
  });
}

Optimizer of_copies(const Net& net) {
  return Optimizer(net, optim::sgd({.learning_rate = 0.1}), ReplicatedOptions{});
}

std::vector<MadeObjects> pairs() {
  const RecipeFacts torch{.torch_optimizer = true}, copies{.own_reduction = true};
  const RecipeFacts clips{.more_than_a_rule = "clipping of gradients"};
  const auto shard = [](StrategyOptions& o) { o.shard = "state"; };
  const auto bf16 = [](StrategyOptions& o) { o.compression = compression_from("bf16"); };
  const auto gathers = [](StrategyOptions& o) {
    o.compression = compression_from("topk:0.1");
    o.reduction = "to_one_device";
  };
  const auto by_speed = [](StrategyOptions& o) { o.by_speed.emplace(); };
  return {
      {"mirrored, a torch optimizer", two("mirrored"), torch, of_torch},
      {"central_storage, a torch optimizer", two("central_storage"), torch, of_torch},
      {"central_storage, clipping", two("central_storage"), clips, clipped},
      {"one_device, --shard state", with(two("one_device"), shard), {}, plain},
      {"mirrored, --shard state", with(two("mirrored"), shard), {}, plain},
      {"--shard state, a torch optimizer", with(two("mirrored"), shard), torch, of_torch},
      {"--shard state, a reduction of its own", with(two("mirrored"), shard), copies, of_copies},
      {"mirrored, --compression bf16", with(two("mirrored"), bf16), {}, plain},
      {"central_storage, --compression bf16", with(two("central_storage"), bf16), {}, plain},
      {"topk, to_one_device", with(two("mirrored"), gathers), {}, plain},
      {"one_device, shares by speed", with(two("one_device"), by_speed), {}, plain},
      {"mirrored, shares by speed", with(two("mirrored"), by_speed), {}, plain},
  };
}

void train(const MadeObjects& pair) {
  Strategy strategy(pair.strategy);
  const Net net(strategy, [] { return torch::nn::Linear(3, 1); });
  Optimizer optimizer = pair.make(net);
  const auto weight = [&] { return optimizer.updater().parameters(0)[0].detach().clone(); };
  const at::Tensor before = weight();
  strategy.run([&](ReplicaContext& replica) {
    optimizer.minimize(replica, net.local(replica)->forward(torch::ones({1, 3})).sum());
  });
  EXPECT_FALSE(before.equal(weight())) << pair.name;
}

TEST(ChoiceOfObjects, IsThatOfTheTable) {
  size_t refused = 0;
  for (const MadeObjects& pair : pairs()) {
    std::string expected, got;
    try {
      choose(pair.strategy, pair.recipe);
    } catch (const UsageError& error) {
      expected = error.what();
    }
    try {
      train(pair);
    } catch (const UsageError& error) {
      got = error.what();
    }
    EXPECT_EQ(got, expected) << pair.name;
    refused += expected.empty() ? 0 : 1;
  }
  EXPECT_EQ(refused, 6u);
}

}  // namespace
}  // namespace tutti
