// A loop of one's own on a mesh trains the bits of Model::fit, and of a plain loop on one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/modules/replicated.h"
#include "tutti/train/model/staged_model.h"
#include "tutti/train/model/weights.h"

#include "tests/ranks/mesh/mesh_training.h"
#include "tests/support/message_of.h"

namespace tutti {
namespace {

using test::MeshCase;
using test::message_of;
using ::testing::HasSubstr;

const std::string kMiddle = "transformer.h.1.ln_1", kLate = "transformer.h.2.ln_1";

/// Batches of 16, which 8 parts divide.
data::Dataset even_text() {
  torch::manual_seed(4);
  const auto text = torch::randint(0, test::kVocabulary, {48, test::kContext + 1}, at::kLong);
  return data::from_tensors({text.narrow(1, 0, test::kContext).contiguous(),
                             text.narrow(1, 1, test::kContext).contiguous()})
      .shuffle()
      .batch(16);
}

optim::Recipe adamw() { return optim::adamw({.learning_rate = 0.01, .weight_decay = 0.1}); }

const Loss& loss() {
  static const Loss one = losses::sparse_categorical_crossentropy({.from_logits = true});
  return one;
}

struct Trained {
  std::string weights;
  double loss = 0;  ///< of all samples of the last epoch
};

Trained train_in_loop(const std::string& kind, const MeshCase& one) {
  Strategy strategy(test::options_of(kind, one));
  StagedModel model(strategy, test::small_gpt(),
                    {.cut = parallel::before(one.cut),
                     .schedule = parallel::schedule_choice(one.pipeline, one.chunks)});
  Optimizer optimizer(model.modules(), adamw());
  auto data = strategy.distribute(even_text());
  int64_t step = 0;
  double last = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    last = 0;
    for (auto&& batch : data.epoch(epoch)) {
      std::vector<double> sums(static_cast<size_t>(strategy.world().local));
      strategy.run([&](ReplicaContext& replica) {
        auto [x, y] = batch.local(replica);
        double sum = 0;
        const auto part = [&](at::TensorList outputs, const std::vector<at::Tensor>& targets) {
          return loss().kernel().scaled_sum(outputs[0], targets[0],
                                            1.0 / static_cast<double>(batch.global_size()), sum);
        };
        const auto gradients =
            model.step(replica, {x}, {y}, part,
                       {.microbatches = one.microbatches,
                        .place = nn::SamplePlace{.seed = strategy.options().seed,
                                                 .step = step,
                                                 .first_row = batch.first_row(replica)}});
        optimizer.apply(replica, gradients);
        model.updated(replica);
        if (model.gives_outputs(replica)) sums[static_cast<size_t>(replica.local_rank())] = sum;
      });
      last += strategy.reduce(ReduceOp::sum, PerReplica<double>(sums, strategy.world().first_rank));
      ++step;
    }
  }
  return {weights_sha256(model.whole()), last};
}

std::string train_by_fit(const std::string& kind, const MeshCase& one) {
  Model model = test::make_model(Strategy(test::options_of(kind, one)), one, test::small_gpt());
  model.compile({.optimizer = adamw(), .loss = loss()});
  model.fit(even_text(), {.epochs = 2, .verbose = 0, .microbatches = one.microbatches});
  return model.weights_sha256();
}

TEST(MeshLoop, TrainsTheBitsOfFit) {
  const std::string fit =
      train_by_fit("mirrored", {"stage=2,tensor=2", 8, "1f1b", 0, "none", 2, {kMiddle}});
  const Trained one_device = train_in_loop("one_device", {"data=8,tensor=2", 1});
  EXPECT_EQ(one_device.weights, fit);
  for (const MeshCase& one :
       {MeshCase{"stage=2,tensor=2", 8, "1f1b", 0, "none", 2, {kMiddle}},
        MeshCase{"stage=3", 8, "zb-h1", 0, "none", 2, {kMiddle, kLate}}, MeshCase{"data=1", 8},
        MeshCase{"data=2,stage=2", 4, "zb-h1", 0, "none", 2, {kLate}}}) {
    const Trained trained = train_in_loop("mirrored", one);
    EXPECT_EQ(trained.weights, fit) << one.word();
    EXPECT_NEAR(trained.loss, one_device.loss, 1e-9) << one.word();
  }
}

std::string train_by_minimize(int replicas) {
  Strategy strategy(
      {.kind = "one_device", .replicas = replicas, .threads_per_replica = 1, .seed = 11});
  Replicated<nn::GraphModule> net(strategy, [] { return nn::make_module(test::small_gpt()); });
  Optimizer optimizer(net, adamw());
  auto data = strategy.distribute(even_text());
  int64_t step = 0;
  for (int epoch = 0; epoch < 2; ++epoch)
    for (auto&& batch : data.epoch(epoch)) {
      strategy.run([&](ReplicaContext& replica) {
        auto [x, y] = batch.local(replica);
        const nn::SampleContext place(
            {.seed = strategy.options().seed, .step = step, .first_row = batch.first_row(replica)});
        double sum = 0;
        optimizer.minimize(replica, loss().kernel().scaled_sum(
                                        net.local(replica)->forward(x), y,
                                        1.0 / static_cast<double>(batch.global_size()), sum));
      });
      ++step;
    }
  const auto& modules = net.modules();
  return weights_sha256(state_of(*modules.module(0)));
}

TEST(MeshLoop, TrainsTheBitsOfAPlainLoop) {
  const std::string plain = train_by_minimize(1);
  EXPECT_EQ(train_in_loop("one_device", {"data=1", 1, "1f1b", 0, "none", 1}).weights, plain);
  MeshCase stages{"stage=2", 1, "1f1b", 0, "none", 1, {kMiddle}};
  EXPECT_EQ(train_in_loop("mirrored", stages).weights, plain);
  stages.microbatches = 4;
  EXPECT_EQ(train_in_loop("mirrored", stages).weights, train_by_minimize(4));
}

ModelState after_one_step(const std::string& mesh, int microbatches) {
  Strategy strategy(test::options_of("one_device", {mesh, 1, "1f1b", 0, "none", 1}));
  StagedModel model(strategy, [] {
    using namespace torch::nn;
    return Sequential(Linear(12, 8), BatchNorm1d(8), Linear(8, 4));
  });
  Optimizer optimizer(model.modules(), adamw());
  torch::manual_seed(6);
  const auto x = torch::rand({16, 12}), y = torch::randint(0, 4, {16}, at::kLong);
  auto data = strategy.distribute(data::from_tensors({x, y}).batch(16));
  for (auto&& batch : data.epoch(0))
    strategy.run([&](ReplicaContext& replica) {
      auto [x, y] = batch.local(replica);
      double sum = 0;
      optimizer.apply(
          replica, model.step(replica, {x}, {y},
                              [&](at::TensorList outputs, const std::vector<at::Tensor>& targets) {
                                return loss().kernel().scaled_sum(outputs[0], targets[0], 1.0 / 16,
                                                                  sum);
                              },
                              {.microbatches = microbatches}));
      model.updated(replica);
    });
  return model.whole();
}

// Replicas average what theirs have moved once; microbatches move one's again and again.
TEST(MeshLoop, MovesStatisticsOfBatchNormsOnceAMicrobatch) {
  const ModelState replicas = after_one_step("data=4", 1),
                   microbatches = after_one_step("data=1", 4);
  EXPECT_EQ(weights_sha256({replicas.parameters, {}}),
            weights_sha256({microbatches.parameters, {}}));
  EXPECT_NE(weights_sha256({{}, replicas.buffers}), weights_sha256({{}, microbatches.buffers}));
}

TEST(MeshLoop, GivesOutputsOnTheLastStage) {
  const auto x = torch::zeros({3, test::kContext}, at::kLong);
  const auto outputs = [&](const std::string& mesh) {
    Strategy strategy(test::options_of("mirrored", {mesh, 1, "1f1b", 0, "none", 1}));
    StagedModel model(strategy, test::small_gpt(/*tied=*/true, /*dropout=*/0),
                      {.cut = parallel::before({kMiddle})});
    model.modules().train(false);
    return strategy.run([&](ReplicaContext& replica) { return model.forward(replica, {x}); })
        .values();
  };
  const auto one = outputs("data=1");
  const auto two = outputs("stage=2");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_TRUE(two[0].empty());
  ASSERT_EQ(two[1].size(), 1u);
  EXPECT_TRUE(at::equal(two[1][0], one[0][0]));
}

TEST(MeshLoop, RefusesWhatDoesNotFit) {
  const auto refusal = [](int64_t rows, int64_t targets, int microbatches) {
    Strategy strategy(test::options_of("mirrored", {"data=1"}));
    StagedModel model(strategy, test::small_gpt());
    return message_of<UsageError>([&] {
      strategy.run([&](ReplicaContext& replica) {
        model.step(
            replica, {torch::zeros({rows, test::kContext}, at::kLong)},
            {torch::zeros({targets, test::kContext}, at::kLong)},
            [](at::TensorList outputs, const std::vector<at::Tensor>&) { return outputs[0].sum(); },
            {.microbatches = microbatches});
      });
    });
  };
  EXPECT_THAT(refusal(4, 3, 1), HasSubstr("tensors of 4 and of 3 rows"));
  EXPECT_THAT(refusal(0, 0, 1), HasSubstr("Optimizer::abstain"));
  EXPECT_THAT(refusal(4, 4, 0), HasSubstr("microbatches is 0, must be from 1 to 4096"));
}

// A world without a mesh may grow.
TEST(MeshLoop, GoesOnInALargerWorld) {
  const auto weights_at = [](const std::vector<int>& sizes) {
    Strategy strategy(
        {.kind = "mirrored", .replicas = sizes[0], .threads_per_replica = 1, .seed = 1});
    StagedModel model(strategy, test::small_gpt(/*tied=*/true, /*dropout=*/0));
    Optimizer optimizer(model.modules(), adamw());
    const auto x = torch::arange(8 * test::kContext, at::kLong).remainder(65).view({8, -1});
    for (const int size : sizes) {
      if (size != strategy.num_replicas_in_sync()) strategy.resize(size);
      strategy.run([&](ReplicaContext& replica) {
        const int64_t rows = 8 / size;
        const auto own = x.narrow(0, rows * replica.rank(), rows);
        const auto part = [&](at::TensorList outputs, const std::vector<at::Tensor>& targets) {
          return at::cross_entropy_loss(outputs[0].flatten(0, 1), targets[0].flatten()) / 8;
        };
        optimizer.apply(replica,
                        model.step(replica, {own}, {own}, part, {.microbatches = 8 / size}));
        model.updated(replica);
      });
    }
    return weights_sha256(model.whole());
  };
  EXPECT_EQ(weights_at({2, 4}), weights_at({4, 4}));
}

TEST(MeshLoop, BlocksAreComputedAgainInALargerWorldToo) {
  const auto weights_at = [](const std::vector<int>& sizes) {
    Strategy strategy(
        {.kind = "mirrored", .replicas = sizes[0], .threads_per_replica = 1, .seed = 1});
    Model model(strategy, [] { return test::small_gpt(); },
                {.recompute = parallel::Recompute::blocks()});
    model.compile({.optimizer = adamw(), .loss = loss()});
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (i > 0) strategy.resize(sizes[i]);
      model.fit(even_text(), {.verbose = 0, .microbatches = 8 / sizes[i]});
    }
    return model.weights_sha256();
  };
  EXPECT_EQ(weights_at({2, 4}), weights_at({4, 8}));
}

