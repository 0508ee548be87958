// Variables: what replicas write and all read, by synchronisation and aggregation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/strategy/values/variable.h"

#include "tests/support/message_of.h"
#include "tests/support/small_training.h"

namespace tutti {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Sync = VariableSynchronization;
using Agg = VariableAggregation;

at::Tensor three(double a, double b, double c) { return torch::tensor({a, b, c}, at::kDouble); }

/// Replica r writes r + 1 times this.
const at::Tensor kBase = three(1, 10, 100);

struct VariableCase {
  const char* kind;
  int replicas;
  Agg aggregation;

  /// Of values base, 2 base, ... n base.
  double factor() const {
    const double sum = replicas * (replicas + 1) / 2.0;
    return aggregation == Agg::sum ? sum : aggregation == Agg::mean ? sum / replicas : 1;
  }
};

class Variables : public ::testing::TestWithParam<VariableCase> {
 protected:
  Variable make(Sync synchronization) {
    return Variable(strategy_, three(5, 5, 5),
                    {.synchronization = synchronization, .aggregation = GetParam().aggregation});
  }
  /// What each replica's copy is after `fn` has run on all.
  template <class Fn>
  std::vector<at::Tensor> run(Fn fn) {
    strategy_.run([&](ReplicaContext& replica) { fn(replica, kBase * (replica.rank() + 1)); });
    return strategy_.run([&](ReplicaContext& replica) { return copies_->local(replica); }).values();
  }
  Strategy strategy_ = test::strategy_of(GetParam().kind, GetParam().replicas);
  std::optional<Variable> copies_;
};

std::vector<VariableCase> all_cases() {
  std::vector<VariableCase> cases;
  for (const auto& [kind, replicas] : std::vector<std::pair<const char*, int>>{
           {"one_device", 1}, {"one_device", 3}, {"mirrored", 2}, {"mirrored", 3}})
    for (const Agg aggregation : {Agg::sum, Agg::mean, Agg::only_first_replica})
      cases.push_back({kind, replicas, aggregation});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Variables, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  return fmt::format("{}{}aggregation{}", info.param.kind, info.param.replicas,
                     static_cast<int>(info.param.aggregation));
});

TEST_P(Variables, OnWriteAllCopiesGetTheAggregate) {
  copies_ = make(Sync::on_write);
  const at::Tensor expected = kBase * GetParam().factor();
  for (const auto& copy :
       run([&](ReplicaContext& replica, const at::Tensor& v) { copies_->assign(replica, v); }))
    EXPECT_TRUE(at::allclose(copy, expected));
  for (const auto& copy :
       run([&](ReplicaContext& replica, const at::Tensor& v) { copies_->assign_add(replica, v); }))
    EXPECT_TRUE(at::allclose(copy, 2 * expected));
  EXPECT_TRUE(at::allclose(copies_->read(), 2 * expected));
}

TEST_P(Variables, OnReadCopiesAreTheReplicasOwn) {
  copies_ = make(Sync::on_read);
  const auto copies =
      run([&](ReplicaContext& replica, const at::Tensor& v) { copies_->assign(replica, v); });
  for (size_t r = 0; r < copies.size(); ++r)
    EXPECT_TRUE(at::equal(copies[r], kBase * (static_cast<double>(r) + 1)));
  EXPECT_TRUE(at::allclose(copies_->read(), kBase * GetParam().factor()));
  run([&](ReplicaContext& replica, const at::Tensor& v) { copies_->assign_add(replica, v); });
  EXPECT_TRUE(at::allclose(copies_->read(), 2 * kBase * GetParam().factor()));
}

TEST_P(Variables, AssignedOutsideTheyReadAsThat) {
  for (const Sync synchronization : {Sync::on_write, Sync::on_read}) {
    Variable variable = make(synchronization);
    variable.assign(three(3, 6, 12));
    EXPECT_TRUE(at::equal(variable.read(), three(3, 6, 12)));
  }
}

TEST_P(Variables, UpdateChangesEachCopy) {
  copies_ = make(Sync::on_read);
  copies_->update([](at::Tensor& copy) { copy.mul_(2); });
  for (const auto& copy : run([](ReplicaContext&, const at::Tensor&) {}))
    EXPECT_TRUE(at::equal(copy, three(10, 10, 10)));
}

TEST(Variable, SumsOfIntegersAreRestoredExactly) {
  Strategy strategy = test::strategy_of("mirrored", 3);
  Variable count(strategy, torch::zeros({2}, at::kLong),
                 {.synchronization = Sync::on_read, .aggregation = Agg::sum});
  count.assign(torch::tensor({7, -4}, at::kLong));
  EXPECT_TRUE(at::equal(count.read(), torch::tensor({7, -4}, at::kLong)));
  const auto copies = strategy.run([&](ReplicaContext& replica) { return count.local(replica); });
  EXPECT_TRUE(at::equal(copies.local(0), torch::tensor({3, -1}, at::kLong)));
  EXPECT_TRUE(at::equal(copies.local(2), torch::tensor({2, -2}, at::kLong)));
}

