// What is called with the values of all replicas: reduce and gather; and in which context.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>

#include "tutti/base/error.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/values/variable.h"

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::message_of;
using test::strategy_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor numbers(std::vector<double> values) { return torch::tensor(values, at::kDouble); }

class CrossReplica : public ::testing::TestWithParam<std::pair<const char*, int>> {
 protected:
  Strategy strategy_ = strategy_of(GetParam().first, GetParam().second);
  int replicas_ = GetParam().second;
};

INSTANTIATE_TEST_SUITE_P(Kinds, CrossReplica,
                         ::testing::Values(std::pair("one_device", 1), std::pair("one_device", 3),
                                           std::pair("mirrored", 1), std::pair("mirrored", 2),
                                           std::pair("mirrored", 3)),
                         [](const auto& info) {
                           return fmt::format("{}{}", info.param.first, info.param.second);
                         });

TEST_P(CrossReplica, ReduceOverSeveralAxesCountsElements) {
  // Replica r has r rows of 2: values r.
  const auto values = strategy_.run([](ReplicaContext& replica) {
    return torch::full({replica.rank(), 2, 3}, 1.0 + replica.rank(), at::kDouble);
  });
  double sum = 0, count = 0;
  for (int r = 0; r < replicas_; ++r) sum += r * 2 * (1.0 + r), count += r * 2;
  const at::Tensor mean = strategy_.reduce(ReduceOp::mean, values, {0, 1});
  EXPECT_TRUE(at::allclose(mean, torch::full({3}, count == 0 ? 0 : sum / count, at::kDouble)));
  EXPECT_TRUE(at::equal(strategy_.reduce(ReduceOp::sum, values, {0, 1}),
                        torch::full({3}, sum, at::kDouble)));
}

TEST_P(CrossReplica, ReduceOverNoAxisIsReduce) {
  const auto values = strategy_.run([](ReplicaContext& replica) {
    return torch::full({2, 3}, 1.0 + replica.rank(), at::kDouble);
  });
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean})
    EXPECT_TRUE(
        at::equal(strategy_.reduce(op, values, at::IntArrayRef()), strategy_.reduce(op, values)));
  EXPECT_TRUE(at::equal(strategy_.reduce(ReduceOp::mean, values, at::IntArrayRef()),
                        torch::full({2, 3}, (1.0 + replicas_) / 2, at::kDouble)));
}

