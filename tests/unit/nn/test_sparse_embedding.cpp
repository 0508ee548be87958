// Embedding layers whose rows are in this process: against rows kept in a map, and on any number of
// replicas the same.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "tutti/base/error.h"
#include "tutti/nn/sparse_embedding.h"
#include "tutti/ps/values/sparse_table.h"
#include "tutti/strategy/modules/replicated.h"

#include "tests/support/message_of.h"

namespace tutti::nn {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using Row = std::vector<float>;

constexpr int64_t kWidth = 3;
constexpr double kLearningRate = 0.5;
const std::vector<int64_t> kKeys = {7, -1, std::numeric_limits<int64_t>::min(), 0, 1'000'000'007};

ps::SparseTableSpec user_table() { return {.name = "user", .width = kWidth, .seed = 4}; }

Strategy strategy_of(const std::string& kind, int replicas) {
  return Strategy({.kind = kind, .replicas = replicas, .threads_per_replica = 1, .seed = 3});
}

at::Tensor keys_of(const std::vector<int64_t>& keys) { return torch::tensor(keys, torch::kLong); }

// A dense scale beside a table.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(ps::SparseTableSpec table = user_table()) {
    scale = register_parameter("scale", torch::ones({1}));
    user = register_module("user", SparseEmbedding(std::move(table)));
  }
  at::Tensor forward(const at::Tensor& keys) { return scale * user(keys).sum(-1); }

  at::Tensor scale;
  SparseEmbedding user{nullptr};
};
TORCH_MODULE(Net);

at::Tensor rows_of(Net net, const std::vector<int64_t>& keys) {
  const torch::NoGradGuard no_grad;
  return net->user(keys_of(keys)).clone();
}

Row initial_row(int64_t key) {
  Row row(kWidth);
  const auto unsigned_key = static_cast<uint64_t>(key);
  ps::SparseTable(user_table(), optim::sgd())
      .pull({&unsigned_key, 1}, {row.data(), kWidth, DType::float32});
  return row;
}

// A replica and everything that trains it.
struct Trainer {
  explicit Trainer(Strategy the_strategy, ps::SparseTableSpec table = user_table())
      : strategy(std::move(the_strategy)),
        net(strategy, [table] { return Net(table); }),
        optimizer(net, optim::sgd({.learning_rate = kLearningRate})) {}

  // One step in which replica r has keys[r], whose rows' elements get the gradients `slopes`.
  void step(const std::vector<std::vector<int64_t>>& keys, const std::vector<float>& slopes) {
    strategy.run([&](ReplicaContext& replica) {
      const auto& mine = keys.at(replica.local_rank());
      if (mine.empty()) return optimizer.abstain(replica);
      const at::Tensor rows = net.local(replica)->user(keys_of(mine));
      const at::Tensor slope = torch::tensor(slopes).narrow(0, 0, std::ssize(mine)).unsqueeze(-1);
      optimizer.minimize(replica, (rows * slope).sum() + 0 * net.local(replica)->scale.sum());
    });
  }
  // The same, but for what replica `bad` says of it.
  void leave_out(const std::vector<std::vector<int64_t>>& keys, int bad) {
    strategy.run([&](ReplicaContext& replica) {
      const at::Tensor loss =
          net.local(replica)->forward(keys_of(keys.at(replica.local_rank()))).sum();
      if (replica.rank() == bad)
        optimizer.leave_out(replica, loss);
      else
        optimizer.minimize(replica, loss);
    });
  }
  Net first() { return Net(std::dynamic_pointer_cast<NetImpl>(net.modules().module(0))); }

  Strategy strategy;
  Replicated<Net> net;
  Optimizer optimizer;
};

