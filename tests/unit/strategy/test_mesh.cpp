// Ranks of a mesh: their groups, their samples, and one update of a model whose parts they have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "tutti/base/error.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/strategy/modules/whole_model.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using mesh::Axis;
using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

StrategyOptions mesh_options(const std::string& kind, const std::string& mesh) {
  return {.kind = kind, .threads_per_replica = 1, .seed = 3, .mesh = mesh};
}

TEST(MeshStrategy, RanksMeetThoseOnTheirAxes) {
  Strategy strategy(mesh_options("mirrored", "data=2,stage=2,tensor=2"));
  EXPECT_EQ(strategy.world().size, 8);
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
  const auto sums = strategy.run([](ReplicaContext& replica) {
    std::vector<double> sums;
    for (const Axis axis : {Axis::data, Axis::stage, Axis::tensor}) {
      Group group = replica.group_of(axis);
      double ranks = replica.rank();
      group.all_reduce_now(span_of(std::span(&ranks, 1)), ReduceOp::sum);
      sums.push_back(ranks);
    }
    sums.push_back(replica.replica());
    sums.push_back(replica.place()[static_cast<size_t>(Axis::stage)]);
    return sums;
  });
  //                                            data, stage, tensor, replica, its stage
  EXPECT_THAT(sums.local(0), ElementsAre(0 + 4, 0 + 2, 0 + 1, 0, 0));
  EXPECT_THAT(sums.local(3), ElementsAre(3 + 7, 1 + 3, 2 + 3, 0, 1));
  EXPECT_THAT(sums.local(6), ElementsAre(2 + 6, 4 + 6, 6 + 7, 1, 1));
}

TEST(MeshStrategy, OneDeviceHasAllPartsOfEachReplica) {
  Strategy strategy(mesh_options("one_device", "data=3,stage=2,tensor=2"));
  EXPECT_EQ(strategy.world().size, 3);
  EXPECT_EQ(strategy.num_replicas_in_sync(), 3);
  EXPECT_EQ(strategy.options().replicas, 12);
  strategy.run([](ReplicaContext& replica) {
    EXPECT_EQ(replica.group_of(Axis::tensor).size(), 1);
    EXPECT_EQ(replica.tensor_blocks(), 2);
    EXPECT_EQ(replica.replica(), replica.rank());
  });
}

TEST(MeshStrategy, RanksOfAReplicaReadTheSameSamples) {
  Strategy strategy(mesh_options("mirrored", "data=2,stage=3"));
  const auto x = torch::arange(14, torch::kFloat);
  auto data = strategy.distribute(data::from_tensors({x, x}).batch(7));
  for (auto&& batch : data.epoch(0)) {
    const auto read = strategy.run([&](ReplicaContext& replica) {
      const auto columns = batch.columns(replica);
      return std::pair{batch.first_row(replica), columns[0]};
    });
    for (int rank = 0; rank < 6; ++rank) {
      EXPECT_EQ(read.local(rank).first, rank < 3 ? 0 : 4);
      EXPECT_TRUE(at::equal(read.local(rank).second, read.local(rank / 3 * 3).second));
    }
    EXPECT_EQ(at::cat({read.local(0).second, read.local(3).second}).numel(), 7);
  }
}

TEST(MeshStrategy, RefusesWhatDoesNotFit) {
  const auto refusal = [](StrategyOptions options) {
    return message_of<UsageError>([&] { Strategy strategy(options); });
  };
  auto options = mesh_options("mirrored", "data=2,stage=2,tensor=2");
  options.replicas = 6;
  EXPECT_THAT(refusal(options), HasSubstr("needs 8 replicas, got 6"));
  EXPECT_THAT(refusal(mesh_options("mirrored", "stages=2")), HasSubstr("did you mean \"stage\""));
  options = mesh_options("mirrored", "tensor=4");
  options.tensor_blocks = 2;
  EXPECT_THAT(refusal(options), HasSubstr("2 tensor blocks for 4 ranks"));
  options = mesh_options("mirrored", "data=2,stage=2");
  options.shares = {1, 1, 1, 1};
  EXPECT_THAT(refusal(options), HasSubstr("4 shares for 2 replicas"));
  Strategy strategy(mesh_options("mirrored", "stage=2"));
  EXPECT_THROW(strategy.resize(1), UsageError);
}

