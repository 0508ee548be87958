// What a loop of DistributedOptimizer does wrong: ranks that differ, calls that do not fit a step.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <csignal>
#include <functional>
#include <limits>

#include "tutti/cluster/join/join.h"
#include "tutti/sync/replicated/distributed_optimizer.h"

#include "tests/ranks/loops/one_process.h"
#include "tests/support/expect.h"
#include "tests/support/run_workers.h"

namespace tutti {
namespace {

// ---- ranks that differ ----

using Differ =
    std::function<void(int rank, Sequential&, torch::optim::SGD&, DistributedOptimizer&)>;

void differ(const test::Rank& rank, Group world, const std::string& name, const Differ& work,
            const DistributedOptimizerOptions& options = {}) {
  Sequential model = net();
  try {
    torch::optim::SGD sgd(model->ptr(2)->parameters(), momentum());
    DistributedOptimizer optimizer(*model, sgd, world, options);
    work(world.rank(), model, sgd, optimizer);
    rank.mark(name + ": nothing");
  } catch (const Mismatch& error) {
    rank.mark(fmt::format("{}: {}", name, error.what()));
  }
}

void go(Sequential& model, DistributedOptimizer& optimizer) {
  loss_of(model, 0, 4).backward();
  optimizer.step();
}

RANK_PROGRAM(ranks_that_differ) {
  Group world = join();
  differ(rank, world, "weight", [](int r, auto& model, auto&, auto& optimizer) {
    if (r == 1) optimizer.set_weight(4);
    go(model, optimizer);
  });
  differ(rank, world, "frozen", [](int r, auto& model, auto&, auto& optimizer) {
    go(model, optimizer);
    optimizer.zero_grad();
    if (r == 1) model->ptr(2)->parameters()[1].set_requires_grad(false);
    go(model, optimizer);
  });
  differ(rank, world, "added", [](int r, auto& model, auto& sgd, auto& optimizer) {
    if (r == 1) sgd.add_param_group(torch::optim::OptimizerParamGroup(model->ptr(0)->parameters()));
    go(model, optimizer);
  });
  const auto call = [](Sequential& model, DistributedOptimizer& optimizer, double loss) {
    optimizer.step([&] {
      optimizer.zero_grad();
      loss_of(model, 0, 4).backward();
      return torch::full({}, loss);
    });
  };
  differ(rank, world, "loss", [&](int r, auto& model, auto&, auto& optimizer) {
    call(model, optimizer, 1);
    call(model, optimizer, 2 + r);
  });
  differ(rank, world, "closure", [&](int r, auto& model, auto&, auto& optimizer) {
    r == 0 ? call(model, optimizer, 1) : go(model, optimizer);
  });
  differ(rank, world, "left out", [&](int r, auto& model, auto&, auto& optimizer) {
    loss_of(model, 0, 4).backward();
    optimizer.synchronize();
    r == 0 ? optimizer.step() : optimizer.zero_grad();
    optimizer.zero_grad();
    go(model, optimizer);
  });
  differ(rank, world, "rate", [&](int r, auto& model, auto& sgd, auto& optimizer) {
    go(model, optimizer);
    if (r == 1) sgd.param_groups()[0].options().set_lr(0.01);
    optimizer.zero_grad();
    go(model, optimizer);
  });
  const Differ nothing = [](int, auto&, auto&, auto&) {};
  differ(rank, world, "options", nothing, {.backward_passes_per_step = 1 + world.rank()});
  differ(rank, world, "kind of sum", nothing, {.op = ReduceOp::sum, .adasum = world.rank() == 0});
  differ(rank, world, "buckets", nothing, {.buckets = {.bucket_bytes = 4096 << world.rank()}});
  differ(rank, world, "compression", nothing,
         {.buckets = {.compression = compression_from(world.rank() == 0 ? "none" : "bf16")}});
  Sequential model = net();
  torch::optim::SGD sgd(model->parameters(), 0.1);
  torch::optim::Adam adam(model->parameters());
  torch::optim::Optimizer& own =
      world.rank() == 0 ? static_cast<torch::optim::Optimizer&>(sgd) : adam;
  rank.mark("kind: " + refusal_of<Mismatch>([&] { DistributedOptimizer(*model, own, world); }));
}

TEST(DistributedLoops, RanksThatDifferAreToldAll) {
  const auto out = test::run_workers(2, "ranks_that_differ");
  ASSERT_EQ(out.exit_code, 0) << out.log;
  const std::pair<const char*, const char*> cases[] = {
      {"weight", "rank 1 has called set_weight(), rank 0 has not"},
      {"frozen", "rank 0 has \"2.bias\" Float [1], rank 1 has \"2.bias\" Float [1], frozen"},
      {"added", "rank 0 has \"2.weight\" Float [1, 5], rank 1 has \"0.weight\" Float [5, 6]"},
      {"loss", "the closure of rank 0 returned the loss 2, that of rank 1 3"},
      {"closure", "rank 0 calls step(closure), rank 1 step() or synchronize()"},
      {"left out", "of rank 0 has made 1 steps, that of rank 1 0"},
      {"rate", "rank 0 has learning rate 0.1 of group 0, rank 1 has learning rate 0.01 of group 0"},
      {"options", "rank 0 has mean, 1 backward passes a step"},
      {"kind of sum", "average_losses false, adasum true, rank 1 has sum, 1 backward"},
      {"buckets", "rank 0 has buckets of 4096 bytes"},
      {"compression", "reduction all_reduce, compression none, rank 1 has buckets"},
      {"kind",
       "rank 0 has the optimizer torch::optim::SGD, rank 1 has the optimizer torch::optim"}};
  for (const auto& [name, words] : cases)
    EXPECT_THAT(test::lines_after(out.log, std::string("] ") + name + ": "),
                AllOf(SizeIs(2), Each(HasSubstr(words))))
        << name;
}

// Rank 0 has no more data; rank 1 leaves, or waits for something else.
RANK_PROGRAM(join_on_one_rank) {
  Group world = join();
  Sequential model = net();
  torch::optim::SGD sgd(model->parameters(), momentum());
  DistributedOptimizer optimizer(*model, sgd, world, {.time_limit = Millis{20'000}});
  go(model, optimizer);
  if (world.rank() == 0) optimizer.join();
  if (rank.arguments.at(0) == "barrier") world.barrier();
  if (rank.arguments.at(0) == "dies") std::raise(SIGKILL);
}

TEST(DistributedLoops, JoinOnOneRankIsAnErrorThatNamesTheOther) {
  for (const std::string how : {"leaves", "barrier", "dies"}) {
    const auto out = test::run_workers(2, "join_on_one_rank", {how}, {}, false);
    EXPECT_NE(out.exit_code, 0) << how;
    EXPECT_THAT(out.log, AllOf(HasSubstr("[0] error: "), HasSubstr("rank 1"))) << how;
  }
}

struct Unloaded : torch::optim::SGD {
  using SGD::SGD;
  void load(torch::serialize::InputArchive& archive) override {
    if (refuses) throw UsageError("it is not loaded");
    SGD::load(archive);
  }
  bool refuses = false;
};

// What one rank alone cannot do, the others are told of at once.
RANK_PROGRAM(failures_of_one) {
  Group world = join();
  const auto mark = [&](const char* name, const std::function<void()>& action) {
    rank.mark(fmt::format("{}: {}", name, refusal_of<std::exception>(action)));
  };
  Sequential model = net();
  Unloaded sgd(model->parameters(), momentum());
  mark("bad option", [&] {
    DistributedOptimizer(*model, sgd, world, {.prescale = world.rank() == 1 ? 0.0 : 1});
  });
  loss_of(model, 0, 4).backward();
  sgd.step();
  sgd.refuses = world.rank() == 2;
  mark("not loaded", [&] { broadcast_optimizer_state(sgd, world); });
  rank.mark(fmt::format("states {}", sgd.state().size()));
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  torch::optim::SGD of_table(table->parameters(), 0.1);
  DistributedOptimizer optimizer(*table, of_table, world);
  const auto loss = world.rank() == 1 ? table->weight : table(torch::arange(3));
  loss.sum().backward();
  mark("dense on one", [&] { optimizer.step(); });
  mark("broken", [&] { optimizer.synchronize(); });
}

TEST(DistributedLoops, WhatOneRankCannotDoTheOthersAreToldAtOnce) {
  const auto out = test::run_workers(3, "failures_of_one");
  ASSERT_EQ(out.exit_code, 0) << out.log;
  EXPECT_THAT(
      test::lines_after(out.log, "bad option: "),
      UnorderedElementsAre(HasSubstr("prescale is 0"), HasSubstr("rank 1 could not make its own"),
                           HasSubstr("rank 1 could not make its own")));
  EXPECT_THAT(test::lines_after(out.log, "not loaded: "),
              UnorderedElementsAre("it is not loaded", HasSubstr("rank 2 could not load it"),
                                   HasSubstr("rank 2 could not load it")));
  EXPECT_THAT(test::lines_after(out.log, "states "), AllOf(SizeIs(3), Each("4")));
  EXPECT_THAT(
      test::lines_after(out.log, "dense on one: "),
      AllOf(SizeIs(3), Each(HasSubstr("its embedding is sparse, and it is not, on rank 1"))));
  EXPECT_THAT(test::lines_after(out.log, "broken: "),
              AllOf(SizeIs(3), Each(HasSubstr("after one that failed half-way"))));
}

// ---- one rank ----

TEST(DistributedLoops, BadCallsAreRefusedBeforeTheyAreSent) {
  Sequential model = net();
  torch::optim::SGD sgd(model->parameters(), momentum());
  const auto made = [&](const DistributedOptimizerOptions& options) {
    return refusal_of<UsageError>([&] { DistributedOptimizer(*model, sgd, Group(), options); });
  };
  EXPECT_THAT(made({.op = ReduceOp::max}), HasSubstr("op is max, expected mean or sum"));
  EXPECT_THAT(made({.backward_passes_per_step = 0}), HasSubstr("is 0, expected 1 or more"));
  EXPECT_THAT(made({.prescale = 0}), HasSubstr("prescale is 0"));
  EXPECT_THAT(made({.postscale = std::nan("")}), HasSubstr("postscale is nan"));

  DistributedOptimizer two(*model, sgd, Group(), {.backward_passes_per_step = 2});
  EXPECT_THAT(refusal_of<UsageError>([&] { (void)two.no_sync(); }),
              HasSubstr("beside backward_passes_per_step = 2"));
  loss_of(model, 0, 4).backward();
  EXPECT_THAT(refusal_of<UsageError>([&] { two.set_weight(4); }), HasSubstr("after a backward()"));
  EXPECT_THAT(refusal_of<UsageError>([&] { two.join(); }), HasSubstr("after a backward()"));
  two.zero_grad();  // a pass that was not sent does not count
  two.set_weight(4);
  loss_of(model, 0, 4).backward();
  loss_of(model, 0, 4).backward();
  EXPECT_THAT(refusal_of<std::exception>([&] { loss_of(model, 0, 4).backward(); }),
              HasSubstr("backward() ran 3 times before step(), and backward_passes_per_step is 2"));
}

TEST(DistributedLoops, GradientsThatWereSentAreNotLeftOutByOneRank) {
  Sequential model = net();
  torch::optim::SGD sgd(model->parameters(), momentum());
  DistributedOptimizer optimizer(*model, sgd, Group());
  loss_of(model, 0, 4).backward();
  EXPECT_THAT(refusal_of<UsageError>([&] { optimizer.zero_grad(); }),
              HasSubstr("zero_grad() after a backward() whose gradients were taken"));
  optimizer.step();
  optimizer.zero_grad();
  const auto add_up = [&] {
    const auto apart = optimizer.no_sync();
    loss_of(model, 0, 4).backward();
  };
  add_up();
  EXPECT_THAT(refusal_of<UsageError>([&] { optimizer.join(); }),
              HasSubstr("join() after passes in no_sync()"));
  optimizer.zero_grad();
  EXPECT_EQ(optimizer.join(), 0);
  add_up();
  optimizer.step();
  EXPECT_EQ(optimizer.join(), 0);
}

TEST(DistributedLoops, WeightsAndClosuresThatSayNothingAreRefused) {
  Sequential model = net();
  torch::optim::SGD sgd(model->parameters(), momentum());
  DistributedOptimizer optimizer(*model, sgd, Group());
  for (const double weight : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_THAT(refusal_of<UsageError>([&] { optimizer.set_weight(weight); }),
                HasSubstr("expected a number of samples"));
  EXPECT_THAT(refusal_of<UsageError>([&] { optimizer.step([] { return at::Tensor(); }); }),
              HasSubstr("returned an undefined tensor"));
  optimizer.set_weight(0);
  EXPECT_THAT(refusal_of<UsageError>([&] { go(model, optimizer); }),
              HasSubstr("weights of all ranks with data are 0"));
  Sequential other = net();
  torch::optim::SGD sums(other->parameters(), momentum());
  DistributedOptimizer summed(*other, sums, Group(), {.op = ReduceOp::sum});
  EXPECT_THAT(refusal_of<UsageError>([&] { summed.set_weight(2); }), HasSubstr("are summed"));
  for (const bool holds_back : {true, false}) {
    DistributedOptimizer coded(
        *other, sums, Group(),
        {.buckets = {.compression = compression_from(holds_back ? "topk:0.1" : "bf16")}});
    EXPECT_THAT(refusal_of<UsageError>([&] { coded.set_weight(2); }),
                holds_back ? HasSubstr("beside compression topk:0.1") : HasSubstr(""));
  }
  EXPECT_THAT(refusal_of<UsageError>([&] {
                DistributedOptimizer(*other, sums, Group(),
                                     {.adasum = true, .average_losses = true});
              }),
              HasSubstr("adasum beside average_losses"));
}

// Rows have no buckets, and the same rules.
TEST(DistributedLoops, PassesOverATableAloneAreCounted) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  torch::optim::SGD sgd(table->parameters(), 0.1);
  DistributedOptimizer optimizer(*table, sgd, Group());
  const auto backward = [&] { table(torch::arange(3)).sum().backward(); };
  EXPECT_THAT(refusal_of<UsageError>([&] { optimizer.step(); }),
              HasSubstr("would train nothing: not \"weight\""));
  backward();
  EXPECT_THAT(refusal_of<UsageError>([&] { optimizer.set_weight(1); }), HasSubstr("set_weight()"));
  EXPECT_THAT(refusal_of<UsageError>([&] { optimizer.join(); }), HasSubstr("join()"));
  EXPECT_THAT(refusal_of<UsageError>([&] { (void)optimizer.no_sync(); }), HasSubstr("no_sync()"));
  EXPECT_THAT(refusal_of<std::exception>(backward),
              HasSubstr("\"weight\" got a second gradient in one step: backward() ran 2 times"));
  optimizer.zero_grad();
  backward();
  optimizer.synchronize();
  backward();
  EXPECT_THAT(refusal_of<UsageError>([&] { optimizer.step(); }), HasSubstr("since synchronize()"));

  torch::nn::Embedding late(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  Sequential both(late, Linear(2, 1));
  late->weight.set_requires_grad(false);
  torch::optim::SGD of_both(both->parameters(), 0.1);
  DistributedOptimizer thawed(*both, of_both, Group());
  const auto step = [&] {
    both->forward(torch::arange(3)).sum().backward();
    thawed.step();
    thawed.zero_grad();
  };
  step();
  late->weight.set_requires_grad(true);
  step();
  const auto of_table = [&] { late(torch::arange(3)).sum().backward(); };
  of_table();
  EXPECT_THAT(refusal_of<std::exception>(of_table), HasSubstr("\"0.weight\" got a second"));
}

TEST(DistributedLoops, AdasumSaysBeforeAStepWhatItDoesNotCombine) {
  Sequential narrow = net();
  narrow->to(torch::kBFloat16);
  torch::optim::SGD of_narrow(narrow->parameters(), 0.1);
  EXPECT_THAT(refusal_of<UsageError>(
                  [&] { DistributedOptimizer(*narrow, of_narrow, Group(), {.adasum = true}); }),
              HasSubstr("adasum of \"0.weight\", which is BFloat16, expected Float or Double"));
  torch::nn::Embedding words(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  Sequential both(words, Linear(2, 1));
  torch::optim::SGD sgd(both->ptr(1)->parameters(), 0.1);
  DistributedOptimizer optimizer(*both, sgd, Group(), {.adasum = true});
  sgd.add_param_group(torch::optim::OptimizerParamGroup(words->parameters()));
  both->forward(torch::arange(3)).sum().backward();
  EXPECT_THAT(refusal_of<UsageError>([&] { optimizer.step(); }),
              HasSubstr("adasum of sparse gradients, of \"0.weight\""));
}

TEST(DistributedLoops, SparseGradientsOfATableThatIsNotSaidToBeSparseAreRefused) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  torch::optim::SGD sgd(table->parameters(), 0.1);
  DistributedOptimizer optimizer(*table, sgd, Group());
  table->weight.sum().backward();
  EXPECT_THAT(
      refusal_of<UsageError>([&] { optimizer.step(); }),
      HasSubstr("gradient of parameter \"weight\": its embedding is sparse, and it is not"));
  EXPECT_THAT(
      refusal_of<UsageError>([&] { DistributedOptimizer(*table, sgd, Group(), {.adasum = true}); }),
      HasSubstr("adasum of sparse gradients, of \"weight\""));
}

TEST(DistributedLoops, OneRankThatJoinsEnds) {
  Sequential model = net();
  torch::optim::SGD sgd(model->parameters(), momentum());
  DistributedOptimizer optimizer(*model, sgd, Group());
  EXPECT_EQ(optimizer.join(), 0);
  go(model, optimizer);
}

}  // namespace
}  // namespace tutti