TEST(SparseEmbedding, OfUnknownKeysReadsInitialRowsOfAnyShape) {
  Trainer trainer(strategy_of("one_device", 1));
  const torch::NoGradGuard no_grad;
  const at::Tensor rows = trainer.first()->user(keys_of({7, -1, 7, 0}).view({2, 2}));
  ASSERT_EQ(rows.sizes(), (std::vector<int64_t>{2, 2, kWidth}));
  EXPECT_TRUE(torch::equal(rows[0][0], torch::tensor(initial_row(7))));
  EXPECT_TRUE(torch::equal(rows[0][1], torch::tensor(initial_row(-1))));
  EXPECT_TRUE(torch::equal(rows[1][0], rows[0][0]));
  EXPECT_EQ(trainer.first()->user(torch::empty({0, 5}, torch::kLong)).sizes(),
            (std::vector<int64_t>{0, 5, kWidth}));
}

TEST(SparseEmbedding, StepsAreThoseOfRowsInAMap) {
  Trainer trainer(strategy_of("one_device", 1));
  std::map<int64_t, Row> rows;
  for (const int64_t key : kKeys) rows[key] = initial_row(key);
  torch::manual_seed(1);
  const std::vector<float> slopes = {0.25F, -1.0F, 0.125F, 2.0F, 0.5F, -0.75F};
  for (int step = 0; step < 20; ++step) {
    std::vector<int64_t> keys;  // some of them twice
    for (size_t i = 0; i < slopes.size(); ++i)
      keys.push_back(kKeys[torch::randint(std::ssize(kKeys), {1}).item<int64_t>()]);
    trainer.step({keys}, slopes);
    std::map<int64_t, float> sums;
    for (size_t i = 0; i < keys.size(); ++i) sums[keys[i]] += slopes[i];
    for (const auto& [key, sum] : sums)
      for (float& element : rows[key]) element -= static_cast<float>(kLearningRate) * sum;
  }
  for (const int64_t key : kKeys)
    EXPECT_TRUE(torch::equal(rows_of(trainer.first(), {key})[0], torch::tensor(rows[key]))) << key;
}

TEST(SparseEmbedding, AStepThatIsLeftOutChangesNoRow) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Trainer trainer(strategy_of(kind, 2)), oracle(strategy_of(kind, 2));
    const std::vector<std::vector<int64_t>> keys = {{7, 0}, {0, -1}};
    trainer.leave_out(keys, 1);
    trainer.step(keys, {0.5F, 2.0F});
    trainer.leave_out(keys, 0);
    trainer.leave_out(keys, 1);
    oracle.step(keys, {0.5F, 2.0F});
    EXPECT_TRUE(at::equal(rows_of(trainer.first(), kKeys), rows_of(oracle.first(), kKeys))) << kind;
    EXPECT_TRUE(at::equal(trainer.first()->scale, torch::ones({1}))) << kind;
    EXPECT_EQ(trainer.optimizer.version(), 1) << kind;
  }
}

TEST(SparseEmbedding, AccumulatedPassesAreOneStep) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Trainer parts(strategy_of(kind, 2)), whole(strategy_of(kind, 2));
    const auto loss_of = [](Trainer& trainer, const ReplicaContext& replica,
                            const std::vector<int64_t>& keys) {
      auto net = trainer.net.local(replica);
      return (net->user(keys_of(keys)) * 0.25).sum() + 0 * net->scale.sum();
    };
    const auto pass = [&](ReplicaContext& replica) {
      parts.optimizer.accumulate(replica, loss_of(parts, replica, {7, replica.rank(), 7}));
    };
    parts.strategy.run(pass);
    parts.optimizer.forget_accumulated();  // as if it had failed
    parts.strategy.run([&](ReplicaContext& replica) {
      pass(replica);
      if (replica.rank() == 0) return parts.optimizer.abstain(replica);
      parts.optimizer.minimize(replica, loss_of(parts, replica, {-1}));
    });
    whole.strategy.run([&](ReplicaContext& replica) {
      std::vector<int64_t> keys = {7, replica.rank(), 7};
      if (replica.rank() == 1) keys.push_back(-1);
      whole.optimizer.minimize(replica, loss_of(whole, replica, keys));
    });
    const std::vector<int64_t> keys = {7, 0, 1, -1};
    EXPECT_TRUE(torch::equal(rows_of(parts.first(), keys), rows_of(whole.first(), keys))) << kind;
    EXPECT_FALSE(torch::equal(rows_of(parts.first(), {7})[0], torch::tensor(initial_row(7))));
    EXPECT_THAT(message_of<UsageError>([&] { parts.optimizer.scale_losses(optim::LossScale{}); }),
                HasSubstr("embedding tables"));
  }
}

