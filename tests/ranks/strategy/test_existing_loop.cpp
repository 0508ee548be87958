// DistributedOptimizer: a loop that was there before, and each process runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>

#include "tutti/base/host.h"
#include "tutti/cluster/join/join.h"
#include "tutti/sync/replicated/distributed_optimizer.h"
#include "tutti/train/checkpointing/loop_checkpoint.h"

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

// What a loop on one process would do with all of it: gradients of two passes of each rank, their
// mean clipped by its norm, Adam.
RANK_PROGRAM(accumulating_loop) {
  Group world = tutti::join();
  const std::string how = rank.arguments.at(0);
  torch::manual_seed(100 + world.rank());
  torch::nn::Linear model(6, 3);
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.05));
  broadcast_parameters(*model, world);
  DistributedOptimizer optimizer(*model, adam, world);
  torch::nn::Linear alone(6, 3);
  {
    const torch::NoGradGuard no_grad;
    alone->weight.copy_(model->weight);
    alone->bias.copy_(model->bias);
  }
  torch::optim::Adam plain(alone->parameters(), torch::optim::AdamOptions(0.05));
  const auto loss = [](torch::nn::Linear& of, int pass) {
    return of(torch::full({2, 6}, 0.5 + pass).add(torch::arange(6))).square().mean() / 2;
  };
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const int first = 2 * world.rank();
    {
      const auto apart = optimizer.no_sync();
      loss(model, first).backward();
      if (how == "all") loss(model, first + 1).backward();
    }
    if (how == "last") loss(model, first + 1).backward();
    optimizer.synchronize();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();

    plain.zero_grad();
    for (int pass = 0; pass < 2 * world.size(); ++pass)
      (loss(alone, pass) / world.size()).backward();
    torch::nn::utils::clip_grad_norm_(alone->parameters(), 1.0);
    plain.step();
  }
  rank.mark(fmt::format("as one: {}", torch::allclose(model->weight, alone->weight, 0, 1e-5)));
}

TEST(ExistingLoop, AddsUpPassesBeforeItSendsAndLetsThemBeClipped) {
  for (const std::string how : {"last", "all"}) {
    const auto out = test::run_workers(2, "accumulating_loop", {how});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    EXPECT_THAT(test::lines_after(out.log, "as one: "), testing::ElementsAre("true", "true"));
  }
}

