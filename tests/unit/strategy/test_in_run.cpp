// What replicas do in the midst of run(): a step where they take turns on one thread, merge(), and
// drawing random numbers.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>

#include "tutti/base/error.h"
#include "tutti/strategy/detail/own_random_numbers.h"

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::message_of;
using test::strategy_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Weight : torch::nn::Module {
  Weight() { w = register_parameter("w", torch::zeros({1})); }
  at::Tensor w;
};

// ---- replicas that take turns ----

// Updated by the fused step, by an update on every replica, and with scaled losses.
class InTurn : public ::testing::TestWithParam<std::string> {
 protected:
  static Strategy make_strategy(int replicas) {
    auto options = test::options_of("one_device", replicas);
    if (GetParam() == "all_reduce") options.reduction = "all_reduce";
    return Strategy(options);
  }

  struct Bench {
    explicit Bench(int replicas)
        : strategy(make_strategy(replicas)),
          net(strategy, [] { return std::make_shared<Weight>(); }),
          optimizer(net, optim::sgd({.learning_rate = 1.0})) {
      if (GetParam() == "scaled") optimizer.scale_losses(optim::LossScale({.initial = 4}));
    }
    /// Replica r takes part times[r] times, with a gradient of `factor`.
    void run(const std::vector<int>& times, double factor) {
      strategy.run([&](ReplicaContext& replica) {
        for (int i = 0; i < times[static_cast<size_t>(replica.rank())]; ++i)
          optimizer.minimize(replica, factor * net.local(replica)->w.sum());
      });
    }
    double weight() const { return optimizer.updater().parameters(0)[0].item<double>(); }

    Strategy strategy;
    Replicated<Weight> net;
    Optimizer optimizer;
  };
};

INSTANTIATE_TEST_SUITE_P(Updates, InTurn, ::testing::Values("fused", "all_reduce", "scaled"),
                         [](const auto& info) { return info.param; });

TEST_P(InTurn, ASecondStepInARunIsRefused) {
  for (const auto& times : std::vector<std::vector<int>>{{2, 2}, {2, 1}, {3, 3}}) {
    Bench bench(2);
    EXPECT_THAT(message_of<UsageError>([&] { bench.run(times, 1); }),
                AllOf(HasSubstr("replica 0 took part in two steps in one run()"),
                      HasSubstr("give each step a run() of its own")));
    EXPECT_EQ(bench.weight(), 0);
    EXPECT_EQ(bench.optimizer.version(), 0);
    bench.run({1, 1}, 10);
    EXPECT_EQ(bench.weight(), -20) << "nothing of the run that failed";
    EXPECT_EQ(bench.optimizer.version(), 1);
  }
  Bench last(2);
  EXPECT_THAT(message_of<UsageError>([&] { last.run({1, 2}, 1); }),
              HasSubstr("replica 1 took part in two steps"));
  last.run({1, 1}, 10);
  EXPECT_EQ(last.weight(), -22) << "the step that all had made, and the next";
}

TEST_P(InTurn, AReplicaThatLeavesTheStepOutIsNamed) {
  for (int absent = 0; absent < 3; ++absent) {
    Bench bench(3);
    std::vector<int> times{1, 1, 1};
    times[static_cast<size_t>(absent)] = 0;
    for (int round = 0; round < 2; ++round)
      EXPECT_THAT(message_of<UsageError>([&] { bench.run(times, 1); }),
                  HasSubstr(fmt::format("replica {} has not taken part", absent)));
    std::vector<int> others{0, 0, 0};
    others[static_cast<size_t>(absent)] = 1;
    EXPECT_THROW(bench.run(others, 1), UsageError);
    bench.run({0, 0, 0}, 1);  // a run() without a step
    EXPECT_EQ(bench.weight(), 0) << "parts of different runs make no step";
    bench.run({1, 1, 1}, 10);
    EXPECT_EQ(bench.weight(), -30);
  }
}

TEST_P(InTurn, AbstainAndApplyCountAsTakingPart) {
  Bench bench(2);
  EXPECT_THAT(message_of<UsageError>([&] {
                bench.strategy.run([&](ReplicaContext& replica) {
                  bench.optimizer.abstain(replica);
                  bench.optimizer.abstain(replica);
                });
              }),
              HasSubstr("replica 0 took part in two steps"));
  if (GetParam() == "scaled") return;  // apply() is not for scaled losses
  const std::vector<at::Tensor> ones{torch::ones({1})};
  EXPECT_THAT(message_of<UsageError>([&] {
                bench.strategy.run([&](ReplicaContext& replica) {
                  bench.optimizer.apply(replica, ones);
                  bench.optimizer.apply(replica, ones);
                });
              }),
              HasSubstr("replica 0 took part in two steps"));
  bench.strategy.run([&](ReplicaContext& replica) {
    if (replica.rank() == 0) return bench.optimizer.abstain(replica);
    bench.optimizer.apply(replica, ones);
  });
  EXPECT_EQ(bench.weight(), -1);
}

