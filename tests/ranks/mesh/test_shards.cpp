// Parameters in slices, and given up between uses, on a mesh: who takes no part, and the bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/strategy/mesh/detail/mesh_updater.h"
#include "tutti/sync/sharded/sharded_updater.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/staged_model.h"
#include "tutti/train/model/weights.h"

#include "tests/ranks/mesh/mesh_training.h"
#include "tests/support/message_of.h"

namespace tutti {
namespace {

using mesh::Axis;
using test::MeshCase;

/// Steps of a loop of one's own, in the second of which replica 1 has no samples, and in the last
/// of which it has all.
std::string train_unequally(const MeshCase& one, const optim::Clip& clip) {
  Strategy strategy(test::options_of("mirrored", one));
  StagedModel model(strategy, test::small_gpt(), {.cut = parallel::before(one.cut)});
  Optimizer optimizer(model.modules(), optim::Recipe{optim::adam({.learning_rate = 0.01}), clip});
  torch::manual_seed(4);
  const auto text = torch::randint(0, test::kVocabulary, {8, test::kContext + 1}, at::kLong);
  const auto loss = [](at::TensorList outputs, const std::vector<at::Tensor>& targets) {
    return torch::cross_entropy_loss(outputs[0].flatten(0, 1), targets[0].flatten());
  };
  for (int64_t step = 0; step < 4; ++step)
    strategy.run([&](ReplicaContext& replica) {
      const bool abstains = (step == 1 && replica.replica() == 1) ||  //
                            (step == 3 && replica.replica() == 0);
      const auto own = text.narrow(0, 4 * replica.replica(), 4);
      if (abstains)
        optimizer.abstain(replica);
      else
        optimizer.apply(replica, model.step(replica, {own.narrow(1, 0, test::kContext)},
                                            {own.narrow(1, 1, test::kContext)}, loss,
                                            {.microbatches = one.microbatches,
                                             .place = nn::SamplePlace{.seed = 1, .step = step}}));
      model.updated(replica);
    });
  return weights_sha256(model.whole());
}

TEST(MeshShards, TrainTheSameWhereAReplicaTakesNoPart) {
  for (const optim::Clip& clip : {optim::Clip{}, optim::Clip{.global_norm = 0.05}})
    for (const char* mesh : {"data=2,stage=2", "data=2,tensor=2", "data=2,stage=2,tensor=2"}) {
      MeshCase one{.mesh = mesh, .microbatches = 2};
      if (one.mesh.find("stage") != std::string::npos) one.cut = {"transformer.h.1.ln_1"};
      const std::string whole = train_unequally(one, clip);
      one.shard = "parameters";
      EXPECT_EQ(train_unequally(one, clip), whole) << one.word();
    }
}

// All ranks wait for others in some group or other; the one that fails is in few of them.
TEST(MeshShards, EndAtOnceWhereARankFails) {
  const MeshCase one{.mesh = "data=2,stage=2,tensor=2", .microbatches = 4, .shard = "parameters"};
  StrategyOptions options = test::options_of("mirrored", one);
  options.time_limit = Millis{3'600'000};
  Strategy strategy(options);
  StagedModel model(strategy, test::small_gpt(/*tied=*/true, /*dropout=*/0));
  const Optimizer optimizer(model.modules(), optim::adam());
  const auto x = torch::zeros({8, test::kContext}, at::kLong);
  EXPECT_THAT(test::message_of<Error>([&] {
                strategy.run([&](ReplicaContext& replica) {
                  int calls = 0;
                  const auto loss = [&](at::TensorList outputs, const std::vector<at::Tensor>&) {
                    if (replica.rank() == 7 && ++calls == 2) throw UsageError("of the user");
                    return outputs[0].sum();
                  };
                  model.step(replica, {x}, {x}, loss, {.microbatches = one.microbatches});
                });
              }),
              ::testing::HasSubstr("of the user"));
}

/// An updater for each part of a model, as an Optimizer has, which can be asked for its bytes.
struct SlicedParts final : WorldMember {
  SlicedParts(const ReplicatedModules& modules, int64_t bucket_bytes) {
    std::vector<NamedTensors> ranks;
    for (int local = 0; local < modules.size(); ++local)
      ranks.push_back(unique_parameters(*modules.module(local)));
    updater = detail::make_mesh_updater(
        modules.strategy().world(), *modules.whole(), std::move(ranks),
        [&](const World& world, std::vector<NamedTensors> alike) {
          return parts.emplace_back(
              make_sharded_updater(world, optim::adam(), std::move(alike),
                                   {.shard = Shard::parameters, .bucket_bytes = bucket_bytes}));
        });
  }
  void rebind(const World&) override {}
  void in_run(Moment moment, int local) override {
    if (moment == Moment::begins) updater->ready(local, Deadline(kDefaultTimeLimit));
    if (moment == Moment::ends) updater->parts().gathers->meet(local, Until::whole);
  }