// 70,000 is more than float16 has, and bfloat16 stops counting ones at 256.
TEST_P(CrossReplica, MeansOfSixteenBitsNeitherOverflowNorStall) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const auto values =
        strategy_.run([&](ReplicaContext&) { return torch::ones({70'000, 2}, dtype); });
    EXPECT_TRUE(at::equal(strategy_.reduce(ReduceOp::mean, values, {0}), torch::ones({2}, dtype)));
    const at::Tensor sum = strategy_.reduce(ReduceOp::sum, values, {0, 1});
    EXPECT_TRUE(at::equal(sum, torch::full({}, 140'000.0 * replicas_).to(dtype)));
  }
}

TEST_P(CrossReplica, GatherStandsInRankOrder) {
  const auto values = strategy_.run([](ReplicaContext& replica) {
    return torch::full({2, replica.rank()}, replica.rank(), at::kLong);
  });
  std::vector<int64_t> row;
  for (int r = 0; r < replicas_; ++r) row.insert(row.end(), r, r);
  const at::Tensor expected = torch::tensor(row, at::kLong).expand({2, -1});
  EXPECT_TRUE(at::equal(strategy_.gather(values, 1), expected));
  EXPECT_TRUE(at::equal(strategy_.gather(values, -1), expected));
}

TEST_P(CrossReplica, LocalResultsAndValuesFromAFunction) {
  const auto made = strategy_.values_from_function(
      [](const ValueContext& context) { return 10 * context.num_replicas_in_sync + context.rank; });
  std::vector<int> expected;
  for (int r = 0; r < replicas_; ++r) expected.push_back(10 * replicas_ + r);
  EXPECT_EQ(made.values(), expected);
  const auto seen = strategy_.run([&](ReplicaContext& replica) { return made.local(replica) + 1; });
  for (int r = 0; r < replicas_; ++r) EXPECT_EQ(seen.local(r), expected[r] + 1);
}

TEST_P(CrossReplica, ContextsAreKnown) {
  EXPECT_EQ(ReplicaContext::current(), nullptr);
  const auto ranks =
      strategy_.run([](ReplicaContext&) { return ReplicaContext::current()->rank(); });
  for (int r = 0; r < replicas_; ++r) EXPECT_EQ(ranks.local(r), r);
  EXPECT_EQ(ReplicaContext::current(), nullptr);
}

TEST(CrossReplicaErrors, MethodsInTheWrongContext) {
  const auto refused = [](auto call) {
    Strategy strategy = strategy_of("mirrored", 2);
    return message_of<UsageError>(
        [&] { strategy.run([&](ReplicaContext& replica) { call(strategy, replica); }); });
  };
  const PerReplica<at::Tensor> values({numbers({1}), numbers({2})}, 0);
  EXPECT_THAT(refused([](Strategy& s, auto&) { s.run([](ReplicaContext&) {}); }),
              AllOf(HasSubstr("run: called inside run(), on replica"), HasSubstr("of 2")));
  EXPECT_THAT(refused([&](Strategy& s, auto&) { s.reduce(ReduceOp::sum, values); }),
              HasSubstr("reduce: called inside run()"));
  EXPECT_THAT(refused([&](Strategy& s, auto&) { s.gather(values); }),
              HasSubstr("gather: called inside run()"));
  EXPECT_THAT(refused([&](Strategy& s, auto&) { s.distribute(test::small_data()); }),
              HasSubstr("distribute: called inside run()"));
  EXPECT_THAT(refused([&](Strategy& s, auto&) {
                s.values_from_function([](const ValueContext&) { return 1; });
              }),
              HasSubstr("values_from_function: called inside run()"));
  EXPECT_THAT(refused([&](Strategy& s, ReplicaContext& replica) {
                s.merge(replica, [](Strategy& inner) { inner.run([](ReplicaContext&) {}); });
              }),
              HasSubstr("run: called inside merge()"));
}

TEST(CrossReplicaErrors, ReplicasOfAnotherStrategyAreRefused) {
  Strategy own = strategy_of("mirrored", 2);
  Replicated<torch::nn::Linear> net(own, [] { return torch::nn::Linear(2, 1); });
  Optimizer optimizer(net, optim::sgd());
  Variable seen(own, torch::zeros({}), {.aggregation = VariableAggregation::sum});
  const auto refused = [](auto call) {
    for (const int replicas : {2, 3}) {
      Strategy other = strategy_of("mirrored", replicas);
      EXPECT_THAT(message_of<UsageError>([&] {
                    other.run([&](ReplicaContext& replica) {
                      if (replica.rank() == replicas - 1) call(replica);
                    });
                  }),
                  HasSubstr(fmt::format("replica {} of {} is of another strategy", replicas - 1,
                                        replicas)));
    }
  };
  const at::Tensor one = torch::ones({});
  const std::vector<at::Tensor> none(2);
  refused([&](ReplicaContext& r) { own.merge(r, [](Strategy&) {}); });
  refused([&](ReplicaContext& r) { seen.assign(r, one); });
  refused([&](ReplicaContext& r) { seen.local(r); });
  refused([&](ReplicaContext& r) { net.local(r); });
  refused([&](ReplicaContext& r) { optimizer.minimize(r, one); });
  refused([&](ReplicaContext& r) { optimizer.accumulate(r, one); });
  refused([&](ReplicaContext& r) { optimizer.abstain(r); });
  refused([&](ReplicaContext& r) { optimizer.apply(r, none); });
  refused([&](ReplicaContext& r) { optimizer.parameters(r); });
  EXPECT_EQ(optimizer.version(), 0);
}

TEST(CrossReplicaErrors, AReplicaThatABatchHasNoPartForIsRefused) {
  const auto rows = data::from_arrays({Array::zeros(DType::float32, {6, 2})}).batch(6);
  const auto batches = strategy_of("mirrored", 2).distribute(rows).epoch(0);
  Strategy other = strategy_of("mirrored", 3);
  EXPECT_THAT(message_of<UsageError>([&] {
                other.run([&](ReplicaContext& replica) {
                  if (replica.rank() == 2) (*batches.begin()).columns(replica);
                });
              }),
              HasSubstr("batch: replica 2 of 3 is of another strategy than this batch"));
}

TEST(CrossReplicaErrors, AStrategyThatEndedByAnErrorSaysSo) {
  Strategy s = strategy_of("mirrored", 2);
  EXPECT_THROW(s.run([](ReplicaContext&) { throw std::invalid_argument("no such thing"); }),
               std::invalid_argument);
  EXPECT_THAT(message_of<Error>([&] { s.run([](ReplicaContext&) {}); }),
              AllOf(HasSubstr("ended by an earlier error"), HasSubstr("no such thing")));
}

TEST(CrossReplicaErrors, ValuesOfAnotherStrategyAreRefused) {
  for (const char* kind : {"one_device", "mirrored"})
    for (const int there : {1, 3}) {
      Strategy own = strategy_of(kind, 2), other = strategy_of(kind, there);
      const auto tensors = other.run([](ReplicaContext&) { return torch::ones({2}); });
      const auto doubles = other.run([](ReplicaContext&) { return 1.0; });
      const auto arrays = other.run([](ReplicaContext&) { return std::array<double, 2>{1, 2}; });
      const auto refused = [&](auto call) {
        EXPECT_THAT(message_of<UsageError>(call),
                    HasSubstr(fmt::format("got {} values, expected one for each of the 2", there)));
      };
      refused([&] { own.reduce(ReduceOp::sum, tensors); });
      refused([&] { own.reduce(ReduceOp::sum, tensors, {0}); });
      refused([&] { own.reduce(ReduceOp::sum, doubles); });
      refused([&] { own.reduce(ReduceOp::sum, arrays); });
      refused([&] { own.gather(tensors); });
    }
}

TEST(CrossReplicaErrors, UnlikeTensorsAreNamed) {
  Strategy strategy = strategy_of("mirrored", 2);
  const PerReplica<at::Tensor> values({torch::ones({2, 3}), torch::ones({2, 4})}, 0);
  EXPECT_THAT(message_of<UsageError>([&] { strategy.reduce(ReduceOp::sum, values); }),
              HasSubstr("replica 1 has Float [2, 4], replica 0 has Float [2, 3]"));
  EXPECT_THAT(message_of<Mismatch>([&] { strategy.gather(values); }),
              AllOf(HasSubstr("gather along axis 0: replica 1 has Float [2, 4]"),
                    HasSubstr("but for that axis")));
  EXPECT_THAT(message_of<UsageError>([&] { strategy.reduce(ReduceOp::max, values, {1}); }),
              HasSubstr("reduction max, expected sum or mean"));
  const PerReplica<at::Tensor> scalars({torch::ones({}), torch::ones({})}, 0);
  EXPECT_THAT(
      message_of<UsageError>([&] { strategy.gather(scalars); }),
      AllOf(HasSubstr("gather along axis 0: replica 0 has Float [], which has no such axis"),
            HasSubstr("unsqueeze(0)")));
  EXPECT_THAT(message_of<UsageError>([&] { strategy.gather(values, 2); }),
              HasSubstr("gather along axis 2: replica 0 has Float [2, 3], which has no such axis"));
  EXPECT_THAT(
      message_of<UsageError>([&] { strategy.reduce(ReduceOp::sum, values, {0, 2}); }),
      HasSubstr("reduce over axes [0, 2]: replica 0 has Float [2, 3]; it has no such axis"));
  EXPECT_THAT(message_of<UsageError>([&] { strategy.reduce(ReduceOp::sum, values, {1, -1}); }),
              HasSubstr("an axis is given twice"));
  const PerReplica<at::Tensor> half_there({torch::ones({2}), at::Tensor()}, 0);
  EXPECT_THAT(message_of<UsageError>([&] { strategy.reduce(ReduceOp::mean, half_there, {0}); }),
              HasSubstr("replica 1 has an undefined tensor"));
}

// ---- distribute_from_function ----

data::Dataset numbered(int64_t count, int64_t batch) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i));
  return data::from_arrays({data::array_of(values, {count}), data::array_of(values, {count})})
      .batch(batch);
}

TEST_P(CrossReplica, BatchesOfAFunctionGoToOneReplicaEach) {
  auto batches = strategy_.distribute_from_function([&](const InputContext& context) {
    EXPECT_EQ(context.num_input_pipelines, 1);
    EXPECT_EQ(context.input_pipeline_id, 0);
    EXPECT_EQ(context.num_replicas_in_sync, replicas_);
    EXPECT_EQ(context.per_replica_batch_size(4 * replicas_), 4);
    return numbered(10, context.per_replica_batch_size(4 * replicas_));  // 4, 4 and 2 samples
  });
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> sizes;
    std::vector<float> seen;
    for (auto&& batch : batches.epoch(epoch)) {
      sizes.push_back(batch.global_size());
      int64_t rows = 0;
      const auto parts = strategy_.run([&](ReplicaContext& replica) {
        const auto [x, y] = batch.local(replica);
        EXPECT_EQ(x.size(0), batch.local_size(replica));
        return x;
      });
      for (const auto& part : parts.values()) {
        rows += part.size(0);
        for (int64_t i = 0; i < part.size(0); ++i) seen.push_back(part[i].item<float>());
      }
      EXPECT_EQ(rows, batch.global_size());
    }
    const std::vector<std::vector<int64_t>> expected{{4, 4, 2}, {8, 2}, {10}};
    EXPECT_EQ(sizes, expected[static_cast<size_t>(replicas_) - 1]);
    EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  }
}

// 10 samples in batches of 3, 3, 3 and 1 of a replica; groups of `count` global batches.
TEST_P(CrossReplica, GroupsOfAFunctionsBatchesCountAllReplicas) {
  auto batches =
      strategy_.distribute_from_function([](const InputContext&) { return numbered(10, 3); });
  for (int64_t count : {1, 2, 3}) {
    const auto epoch = batches.epoch(0);
    std::vector<int64_t> sizes;
    for (auto&& batch : epoch) sizes.push_back(batch.global_size());
    const auto steps = static_cast<int64_t>(sizes.size());
    EXPECT_EQ(steps, (4 + replicas_ - 1) / replicas_);
    for (auto&& batch : epoch) {
      const int64_t first = batch.step() / count * count;
      const int64_t last = std::min(first + count, steps);
      const auto sum = [&](int64_t end) {
        return std::accumulate(sizes.begin() + first, sizes.begin() + end, int64_t{0});
      };
      EXPECT_EQ(batch.group_size(count), sum(last)) << count << " " << batch.step();
      EXPECT_EQ(batch.group_row(count), sum(batch.step())) << count << " " << batch.step();
      EXPECT_EQ(batch.ends_group(count), batch.step() + 1 == last) << count << " " << batch.step();
    }
  }
}

// The weight after an epoch of the loss (w - x)^2 / 2, at learning rate 1 from w = 0: with one
// update for all 10 samples, their mean.
TEST_P(CrossReplica, AnAccumulatedUpdateOfAFunctionsBatchesIsThatOfAllSamples) {
  struct Weight : torch::nn::Module {
    Weight() { w = register_parameter("w", torch::zeros({1}, at::kDouble)); }
    at::Tensor w;
  };
  auto batches =
      strategy_.distribute_from_function([](const InputContext&) { return numbered(10, 3); });
  Replicated<Weight> net(strategy_, [] { return std::make_shared<Weight>(); });
  Optimizer optimizer(net, optim::sgd({.learning_rate = 1.0}));
  for (auto&& batch : batches.epoch(0))
    strategy_.run([&](ReplicaContext& replica) {
      const auto [x, y] = batch.local(replica);
      const auto loss =
          average_loss((net.local(replica)->w - x).square() / 2, batch.group_size(100));
      if (batch.ends_group(100))
        optimizer.minimize(replica, loss);
      else
        optimizer.accumulate(replica, loss);
    });
  EXPECT_EQ(optimizer.version(), 1);
  EXPECT_DOUBLE_EQ(optimizer.updater().parameters(0)[0].item<double>(), 4.5);
}

TEST(DistributeFromFunction, WrongUse) {
  Strategy strategy = strategy_of("mirrored", 3);
  EXPECT_THAT(message_of<UsageError>([&] {
                strategy.distribute_from_function([](const InputContext& context) {
                  return numbered(10, context.per_replica_batch_size(10));
                });
              }),
              HasSubstr("a global batch of 10 does not divide by 3 replicas"));
  auto batches =
      strategy.distribute_from_function([](const InputContext&) { return numbered(10, 2); });
  strategy.resize(2);
  EXPECT_THAT(message_of<UsageError>([&] { batches.epoch(0); }), HasSubstr("was resized"));
  auto none = strategy.distribute_from_function([](const InputContext&) {
    return data::from_arrays({data::array_of(std::vector<float>{}, {0})}).batch(1);
  });
  EXPECT_THAT(message_of<UsageError>([&] { none.epoch(0); }), HasSubstr("has no samples"));
}

}  // namespace
}  // namespace tutti
