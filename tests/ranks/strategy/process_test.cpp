// Replicas as processes, and as threads of several processes: the same bits as the parts in turn.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"
#include "tutti/cluster/join.h"
#include "tutti/cluster/launcher.h"
#include "tutti/strategy/distributed_dataset.h"
#include "tutti/strategy/replicated.h"
#include "tutti/sync/distributed_optimizer.h"
#include "tutti/sync/tensors.h"

#include "tests/support/plain_training.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

data::Dataset small_data() {
  torch::manual_seed(3);
  const auto array_of = [](at::Tensor tensor) {
    return Array::view(tensor.data_ptr(), dtype_of(tensor.scalar_type()), tensor.sizes().vec(),
                       std::make_shared<at::Tensor>(tensor));
  };
  return data::from_arrays({array_of(torch::rand({50, 1, 8, 8})),
                            array_of(torch::randint(0, 4, {50}, at::kLong))})
      .shuffle()
      .batch(16);
}

std::string sha_of(const std::vector<at::Tensor>& parameters) {
  Sha256 sha;
  for (const auto& parameter : parameters) sha.update(parameter.data_ptr(), parameter.nbytes());
  return sha.hex();
}

std::string train(Strategy strategy, const std::string& how) {
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  const auto rule = optim::adam({.learning_rate = 0.01});
  Optimizer optimizer =
      how == "fused" ? Optimizer(net, rule) : Optimizer(net, rule, ReplicatedOptions{});
  auto batches = strategy.distribute(small_data());
  double sum = 0;
  for (int epoch = 0; epoch < 2; ++epoch)
    for (auto&& batch : batches.epoch(epoch)) {
      auto losses = strategy.run([&](ReplicaContext& replica) {
        auto [x, y] = batch.local(replica);
        auto each =
            torch::cross_entropy_loss(net.local(replica)->forward(x), y, {}, at::Reduction::None);
        auto loss = average_loss(each, batch.global_size());
        optimizer.minimize(replica, loss);
        return loss.item<double>();
      });
      sum += strategy.reduce(ReduceOp::sum, losses);
    }
  return sha_of(optimizer.updater().parameters(0)) + fmt::format(" {:.17g}", sum);
}

Strategy strategy_of(const std::string& kind, int replicas) {
  return Strategy({.kind = kind, .replicas = replicas, .threads_per_replica = 1, .seed = 11});
}

RANK_PROGRAM(train_workers) {
  const auto result =
      train(strategy_of("multi_worker", std::stoi(rank.arguments[0])), rank.arguments[1]);
  rank.mark("weights " + result);
}

// Wraps another program of this binary in the launcher: arguments are the number of workers, the
// program, then its own arguments.
RANK_PROGRAM(under_launcher) {
  std::string own;
  for (size_t i = 2; i < rank.arguments.size(); ++i) own += rank.arguments[i] + "\n";
  const auto result = launch(
      {.num_workers = std::stoi(rank.arguments[0]),
       .command = {"/proc/self/exe"},
       .environment = {"TUTTI_TEST_PROGRAM=" + rank.arguments[1], "TUTTI_TEST_ARGUMENTS=" + own},
       .announce = false});
  std::fprintf(stderr, "%s\n", failure_report(result).c_str());
  std::fflush(nullptr);
  std::_Exit(result.exit_code);
}

test::RankOutcome under_launcher(int workers, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), std::to_string(workers));
  return test::run_ranks(1, "under_launcher", {.arguments = arguments})[0];
}

// The weights line of every worker.
std::vector<std::string> weights_in(const std::string& log) {
  std::vector<std::string> found;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);)
    if (const size_t at = line.find("weights "); at != line.npos)
      found.push_back(line.substr(at + 8));
  return found;
}

struct ProcessCase {
  int workers;
  int replicas;
};

class Processes : public ::testing::TestWithParam<ProcessCase> {};