// Who has the loss knows that a step is bad; the other parts of the model learn it in the step.
TEST(MeshLoop, AStepThatOneRankLeavesOutIsLeftOutByAllParts) {
  for (const char* shard : {"", "parameters"}) {
    const MeshCase one{.mesh = "data=2,stage=2", .microbatches = 2, .shard = shard};
    Strategy strategy(test::options_of("mirrored", one));
    StagedModel model(strategy, test::small_gpt(/*tied=*/true, /*dropout=*/0),
                      {.cut = parallel::before({"transformer.h.1.ln_1"})});
    Optimizer optimizer(model.modules(), optim::adam());
    const auto x = torch::zeros({4, test::kContext}, at::kLong);
    const auto loss = [](at::TensorList outputs, const std::vector<at::Tensor>&) {
      return outputs[0].square().sum();
    };
    const auto step_left_out_by = [&](int rank) {
      strategy.run([&](ReplicaContext& replica) {
        const auto gradients =
            model.step(replica, {x}, {x}, loss, {.microbatches = one.microbatches});
        if (replica.rank() == rank)
          optimizer.leave_out(replica);
        else
          optimizer.apply(replica, gradients);
        model.updated(replica);
      });
      return weights_sha256(model.whole());
    };
    const std::string before = step_left_out_by(-1);
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(step_left_out_by(rank), before) << rank << shard;
    EXPECT_EQ(optimizer.version(), 1);
    EXPECT_NE(step_left_out_by(-1), before);
  }
}

}  // namespace
}  // namespace tutti