// Replica r of a step has these keys; one has none.
at::Tensor trained_rows(const std::string& kind, int replicas) {
  Trainer trainer(strategy_of(kind, replicas));
  for (int step = 0; step < 6; ++step) {
    std::vector<std::vector<int64_t>> keys(replicas);
    for (int replica = 0; replica < replicas; ++replica)
      if ((step + replica) % 4 != 3) keys[replica] = {7, kKeys[(step + replica) % 5], 7, -1};
    trainer.step(keys, {0.1F, 0.3F, -0.7F, 1e-3F});
  }
  return rows_of(trainer.first(), kKeys);
}

class Replicas : public testing::TestWithParam<int> {};

TEST_P(Replicas, ThreadsHaveTheRowsOfReplicasInTurn) {
  const at::Tensor in_turn = trained_rows("one_device", GetParam());
  EXPECT_TRUE(torch::equal(in_turn, trained_rows("mirrored", GetParam())));
  EXPECT_TRUE(torch::equal(in_turn, trained_rows("central_storage", GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Threads, Replicas, testing::Values(1, 2, 3));

TEST(SparseEmbedding, ATableThatTwoLayersShareIsUpdatedOnce) {
  struct TwoImpl : torch::nn::Module {
    TwoImpl() {
      scale = register_parameter("scale", torch::ones({1}));
      left = register_module("left", SparseEmbedding(user_table()));
      right = register_module("right", SparseEmbedding(user_table()));
    }
    at::Tensor scale;
    SparseEmbedding left{nullptr}, right{nullptr};
  };
  const Strategy strategy = strategy_of("one_device", 1);
  Replicated<TwoImpl> net(strategy, [] { return std::make_shared<TwoImpl>(); });
  // Adagrad's second update would be smaller than its first.
  Optimizer optimizer(net, optim::adagrad({.learning_rate = 1}));
  Strategy(strategy).run([&](ReplicaContext& replica) {
    auto& own = *net.local(replica);
    optimizer.minimize(replica, own.left(keys_of({7})).sum() + own.right(keys_of({7})).sum() +
                                    0 * own.scale.sum());
    const torch::NoGradGuard no_grad;
    const at::Tensor expected = torch::tensor(initial_row(7)) - 1;
    EXPECT_TRUE(torch::allclose(own.left(keys_of({7}))[0], expected));
    EXPECT_TRUE(torch::equal(own.left(keys_of({7})), own.right(keys_of({7}))));
  });
}

// Of two rows that a table keeps none goes when others are only read.
TEST(SparseEmbedding, ReadingMakesNoRows) {
  auto table = user_table();
  table.most_rows = 2;
  Trainer trainer(strategy_of("mirrored", 2), table);
  trainer.step({{7}, {-1}}, {1});
  const at::Tensor before = rows_of(trainer.first(), {7, -1});
  std::vector<int64_t> others(100);
  std::iota(others.begin(), others.end(), 1000);
  rows_of(trainer.first(), others);
  trainer.step({{}, {}}, {});
  EXPECT_TRUE(torch::equal(before, rows_of(trainer.first(), {7, -1})));
  EXPECT_FALSE(torch::equal(before[0], torch::tensor(initial_row(7))));
}

TEST(SparseEmbedding, ZeroGradDropsTheRowsOfAnotherLoss) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Trainer plain(strategy_of(kind, 2)), cleared(strategy_of(kind, 2));
    cleared.strategy.run([&](ReplicaContext& replica) {
      cleared.net.local(replica)->forward(keys_of({7, -1})).sum().backward();
      cleared.optimizer.zero_grad(replica);
    });
    for (Trainer* trainer : {&plain, &cleared}) trainer->step({{7}, {0}}, {0.5F});
    EXPECT_TRUE(torch::equal(rows_of(plain.first(), kKeys), rows_of(cleared.first(), kKeys)));
  }
}

// PyTorch's order: forward, zero_grad, backward, step.
TEST(SparseEmbedding, ZeroGradKeepsTheLookUpsOfALossToCome) {
  for (const char* kind : {"one_device", "mirrored"}) {
    Trainer plain(strategy_of(kind, 2)), cleared(strategy_of(kind, 2));
    for (int step = 0; step < 2; ++step) {
      plain.strategy.run([&](ReplicaContext& replica) {
        plain.optimizer.minimize(replica,
                                 plain.net.local(replica)->forward(keys_of({7, -1, 7})).sum());
      });
      cleared.strategy.run([&](ReplicaContext& replica) {
        const at::Tensor loss = cleared.net.local(replica)->forward(keys_of({7, -1, 7})).sum();
        if (step == 1) loss.backward({}, true);  // a gradient that goes, of a graph that stays
        cleared.optimizer.zero_grad(replica);
        cleared.optimizer.minimize(replica, loss);
      });
    }
    EXPECT_TRUE(torch::equal(rows_of(plain.first(), kKeys), rows_of(cleared.first(), kKeys)))
        << kind;
    EXPECT_FALSE(torch::equal(rows_of(cleared.first(), {7})[0], torch::tensor(initial_row(7))));
  }
}

TEST(SparseEmbedding, ZeroGradKeepsNoLookUpWhoseGraphIsGone) {
  Trainer trainer(strategy_of("one_device", 1));
  trainer.strategy.run([&](ReplicaContext& replica) {
    const auto look_up = [&] { return trainer.first()->user(keys_of({7})); };
    const at::Tensor kept = look_up();
    const c10::weak_intrusive_ptr<c10::TensorImpl> gone(look_up()._base().getIntrusivePtr());
    EXPECT_FALSE(gone.expired());
    trainer.optimizer.zero_grad(replica);
    EXPECT_TRUE(gone.expired());
    trainer.optimizer.minimize(replica, kept.sum());
  });
  EXPECT_FALSE(torch::equal(rows_of(trainer.first(), {7})[0], torch::tensor(initial_row(7))));
}

TEST(SparseEmbedding, ZeroGradDropsAccumulatedRows) {
  Trainer trainer(strategy_of("one_device", 1));
  trainer.strategy.run([&](ReplicaContext& replica) {
    trainer.optimizer.accumulate(replica, trainer.first()->forward(keys_of({7})).sum());
    trainer.optimizer.zero_grad(replica);
    trainer.optimizer.abstain(replica);
  });
  EXPECT_TRUE(torch::equal(rows_of(trainer.first(), {7})[0], torch::tensor(initial_row(7))));
}

// In one run() replicas that take turns cannot see new rows: nothing else is trained instead.
TEST(SparseEmbedding, InTurnRowsThatHaveYetToChangeAreNotLookedUp) {
  Trainer trainer(strategy_of("one_device", 2));
  const at::Tensor initial = rows_of(trainer.first(), kKeys);
  const auto step_and = [&](auto after) {
    trainer.strategy.run([&](ReplicaContext& replica) {
      const at::Tensor loss = trainer.net.local(replica)->user(keys_of({7})).sum();
      trainer.optimizer.minimize(replica, loss);
      after(replica);
    });
  };
  const auto look_up = [&](ReplicaContext& replica) {
    const torch::NoGradGuard no_grad;
    trainer.net.local(replica)->user(keys_of({7}));
  };
  EXPECT_THAT(message_of<UsageError>([&] { step_and(look_up); }),
              AllOf(HasSubstr("replica 0: a look-up reads embedding table \"user\" after a step"),
                    HasSubstr("a run() of its own")));
  EXPECT_TRUE(torch::equal(rows_of(trainer.first(), kKeys), initial));
  // The last to take part reads what all have changed.
  step_and([&](ReplicaContext& replica) {
    if (replica.rank() == 1) look_up(replica);
  });
  EXPECT_TRUE(torch::allclose(rows_of(trainer.first(), {7}), initial[0] - 2 * kLearningRate));
}

// A look-up whose output the loss does not use is none, and a forward without a step is forgotten.
TEST(SparseEmbedding, OnlyRowsWithAGradientAreUpdated) {
  Trainer trainer(strategy_of("one_device", 1));
  const at::Tensor initial = rows_of(trainer.first(), kKeys);
  trainer.first()->user(keys_of({0}));
  trainer.step({{7}}, {1});
  const at::Tensor rows = rows_of(trainer.first(), kKeys);
  EXPECT_TRUE(torch::equal(rows.narrow(0, 1, 4), initial.narrow(0, 1, 4)));
  EXPECT_FALSE(torch::equal(rows[0], initial[0]));
}

TEST(SparseEmbedding, RowsAgeInEveryStep) {
  auto table = user_table();
  table.idle_pushes = 2;
  Trainer trainer(strategy_of("one_device", 2), table);
  trainer.step({{7}, {}}, {1});
  trainer.step({{}, {}}, {});
  EXPECT_FALSE(torch::equal(rows_of(trainer.first(), {7})[0], torch::tensor(initial_row(7))));
  trainer.step({{}, {-1}}, {1});
  EXPECT_TRUE(torch::equal(rows_of(trainer.first(), {7})[0], torch::tensor(initial_row(7))));
}

TEST(SparseEmbedding, RowsStayWhenTheWorldIsResized) {
  Trainer trainer(strategy_of("mirrored", 2));
  trainer.step({{7}, {-1}}, {1});
  const at::Tensor before = rows_of(trainer.first(), kKeys);
  trainer.strategy.resize(3);
  EXPECT_TRUE(torch::equal(before, rows_of(trainer.first(), kKeys)));
  trainer.step({{7}, {0}, {0}}, {1});
  EXPECT_TRUE(torch::allclose(rows_of(trainer.first(), {7}), before[0] - kLearningRate));
}

TEST(SparseEmbedding, AStepGoesOnAfterAnError) {
  Trainer trainer(strategy_of("one_device", 2));
  EXPECT_THROW(trainer.step({{7}, {1, 2, 3}}, {1}), c10::Error);  // fewer slopes than keys
  const at::Tensor initial = rows_of(trainer.first(), {7});
  trainer.step({{7}, {7}}, {1});
  EXPECT_TRUE(torch::allclose(rows_of(trainer.first(), {7}), initial - 2 * kLearningRate));
}

TEST(SparseEmbedding, WrongUseIsAnswered) {
  Net alone;
  EXPECT_THAT(message_of<UsageError>([&] { alone->user(keys_of({1})); }),
              AllOf(HasSubstr("embedding table \"user\""), HasSubstr("no optimizer")));
  EXPECT_THAT(message_of<UsageError>([&] { alone->user(torch::ones({1})); }),
              AllOf(HasSubstr("keys are Float"), HasSubstr("expected int64")));
  EXPECT_THAT(message_of<UsageError>([] { SparseEmbedding({.name = "user", .width = 0}); }),
              HasSubstr("width"));

  Trainer trainer(strategy_of("one_device", 1));
  EXPECT_THAT(message_of<UsageError>([&] {
                Optimizer(trainer.net, [](std::vector<at::Tensor> parameters) {
                  return std::make_unique<torch::optim::SGD>(parameters, 0.1);
                });
              }),
              HasSubstr("a torch optimizer cannot"));
  trainer.step({{7}}, {1});
  EXPECT_THAT(message_of<UsageError>([&] { Optimizer(trainer.net, optim::sgd()); }),
              HasSubstr("make the model anew"));

  struct OddImpl : NetImpl {
    OddImpl() {
      auto other = user_table();
      other.width = 5;
      register_module("other", SparseEmbedding(other));
    }
  };
  Replicated<OddImpl> odd(strategy_of("one_device", 1), [] { return std::make_shared<OddImpl>(); });
  EXPECT_THAT(message_of<UsageError>([&] { Optimizer(odd, optim::sgd()); }),
              AllOf(HasSubstr("share a table"), HasSubstr("3 float32"), HasSubstr("5 float32")));
}

}  // namespace
}  // namespace tutti::nn
