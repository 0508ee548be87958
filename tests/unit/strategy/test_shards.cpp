// Ranks that own slices of state, gradients and parameters: the bits, and the checkpoints, of those
// that do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tutti/sync/sharded_updater.h"

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
      updater->prepare(local, deadline);
      updater->begin(local, number % 2 == 0 && !last ? Overlap::on : Overlap::off);
      net.local(replica)->loss(replica.rank(), number).backward();
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
      const double weight = !last ? 1 : number % 5 == 3 ? 0 : number == 4 ? std::nan("") : 1;
      const int64_t version = updater->push(local, gradients, weight);
      updater->acquire(local, version, deadline);
      for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
      updater->end_run(local);
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
      loop.updater->push(local, std::vector<at::Tensor>(7), 1);
      loop.updater->acquire(local, 1, Deadline(loop.strategy.world().time_limit));
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
            in_slices({optim::ftrl(), {}, {{.pattern = "bias", .learning_rate_factor = 1e-200}}},
                      Shard::state));
  loop.updater->set_learning_rate(1e-200);
  EXPECT_THROW(loop.step(0), UsageError);
  EXPECT_THAT(message_of<Error>([&] { loop.updater->require_whole(); }), HasSubstr("torn"));
  EXPECT_THAT(message_of<Error>([&] { loop.updater->state(); }), HasSubstr("torn"));
}

// ---- parameters that come before they are read ----

struct Layers {
  explicit Layers(int replicas, int64_t features = 600, const std::string& shard = "parameters")
      : strategy([&] {
          StrategyOptions options = options_of("mirrored", replicas);
          options.shard = shard;
          return options;
        }()),
        net(strategy,
            [features] {
              return torch::nn::Sequential(torch::nn::Linear(features, features), torch::nn::Tanh(),
                                           torch::nn::Linear(features, features), torch::nn::Tanh(),
                                           torch::nn::Linear(features, features));
            }),
        optimizer(net, optim::adam({.learning_rate = 0.01})) {}

  at::Tensor forward(ReplicaContext& replica) {
    const auto& first = optimizer.parameters(replica)[0];
    return net.local(replica)->forward(torch::full({1, first.size(1)}, 0.1 * (replica.rank() + 1)));
  }
  std::vector<at::Tensor> values(int local = 0) const {
    return test::copy_of(optimizer.updater().parameters(local));
  }

  Strategy strategy;
  Replicated<torch::nn::Sequential> net;
  Optimizer optimizer;
};

TEST(ShardsParameters, MayBeReadByAnyReplicaAtAnyTime) {
  const auto trained = [](const std::string& shard) {
    Layers layers(3, 600, shard);
    std::vector<double> read(3);
    std::vector<const void*> places;
    for (const at::Tensor& parameter : layers.optimizer.updater().parameters(1))
      places.push_back(parameter.data_ptr());
    for (int step = 0; step < 3; ++step)
      layers.strategy.run([&](ReplicaContext& replica) {
        if (replica.rank() == step) read[0] += layers.forward(replica).sum().item<double>();
        if (replica.rank() == 1 && step == 1) return layers.optimizer.abstain(replica);
        // Two steps in a run, of which one replica reads something in between.
        for (int i = 0; i < (step == 2 ? 2 : 1); ++i) {
          layers.optimizer.minimize(replica, layers.forward(replica).pow(2).sum());
          const auto& values = layers.optimizer.parameters(replica);
          if (replica.rank() == 2)
            read[1] += torch::cat({values[0], values[2], values[4]}).sum().item<double>();
        }
      });
    // Without a step, and one that is left out.
    layers.strategy.run([&](ReplicaContext& replica) {
      const at::Tensor loss = layers.forward(replica).pow(2).sum();
      if (replica.rank() == 0) return layers.optimizer.leave_out(replica, loss);
      layers.optimizer.minimize(replica, loss);
    });
    layers.strategy.run([&](ReplicaContext& replica) {
      const at::NoGradGuard no_grad;
      if (replica.rank() == 1) read[2] = layers.forward(replica).sum().item<double>();
    });
    for (size_t i = 0; i < places.size(); ++i)
      EXPECT_EQ(layers.optimizer.updater().parameters(1)[i].data_ptr(), places[i]);
    EXPECT_TRUE(bits_equal(layers.values(0), layers.values(2)));
    return std::pair{layers.values(1), read};
  };
  const auto [values, read] = trained("parameters");
  const auto [expected_values, expected_read] = trained("");
  EXPECT_TRUE(bits_equal(values, expected_values));
  EXPECT_EQ(read, expected_read);
}

