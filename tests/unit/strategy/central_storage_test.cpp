// One copy of the parameters, in this process or on servers: the bits of mirrored, and what these
// strategies refuse.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/cluster/environment.h"
#include "tutti/cluster/job_links.h"
#include "tutti/net/token.h"
#include "tutti/ps/server.h"
#include "tutti/ps/view_service.h"

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::bits_equal;
using test::message_of;
using test::options_of;
using test::Trained;
using ::testing::AllOf;
using ::testing::HasSubstr;

Trained train(const StrategyOptions& options, const optim::Rule& rule) {
  return test::train(Strategy(options),
                     [&](const ReplicatedModules& modules) { return Optimizer(modules, rule); });
}

Optimizer torch_sgd(const ReplicatedModules& modules) {
  return Optimizer(modules, [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1));
  });
}

std::vector<optim::Rule> some_rules() {
  return {optim::sgd({.learning_rate = 0.05, .momentum = 0.9}),
          optim::adam({.learning_rate = 0.01}), optim::adagrad({.initial_accumulator = 0.3}),
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

TEST(CentralStorage, RefusesWhatKeepsACopyAReplica) {
  StrategyOptions reducing = options_of("central_storage", 2);
  reducing.reduction = "all_reduce";
  EXPECT_THAT(message_of<UsageError>([&] { Strategy{reducing}; }),
              AllOf(HasSubstr("central_storage"), HasSubstr("use mirrored")));
  StrategyOptions compressing = options_of("central_storage", 2);
  compressing.compression = compression_from("bf16");
  EXPECT_THROW(Strategy{compressing}, UsageError);
  Strategy strategy(options_of("central_storage", 2));
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  EXPECT_THAT(message_of<UsageError>([&] { torch_sgd(net); }),
              AllOf(HasSubstr("central_storage"), HasSubstr("torch optimizer")));
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
      options.served.piece_bytes = piece_bytes;
      start(2);
      EXPECT_TRUE(bits_equal(train(options, optim::adam({})).parameters, expected)) << piece_bytes;
      end();
    }
}

TEST_F(Served, RefusesATorchOptimizer) {
  start(1);
  Strategy strategy(options_of("parameter_server", 2));
  Replicated<torch::nn::Sequential> net(strategy, test::small_cnn);
  EXPECT_THAT(message_of<UsageError>([&] { torch_sgd(net); }),
              AllOf(HasSubstr("parameter_server"), HasSubstr("torch optimizer")));
}

TEST_F(Served, RefusesReductionAndCompression) {
  StrategyOptions reducing = options_of("parameter_server", 2);
  reducing.reduction = "all_reduce";
  EXPECT_THAT(message_of<UsageError>([&] { Strategy{reducing}; }), HasSubstr("no reduction"));
  StrategyOptions compressing = options_of("parameter_server", 2);
  compressing.compression = compression_from("bf16");
  EXPECT_THAT(message_of<UsageError>([&] { Strategy{compressing}; }), HasSubstr("no compression"));
}

TEST_F(Served, WithoutServersSaysWhatToType) {
  EXPECT_THAT(message_of<UsageError>([] { Strategy(options_of("parameter_server", 2)); }),
              HasSubstr("tutti run --servers 1 -n 2 PROGRAM ARGS..."));
}

}  // namespace
}  // namespace tutti
