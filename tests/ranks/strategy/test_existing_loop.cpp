// DistributedOptimizer: a loop that was there before, and each process runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>

#include "tutti/base/host.h"
#include "tutti/cluster/join/join.h"
#include "tutti/sync/replicated/distributed_optimizer.h"

#include "tests/support/run_workers.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::sha_of;
using ::testing::HasSubstr;

// Horovod's shape: an existing loop whose loss is the mean over its own batch.
RANK_PROGRAM(existing_loop) {
  Group world = tutti::join();
  torch::manual_seed(100 + world.rank());
  torch::nn::Sequential model = test::small_cnn();
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  broadcast_parameters(*model, world);
  DistributedOptimizer optimizer(*model, sgd, world,
                                 {.buckets = {.bucket_bytes = 1024, .first_bucket_bytes = 64}});
  auto epoch = test::small_data().epoch({.epoch = 0, .seed = 1});
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
  const auto out = test::run_workers(2, "existing_loop", {"compare"});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  const auto weights = test::lines_after(out.log, "weights ");
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_THAT(out.log, HasSubstr("difference below 1e-5: true"));
}

// As other launchers leave them: all cores each.
RANK_PROGRAM(threads_of_a_loop) {
  if (rank.arguments.at(0) == "none") unsetenv("OMP_NUM_THREADS");
  Group world = join();
  const int cores = host_facts().usable_cores;
  at::set_num_threads(2 * cores);
  torch::nn::Linear model(4, 2);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  DistributedOptimizer optimizer(*model, sgd, world);
  rank.mark(fmt::format("threads {}", at::get_num_threads() == std::max(1, cores / 2) ? "share"
                                      : at::get_num_threads() == 2 * cores            ? "all"
                                                                                      : "other"));
}

TEST(ExistingLoop, ProcessesOfAHostShareItsCores) {
  for (const std::string told : {"none", "said"}) {
    const auto out = test::run_workers(2, "threads_of_a_loop", {told});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(
        test::lines_after(out.log, "threads "),
        testing::ElementsAre(told == "none" ? "share" : "all", told == "none" ? "share" : "all"));
  }
}

// The mean of what ranks send, whatever is sent.
RANK_PROGRAM(compressed_loop) {
  Group world = tutti::join();
  torch::manual_seed(5);
  torch::nn::Linear model(30, 4);
  torch::optim::SGD sgd(model->parameters(), 0.5);
  broadcast_parameters(*model, world);
  Compression compression = compression_from(rank.arguments.at(0));
  compression.min_elements = 100;
  DistributedOptimizer optimizer(*model, sgd, world, {.buckets = {.compression = compression}});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    (model(torch::ones({1, 30})).sum() * (world.rank() + 1)).backward();
    optimizer.step();
  }
  const at::Tensor weight = model->weight.detach();
  torch::manual_seed(5);
  const auto moved = torch::nn::Linear(30, 4)->weight.detach() - weight;
  // Gradients of one value everywhere: 1 and 2, so that all but top_k send them as they are.
  rank.mark(
      fmt::format("moved {:.3f} {:.3f}", moved.min().item<float>(), moved.max().item<float>()));
}

TEST(ExistingLoop, AveragesWhatIsCompressed) {
  const std::pair<const char*, const char*> cases[] = {{"bf16", "2.250 2.250"},
                                                       {"onebit", "2.250 2.250"},
                                                       {"powersgd:1", "2.250 2.250"},
                                                       {"topk:1", "2.250 2.250"}};
  for (const auto& [compression, moved] : cases) {
    const auto out = test::run_workers(2, "compressed_loop", {compression});
    EXPECT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(test::lines_after(out.log, "moved "),
                ::testing::AllOf(::testing::SizeIs(2), ::testing::Each(moved)))
        << compression << out.log;
  }
}

// The module that the loop had before it was wrapped; or a part of it that the optimizer leaves
// out.
RANK_PROGRAM(loss_of_another_module) {
  Group world = join();
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2)), before(model);
  if (rank.arguments.at(0) == "copy") before = torch::nn::Sequential(torch::nn::Linear(4, 2));
  torch::optim::SGD sgd(model->ptr(1)->parameters(), 0.1);
  broadcast_parameters(*model, world);
  DistributedOptimizer optimizer(*model, sgd, world);
  before[0]->as<torch::nn::Linear>()->forward(torch::ones({1, 4})).sum().backward();
  optimizer.step();
}

TEST(ExistingLoop, ALossOfAnotherModuleIsRefusedOnAllRanks) {
  for (const std::string which : {"copy", "part"}) {
    const auto out = test::run_workers(2, "loss_of_another_module", {which}, {}, false);
    EXPECT_EQ(out.exit_code, 1);
    for (int worker = 0; worker < 2; ++worker)
      EXPECT_THAT(out.log,
                  HasSubstr(fmt::format(
                      "[{}] error: DistributedOptimizer: no parameter of the optimizer has "
                      "a gradient on any replica, so that the step would train nothing: "
                      "not \"1.weight\", the first of 2",
                      worker)));
    EXPECT_EQ(out.log.find("\"0.weight\", which the optimizer does not train") != std::string::npos,
              which == "part");
  }
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
  const auto out = test::run_workers(2, "second_backward");
  EXPECT_EQ(out.exit_code, 1);
  EXPECT_THAT(out.log, HasSubstr("ran twice before the update"));
  EXPECT_THAT(out.log, ::testing::AnyOf(HasSubstr("\"bias\""), HasSubstr("\"weight\"")));
}

}  // namespace
}  // namespace tutti