// Pages of a tensor that have memory.
int64_t resident_pages(const at::Tensor& tensor, int64_t& all) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr()) / page * page;
  const auto bytes = reinterpret_cast<uintptr_t>(tensor.data_ptr()) + tensor.nbytes() - begin;
  std::vector<unsigned char> pages((bytes + page - 1) / page);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(begin), bytes, pages.data()), 0);
  all += std::ssize(pages);
  return std::ranges::count_if(pages, [](unsigned char bits) { return (bits & 1) != 0; });
}

TEST(ShardsParameters, GiveTheirPagesBackBetweenUses) {
  Layers layers(2);
  layers.strategy.run([&](ReplicaContext& replica) {
    layers.optimizer.minimize(replica, layers.forward(replica).pow(2).sum());
    int64_t there = 0, all = 0;
    for (const at::Tensor& parameter : layers.optimizer.parameters(replica))
      there += resident_pages(parameter, all);
    EXPECT_LT(there, all / 20);
    replica.group().barrier();  // nobody ends the run before all have looked
  });
  int64_t there = 0, all = 0;
  for (const at::Tensor& parameter : layers.optimizer.updater().parameters(1))
    there += resident_pages(parameter, all);
  EXPECT_EQ(there, all);
}

TEST(ShardsParameters, AReplicaThatFailsFreesTheOthers) {
  Layers layers(2);
  EXPECT_THAT(message_of<UsageError>([&] {
                layers.strategy.run([&](ReplicaContext& replica) {
                  if (replica.rank() == 1) throw UsageError("of the user");
                  layers.forward(replica);
                });
              }),
              HasSubstr("of the user"));
  EXPECT_THAT(message_of<Error>([&] { layers.optimizer.updater().require_whole(); }),
              HasSubstr("in slices"));
}

// ---- bytes ----

struct Many : torch::nn::Module {
  Many() {
    for (int i = 0; i < kParameters; ++i)
      register_parameter(fmt::format("p{}", i), torch::rand({kElements}));
  }
  static constexpr int64_t kParameters = 512, kElements = 4001;
};

// Of psi parameters in float32, with adam on n ranks.
double bytes_by_formula(Shard shard, double psi, double n) {
  switch (shard) {
    case Shard::state: return 8 * psi + 8 * psi / n;
    case Shard::gradients: return 4 * psi + 12 * psi / n;
    case Shard::parameters: return 16 * psi / n;  // and two units
  }
  return 0;
}

TEST(ShardsBytes, AreThoseOfTheFormula) {
  constexpr double kPsi = Many::kParameters * Many::kElements;
  for (const int replicas : {1, 2, 3, 4})
    for (const Shard shard : kShards) {
      Strategy strategy(options_of("mirrored", replicas));
      Replicated<Many> net(strategy, [] { return std::make_shared<Many>(); });
      std::vector<NamedTensors> parameters;
      for (int local = 0; local < replicas; ++local)
        parameters.push_back(unique_parameters(*net.modules().module(local)));
      const auto updater =
          make_sharded_updater(strategy.world(), optim::adam(), std::move(parameters),
                               {.shard = shard, .bucket_bytes = 16 << 10});
      strategy.run([&](ReplicaContext& replica) {
        const int local = replica.local_rank();
        updater->prepare(local, Deadline(strategy.world().time_limit));
        updater->begin(local, Overlap::on);
        at::Tensor loss = torch::zeros({});
        for (const at::Tensor& parameter : updater->parameters(local))
          loss = loss + parameter.pow(2).sum();
        loss.backward();
        updater->push(local, std::vector<at::Tensor>(Many::kParameters), 1);
        updater->acquire(local, 1, Deadline(strategy.world().time_limit));
        updater->end_run(local);
      });
      const double formula = bytes_by_formula(shard, kPsi, replicas);
      for (int local = 0; local < replicas; ++local) {
        const ShardBytes bytes = updater->bytes(local);
        EXPECT_LE(static_cast<double>(bytes.all()), 1.05 * formula)
            << replicas << " " << name_of(shard) << ": " << bytes.parameters << " + "
            << bytes.gradients << " + " << bytes.state;
        EXPECT_GE(static_cast<double>(bytes.all()), 0.97 * formula);
      }
    }
}

// ---- through Strategy and Optimizer ----