// ---- one model of two stages, each layer of the second in two pieces ----

const std::map<std::string, std::vector<int64_t>> kShapes = {
    {"first.weight", {4, 3}}, {"first.bias", {4}}, {"second.weight", {6, 4}}, {"second.bias", {5}}};

at::Tensor initial(const std::string& name) {
  const auto& shape = kShapes.at(name);
  return torch::arange(static_cast<double>(c10::multiply_integers(shape)), torch::kFloat)
             .view(shape) /
         7;
}

struct Part : torch::nn::Module {
  void add(const std::string& group, const std::string& name, const Piece* piece = nullptr) {
    auto child = named_children().contains(group)
                     ? named_children()[group]
                     : register_module(group, std::make_shared<torch::nn::Module>());
    const std::string full = group + "." + name;
    const at::Tensor whole = initial(full);
    child->register_parameter(name, piece == nullptr ? whole : piece_of(whole, *piece));
    if (piece != nullptr) pieces.emplace(full, *piece);
  }
  std::map<std::string, Piece> pieces;
};

std::shared_ptr<Part> part_at(const mesh::Mesh& mesh, int rank) {
  const auto place = mesh.place_of(rank);
  const auto stage = place[static_cast<size_t>(Axis::stage)];
  const auto tensor = place[static_cast<size_t>(Axis::tensor)];
  auto part = std::make_shared<Part>();
  const bool whole = mesh.size(Axis::stage) == 1;
  if (whole || stage == 0) {
    part->add("first", "weight");
    part->add("first", "bias");
  }
  if (!whole && stage == 0) return part;
  if (mesh.size(Axis::tensor) == 1) {
    part->add("second", "weight");
    part->add("second", "bias");
  } else {
    const Piece rows{{6, 4}, 0, tensor * 3, 3}, units{{5}, 0, tensor == 0 ? 0 : 3, 3L - tensor};
    part->add("second", "weight", &rows);
    part->add("second", "bias", &units);
  }
  return part;
}

/// Gradients that depend on the replica, the step and the element of the whole parameter.
at::Tensor gradient_of(const std::string& name, int replica, int step) {
  const at::Tensor values = initial(name);
  return at::sin(values * (replica + 1) + step);
}

struct MeshLoop {
  MeshLoop(const std::string& kind, const std::string& mesh, const optim::Clip& clip = {})
      : strategy(mesh_options(kind, mesh)),
        modules(strategy,
                [this](int local) {
                  const World& world = strategy.world();
                  return part_at(world.mesh, world.first_rank + local);
                },
                {.pieces_of =
                     [](const torch::nn::Module& module) {
                       return dynamic_cast<const Part&>(module).pieces;
                     }}),
        optimizer(modules, {optim::adam({.learning_rate = 0.1, .weight_decay = 0.01}),
                            clip,
                            {{.pattern = "*.bias", .weight_decay = 0}}}) {}

  void step(int number) {
    strategy.run([&](ReplicaContext& replica) {
      const auto& module = modules.module(replica);
      const auto& pieces = dynamic_cast<const Part&>(*module).pieces;
      std::vector<at::Tensor> gradients;
      for (const auto& item : module->named_parameters()) {
        const auto whole = gradient_of(item.key(), replica.replica(), number);
        const auto piece = pieces.find(item.key());
        gradients.push_back(piece == pieces.end() ? whole : piece_of(whole, piece->second));
      }
      optimizer.apply(replica, gradients);
    });
  }

