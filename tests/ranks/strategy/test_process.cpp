// Replicas as processes, and as threads of several processes: the same bits as the parts in turn.

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/cluster/join/join.h"
#include "tutti/comm/group/host_view.h"
#include "tutti/data/loader/loader.h"
#include "tutti/ps/server/parallel.h"
#include "tutti/strategy/run/detail/replica_meeting.h"
#include "tutti/sync/detail/gradient_listener.h"

#include "tests/support/few_threads.h"
#include "tests/support/gan.h"
#include "tests/support/run_workers.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::sha_of;
using test::strategy_of;
using ::testing::HasSubstr;

// `how`: "fused", "replicated", "lamb" (fused, with all that needs norms), or a reduction and a
// compression, "all_reduce onebit".
std::string train(const std::string& kind, int replicas, const std::string& how) {
  StrategyOptions options = test::options_of(kind, replicas);
  const size_t space = how.find(' ');
  if (space != std::string::npos) {
    options.reduction = how.substr(0, space);
    options.compression = compression_from(how.substr(space + 1));
    options.compression.min_elements = 40;
  }
  const auto trained = test::train(Strategy(options), [&](const ReplicatedModules& modules) {
    if (how == "lamb")
      return Optimizer(modules, {optim::lamb({.learning_rate = 0.01, .weight_decay = 0.1}),
                                 {.global_norm = 0.05},
                                 {{.pattern = "*.bias", .weight_decay = 0}}});
    const auto rule = optim::adam({.learning_rate = 0.01});
    return how == "replicated" ? Optimizer(modules, rule, ReplicatedOptions{})
                               : Optimizer(modules, rule);
  });
  return sha_of(trained.parameters) + fmt::format(" {:.17g}", fmt::join(trained.losses, " "));
}

RANK_PROGRAM(train_workers) {
  rank.mark("weights " + train("multi_worker", std::stoi(rank.arguments[0]), rank.arguments[1]));
}

struct ProcessCase {
  int workers;
  int replicas;
};

class Processes : public ::testing::TestWithParam<ProcessCase> {};