test::Trained train(const StrategyOptions& options, const optim::Recipe& recipe) {
  return test::train(Strategy(options),
                     [&](const ReplicatedModules& modules) { return Optimizer(modules, recipe); });
}

TEST(ShardsOfAStrategy, TrainTheBitsOfThoseWithout) {
  const optim::Recipe recipe{optim::adamw({.learning_rate = 0.01, .weight_decay = 0.1}),
                             {.global_norm = 0.05},
                             {{.pattern = "*.bias", .weight_decay = 0}}};
  for (const int replicas : {1, 2, 3, 4}) {
    const auto expected = train(options_of("mirrored", replicas), recipe);
    for (const Shard shard : kShards)
      for (const char* kind : {"mirrored", "one_device"}) {
        StrategyOptions options = options_of(kind, replicas);
        options.shard = name_of(shard);
        const auto trained = train(options, recipe);
        EXPECT_TRUE(bits_equal(trained.parameters, expected.parameters)) << kind << replicas;
        EXPECT_EQ(trained.losses, expected.losses) << kind << replicas;
      }
  }
}

TEST(ShardsOfAStrategy, TakeScaledLossesOfSeveralPasses) {
  const auto trained = [](const std::string& shard) {
    StrategyOptions options = options_of("mirrored", 3);
    options.shard = shard;
    Strategy strategy(options);
    Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(40, 30); });
    Optimizer optimizer(net, optim::adam({.learning_rate = 0.1}));
    optimizer.scale_losses(optim::LossScale({.initial = 1024}));
    for (int step = 0; step < 4; ++step)
      strategy.run([&](ReplicaContext& replica) {
        const auto loss = [&](double factor) {
          const auto x = torch::full({2, 40}, factor * (replica.rank() + 1));
          return net.local(replica)->forward(x).pow(2).sum();
        };
        optimizer.accumulate(replica, loss(0.1));
        if (replica.rank() == 1 && step == 1) return optimizer.abstain(replica);
        // The third step overflows on one replica.
        optimizer.minimize(replica, loss(replica.rank() == 2 && step == 2 ? 1e30 : 0.2));
      });
    std::vector<at::Tensor> all = test::copy_of(optimizer.updater().parameters(1));
    all.push_back(torch::tensor(optimizer.version()));
    return all;
  };
  for (const Shard shard : kShards)
    EXPECT_TRUE(bits_equal(trained(std::string(name_of(shard))), trained("")));
}

TEST(ShardsOfAStrategy, RefuseWhatDoesNotFit) {
  const auto refusal = [](StrategyOptions options, const std::string& shard) {
    options.shard = shard;
    return message_of<UsageError>([&] { Strategy strategy(options); });
  };
  EXPECT_THAT(refusal(options_of("mirrored", 2), "gradient"), HasSubstr("did you mean"));
  for (const char* kind : {"central_storage", "parameter_server"})
    EXPECT_THAT(refusal(options_of(kind, 2), "state"), HasSubstr(kind));
  StrategyOptions reducing = options_of("mirrored", 2);
  reducing.reduction = "all_reduce";
  EXPECT_THAT(refusal(reducing, "state"), HasSubstr("leave reduction all_reduce"));
  StrategyOptions meshed = options_of("mirrored", 0);
  meshed.mesh = "shard=2";
  EXPECT_THAT(refusal(meshed, ""), HasSubstr("--shard state"));
  meshed.mesh = "shard=2,stage=2";
  EXPECT_THAT(refusal(meshed, "parameters"), HasSubstr("take --shard gradients"));

  StrategyOptions options = options_of("mirrored", 2);
  options.shard = "state";
  Strategy strategy(options);
  Replicated<torch::nn::Linear> net(strategy, [] { return torch::nn::Linear(2, 2); });
  EXPECT_THAT(message_of<UsageError>([&] {
                Optimizer(net, [](std::vector<at::Tensor> parameters) {
                  return std::make_unique<torch::optim::SGD>(parameters, 0.1);
                });
              }),
              HasSubstr("tutti's own rules"));
  EXPECT_THAT(message_of<UsageError>([&] { Optimizer(net, optim::sgd(), ReplicatedOptions{}); }),
              HasSubstr("--shard state"));
  const Optimizer optimizer(net, optim::sgd());
  EXPECT_THAT(message_of<UsageError>([&] { strategy.resize(1); }), HasSubstr("resized"));
}

}  // namespace
}  // namespace tutti