template <class Work>
std::string said_of(Work work) {
  try {
    work();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(ExistingLoop, ScopesThatDoNotFitAStepAreRefused) {
  torch::nn::Linear model(4, 2);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  DistributedOptimizer optimizer(*model, sgd, Group());
  const auto backward = [&] { model(torch::ones({1, 4})).sum().backward(); };
  {
    const auto apart = optimizer.no_sync();
    backward();
    EXPECT_THAT(said_of([&] { optimizer.step(); }), HasSubstr("inside of no_sync()"));
    EXPECT_THAT(said_of([&] { optimizer.synchronize(); }), HasSubstr("inside of no_sync()"));
    EXPECT_THAT(said_of([&] { (void)optimizer.no_sync(); }), HasSubstr("inside of no_sync()"));
  }
  backward();
  EXPECT_THAT(said_of([&] { (void)optimizer.no_sync(); }), HasSubstr("after a backward()"));
  optimizer.synchronize();
  EXPECT_THAT(said_of([&] { (void)optimizer.no_sync(); }), HasSubstr("after synchronize()"));
  EXPECT_THAT(said_of([&] { optimizer.synchronize(); }), HasSubstr("a second time"));
  backward();
  EXPECT_THAT(said_of([&] { optimizer.step(); }), HasSubstr("since synchronize()"));
  EXPECT_THAT(said_of([&] { optimizer.synchronize(); }), HasSubstr("a second time"));
}

// Its gradients are not finite on rank 1 alone, but the mean is nowhere.
RANK_PROGRAM(loop_that_leaves_out_a_step) {
  Group world = tutti::join();
  torch::manual_seed(5);
  torch::nn::Linear model(4, 2);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  DistributedOptimizer optimizer(*model, sgd, world);
  for (int step = 0; step < 3; ++step) {
    const double x = 1 + step + world.rank();
    {
      const auto apart = optimizer.no_sync();
      model(torch::full({1, 4}, step == 1 && world.rank() == 1 ? 1 / 0.0 : x)).sum().backward();
    }
    optimizer.synchronize();
    if (model->weight.grad().isfinite().all().item<bool>()) optimizer.step();
    optimizer.zero_grad();
  }
  // Means of 1 and 2, of 3 and 4.
  torch::manual_seed(5);
  const auto moved = torch::nn::Linear(4, 2)->weight.detach() - model->weight.detach();
  rank.mark(
      fmt::format("moved {:.3f} {:.3f}", moved.min().item<float>(), moved.max().item<float>()));
}

TEST(ExistingLoop, AStepThatIsLeftOutLeavesNothingToTheNext) {
  const auto out = test::run_workers(2, "loop_that_leaves_out_a_step");
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(test::lines_after(out.log, "moved "),
              testing::ElementsAre("0.500 0.500", "0.500 0.500"));
}

RANK_PROGRAM(loop_of_other_steps) {
  Checkpoint checkpoint(tutti::join(), {});
  checkpoint.after_step(1);
  checkpoint.after_step(2 + rank.rank);
}

TEST(ExistingLoop, WorkersThatCountOtherStepsAreToldAll) {
  const auto out = test::run_workers(2, "loop_of_other_steps", {}, {}, false);
  EXPECT_NE(out.exit_code, 0);
  for (int worker = 0; worker < 2; ++worker)
    EXPECT_THAT(out.log, HasSubstr(fmt::format("[{}] error: loop: worker 0 calls after_step(2), "
                                               "worker 1 after_step(3)",
                                               worker)));
}

// Rank 1 has made other steps at another rate; afterwards both go on alike.
RANK_PROGRAM(state_of_rank_1) {
  Group world = tutti::join();
  torch::nn::Linear model(4, 2);
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.1));
  const auto step = [&] {
    adam.zero_grad();
    model(torch::ones({1, 4}) * (1 + world.rank())).square().sum().backward();
    adam.step();
  };
  for (int i = 0; i <= world.rank(); ++i) step();
  if (world.rank() == 1) adam.param_groups()[0].options().set_lr(0.01);
  broadcast_parameters(*model, world, 1);
  if (rank.arguments.at(0) == "other") {
    torch::optim::SGD sgd(model->parameters(), 0.1);
    broadcast_optimizer_state(world.rank() == 0 ? static_cast<torch::optim::Optimizer&>(sgd) : adam,
                              world, 1);
  }
  broadcast_optimizer_state(adam, world, 1);
  const auto rows = torch::ones({1, 4});
  for (int i = 0; i < 3; ++i) {
    adam.zero_grad();
    model(rows).square().sum().backward();
    adam.step();
  }
  rank.mark("weights " + sha_of({model->weight.detach(), model->bias.detach()}));
}

struct Unsaved : torch::optim::SGD {
  using SGD::SGD;
  void save(torch::serialize::OutputArchive&) const override {
    throw UsageError("it cannot be saved");
  }
};

RANK_PROGRAM(state_that_is_not_saved) {
  Group world = tutti::join();
  torch::nn::Linear model(4, 2);
  Unsaved optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  broadcast_optimizer_state(optimizer, world, 1);
}

TEST(ExistingLoop, StateOfTheOptimizerComesFromOneRank) {
  const auto out = test::run_workers(2, "state_of_rank_1", {"same"});
  ASSERT_EQ(out.exit_code, 0) << out.log;
  const auto weights = test::lines_after(out.log, "weights ");
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_EQ(weights[0], weights[1]);
  const auto other = test::run_workers(2, "state_of_rank_1", {"other"}, {}, false);
  EXPECT_NE(other.exit_code, 0);
  // Its own error on the rank that has it, and no limit passes on the other.
  const auto unsaved = test::run_workers(2, "state_that_is_not_saved", {}, {}, false);
  EXPECT_THAT(unsaved.log, testing::AllOf(HasSubstr("[1] error: it cannot be saved"),
                                          HasSubstr("rank 1 could not save its optimizer")));
  EXPECT_THAT(other.log,
              HasSubstr("broadcast_optimizer_state: rank 0 has torch::optim::SGD with groups of 2 "
                        "parameters, rank 1 has torch::optim::Adam with groups of 2 parameters"));
}

}  // namespace
}  // namespace tutti
