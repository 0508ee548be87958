// One copy of the parameters, in this process or on servers: the bits of mirrored, and what these
// strategies refuse. And what workers do who have only servers in common: meetings are those of
// ps/partition/meetings.h, here the test says what comes of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/net/token.h"
#include "tutti/ps/server/server.h"
#include "tutti/ps/server/view_service.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/membership/membership.h"

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::bits_equal;
using test::message_of;
using test::options_of;
using test::Trained;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Trained train(const StrategyOptions& options, const optim::Rule& rule) {
  return test::train(Strategy(options),
                     [&](const ReplicatedModules& modules) { return Optimizer(modules, rule); });
}

std::vector<optim::Rule> some_rules() {
  return {optim::sgd({.learning_rate = 0.05, .momentum = 0.9}),
          optim::adam({.learning_rate = 0.01}),
          optim::adam({.learning_rate = 0.01, .beta2 = 0.5, .amsgrad = true}),
          optim::adagrad({.initial_accumulator = 0.3}),
          optim::ftrl({.learning_rate = 0.1, .initial_accumulator = 0.2})};
}

TEST(CentralStorage, HasTheBitsOfMirrored) {
  for (const optim::Rule& rule : some_rules())
    for (int replicas : {1, 2, 3}) {
      const auto central = train(options_of("central_storage", replicas), rule);
      const auto mirrored = train(options_of("mirrored", replicas), rule);
      EXPECT_TRUE(bits_equal(central.parameters, mirrored.parameters)) << rule.name() << replicas;
      EXPECT_EQ(central.losses, mirrored.losses) << rule.name() << replicas;
    }
}

TEST(CentralStorage, KeepsOneCopyOfTheParameters) {
  Strategy strategy(options_of("central_storage", 3));
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  Optimizer optimizer(net, optim::sgd({}));
  EXPECT_EQ(strategy.num_replicas_in_sync(), 3);
  for (int local = 1; local < 3; ++local)
    for (size_t i = 0; i < optimizer.updater().parameters(0).size(); ++i)
      EXPECT_EQ(optimizer.updater().parameters(local)[i].data_ptr(),
                optimizer.updater().parameters(0)[i].data_ptr())
          << local << " " << i;
}

// A job of this one worker, whose servers are threads. The environment is as `tutti run` sets it.
class Served : public ::testing::Test {
 protected:
  void start(int servers) {
    const Token token = Token::random();
    const Credentials credentials{token, job_of_token(token), nullptr};
    service_ = std::make_unique<ps::ViewService>(
        ps::ViewServiceOptions{.num_servers = servers, .num_workers = 1},
        *Address::from_number("127.0.0.1", 0), credentials);
    const HostPort where{"127.0.0.1", service_->address().port()};
    for (int i = 0; i < servers; ++i)
      servers_.emplace_back([=] {
        try {
          ps::run_server({.number = i, .view_service = where, .threads = 1}, credentials);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "server " << i << ": " << error.what();
        }
      });
    setenv(kTokenVariable, token.secret_hex().c_str(), 1);
    setenv(detail::kViewServiceVariable, service_->address().text().c_str(), 1);
    setenv(detail::kNumServersVariable, std::to_string(servers).c_str(), 1);
  }
  void end() {
    const Deadline deadline(Millis{10'000});  // who comes after its end would look for it long
    while (service_ && service_->view().number == 0 && !deadline.passed())
      std::this_thread::sleep_for(Millis{1});
    service_.reset();
    for (std::thread& server : servers_) server.join();
    servers_.clear();
    for (const char* name :
         {kTokenVariable, detail::kViewServiceVariable, detail::kNumServersVariable})
      unsetenv(name);
  }
  void TearDown() override { end(); }

 private:
  std::unique_ptr<ps::ViewService> service_;
  std::vector<std::thread> servers_;
};

TEST_F(Served, LoopOfAUserHasTheBitsOfMirrored) {
  for (const optim::Rule& rule : some_rules())
    for (int replicas : {1, 3}) {
      start(replicas == 1 ? 1 : 2);
      const auto served = train(options_of("parameter_server", replicas), rule);
      end();
      const auto mirrored = train(options_of("mirrored", replicas), rule);
      EXPECT_TRUE(bits_equal(served.parameters, mirrored.parameters)) << rule.name() << replicas;
      EXPECT_EQ(served.losses, mirrored.losses) << rule.name() << replicas;
    }
}

TEST_F(Served, ParametersInPartsAndRowsHaveTheSameBits) {
  const auto expected = train(options_of("mirrored", 2), optim::adam({})).parameters;
  for (const auto& partitioner : {ps::Partitioner::fixed(3), ps::Partitioner::max_part(100)})
    for (const int64_t piece_bytes : {int64_t{64}, int64_t{1} << 20}) {
      StrategyOptions options = options_of("parameter_server", 2);
      options.served.placement.partitioner = partitioner;
      options.piece_bytes = piece_bytes;
      start(2);
      EXPECT_TRUE(bits_equal(train(options, optim::adam({})).parameters, expected)) << piece_bytes;
      end();
    }
}

// Each server has a part of the parameters: only workers know of all.
TEST_F(Served, ALossOfAnotherModuleIsRefused) {
  for (const auto& [replicas, staleness] : {std::pair{1, 0}, {2, 0}, {2, 1}}) {
    start(2);
    {
      StrategyOptions options = options_of("parameter_server", replicas);
      options.served.staleness = ps::Staleness(staleness);
      Strategy strategy(options);
      Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(3, 2); });
      Optimizer optimizer(net, optim::sgd({.learning_rate = 1}));
      torch::nn::Linear before(3, 2);
      EXPECT_THAT(
          message_of<UsageError>([&] {
            strategy.run([&](ReplicaContext& replica) {
              optimizer.minimize(replica, before->forward(torch::ones({1, 3})).sum());
            });
          }),
          AllOf(HasSubstr("not \"weight\", the first of 2"),
                HasSubstr("its parameter of shape [2, 3] has one, in the place of \"weight\"")))
          << replicas << " " << staleness;
    }
    end();
  }
}