  std::map<std::string, at::Tensor> weights() const {
    std::map<std::string, at::Tensor> all;
    const auto* const whole = modules.whole();
    const auto values =
        whole != nullptr ? whole->gather_parameters() : unique_parameters(*modules.module(0));
    for (const auto& [name, tensor] : values) all.emplace(name, tensor.detach().clone());
    return all;
  }

  Strategy strategy;
  ReplicatedModules modules;
  Optimizer optimizer;
};

void expect_equal(const std::map<std::string, at::Tensor>& a,
                  const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), kShapes.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

TEST(MeshUpdater, MakesTheUpdateOfTheWholeModel) {
  MeshLoop oracle("mirrored", "data=2");
  std::vector<std::map<std::string, at::Tensor>> expected;
  for (int step = 0; step < 4; ++step) {
    oracle.step(step);
    expected.push_back(oracle.weights());
  }
  for (const std::string mesh : {"data=2,stage=2", "data=2,tensor=2", "data=2,stage=2,tensor=2"}) {
    MeshLoop loop("mirrored", mesh);
    for (int step = 0; step < 4; ++step) {
      loop.step(step);
      expect_equal(loop.weights(), expected[static_cast<size_t>(step)]);
    }
    EXPECT_EQ(loop.optimizer.version(), 4);
  }
}

TEST(MeshUpdater, ClipsNormsOfTheWholeModel) {
  for (const optim::Clip& clip : {optim::Clip{.global_norm = 0.5}, optim::Clip{.norm = 0.3}}) {
    MeshLoop oracle("mirrored", "data=2", clip);
    for (int step = 0; step < 3; ++step) oracle.step(step);
    for (const std::string mesh :
         {"data=2,stage=2", "data=2,tensor=2", "data=2,stage=2,tensor=2"}) {
      MeshLoop loop("mirrored", mesh, clip);
      for (int step = 0; step < 3; ++step) loop.step(step);
      expect_equal(loop.weights(), oracle.weights());
    }
  }
}

TEST(MeshUpdater, StateIsThatOfTheWholeModel) {
  for (const std::string from : {"data=2", "data=2,stage=2,tensor=2", "data=2,tensor=2"})
    for (const std::string to : {"data=2,stage=2,tensor=2", "data=2", "data=2,stage=2"}) {
      MeshLoop straight("mirrored", from), first("mirrored", from), second("mirrored", to);
      for (int step = 0; step < 5; ++step) straight.step(step);
      for (int step = 0; step < 3; ++step) first.step(step);
      NamedTensors parameters;
      const auto weights = first.weights();
      const auto* const order = second.modules.whole();
      if (order != nullptr) {
        for (const auto& entry : order->parameters())
          parameters.emplace_back(entry.name, weights.at(entry.name));
      } else {
        for (const auto& [name, tensor] : unique_parameters(*second.modules.module(0)))
          parameters.emplace_back(name, weights.at(name));
      }
      second.optimizer.updater().restore(first.optimizer.updater().state(), parameters);
      for (int step = 3; step < 5; ++step) second.step(step);
      expect_equal(second.weights(), straight.weights());
    }
}

TEST(MeshUpdater, RefusesTrustRatiosAndUnknownGroups) {
  Strategy strategy(mesh_options("mirrored", "stage=2"));
  const ReplicatedModules modules(strategy,
                                  [&](int local) { return part_at(strategy.world().mesh, local); },
                                  {.pieces_of = [](const torch::nn::Module& module) {
                                    return dynamic_cast<const Part&>(module).pieces;
                                  }});
  EXPECT_THAT(message_of<UsageError>([&] { Optimizer(modules, optim::lamb({})); }),
              HasSubstr("measures whole parameters"));
  EXPECT_THAT(message_of<UsageError>([&] {
                Optimizer(modules, {optim::adam({.weight_decay = 0.1}),
                                    {},
                                    {{.pattern = "*.gain", .weight_decay = 0}}});
              }),
              HasSubstr("no parameter has such a name"));
}

}  // namespace
}  // namespace tutti