  std::vector<std::shared_ptr<ShardedUpdater>> parts;
  std::shared_ptr<Updater> updater;
};

nn::Graph even_layers(int layers, int64_t width) {
  const auto x = nn::input({width});
  auto y = x;
  for (int i = 0; i < layers; ++i) y = nn::linear(width).named(fmt::format("l{}", i))(y);
  return {x, y};
}

// Of six layers on each of two stages, which two replicas have in halves.
TEST(MeshShards, HaveTheBytesOfTheFormula) {
  constexpr int64_t kWidth = 64, kLayer = kWidth * kWidth + kWidth, kStage = 6 * kLayer;
  for (const std::string recompute : {"none", "full"}) {
    Strategy strategy(test::options_of("mirrored", {.mesh = "data=2,stage=2", .blocks = 1}));
    StagedModel model(strategy, even_layers(12, kWidth),
                      {.cut = parallel::before({"l6"}),
                       .schedule = parallel::zb_h1(),
                       .recompute = parallel::recompute_choice(recompute)});
    const auto parts = std::make_shared<SlicedParts>(model.modules(), 4 * kLayer);
    strategy.follow(parts, parts->updater);
    strategy.run([&](ReplicaContext& replica) {
      const int local = replica.local_rank();
      const auto x = torch::ones({4, kWidth});
      const auto loss = [](at::TensorList outputs, const std::vector<at::Tensor>&) {
        return outputs[0].sum();
      };
      parts->updater->begin(local, Overlap::off);
      const auto gradients = model.step(replica, {x}, {x}, loss, {.microbatches = 4});
      const auto stage = static_cast<size_t>(replica.place()[static_cast<size_t>(Axis::stage)]);
      const ShardBytes bytes = parts->parts.at(stage)->bytes(replica.replica());
      EXPECT_LE(bytes.parameters, 1.05 * 4 * (kStage / 2 + 2 * kLayer)) << recompute;
      EXPECT_GE(bytes.parameters, 0.95 * 4 * (kStage / 2 + 2 * kLayer)) << recompute;
      EXPECT_LE(bytes.state, 1.05 * 8 * kStage / 2);
      parts->updater->step(local, gradients, {}, Deadline(replica.time_limit()));
    });
  }
}

TEST(MeshShards, OfTwoOptimizersAreRefused) {
  const auto run_with = [](const std::string& shard) {
    Strategy strategy(
        test::options_of("mirrored", {.mesh = "data=2,stage=2", .blocks = 1, .shard = shard}));
    StagedModel one(strategy, even_layers(2, 4)), other(strategy, even_layers(2, 4));
    const Optimizer first(one.modules(), optim::adam()), second(other.modules(), optim::adam());
    strategy.run([](ReplicaContext&) {});
  };
  EXPECT_THAT(test::message_of<UsageError>([&] { run_with("parameters"); }),
              ::testing::HasSubstr("take --shard gradients"));
  run_with("gradients");
}

}  // namespace
}  // namespace tutti