TEST_F(Served, WithoutServersSaysWhatToType) {
  EXPECT_THAT(message_of<UsageError>([] { Strategy(options_of("parameter_server", 2)); }),
              HasSubstr("tutti run --servers 1 -n 2 PROGRAM ARGS..."));
}

// ---- workers that may be lost ----

using Brought = std::map<int, std::vector<std::byte>>;

// Worker 1 of three, with two replicas each. Nobody has to be there to make its world.
class Apart : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [name, value] :
         {std::pair{detail::kViewServiceVariable, "127.0.0.1:1"},
          std::pair{detail::kNumServersVariable, "1"}, std::pair{detail::kJobVariable, "apart"},
          std::pair{detail::kWorkerVariable, "1"}, std::pair{detail::kLocalWorkerVariable, "1"},
          std::pair{detail::kNumWorkersVariable, "3"}}) {
      ASSERT_EQ(std::getenv(name), nullptr) << name;
      setenv(name, value, 1);
      names_.emplace_back(name);
    }
    strategy_.emplace(StrategyOptions{.kind = "parameter_server",
                                      .replicas = 6,
                                      .pin = false,
                                      .served = {.on_lost_worker = ps::OnLostWorker::go_on}});
  }
  void TearDown() override {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }

  // From now on the others bring `others`, and this worker is there unless `absent`.
  void meet(const std::map<int, std::vector<double>>& others, bool absent = false) {
    strategy_->membership().meet_at(
        [=](std::span<const std::byte> own) {
          Brought all;
          for (const auto& [worker, values] : others) {
            const auto bytes = std::as_bytes(std::span(values));
            all[worker] = {bytes.begin(), bytes.end()};
          }
          if (!absent) all[1] = {own.begin(), own.end()};
          return all;
        },
        nullptr);
  }

  // Who is there in each of the next meetings; the last for ever.
  void meet_in_turn(const std::vector<std::vector<int>>& turns) {
    strategy_->membership().meet_at(
        [=, turn = size_t{0}](std::span<const std::byte>) mutable {
          Brought all;
          for (const int worker : turns[std::min(turn, turns.size() - 1)]) all[worker] = {};
          ++turn;
          return all;
        },
        nullptr);
  }

  std::optional<Strategy> strategy_;

 private:
  std::vector<std::string> names_;
};

