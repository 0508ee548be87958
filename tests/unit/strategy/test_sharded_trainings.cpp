// Trainings whose replicas own slices: parameters that are given up and come back, the bytes that
// each replica has, and what Strategy and Optimizer make of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
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

constexpr Shard kAll[] = {Shard::state, Shard::gradients, Shard::parameters};

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

// In two actions, as those of a pipeline, of which replica 1 has nothing to do in the first, and
// replica 2 takes part in none.
TEST(ShardsParameters, AreGatheredWithThoseWhoHaveNothingToDo) {
  const auto trained = [](const std::string& shard) {
    Layers layers(3, 600, shard);
    for (int step = 0; step < 2; ++step)
      layers.strategy.run([&](ReplicaContext& replica) {
        if (replica.rank() == 2) return layers.optimizer.abstain(replica);
        at::Tensor loss = torch::zeros({});
        for (int action = 0; action < 2; ++action) {
          if (action == 1 || replica.rank() == 0)
            loss = loss + layers.forward(replica).pow(2).sum();
          if (auto* const gathers = layers.optimizer.updater().parts().gathers)
            gathers->meet(replica.local_rank(), Until::action_ends);
        }
        layers.optimizer.minimize(replica, loss);
      });
    return layers.values(1);
  };
  EXPECT_TRUE(bits_equal(trained("parameters"), trained("")));
}

TEST(ShardsParameters, MayBeWrittenToBetweenRuns) {
  const auto trained = [](const std::string& shard) {
    Layers layers(2, 600, shard);
    const auto step = [&] {
      layers.strategy.run([&](ReplicaContext& replica) {
        layers.optimizer.minimize(replica, layers.forward(replica).pow(2).sum());
      });
    };
    step();
    for (int local = 0; local < 2; ++local)
      for (const at::Tensor& parameter : layers.optimizer.updater().parameters(local))
        parameter.detach().fill_(0.01);
    step();
    return layers.values(1);
  };
  EXPECT_TRUE(bits_equal(trained("parameters"), trained("")));
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
    for (const Shard shard : kAll) {
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
        updater->ready(local, Deadline(strategy.world().time_limit));
        updater->begin(local, Overlap::on);
        at::Tensor loss = torch::zeros({});
        for (const at::Tensor& parameter : updater->parameters(local))
          loss = loss + parameter.pow(2).sum();
        loss.backward();
        updater->step(local, std::vector<at::Tensor>(Many::kParameters), {},
                      Deadline(strategy.world().time_limit));
        updater->parts().gathers->meet(local, Until::whole);
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
    for (const Shard shard : kAll)
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
  for (const Shard shard : kAll)
    EXPECT_TRUE(bits_equal(trained(std::string(name_of(shard))), trained("")));
}

TEST(ShardsOfAStrategy, RefuseWhatDoesNotFit) {
  const auto refusal = [](StrategyOptions options, const std::string& shard) {
    options.shard = shard;
    return message_of<UsageError>([&] { Strategy strategy(options); });
  };
  EXPECT_THAT(refusal(options_of("mirrored", 2), "gradient"), HasSubstr("did you mean"));
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
  EXPECT_THAT(message_of<UsageError>([&] { strategy.resize(1); }),
              HasSubstr("resize: with --shard state"));
}

}  // namespace
}  // namespace tutti