TEST_P(InTurn, OneReplicaMakesAsManyStepsAsItLikes) {
  Bench bench(1);
  bench.run({3}, 1);
  EXPECT_EQ(bench.weight(), -3);
  EXPECT_EQ(bench.optimizer.version(), 3);
}

// ---- merge ----

TEST(Merge, RunsOnceWithTheValuesOfAllReplicas) {
  for (int replicas : {1, 2, 3}) {
    Strategy strategy = strategy_of("mirrored", replicas);
    std::atomic<int> calls{0};
    const auto results = strategy.run([&](ReplicaContext& replica) {
      double total = 0;
      for (int round = 0; round < 20; ++round) {  // one meeting after another
        total += strategy.merge(
            replica,
            [&](Strategy& inner, const PerReplica<double>& values, const PerReplica<int>& ranks) {
              ++calls;
              EXPECT_EQ(ReplicaContext::current(), nullptr);
              EXPECT_EQ(ranks.values().size(), static_cast<size_t>(replicas));
              for (int r = 0; r < replicas; ++r) EXPECT_EQ(ranks.local(r), r);
              return inner.reduce(ReduceOp::sum, values);
            },
            1.0 + replica.rank() + round, replica.rank());
        EXPECT_EQ(ReplicaContext::current()->rank(), replica.rank());
      }
      return total;
    });
    EXPECT_EQ(calls, 20);
    const double expected = 20 * replicas * (replicas + 1) / 2.0 + replicas * 190;
    for (int r = 0; r < replicas; ++r) EXPECT_EQ(results.local(r), expected);
  }
}

TEST(Merge, GivesEachReplicaItsPartOfAPerReplica) {
  Strategy strategy = strategy_of("mirrored", 3);
  const auto turned = strategy.run([&](ReplicaContext& replica) {
    return strategy.merge(
        replica,
        [](Strategy&, const PerReplica<int>& values) {
          std::vector<int> reversed(values.values().rbegin(), values.values().rend());
          return PerReplica<int>(reversed, values.first_rank());
        },
        replica.rank());
  });
  EXPECT_THAT(turned.values(), ElementsAre(2, 1, 0));
}

TEST(Merge, ThrowsOnEveryReplicaWhatTheFunctionThrows) {
  Strategy strategy = strategy_of("mirrored", 3);
  std::atomic<int> caught{0};
  strategy.run([&](ReplicaContext& replica) {
    try {
      strategy.merge(replica, [](Strategy&) { throw DataError("no such doodle"); });
    } catch (const DataError&) {
      ++caught;
    }
  });
  EXPECT_EQ(caught, 3);
}

TEST(Merge, AReplicaThatDoesNotComeIsNamed) {
  Strategy strategy(
      {.kind = "mirrored", .replicas = 3, .threads_per_replica = 1, .time_limit = Millis(200)});
  std::atomic<int> told = 0;
  EXPECT_THAT(message_of<Timeout>([&] {
                strategy.run([&](ReplicaContext& replica) {
                  if (replica.rank() == 1) return;
                  try {
                    strategy.merge(replica, [](Strategy&) {});
                  } catch (const Timeout&) {
                    ++told;
                    throw;
                  }
                });
              }),
              HasSubstr("waited 200 ms for replica 1, which has not called it"));
  EXPECT_EQ(told, 2);
}

TEST(Merge, AReplicaThatFailsEndsTheWait) {
  Strategy strategy = strategy_of("mirrored", 3);  // the time limit is a minute and more
  EXPECT_THAT(message_of<DataError>([&] {
                strategy.run([&](ReplicaContext& replica) {
                  if (replica.rank() == 1) throw DataError("no such doodle");
                  strategy.merge(replica, [](Strategy&) {});
                });
              }),
              HasSubstr("no such doodle"));
}

TEST(Merge, AFunctionThatTakesTooLongIsNamed) {
  Strategy strategy(
      {.kind = "mirrored", .replicas = 2, .threads_per_replica = 1, .time_limit = Millis(200)});
  std::atomic<bool> given_up{false};
  EXPECT_THAT(message_of<Timeout>([&] {
                strategy.run([&](ReplicaContext& replica) {
                  try {
                    strategy.merge(replica, [&](Strategy&) { given_up.wait(false); });
                  } catch (...) {
                    given_up = true;
                    given_up.notify_all();
                    throw;
                  }
                });
              }),
              HasSubstr("replica 0 is still in the function after 200 ms"));
}