TEST_P(Processes, HaveTheBitsOfThePartsInTurn) {
  const auto [workers, replicas] = GetParam();
  for (const std::string how : {"fused", "replicated"}) {
    const auto out = under_launcher(workers, {"train_workers", std::to_string(replicas), how});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    const auto expected = train(strategy_of("one_device", replicas), how);
    EXPECT_THAT(weights_in(out.log),
                ::testing::AllOf(::testing::SizeIs(workers), ::testing::Each(expected)))
        << out.log;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Processes,
                         ::testing::Values(ProcessCase{1, 1}, ProcessCase{2, 2}, ProcessCase{3, 3},
                                           ProcessCase{2, 4}, ProcessCase{1, 2}),
                         [](const auto& info) {
                           return fmt::format("{}workers{}replicas", info.param.workers,
                                              info.param.replicas);
                         });

RANK_PROGRAM(unlike_models) {
  Strategy strategy = strategy_of("multi_worker", 3);
  const int width = strategy.world().first_rank == 2 ? 5 : 4;
  Replicated<torch::nn::Linear> net(strategy, [width] { return torch::nn::Linear(3, width); });
}

TEST(Models, ThatDifferBetweenRanksAreOneErrorOnEachRank) {
  const auto out = under_launcher(3, {"unlike_models"});
  EXPECT_EQ(out.exit_code, 1);
  for (int worker : {0, 1, 2})
    EXPECT_THAT(out.log, HasSubstr(fmt::format("[{}] error: the models of rank 0 and rank 2 differ",
                                               worker)));
  EXPECT_THAT(out.log, HasSubstr("[4, 3]"));
  EXPECT_THAT(out.log, HasSubstr("[5, 3]"));
}

// A worker dies between the two barriers of a fused step: what is left is torn, and says so.
RANK_PROGRAM(die_in_the_update) {
  Strategy strategy = strategy_of("multi_worker", 2);
  Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(64, 64); });
  Optimizer optimizer(net, optim::sgd({.learning_rate = 0.5}));
  Updater& updater = optimizer.updater();
  const bool dies = strategy.world().first_rank == 1;
  try {
    strategy.run([&](ReplicaContext& replica) {
      updater.begin(0);
      net.local(replica)(torch::ones({2, 64})).sum().backward();
      std::vector<at::Tensor> gradients;
      for (const auto& parameter : updater.parameters(0)) gradients.push_back(parameter.grad());
      const int64_t version = updater.push(0, gradients, 1.0);
      if (dies) std::_Exit(3);
      updater.acquire(0, version, Deadline(kDefaultTimeLimit));
    });
  } catch (const PeerLost& error) {
    rank.mark(std::string("lost: ") + error.what());
  }
  try {
    updater.require_whole();
  } catch (const Error& error) {
    rank.mark(std::string("state: ") + error.what());
  }
}

TEST(FusedStep, DeathInTheUpdateLeavesTheSegmentTorn) {
  const auto out = under_launcher(2, {"die_in_the_update"});
  EXPECT_EQ(out.exit_code, 3) << out.log;
  EXPECT_THAT(out.log, HasSubstr("lost: "));
  EXPECT_THAT(out.log, HasSubstr("rank 1"));
  EXPECT_THAT(out.log, HasSubstr("state: the parameters are torn"));
}

RANK_PROGRAM(stuck_replica) {
  Strategy strategy(
      {.kind = "mirrored", .replicas = 2, .threads_per_replica = 1, .time_limit = Millis(300)});
  strategy.run([&](ReplicaContext& replica) {
    if (replica.rank() == 1) std::this_thread::sleep_for(std::chrono::minutes(10));
  });
}

TEST(StuckReplica, IsNamedAndTheProcessEnds) {
  const auto out = test::run_ranks(1, "stuck_replica")[0];
  EXPECT_EQ(out.exit_code, 1);
  EXPECT_THAT(out.log, HasSubstr("replica 1 has not returned from run()"));
}

// Horovod's shape: an existing loop whose loss is the mean over its own batch.
RANK_PROGRAM(existing_loop) {
  Group world = tutti::join();
  torch::manual_seed(100 + world.rank());
  torch::nn::Sequential model = test::small_cnn();
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  broadcast_parameters(*model, world);
  DistributedOptimizer optimizer(*model, sgd, world,
                                 {.buckets = {.bucket_bytes = 1024, .first_bucket_bytes = 64}});
  auto epoch = small_data().epoch({.epoch = 0, .seed = 1});
  for (int step = 0; step < 3; ++step) {
    const auto part = epoch.part(step, data::share(16, world.size(), world.rank()));
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model->forward(tensor_of(part.columns[0])),
                                         tensor_of(part.columns[1]))
        .backward();
    optimizer.step();
  }
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : model->parameters()) parameters.push_back(parameter.detach());
  rank.mark("weights " + sha_of(parameters));
  if (rank.arguments.size() == 1 && world.rank() == 0) {
    torch::manual_seed(100);
    torch::nn::Sequential whole = test::small_cnn();
    torch::optim::SGD plain(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      const auto batch = epoch.batch(step);
      plain.zero_grad();
      torch::nn::functional::cross_entropy(whole->forward(tensor_of(batch.columns[0])),
                                           tensor_of(batch.columns[1]))
          .backward();
      plain.step();
    }
    std::vector<at::Tensor> expected;
    for (const auto& parameter : whole->parameters()) expected.push_back(parameter.detach());
    rank.mark(fmt::format("difference below 1e-5: {}",
                          test::relative_difference(parameters, expected) < 1e-5));
  }
}

TEST(ExistingLoop, AgreesWithOneProcessAndBetweenRanks) {
  const auto out = under_launcher(2, {"existing_loop", "compare"});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  const auto weights = weights_in(out.log);
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_THAT(out.log, HasSubstr("difference below 1e-5: true"));
}

RANK_PROGRAM(second_backward) {
  Group world = tutti::join();
  torch::nn::Linear model(4, 2);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  broadcast_parameters(*model, world);
  DistributedOptimizer optimizer(*model, sgd, world);
  model(torch::ones({1, 4})).sum().backward();
  model(torch::ones({1, 4})).sum().backward();
}

TEST(ExistingLoop, SecondBackwardNamesTheParameter) {
  const auto out = under_launcher(2, {"second_backward"});
  EXPECT_EQ(out.exit_code, 1);
  EXPECT_THAT(out.log, HasSubstr("ran twice before step()"));
  EXPECT_THAT(out.log, ::testing::AnyOf(HasSubstr("\"bias\""), HasSubstr("\"weight\"")));
}

}  // namespace
}  // namespace tutti