TEST(Variable, SumsOfAnyDtypeAreRestoredToTheBit) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const at::Tensor random = torch::randn({1000}, generator) * 1e3;
  const at::Tensor special = torch::tensor({1e-40F, 3e38F, INFINITY, 0.0F});
  for (const int replicas : {2, 3, 5, 7})
    for (const at::ScalarType dtype :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kBool}) {
      const at::Tensor value = torch::cat({random, special}).to(dtype);
      Strategy strategy = test::strategy_of("mirrored", replicas);
      Variable total(strategy, torch::zeros_like(value),
                     {.synchronization = Sync::on_read, .aggregation = Agg::sum});
      total.assign(value);
      EXPECT_TRUE(at::equal(total.read(), value)) << replicas << dtype;
      strategy.resize(replicas + 1);
      EXPECT_TRUE(at::equal(total.read(), value)) << replicas << dtype;
    }
}

TEST(Variable, ARestoredSumIsShared) {
  Strategy strategy = test::strategy_of("mirrored", 3);
  Variable total(strategy, torch::zeros({2}, at::kDouble),
                 {.synchronization = Sync::on_read, .aggregation = Agg::sum});
  const double odd = 1.0 + 4 * std::numeric_limits<double>::epsilon();
  total.assign(torch::tensor({6.0, odd}, at::kDouble));
  const auto copies = strategy.run([&](ReplicaContext& replica) { return total.local(replica); });
  for (const at::Tensor& copy : copies.values()) EXPECT_EQ(copy[0].item<double>(), 2);
}

TEST(Variable, KeepsItsValueWhenTheWorldIsResized) {
  Strategy strategy = test::strategy_of("mirrored", 2);
  Variable count(strategy, torch::zeros({}, at::kLong),
                 {.synchronization = Sync::on_read, .aggregation = Agg::sum});
  Variable rate(strategy, torch::full({}, 0.5));
  strategy.run([&](ReplicaContext& replica) {
    count.assign_add(replica, torch::full({}, 10 + replica.rank(), at::kLong));
  });
  for (int replicas : {3, 1, 2}) {
    strategy.resize(replicas);
    EXPECT_EQ(count.read().item<int64_t>(), 21);
    EXPECT_EQ(rate.read().item<float>(), 0.5F);
    const auto all = strategy.run([&](ReplicaContext& replica) { return rate.local(replica); });
    EXPECT_EQ(all.values().size(), static_cast<size_t>(replicas));
  }
}

TEST(Variable, MergedTheyAreReadInTheMidstOfRun) {
  Strategy strategy = test::strategy_of("mirrored", 3);
  Variable count(strategy, torch::zeros({}, at::kLong),
                 {.synchronization = Sync::on_read, .aggregation = Agg::sum});
  const auto seen = strategy.run([&](ReplicaContext& replica) {
    count.assign_add(replica, torch::ones({}, at::kLong));
    return strategy.merge(replica, [&](Strategy&) { return count.read().item<int64_t>(); });
  });
  EXPECT_THAT(seen.values(), ::testing::Each(3));
}

TEST(Variable, WrongUseIsNamed) {
  const at::Tensor one = torch::ones({});
  const auto in_run = [&](auto fn) {
    Strategy strategy = test::strategy_of("mirrored", 2);
    Variable plain(strategy, one, {.name = "rate"});
    return message_of<UsageError>(
        [&] { strategy.run([&](ReplicaContext& replica) { fn(plain, replica); }); });
  };
  EXPECT_THAT(
      in_run([&](Variable& plain, ReplicaContext& r) { plain.assign(r, one); }),
      AllOf(HasSubstr("variable \"rate\": 2 replicas assign"), HasSubstr("no aggregation")));
  EXPECT_THAT(in_run([](Variable& plain, ReplicaContext& r) { plain.assign(r, torch::ones({2})); }),
              HasSubstr("got Float [2], expected Float []"));
  EXPECT_THAT(in_run([](Variable& plain, ReplicaContext&) { plain.read(); }),
              HasSubstr("read() inside run()"));
  Strategy strategy = test::strategy_of("mirrored", 2);
  Variable unread(strategy, one, {.name = "own", .synchronization = Sync::on_read});
  EXPECT_THAT(message_of<UsageError>([&] { unread.read(); }),
              HasSubstr("\"own\": read() of several replicas' copies needs an aggregation"));
  EXPECT_THAT(message_of<UsageError>([&] {
                Variable(strategy, torch::ones({}, at::kLong), {.aggregation = Agg::mean});
              }),
              HasSubstr("a mean of Long []; expected a floating dtype"));
  Variable plain(strategy, one);
  int calls = 0;
  EXPECT_THAT(
      message_of<Mismatch>([&] { plain.update([&](at::Tensor& copy) { copy.add_(calls++); }); }),
      HasSubstr("copies of replicas 0 and 1 differ"));
}

