// Collectives that autograd sees through: values against an oracle of one thread, gradients against
// finite differences, disagreements named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/nn/collectives.h"
#include "tutti/nn/sync_batch_norm.h"

#include "tests/support/collective_cases.h"
#include "tests/support/message_of.h"

namespace tutti {
namespace {

using test::CollectiveCase;
using test::message_of;
using test::unlike_values;
using ::testing::AllOf;
using ::testing::HasSubstr;

Strategy threads(int replicas, Millis limit = kDefaultTimeLimit) {
  return Strategy(
      {.kind = "mirrored", .replicas = replicas, .threads_per_replica = 1, .time_limit = limit});
}

class Differentiable : public ::testing::TestWithParam<CollectiveCase> {};

TEST_P(Differentiable, GradientsAreThoseOfFiniteDifferences) {
  for (int replicas : {1, 2, 3}) {
    SCOPED_TRACE(replicas);
    Strategy strategy = threads(replicas);
    test::expect_gradients(strategy, GetParam().input_of(replicas), GetParam().loss());
  }
}

// L = sum over replicas of |dL'/dx|^2: its gradient needs the derivative of each backward.
TEST_P(Differentiable, SecondDerivativesToo) {
  Strategy strategy = threads(2);
  const auto loss = [inner = GetParam().loss()](ReplicaContext& replica, const at::Tensor& x) {
    const auto gradient = torch::autograd::grad({inner(replica, x)}, {x}, {}, true, true);
    return gradient[0].pow(2).sum();
  };
  test::expect_gradients(strategy, GetParam().input_of(2), loss);
}

TEST_P(Differentiable, RunsHaveTheSameBits) {
  Strategy strategy = threads(3);
  const auto first = test::backward_gradients(strategy, GetParam().input_of(3), GetParam().loss());
  const auto second = test::backward_gradients(strategy, GetParam().input_of(3), GetParam().loss());
  for (size_t r = 0; r < first.size(); ++r) EXPECT_TRUE(at::equal(first[r], second[r]));
}

INSTANTIATE_TEST_SUITE_P(Collectives, Differentiable, ::testing::ValuesIn(test::collective_cases()),
                         [](const auto& info) { return info.param.name; });

// ---- values ----

template <class Output>
std::vector<at::Tensor> outputs(Strategy& strategy, const Output& output) {
  return strategy.run([&](ReplicaContext& replica) { return output(replica); }).values();
}

TEST(CollectiveValues, SumsFollowTheReductionShape) {
  Strategy strategy = threads(3);
  const auto input = [](int rank) { return unlike_values({40}, rank).sin() / 3; };
  const auto sums = outputs(strategy, [&](ReplicaContext& replica) {
    return nn::all_reduce(replica, input(replica.rank()));
  });
  const at::Tensor expected =
      strategy.reduce(ReduceOp::sum, PerReplica<at::Tensor>({input(0), input(1), input(2)}, 0));
  for (const auto& sum : sums) EXPECT_TRUE(at::equal(sum, expected));
  const auto parts = outputs(strategy, [&](ReplicaContext& replica) {
    return nn::reduce_scatter(replica, input(replica.rank()), ReduceOp::mean, 0, {10, 0, 30});
  });
  EXPECT_TRUE(at::equal(at::cat(parts), expected / 3));
  EXPECT_EQ(parts[1].numel(), 0);
}

TEST(CollectiveValues, PartsStandInRankOrder) {
  Strategy strategy = threads(3);
  const auto whole =
      at::cat({unlike_values({2, 1}, 0), unlike_values({2, 2}, 1), unlike_values({2, 3}, 2)}, 1);
  for (const auto& got : outputs(strategy, [&](ReplicaContext& replica) {
         return nn::all_gather(replica, unlike_values({2, replica.rank() + 1}, replica.rank()), 1);
       }))
    EXPECT_TRUE(at::equal(got, whole));
  const auto turned = outputs(strategy, [&](ReplicaContext& replica) {
    return nn::all_to_all(replica, 10 * replica.rank() + at::arange(3, at::kLong));
  });
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_TRUE(at::equal(turned[rank], torch::tensor({rank, 10 + rank, 20 + rank}, at::kLong)));
}

TEST(CollectiveValues, OfIntegersAndHalvesNeedNoGradient) {
  Strategy strategy = threads(2);
  const auto labels = outputs(strategy, [&](ReplicaContext& replica) {
    return nn::all_gather(replica, torch::tensor({replica.rank()}, at::kLong));
  });
  EXPECT_TRUE(at::equal(labels[0], torch::tensor({0, 1}, at::kLong)));
  const auto halves = outputs(strategy, [&](ReplicaContext& replica) {
    return nn::broadcast(replica, at::full({2}, 0.5 + replica.rank(), at::kBFloat16), 1);
  });
  EXPECT_TRUE(at::equal(halves[0], at::full({2}, 1.5, at::kBFloat16)));
}

TEST(CollectiveValues, InputsStayAsTheyAre) {
  Strategy strategy = threads(2);
  const auto kept = outputs(strategy, [&](ReplicaContext& replica) {
    const at::Tensor x = unlike_values({4}, replica.rank());
    nn::all_reduce(replica, x);
    nn::broadcast(replica, x, 1);
    return x;
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(at::equal(kept[rank], unlike_values({4}, rank)));
}

// Only the root's input needs a gradient; the others take part in backward all the same.
TEST(CollectiveValues, SomeInputsMayNeedNoGradient) {
  Strategy strategy = threads(3);
  const auto gradients = outputs(strategy, [&](ReplicaContext& replica) {
    at::Tensor x = torch::ones({2}, at::kDouble);
    if (replica.rank() == 1) x.requires_grad_();
    (nn::broadcast(replica, x, 1) * (replica.rank() + 1)).sum().backward();
    return replica.rank() == 1 ? x.grad() : x;
  });
  EXPECT_TRUE(at::equal(gradients[1], at::full({2}, 6.0, at::kDouble)));
}

// ---- disagreements ----

template <class E, class Fn>
std::string failure(int replicas, Fn fn, Millis limit = kDefaultTimeLimit) {
  Strategy strategy = threads(replicas, limit);
  return message_of<E>([&] { strategy.run(fn); });
}

TEST(CollectiveErrors, UnlikeCallsNameTheReplica) {
  EXPECT_THAT(failure<Mismatch>(3,
                                [](ReplicaContext& replica) {
                                  nn::all_reduce(replica, at::ones({2, replica.rank() / 2 + 1}));
                                }),
              AllOf(HasSubstr("replica 2 calls all_reduce (sum) of Float [2, 2]"),
                    HasSubstr("replica 0 calls all_reduce (sum) of Float [2, 1]")));
  EXPECT_THAT(failure<Mismatch>(2,
                                [](ReplicaContext& replica) {
                                  const auto type = replica.rank() == 0 ? at::kFloat : at::kDouble;
                                  nn::all_gather(replica, at::ones({2}, type));
                                }),
              AllOf(HasSubstr("replica 1 calls all_gather of Double [2]"), HasSubstr("axis 0")));
  EXPECT_THAT(
      failure<Mismatch>(2,
                        [](ReplicaContext& replica) {
                          replica.rank() == 0 ? nn::all_reduce(replica, at::ones({2}))
                                              : nn::all_to_all(replica, at::ones({2}));
                        }),
      AllOf(HasSubstr("replica 1 calls all_to_all"), HasSubstr("replica 0 calls all_reduce")));
  EXPECT_THAT(failure<Mismatch>(2,
                                [](ReplicaContext& replica) {
                                  const int64_t first = replica.rank();
                                  nn::reduce_scatter(replica, at::ones({4}), ReduceOp::sum, 0,
                                                     {first, 4 - first});
                                }),
              HasSubstr("in parts of [1, 3]"));
}

TEST(CollectiveErrors, GradientsAreWantedByAllOrByNone) {
  EXPECT_THAT(failure<Mismatch>(2,
                                [](ReplicaContext& replica) {
                                  const at::AutoGradMode mode(replica.rank() == 0);
                                  nn::all_reduce(replica, at::ones({2}).requires_grad_());
                                }),
              AllOf(HasSubstr("replica 0 needs a gradient"), HasSubstr("replica 1 has")));
}

TEST(CollectiveErrors, WrongArguments) {
  const auto one = [](auto call) {
    return failure<UsageError>(2, [call](ReplicaContext& replica) { call(replica); });
  };
  EXPECT_THAT(one([](auto& r) { nn::all_reduce(r, at::ones({2}), ReduceOp::max); }),
              HasSubstr("all_reduce: reduction max, expected sum or mean"));
  EXPECT_THAT(one([](auto& r) { nn::all_gather(r, at::ones({})); }),
              HasSubstr("axis is 0, the tensor has 0 dimensions"));
  EXPECT_THAT(one([](auto& r) { nn::reduce_scatter(r, at::ones({3})); }),
              HasSubstr("3 rows do not divide into 2 equal parts"));
  EXPECT_THAT(one([](auto& r) { nn::all_to_all(r, at::ones({3}), 0, {1, 1}); }),
              HasSubstr("got parts of [1, 1], expected 2 sizes of 0 or more, together 3"));
  EXPECT_THAT(one([](auto& r) { nn::broadcast(r, at::ones({3}), 2); }),
              HasSubstr("root is 2, expected 0 to 1"));
  EXPECT_THAT(one([](auto& r) { nn::all_reduce(r, at::Tensor()); }), HasSubstr("undefined"));
}

TEST(CollectiveErrors, ReplicasThatTakeTurnsCannotMeet) {
  Strategy strategy({.kind = "one_device", .replicas = 2});
  EXPECT_THAT(message_of<UsageError>([&] {
                strategy.run([](ReplicaContext& r) { nn::all_reduce(r, at::ones({1})); });
              }),
              AllOf(HasSubstr("all_reduce on replica 0 of 2"), HasSubstr("take turns")));
}

TEST(CollectiveErrors, WorkersOutOfStepCannotMeet) {
  // As `tutti run --servers 1` sets them; nobody is called before an optimizer is made.
  setenv(detail::kViewServiceVariable, "127.0.0.1:1", 1);
  setenv(detail::kNumServersVariable, "1", 1);
  const auto refused = [](const ServedOptions& served) {
    Strategy strategy(
        {.kind = "parameter_server", .replicas = 2, .threads_per_replica = 1, .served = served});
    return message_of<UsageError>(
        [&] { strategy.run([](ReplicaContext&) { nn::SyncBatchNorm(2)(at::ones({2, 2})); }); });
  };
  EXPECT_THAT(refused({.staleness = ps::Staleness::unbounded()}),
              AllOf(HasSubstr("SyncBatchNorm on replica"),
                    HasSubstr("under parameter_server with staleness inf replicas do not meet")));
  unsetenv(detail::kViewServiceVariable);
  unsetenv(detail::kNumServersVariable);
}

TEST(CollectiveErrors, OneThatDoesNotComeIsNamed) {
  EXPECT_THAT(failure<Timeout>(
                  2,
                  [](ReplicaContext& replica) {
                    if (replica.rank() == 0) nn::all_reduce(replica, at::ones({1}));
                  },
                  Millis(200)),
              HasSubstr("rank 1"));
}

TEST(CollectiveErrors, LossThatDoesNotDependOnTheOutputIsNamed) {
  EXPECT_THAT(failure<Timeout>(
                  2,
                  [](ReplicaContext& replica) {
                    const at::Tensor x = at::ones({1}).requires_grad_();
                    const at::Tensor y = nn::all_reduce(replica, x);
                    (replica.rank() == 0 ? y : x).sum().backward();
                  },
                  Millis(200)),
              HasSubstr("rank 1"));
}

TEST(SeveralAtOnce, AreThoseOfOneEachWithTheirGradients) {
  for (const int replicas : {1, 2, 3}) {
    Strategy strategy = threads(replicas);
    strategy.run([](ReplicaContext& replica) {
      const auto made = [&] {
        const double own = 1.5 + replica.rank();
        return std::vector<at::Tensor>{
            (torch::arange(6, at::kDouble) * own).reshape({2, 3}).requires_grad_(),
            torch::full({}, own, at::kDouble).requires_grad_(),
            (torch::ones({4}) * static_cast<float>(own)).requires_grad_(),
            torch::zeros({0}, at::kDouble)};
      };
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
        auto together = made(), alone = made();
        const auto sums = nn::all_reduce(replica, together, op);
        at::Tensor loss = torch::zeros({}, at::kDouble), loss_alone = loss;
        for (size_t i = 0; i < alone.size(); ++i) {
          const at::Tensor one = nn::all_reduce(replica, alone[i], op);
          EXPECT_TRUE(at::equal(sums[i], one)) << i;
          EXPECT_EQ(sums[i].sizes(), one.sizes());
          loss = loss + (replica.rank() + 1) * sums[i].square().sum().to(at::kDouble);
          loss_alone = loss_alone + (replica.rank() + 1) * one.square().sum().to(at::kDouble);
        }
        loss.backward();
        loss_alone.backward();
        for (size_t i = 0; i < 3; ++i)
          EXPECT_TRUE(at::allclose(together[i].grad(), alone[i].grad())) << i;
      }
      EXPECT_TRUE(nn::all_reduce(replica, std::vector<at::Tensor>{}).empty());
    });
  }
  EXPECT_THAT(failure<UsageError>(2,
                                  [](ReplicaContext& replica) {
                                    nn::all_reduce(replica, std::vector<at::Tensor>{at::Tensor()});
                                  }),
              HasSubstr("tensor 1 of 1 is undefined"));
}

}  // namespace
}  // namespace tutti
