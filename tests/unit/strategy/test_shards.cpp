// Ranks that own slices of state, gradients and parameters: the bits, and the checkpoints, of those
// that do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "tutti/sync/sharded/sharded_updater.h"

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::bits_equal;
using test::message_of;
using test::options_of;
using ::testing::HasSubstr;

constexpr Shard kShards[] = {Shard::state, Shard::gradients, Shard::parameters};

// Lengths that nothing divides, two dtypes, one that is frozen, some that not all steps use.
struct Uneven : torch::nn::Module {
  Uneven() {
    frozen = register_parameter("frozen", torch::rand({33}), /*requires_grad=*/false);
    all.push_back(register_parameter("matrix", torch::rand({70, 50})));
    all.push_back(register_parameter("bias", torch::rand({7})));
    all.push_back(register_parameter("wide", torch::rand({1100}, at::kDouble)));
    all.push_back(register_parameter("rare", torch::rand({2049})));
    all.push_back(register_parameter("rarest", torch::rand({5})));
    all.push_back(register_parameter("last", torch::rand({1300})));
  }

  bool uses(size_t number, int rank, int step) const {
    if (number == 3) return step % 2 == 0 && rank == 0;
    return number != 4 || step == 2;
  }
  at::Tensor loss(int rank, int step) {
    at::Tensor sum = torch::zeros({}, at::kDouble);
    for (size_t i = 0; i < all.size(); ++i)
      if (uses(i, rank, step))
        sum = sum + (all[i] * (0.1 + 0.3 * rank + 0.01 * step)).pow(2).sum().to(at::kDouble) +
              all[i].sin().sum().to(at::kDouble) * (rank - 1);
    return sum;
  }

  at::Tensor frozen;
  std::vector<at::Tensor> all;
};

using MakeUpdater =
    std::function<std::shared_ptr<Updater>(const World&, std::vector<NamedTensors>)>;

struct Loop {
  Loop(const StrategyOptions& options, const MakeUpdater& make)
      : strategy(options), net(strategy, [] { return std::make_shared<Uneven>(); }) {
    std::vector<NamedTensors> replicas;
    for (int local = 0; local < strategy.world().local; ++local)
      replicas.push_back(unique_parameters(*net.modules().module(local)));
    updater = make(strategy.world(), std::move(replicas));
  }

  // Steps 3 and 8 lack the gradients of the last replica, which has all leave step 4 out.
  void step(int number) {
    strategy.run([&](ReplicaContext& replica) {
      const int local = replica.local_rank();
      const auto& parameters = updater->parameters(local);
      const bool last = replica.rank() + 1 == strategy.world().size;
      const Deadline deadline(strategy.world().time_limit);
      updater->ready(local, deadline);
      updater->begin(local, number % 2 == 0 && !last ? Overlap::on : Overlap::off);
      net.local(replica)->loss(replica.rank(), number).backward();
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
      const PartInStep part = !last || (number % 5 != 3 && number != 4) ? kComputes
                              : number == 4                             ? kLeavesOut
                                                                        : kAbstains;
      updater->step(local, gradients, {part}, deadline);
      for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
      if (auto* const gathers = updater->parts().gathers) gathers->meet(local, Until::whole);
    });
  }
  void expect_same_as(const Loop& other, const std::string& what) const {
    EXPECT_EQ(updater->version(), other.updater->version()) << what;
    for (int local = 0; local < strategy.world().local; ++local)
      EXPECT_TRUE(bits_equal(updater->parameters(local), other.updater->parameters(0)))
          << what << ", replica " << local;
  }
  NamedTensors values() const {
    NamedTensors values = unique_parameters(*net.modules().module(0));
    for (auto& [name, tensor] : values) tensor = tensor.detach().clone();
    return values;
  }

  Strategy strategy;
  Replicated<Uneven> net;
  std::shared_ptr<Updater> updater;
};

MakeUpdater together(const optim::Recipe& recipe) {
  return [recipe](const World& world, std::vector<NamedTensors> replicas) {
    return make_shared_updater(world, recipe, std::move(replicas));
  };
}

MakeUpdater in_slices(const optim::Recipe& recipe, Shard shard, int64_t bucket_bytes = 4096) {
  return [=](const World& world, std::vector<NamedTensors> replicas) {
    return make_sharded_updater(world, recipe, std::move(replicas),
                                {.shard = shard, .bucket_bytes = bucket_bytes});
  };
}