TEST(Variable, ReplicasThatTakeTurnsAssignOnceARun) {
  Strategy strategy = test::strategy_of("one_device", 2);
  Variable total(strategy, torch::zeros({}), {.name = "total", .aggregation = Agg::sum});
  EXPECT_THAT(message_of<UsageError>([&] {
                strategy.run([&](ReplicaContext& replica) {
                  total.assign(replica, torch::ones({}));
                  total.assign(replica, torch::ones({}));
                });
              }),
              HasSubstr("once a run()"));
  Variable other(strategy, torch::zeros({}), {.name = "other", .aggregation = Agg::sum});
  EXPECT_THAT(message_of<UsageError>([&] {
                strategy.run([&](ReplicaContext& replica) {
                  if (replica.rank() == 0) other.assign(replica, torch::ones({}));
                });
              }),
              HasSubstr("\"other\": replica 1 has not assigned"));
}

TEST(Variable, AllReplicasAssignOrAllAdd) {
  for (const char* kind : {"one_device", "mirrored"})
    for (const Agg aggregation : {Agg::sum, Agg::mean, Agg::only_first_replica}) {
      Strategy strategy = test::strategy_of(kind, 3);
      Variable total(strategy, torch::zeros({}), {.name = "total", .aggregation = aggregation});
      EXPECT_THAT(message_of<Mismatch>([&] {
                    strategy.run([&](ReplicaContext& replica) {
                      if (replica.rank() == 1)
                        total.assign_add(replica, torch::ones({}));
                      else
                        total.assign(replica, torch::ones({}));
                    });
                  }),
                  HasSubstr("\"total\": replica 1 calls assign_add, replica 0 assign"));
      EXPECT_EQ(total.read().item<float>(), 0);
    }
}

// The rule that buffers of models follow: running statistics by their mean, counters by replica
// 0's.
TEST(Variable, BatchStatisticsAreVariablesOfThisKind) {
  Strategy strategy = test::strategy_of("mirrored", 2);
  Replicated<torch::nn::BatchNorm1d> net(strategy, [] { return torch::nn::BatchNorm1d(3); });
  Variable mean(strategy, torch::zeros({3}),
                {.synchronization = Sync::on_read, .aggregation = Agg::mean});
  strategy.run([&](ReplicaContext& replica) {
    auto norm = net.local(replica);
    norm(torch::arange(12, at::kFloat).view({4, 3}) * (replica.rank() + 1));
    mean.assign(replica, norm->running_mean);
  });
  EXPECT_TRUE(at::equal(mean.read(), net.modules().merged_buffers()[0].second));
}

TEST(ReduceTo, GivesWhatReduceGivesWhereItIsWanted) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Strategy strategy({.kind = kind, .replicas = 3, .threads_per_replica = 1});
    const auto value_of = [&](const at::IntArrayRef shape, at::ScalarType dtype, int salt) {
      return strategy.run([&, salt](ReplicaContext& replica) {
        return (torch::arange(c10::multiply_integers(shape), torch::kDouble) * 0.1 +
                replica.rank() + salt)
            .reshape(shape)
            .to(dtype);
      });
    };
    const auto a = value_of({2, 3}, at::kFloat, 1), b = value_of({}, at::kFloat, 2),
               c = value_of({4}, at::kDouble, 3), d = value_of({0}, at::kFloat, 4);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
      const auto together = batch_reduce_to(strategy, op, {{a}, {b}, {c}, {d}});
      size_t place = 0;
      for (const auto* one : {&a, &b, &c, &d}) {
        const at::Tensor alone = strategy.reduce(op, *one);
        EXPECT_TRUE(torch::equal(together[place], alone)) << kind << " " << place;
        EXPECT_EQ(together[place].scalar_type(), alone.scalar_type());
        EXPECT_EQ(together[place++].sizes(), alone.sizes());
        EXPECT_TRUE(torch::equal(reduce_to(strategy, op, *one, at::kCPU), alone));
      }
    }
    EXPECT_TRUE(batch_reduce_to(strategy, ReduceOp::sum, {}).empty());
    const auto unlike = strategy.run(
        [](ReplicaContext& replica) { return torch::ones({replica.rank() == 2 ? 3 : 2}); });
    EXPECT_THAT(
        test::message_of<UsageError>(
            [&] { batch_reduce_to(strategy, ReduceOp::sum, {{a}, {unlike}}); }),
        testing::HasSubstr("value 2 of 2: replica 2 has Float [3], replica 0 has Float [2]"));
  }
  Strategy strategy({.kind = "mirrored", .replicas = 2, .threads_per_replica = 1});
  Variable total(strategy, torch::zeros({2}), {.name = "total"});
  const auto each = strategy.run([](ReplicaContext& replica) {
    return torch::full({2}, 1.0F + static_cast<float>(replica.rank()));
  });
  EXPECT_TRUE(torch::equal(reduce_to(strategy, ReduceOp::sum, each, total), torch::full({2}, 3.0)));
  EXPECT_TRUE(torch::equal(total.read(), torch::full({2}, 3.0)));
}

}  // namespace
}  // namespace tutti