TEST(Merge, UnlikeTypesAreRefusedOnEveryReplica) {
  const auto refused = [](auto first, auto other) {
    Strategy strategy = strategy_of("mirrored", 2);
    std::atomic<int> caught{0};
    strategy.run([&](ReplicaContext& replica) {
      const auto call = [&] {
        replica.rank() == 0 ? first(strategy, replica) : other(strategy, replica);
      };
      if (message_of<Mismatch>(call).find("local replica 1 wants") != std::string::npos) ++caught;
    });
    EXPECT_EQ(caught, 2);
  };
  const auto takes = [](auto value) {
    return [value](Strategy& strategy, ReplicaContext& replica) {
      strategy.merge(replica, [](Strategy&, const PerReplica<decltype(value)>&) {}, value);
    };
  };
  const auto gives = [](auto value) {
    return [value](Strategy& strategy, ReplicaContext& replica) {
      strategy.merge(replica, [value](Strategy&) { return value; });
    };
  };
  refused(takes(1), takes(1.0));
  refused(takes(torch::ones({2})), takes(std::string("two")));
  refused(gives(1), gives(std::string("one")));
  refused(gives(1), takes(1));
}

TEST(Merge, WrongContexts) {
  Strategy in_turn = strategy_of("one_device", 2);
  EXPECT_THAT(message_of<UsageError>([&] {
                in_turn.run([&](ReplicaContext& r) { in_turn.merge(r, [](Strategy&) {}); });
              }),
              AllOf(HasSubstr("merge on replica 0 of 2"), HasSubstr("take turns")));
  Strategy strategy = strategy_of("mirrored", 2);
  std::optional<ReplicaContext> kept;
  strategy.run([&](ReplicaContext& replica) {
    if (replica.rank() == 0) kept = replica;
  });
  EXPECT_THAT(message_of<UsageError>([&] { strategy.merge(*kept, [](Strategy&) {}); }),
              HasSubstr("merge: called outside of run()"));
}

// ---- random numbers ----

using Draw = std::function<at::Tensor()>;

// What LibTorch draws, in each of its ways: new tensors, in place, and by layers.
const std::vector<std::pair<const char*, Draw>>& draws() {
  static const std::vector<std::pair<const char*, Draw>> all{
      {"rand", [] { return torch::rand({9}); }},
      {"randn", [] { return torch::randn({9}); }},
      {"randint", [] { return torch::randint(0, 1000, {9}, torch::kFloat); }},
      {"randperm", [] { return torch::randperm(9).to(torch::kFloat); }},
      {"rand_like", [] { return torch::rand_like(torch::ones({9})); }},
      {"randn_like", [] { return torch::randn_like(torch::ones({9})); }},
      {"normal_", [] { return torch::empty({9}).normal_(); }},
      {"uniform_", [] { return torch::empty({9}).uniform_(); }},
      {"exponential_", [] { return torch::empty({9}).exponential_(); }},
      {"bernoulli", [] { return torch::full({64}, 0.5).bernoulli(); }},
      {"multinomial", [] { return torch::ones({9}).multinomial(4).to(torch::kFloat); }},
      {"poisson", [] { return torch::poisson(torch::full({9}, 50.0)); }},
      {"dropout", [] { return torch::dropout(torch::ones({64}), 0.5, true); }},
      {"Dropout", [] { return torch::nn::Dropout(0.5)(torch::ones({64})); }},
      {"Dropout2d", [] { return torch::nn::Dropout2d(0.5)(torch::ones({4, 16, 1, 1})).flatten(); }},
      {"RReLU", [] { return torch::nn::RReLU()(torch::full({9}, -1.0)); }},
      {"LSTM",
       [] {
         torch::nn::LSTM layers(torch::nn::LSTMOptions(2, 3).num_layers(2).dropout(0.5));
         return std::get<0>(layers(torch::ones({4, 1, 2}))).detach().flatten();
       }},
  };
  return all;
}