std::vector<std::pair<std::string, optim::Recipe>> recipes() {
  const optim::Rule sgd = optim::sgd({.learning_rate = 0.1, .momentum = 0.9});
  const optim::Rule lamb = optim::lamb({.learning_rate = 0.01, .weight_decay = 0.1});
  return {{"adam", optim::adam({.learning_rate = 0.01})},
          {"adam amsgrad", optim::adam({.learning_rate = 0.01, .beta2 = 0.5, .amsgrad = true})},
          {"adagrad", optim::adagrad({.initial_accumulator = 0.25})},
          {"value", {sgd, {.value = 0.02}}},
          {"norm", {sgd, {.norm = 0.5}}},
          {"global norm", {sgd, {.global_norm = 0.5}}},
          {"lars", optim::lars({.weight_decay = 0.01, .trust = 0.1})},
          {"lamb, value", {lamb, {.value = 0.02}}},
          {"lamb, global norm, groups",
           {lamb, {.global_norm = 0.5}, {{.pattern = "bias", .weight_decay = 0}}}}};
}

void expect_same_bits(const StrategyOptions& options, const std::string& what,
                      const optim::Recipe& recipe) {
  for (const Shard shard : kShards) {
    StrategyOptions with = options;
    with.shard = name_of(shard);
    StrategyOptions plain = options;
    plain.replicas = Strategy(with).world().size;
    plain.mesh = "";
    Loop sliced(with, in_slices(recipe, shard)), oracle(plain, together(recipe));
    for (int step = 0; step < 7; ++step) {
      for (Loop* const loop : {&sliced, &oracle})
        if (step == 2) loop->updater->set_learning_rate(0.05);
      sliced.step(step);
      oracle.step(step);
      sliced.expect_same_as(oracle, what + ", " + with.shard + ", step " + std::to_string(step));
    }
    EXPECT_EQ(sliced.updater->learning_rate(), 0.05);
    EXPECT_EQ(sliced.updater->version(), 6);
  }
}

class Shards : public ::testing::TestWithParam<int> {};

TEST_P(Shards, HaveTheBitsOfTheFusedStep) {
  for (const auto& [name, recipe] : recipes())
    expect_same_bits(options_of("mirrored", GetParam()), name, recipe);
}

INSTANTIATE_TEST_SUITE_P(Replicas, Shards, ::testing::Values(1, 2, 3, 4));

TEST(ShardsOnAMesh, HaveTheBitsOfTheFusedStep) {
  for (const std::string mesh : {"shard=3", "data=2,shard=2", "data=2,shard=3"}) {
    StrategyOptions options = options_of("mirrored", 0);
    options.mesh = mesh;
    expect_same_bits(options, mesh, optim::adam({.learning_rate = 0.01}));
    expect_same_bits(options, mesh, {optim::lamb({.learning_rate = 0.01}), {.global_norm = 0.5}});
  }
}

TEST(ShardsOfShares, HaveTheBitsOfTheFusedStep) {
  StrategyOptions options = options_of("mirrored", 3);
  options.shares = {1, 5, 2};
  expect_same_bits(options, "1, 5, 2", optim::adam({.learning_rate = 0.01}));
}

TEST(ShardsState, GoesToOtherUpdatersAndBack) {
  const optim::Recipe recipe = optim::adagrad({.initial_accumulator = 0.25});
  const auto options = options_of("mirrored", 3);
  for (const Shard shard : kShards) {
    Loop oracle(options, together(recipe)), sliced(options, in_slices(recipe, shard));
    for (int step = 0; step < 3; ++step) {
      oracle.step(step);
      sliced.step(step);
    }
    // There, with another number of replicas and other buckets; and back.
    Loop two(options_of("mirrored", 2), in_slices(recipe, shard, 1 << 20));
    two.updater->restore(oracle.updater->state(), oracle.values());
    Loop back(options, together(recipe)), again(options, in_slices(recipe, shard, 512));
    back.updater->restore(two.updater->state(), two.values());
    again.updater->restore(two.updater->state(), two.values());
    sliced.updater->restore(sliced.updater->state(), sliced.values());
    EXPECT_EQ(back.updater->version(), 3);
    for (int step = 3; step < 6; ++step)
      for (Loop* const loop : {&oracle, &sliced, &back, &again}) loop->step(step);
    for (const Loop* const loop : {&sliced, &back, &again})
      loop->expect_same_as(oracle, std::string(name_of(shard)));
  }
}