TEST_F(Apart, TheWorldIsOfAllAndTheGroupsAreOfThisWorker) {
  const World& world = strategy_->world();
  EXPECT_TRUE(world.apart);
  EXPECT_EQ(world.size, 6);
  EXPECT_EQ(world.local, 2);
  EXPECT_EQ(world.first_rank, 2);
  EXPECT_EQ(world.shape, ReductionShape::flat(6));
  EXPECT_FALSE(world.chief);
  const auto sizes = strategy_->run([](ReplicaContext& replica) { return replica.group().size(); });
  EXPECT_THAT(sizes.values(), ElementsAre(2, 2));
}

TEST_F(Apart, NobodyMeetsBeforeTheOptimizerIsConnected) {
  const PerReplica<double> values({1.0, 2.0}, 2);
  EXPECT_THAT(message_of<UsageError>([&] { strategy_->reduce(ReduceOp::sum, values); }),
              HasSubstr("compile()"));
  EXPECT_EQ(strategy_->membership().those_here().size, 6);
}

// 0.1 + 0.2 + 0.3 + ... depends on the order: it is that of the shape, whoever brought what.
TEST_F(Apart, WhatAllHaveBroughtIsAddedInTheOneOrder) {
  meet({{0, {0.1, 0.2}}, {2, {0.5, 0.6}}});
  Strategy oracle({.kind = "one_device", .replicas = 6, .alone = true});
  const PerReplica<double> all({0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, 0);
  const PerReplica<double> own({0.3, 0.4}, 2);
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean})
    EXPECT_EQ(strategy_->reduce(op, own), oracle.reduce(op, all));
}

TEST_F(Apart, WithoutALostWorkerThoseAreAddedWhoAreThere) {
  meet({{2, {5, 6}}});
  const PerReplica<double> own({3.0, 4.0}, 2);
  EXPECT_EQ(strategy_->reduce(ReduceOp::sum, own), 18);
  EXPECT_EQ(strategy_->reduce(ReduceOp::mean, own), 4.5);
  const PerReplica<at::Tensor> tensors(
      {at::full({1}, 3.0, at::kDouble), at::full({1}, 4.0, at::kDouble)}, 2);
  EXPECT_EQ(strategy_->reduce(ReduceOp::max, tensors).item<double>(), 6);
}

TEST_F(Apart, WorkersThatReduceDifferentThingsAreTold) {
  meet({{0, {1, 2, 3}}, {2, {5, 6}}});
  EXPECT_THAT(message_of<Mismatch>(
                  [&] { strategy_->reduce(ReduceOp::sum, PerReplica<double>({3.0, 4.0}, 2)); }),
              HasSubstr("worker 0 has 24 bytes, this worker 16"));
}

TEST_F(Apart, ThoseWhoAreHereShareAllSamples) {
  for (const auto& [there, first_rank, chief] :
       {std::tuple{std::vector{0, 1, 2}, 2, false}, std::tuple{std::vector{1, 2}, 0, true},
        std::tuple{std::vector{0, 1}, 2, false}, std::tuple{std::vector{0, 2}, 4, false}}) {
    meet_in_turn({there});
    const mesh::Topology here = strategy_->membership().those_here();
    EXPECT_EQ(here.size, 2 * std::ssize(there));
    EXPECT_EQ(here.first_rank, first_rank);
    EXPECT_EQ(here.chief, chief);
  }
}

TEST_F(Apart, WhoHasNoPartReadsNoSamples) {
  meet_in_turn({{0, 2}});
  const auto here = std::make_shared<const mesh::Topology>(strategy_->membership().those_here());
  const auto dataset = data::from_arrays({Array::zeros(DType::float32, {10, 1})}).batch(10);
  const auto epoch = std::make_shared<const data::Epoch>(dataset.epoch({}));
  const auto sizes = strategy_->run([&](ReplicaContext& replica) {
    return DistributedBatch(epoch, 0, here).local_size(replica);
  });
  EXPECT_THAT(sizes.values(), ElementsAre(0, 0));
}

TEST_F(Apart, TheLowestWhoIsThereSpeaks) {
  int calls = 0;
  meet_in_turn({{0, 1, 2}});
  strategy_->by_chief([&] { ++calls; });
  EXPECT_EQ(calls, 0);
  meet_in_turn({{1, 2}});
  strategy_->by_chief([&] { ++calls; });
  EXPECT_EQ(calls, 1);
  // Worker 0 is lost before anybody knows that it came through.
  meet_in_turn({{0, 1, 2}, {1, 2}});
  strategy_->by_chief([&] { ++calls; });
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace tutti