TEST(OwnRandomNumbers, OfThreadsAreThoseInTurn) {
  for (const auto& [name, draw] : draws()) {
    const auto drawn = [&, &draw = draw](const char* kind, int replicas) {
      Strategy strategy = strategy_of(kind, replicas);
      std::vector<at::Tensor> all;
      for (int round = 0; round < 2; ++round) {
        const auto each = strategy.run([&](ReplicaContext&) { return draw(); }).values();
        all.insert(all.end(), each.begin(), each.end());
      }
      return all;
    };
    const auto before = at::detail::getDefaultCPUGenerator().get_state();
    const auto threads = drawn("mirrored", 3);
    EXPECT_TRUE(test::bits_equal(threads, drawn("one_device", 3))) << name;
    EXPECT_TRUE(at::equal(before, at::detail::getDefaultCPUGenerator().get_state())) << name;
    for (size_t one = 0; one < threads.size(); ++one)
      for (size_t other = 0; other < one; ++other)
        EXPECT_FALSE(at::equal(threads[one], threads[other])) << name << one << other;
  }
}

TEST(OwnRandomNumbers, AreThoseOfTheReplicasGenerator) {
  const auto numbers = [](bool named) {
    Strategy strategy = strategy_of("mirrored", 2);
    return strategy
        .run([&](ReplicaContext& replica) {
          return named ? torch::randn({4}, replica.generator()) : torch::randn({4});
        })
        .values();
  };
  EXPECT_TRUE(test::bits_equal(numbers(true), numbers(false)));
}

// As if the default generator had been seeded with it, whoever else draws on this thread.
TEST(OwnRandomNumbers, AreOfAKeyWhereOneIsSet) {
  for (const auto& [name, draw] : draws()) {
    torch::manual_seed(11);
    const at::Tensor expected = draw();
    const auto of_key = [&, &draw = draw] {
      const detail::NumbersOfKey numbers(11, at::kCPU);
      return draw();
    };
    const auto before = at::detail::getDefaultCPUGenerator().get_state();
    EXPECT_TRUE(at::equal(of_key(), expected)) << name;
    EXPECT_TRUE(at::equal(before, at::detail::getDefaultCPUGenerator().get_state())) << name;
    Strategy strategy = strategy_of("mirrored", 2);
    for (const bool with_key : {true, false}) {
      const auto each = strategy.run([&, &draw = draw](ReplicaContext& replica) {
        const auto own = replica.generator().get_state();
        at::Tensor numbers = with_key ? of_key() : draw();
        EXPECT_EQ(at::equal(own, replica.generator().get_state()), with_key) << name;
        return numbers;
      });
      for (const at::Tensor& one : each.values())
        EXPECT_EQ(at::equal(one, expected), with_key) << name;
    }
  }
}

// A device that has no generator here: what draws next has the numbers that it had.
TEST(OwnRandomNumbers, OfAKeyThatCannotBeSetLeaveNothingBehind) {
  const auto fails = [] {
    EXPECT_ANY_THROW(detail::NumbersOfKey(11, at::Device(at::kXPU, 0)));
    EXPECT_EQ(detail::generator_of_operators(), at::detail::getDefaultCPUGenerator());
  };
  torch::manual_seed(4);
  const auto expected = torch::rand({3});
  torch::manual_seed(4);
  fails();
  EXPECT_TRUE(at::equal(torch::rand({3}), expected));
  const auto drawn = [&](bool with_failure) {
    Strategy strategy = strategy_of("mirrored", 2);
    return strategy
        .run([&](ReplicaContext&) {
          if (with_failure) {
            EXPECT_ANY_THROW(detail::NumbersOfKey(11, at::Device(at::kXPU, 0)));
          }
          return torch::rand({3});
        })
        .values();
  };
  EXPECT_TRUE(test::bits_equal(drawn(true), drawn(false)));
  const detail::NumbersOfKey outer(5, at::kCPU);
  const auto before = detail::generator_of_operators();
  EXPECT_ANY_THROW(detail::NumbersOfKey(11, at::Device(at::kXPU, 0)));
  EXPECT_EQ(detail::generator_of_operators(), before) << "of the key around it";
}

// A generator that is named is the one; outside of run() and of one replica it is the default one.
TEST(OwnRandomNumbers, LeaveOtherGeneratorsAlone) {
  Strategy strategy = strategy_of("mirrored", 2);
  const auto named = strategy.run([](ReplicaContext&) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
    return torch::randn({4}, generator);
  });
  EXPECT_TRUE(at::equal(named.local(0), named.local(1)));
  torch::manual_seed(4);
  const auto expected = torch::rand({2, 3});
  torch::manual_seed(4);
  Strategy alone = strategy_of("mirrored", 1);
  const auto first = alone.run([](ReplicaContext&) { return torch::rand({3}); }).local(0);
  EXPECT_TRUE(at::equal(torch::stack({first, torch::rand({3})}), expected));
}

}  // namespace
}  // namespace tutti