TEST(ShardsState, ThatDoesNotFitIsRefused) {
  Loop sliced(options_of("mirrored", 2), in_slices(optim::adam(), Shard::state));
  Loop other(options_of("mirrored", 2), together(optim::sgd()));
  EXPECT_THAT(message_of<UsageError>(
                  [&] { sliced.updater->restore(other.updater->state(), other.values()); }),
              HasSubstr("optimizer sgd"));
  UpdaterState state = sliced.updater->state();
  for (auto& [name, tensor] : state.tensors)
    if (name == "exp_avg/bias") tensor = torch::zeros({8});
  EXPECT_THAT(message_of<UsageError>([&] { sliced.updater->restore(state, sliced.values()); }),
              HasSubstr("exp_avg/bias"));
}

// ---- gradients on their way ----

TEST(ShardsGradients, AreGivenBackWhileBackwardGoesOn) {
  for (const Shard shard : kShards) {
    Loop loop(options_of("mirrored", 2), in_slices(optim::adam(), shard));
    loop.strategy.run([&](ReplicaContext& replica) {
      const int local = replica.local_rank();
      loop.updater->begin(local, Overlap::on);
      loop.net.local(replica)->loss(replica.rank(), 0).backward();
      for (const at::Tensor& parameter : loop.updater->parameters(local))
        EXPECT_FALSE(parameter.grad().defined());
      loop.updater->step(local, std::vector<at::Tensor>(7), {},
                         Deadline(loop.strategy.world().time_limit));
    });
    EXPECT_EQ(loop.updater->version(), 1);
  }
}

TEST(ShardsGradients, OfASecondBackwardAreAnError) {
  Loop loop(options_of("mirrored", 1), in_slices(optim::adam(), Shard::gradients));
  EXPECT_THAT(message_of<UsageError>([&] {
                loop.strategy.run([&](ReplicaContext& replica) {
                  loop.updater->begin(0, Overlap::on);
                  for (int pass = 0; pass < 2; ++pass)
                    loop.net.local(replica)->all[1].sum().backward();
                });
              }),
              HasSubstr("\"bias\" got a second gradient"));
  for (const at::Tensor& parameter : loop.updater->parameters(0)) parameter.mutable_grad().reset();
  EXPECT_THAT(message_of<UsageError>([&] { loop.updater->begin(0, Overlap::on); }),
              HasSubstr("cannot begin again"));
}

// ---- values ----

TEST(ShardsValues, OfRankZeroWin) {
  for (const Shard shard : kShards) {
    at::Tensor first;
    Loop loop(options_of("mirrored", 3), [&](const World& world, std::vector<NamedTensors> ranks) {
      const at::NoGradGuard no_grad;
      first = ranks[0][1].second.detach().clone();
      for (auto& [name, tensor] : ranks[2]) tensor.mul_(2);
      return in_slices(optim::sgd(), shard)(world, std::move(ranks));
    });
    EXPECT_TRUE(at::equal(loop.updater->parameters(0)[1], first));
    EXPECT_TRUE(bits_equal(loop.updater->parameters(0), loop.updater->parameters(2)));
    for (const at::Tensor& parameter : loop.updater->parameters(2))
      EXPECT_EQ(reinterpret_cast<uintptr_t>(parameter.data_ptr()) % kLineBytes, 0u);
  }
}

TEST(ShardsValues, AreTornByAnUpdateThatIsCutOff) {
  // The group's learning rate is too small for a double, which the step finds.
  Loop loop(options_of("mirrored", 2),
            in_slices({optim::ftrl(), {}, {{.pattern = "bias", .learning_rate_factor = 1e-30}}},
                      Shard::state));
  loop.updater->set_learning_rate(1e-300);
  EXPECT_THROW(loop.step(0), UsageError);
  EXPECT_THAT(message_of<Error>([&] { loop.updater->require_whole(); }), HasSubstr("torn"));
  EXPECT_THAT(message_of<Error>([&] { loop.updater->state(); }), HasSubstr("torn"));
}

}  // namespace
}  // namespace tutti