TEST_P(Processes, HaveTheBitsOfThePartsInTurn) {
  const auto [workers, replicas] = GetParam();
  for (const std::string how : {"fused", "replicated", "lamb"}) {
    const auto out = test::run_workers(workers, "train_workers", {std::to_string(replicas), how});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    const auto expected = train("one_device", replicas, how);
    EXPECT_THAT(test::lines_after(out.log, "weights "),
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

class Exchanges : public ::testing::TestWithParam<std::string> {};

TEST_P(Exchanges, HaveTheBitsOfThePartsInTurn) {
  const auto out = test::run_workers(2, "train_workers", {"2", GetParam()});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(
      test::lines_after(out.log, "weights "),
      ::testing::AllOf(::testing::SizeIs(2), ::testing::Each(train("one_device", 2, GetParam()))))
      << out.log;
}

std::vector<std::string> all_exchanges() {
  std::vector<std::string> all;
  for (const auto& reduction : cross_device_names())
    for (const char* compression : {" none", " bf16"}) all.push_back(reduction + compression);
  for (const char* compression : {"fp16", "topk:0.05", "onebit", "powersgd:2"})
    all.push_back(std::string("all_reduce ") + compression);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Chosen, Exchanges, ::testing::ValuesIn(all_exchanges()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

// Two optimizers, noise and dropout from each replica's own generator.
RANK_PROGRAM(train_gan) {
  rank.mark("weights " + test::gan_sha(strategy_of("multi_worker", std::stoi(rank.arguments[0]))));
}

TEST(GanOfProcesses, HasTheBitsOfThePartsInTurn) {
  for (const auto& [workers, replicas] :
       {ProcessCase{2, 2}, ProcessCase{3, 3}, ProcessCase{2, 4}}) {
    const auto out = test::run_workers(workers, "train_gan", {std::to_string(replicas)});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(
        test::lines_after(out.log, "weights "),
        ::testing::AllOf(::testing::SizeIs(workers),
                         ::testing::Each(test::gan_sha(strategy_of("one_device", replicas)))))
        << out.log;
  }
}

RANK_PROGRAM(unlike_models) {
  Strategy strategy = strategy_of("multi_worker", 3);
  const int width = strategy.world().first_rank == 2 ? 5 : 4;
  Replicated<torch::nn::Linear> net(strategy, [width] { return torch::nn::Linear(3, width); });
}

TEST(Models, ThatDifferBetweenRanksAreOneErrorOnEachRank) {
  const auto out = test::run_workers(3, "unlike_models");
  EXPECT_EQ(out.exit_code, 1);
  for (int worker : {0, 1, 2})
    EXPECT_THAT(out.log, HasSubstr(fmt::format("[{}] error: the models of rank 0 and rank 2 differ",
                                               worker)));
  EXPECT_THAT(out.log, HasSubstr("[4, 3]"));
  EXPECT_THAT(out.log, HasSubstr("[5, 3]"));
}

// Marks how a step ended in which the other worker dies, and what is left.
void mark_what_is_left(const test::Rank& rank, const Updater& updater,
                       const std::function<void()>& step) {
  try {
    step();
  } catch (const PeerLost& error) {
    rank.mark(std::string("lost: ") + error.what());
  }
  try {
    updater.require_whole();
  } catch (const Error& error) {
    rank.mark(std::string("state: ") + error.what());
  }
}

// A worker dies between the two barriers of a fused step: what is left is torn, and says so.
RANK_PROGRAM(die_in_the_update) {
  Strategy strategy = strategy_of("multi_worker", 2);
  Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(64, 64); });
  Optimizer optimizer(net, optim::sgd({.learning_rate = 0.5}));
  Updater& updater = optimizer.updater();
  const bool dies = strategy.world().first_rank == 1;
  mark_what_is_left(rank, updater, [&] {
    strategy.run([&](ReplicaContext& replica) {
      updater.begin(0, Overlap::on);
      net.local(replica)(torch::ones({2, 64})).sum().backward();
      std::vector<at::Tensor> gradients;
      for (const auto& parameter : updater.parameters(0)) gradients.push_back(parameter.grad());
      if (dies) {
        host_view(strategy.world().groups[0]).inside.barrier();  // the first of the two
        std::_Exit(3);
      }
      updater.step(0, gradients, {}, Deadline(kDefaultTimeLimit));
    });
  });
}

TEST(FusedStep, DeathInTheUpdateLeavesTheSegmentTorn) {
  const auto out = test::run_workers(2, "die_in_the_update");
  EXPECT_EQ(out.exit_code, 3) << out.log;
  EXPECT_THAT(out.log, HasSubstr("lost: "));
  EXPECT_THAT(out.log, HasSubstr("rank 1"));
  EXPECT_THAT(out.log, HasSubstr("state: the parameters are torn"));
}

// A worker dies in the middle of a backward pass, when an update has begun.
RANK_PROGRAM(die_after_an_early_update) {
  Strategy strategy = strategy_of("multi_worker", 2);
  Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(64, 64); });
  Optimizer optimizer(net, optim::sgd({.learning_rate = 0.5}));
  Updater& updater = optimizer.updater();
  const bool dies = strategy.world().first_rank == 1;
  mark_what_is_left(rank, updater, [&] {
    strategy.run([&](ReplicaContext&) {
      auto* const listener = updater.begin(0, Overlap::on);
      const at::Tensor weight = updater.parameters(0)[0];
      const at::Tensor before = weight.detach().clone();
      listener->take(weight, torch::ones_like(weight));
      // Each owns a half, and updates it once the other has its gradient too.
      for (const Deadline deadline(Millis{10'000}); !deadline.passed();) {
        listener->go_on();
        if (!torch::equal(weight.detach(), before)) break;
      }
      if (dies) std::_Exit(3);
      updater.step(0, {}, {}, Deadline(kDefaultTimeLimit));
    });
  });
}

TEST(FusedStep, DeathAfterAnEarlyUpdateLeavesTheSegmentTorn) {
  const auto out = test::run_workers(2, "die_after_an_early_update");
  EXPECT_EQ(out.exit_code, 3) << out.log;
  EXPECT_THAT(out.log, HasSubstr("lost: "));
  EXPECT_THAT(out.log, HasSubstr("rank 1"));
  EXPECT_THAT(out.log, HasSubstr("state: the parameters are torn"));
}

RANK_PROGRAM(stuck_replica) {
  Strategy strategy(
      {.kind = "mirrored", .replicas = 2, .threads_per_replica = 1, .time_limit = Millis(300)});
  strategy.run([&](ReplicaContext& replica) {
    if (replica.rank() == std::stoi(rank.arguments.at(0)))
      std::this_thread::sleep_for(std::chrono::minutes(10));
    if (rank.arguments.at(1) == "waits") replica.group().barrier();
  });
}

// Replica 0 is the calling thread: nobody is left there to watch it. The other one fails, since it
// waits for the stuck one, or returns.
TEST(StuckReplica, IsNamedAndTheProcessEnds) {
  for (const char* stuck : {"0", "1"})
    for (const char* other : {"waits", "returns"}) {
      const auto out = test::run_ranks(1, "stuck_replica",
                                       {.limit = Millis{20'000}, .arguments = {stuck, other}})[0];
      EXPECT_EQ(out.exit_code, 1) << stuck << " " << other;
      EXPECT_FALSE(out.timed_out);
      EXPECT_THAT(out.log, HasSubstr(fmt::format("replica {} has not returned from run() 600 ms "
                                                 "after replica {}",
                                                 stuck, 1 - std::stoi(stuck))));
    }
}

RANK_PROGRAM(stuck_for_all) {
  detail::ReplicaMeeting meeting(4, 2, Millis(200));
  std::jthread other([&] { meeting.meet(1, nullptr, {}); });
  meeting.meet(0, nullptr, [&](const auto&) -> detail::ReplicaMeeting::Value {
    meeting.on_all([](int local) {
      if (local == 1) std::this_thread::sleep_for(std::chrono::minutes(10));
    });
    return nullptr;
  });
}

TEST(StuckReplica, InWhatReplicaZeroGivesToAllIsNamed) {
  const auto out = test::run_ranks(1, "stuck_for_all", {.limit = Millis{20'000}})[0];
  EXPECT_EQ(out.exit_code, 1);
  EXPECT_FALSE(out.timed_out);
  EXPECT_THAT(out.log, HasSubstr("replica 5 has not returned from merge() 400 ms after replica 4"));
}

// One more thread may start, where two are needed: the first one ends, and all goes on.
RANK_PROGRAM(replicas_of_few_threads) {
  test::allow_threads(1);
  const auto says = [&](const std::string& who, const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      rank.mark(who + ": " + error.what());
    }
  };
  says("replicas", [] { strategy_of("mirrored", 3); });
  says("server", [] { ps::ParallelFor updates(3); });
  says("loader", [] {
    data::Loader loader({.workers = 2});
    const auto data = data::from_arrays({Array::zeros(DType::float32, {8})}).batch(4);
    loader.begin(data.epoch({.epoch = 0, .seed = 1}),
                 {.end_step = 2, .part = [](int64_t step, int) {
                    return data::BatchPart{.batch = step, .share = {0, 4}};
                  }});
  });
}

TEST(FewThreads, AreAnErrorThatNamesTheLimit) {
  const auto out = test::run_ranks(1, "replicas_of_few_threads")[0];
  EXPECT_EQ(out.exit_code, 0) << out.log;
  for (const char* who :
       {"replicas: no thread for replica ", "server: no thread for updates of a server",
        "loader: no thread for the input"})
    EXPECT_THAT(out.log, HasSubstr(who));
  EXPECT_THAT(out.log, HasSubstr("ulimit -u allows "));
}

RANK_PROGRAM(workers_of_few_threads) {
  join();  // the connection to the launcher has a thread
  if (rank.rank == 1) test::allow_threads(1);
  strategy_of("multi_worker", 6);
}

TEST(FewThreads, OfAWorkerEndTheJobAtOnce) {
  const auto out = test::run_workers(2, "workers_of_few_threads");
  EXPECT_EQ(out.exit_code, 1);
  EXPECT_THAT(test::lines_after(out.log, "[1] error: "),
              ::testing::Contains(HasSubstr("no thread for a replica that joins the job can be")))
      << out.log;
}

// Each worker sets a learning rate of its own: rank 0's counts, so all stay the same.
RANK_PROGRAM(unlike_learning_rates) {
  Strategy strategy = strategy_of("multi_worker", 2);
  Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(3, 2); });
  const auto rule = optim::sgd({.learning_rate = 0.5});
  Optimizer optimizer = rank.arguments.at(0) == "fused" ? Optimizer(net, rule)
                                                        : Optimizer(net, rule, ReplicatedOptions{});
  optimizer.set_learning_rate(rank.rank == 0 ? 0.25 : 0.125);
  const at::Tensor bias = net.modules().module(0)->parameters()[1];
  const at::Tensor before = bias.detach().clone();
  strategy.run([&](ReplicaContext& replica) {
    optimizer.minimize(replica, net.local(replica)(torch::ones({1, 3})).sum() / 2);
  });
  rank.mark(fmt::format("moved {}", (before - bias).max().item<float>()));
}

TEST(LearningRate, OfRankZeroCounts) {
  for (const std::string how : {"fused", "replicated"}) {
    const auto out = test::run_workers(2, "unlike_learning_rates", {how});
    EXPECT_THAT(test::lines_after(out.log, "moved "),
                ::testing::AllOf(::testing::SizeIs(2), ::testing::Each("0.25")))
        << how << out.log;
  }
}

RANK_PROGRAM(another_module_on_workers) {
  Strategy strategy = strategy_of("multi_worker", 4);
  Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(3, 2); });
  const auto rule = optim::sgd({.learning_rate = 0.5});
  Optimizer optimizer = rank.arguments.at(0) == "fused" ? Optimizer(net, rule)
                                                        : Optimizer(net, rule, ReplicatedOptions{});
  torch::nn::Linear before(3, 2);
  strategy.run([&](ReplicaContext& replica) {
    optimizer.minimize(replica, before->forward(torch::ones({1, 3})).sum());
  });
}

TEST(ALossOfAnotherModule, IsRefusedOnAllWorkers) {
  for (const std::string how : {"fused", "replicated"}) {
    const auto out = test::run_workers(2, "another_module_on_workers", {how}, {}, false);
    EXPECT_EQ(out.exit_code, 1);
    for (int worker = 0; worker < 2; ++worker)
      EXPECT_THAT(test::lines_after(out.log, fmt::format("[{}] error: ", worker)),
                  ::testing::ElementsAre(HasSubstr("not \"weight\", the first of 2")))
          << out.log;
  }
}

}  // namespace
}  // namespace tutti
