// fit with batch norms over all replicas: another number of replicas is the same training. And with
// frozen ones of any kind, which infer.
#include <torch/torch.h>

#include "tutti/nn/sync_batch_norm.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model/model.h"

#include "tests/support/expect.h"
#include "tests/support/synchronized_model.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

Strategy kind_of(const std::string& kind, int replicas) {
  return Strategy({.kind = kind, .replicas = replicas, .threads_per_replica = 1, .seed = 7});
}

struct NormedTraining {
  std::vector<double> losses;
  std::vector<std::pair<std::string, at::Tensor>> weights;
  std::string sha;
};

NormedTraining trained(const Strategy& strategy) {
  Model model = synchronized_model(strategy);
  const History history = model.fit(synchronized_data(), {.epochs = 2, .verbose = 0});
  NormedTraining outcome{history.column("train_loss"), {}, model.weights_sha256()};
  for (auto& [name, value] : unique_parameters(*model.modules().module(0)))
    outcome.weights.emplace_back(name, value.detach().clone());
  for (auto& [name, value] : model.modules().merged_buffers())
    outcome.weights.emplace_back(name, value);
  return outcome;
}

// 10 samples in batches of 4: the last batch of 2 leaves a third replica without samples.
TEST(SyncBatchNormFit, AnyNumberOfReplicasIsTheTrainingOfOne) {
  const NormedTraining one = trained(kind_of("mirrored", 1));
  for (int replicas : {2, 3}) {
    const NormedTraining many = trained(kind_of("mirrored", replicas));
    for (size_t epoch = 0; epoch < one.losses.size(); ++epoch)
      EXPECT_NEAR(many.losses[epoch], one.losses[epoch], 1e-5);
    ASSERT_EQ(many.weights.size(), one.weights.size());
    for (size_t i = 0; i < one.weights.size(); ++i) {
      EXPECT_EQ(many.weights[i].first, one.weights[i].first);
      EXPECT_TRUE(at::allclose(many.weights[i].second, one.weights[i].second, 1e-4, 1e-5))
          << one.weights[i].first;
    }
    EXPECT_EQ(many.sha, trained(kind_of("mirrored", replicas)).sha);
  }
}

TEST(SyncBatchNormFit, AllReplicasHaveOneSetOfStatistics) {
  const Strategy strategy = kind_of("mirrored", 3);
  Model model = synchronized_model(strategy);
  model.fit(synchronized_data(), {.epochs = 1, .verbose = 0});
  const auto first = unique_buffers(*model.modules().module(0));
  ASSERT_EQ(first.size(), 3u);
  for (int local : {1, 2}) {
    const auto other = unique_buffers(*model.modules().module(local));
    for (size_t i = 0; i < first.size(); ++i)
      EXPECT_TRUE(at::equal(first[i].second, other[i].second)) << first[i].first;
  }
  EXPECT_EQ(first[2].second.item<int64_t>(), 3) << "batches, those without own samples too";
}

TEST(SyncBatchNormFit, SavesAndEvaluatesLikeBatchNorm) {
  const TempFolder folder;
  Model model = synchronized_model(kind_of("mirrored", 2));
  model.fit(synchronized_data(), {.epochs = 1, .verbose = 0});
  model.save(folder / "model.safetensors");
  Model plain = synchronized_model(kind_of("one_device", 1), false);
  plain.load(folder / "model.safetensors");
  EXPECT_EQ(plain.weights_sha256(), model.weights_sha256());
  const at::Tensor images = torch::ones({3, 1, 4, 4});
  EXPECT_TRUE(at::equal(plain.predict(images), model.predict(images)));
}

// Its collectives in backward stand between those of the buckets of gradients.
TEST(SyncBatchNormFit, GoesWithGradientsThatAreReducedDuringBackward) {
  std::vector<std::string> shas;
  for (int run = 0; run < 2; ++run) {
    Model model = synchronized_model(kind_of("mirrored", 3));
    model.compile({.optimizer =
                       [](std::vector<at::Tensor> parameters) {
                         return std::make_unique<torch::optim::SGD>(parameters, 0.1);
                       },
                   .loss = losses::sparse_categorical_crossentropy()});
    const History history = model.fit(synchronized_data(), {.epochs = 2, .verbose = 0});
    EXPECT_NEAR(history.column("train_loss").back(), trained(kind_of("mirrored", 1)).losses.back(),
                1e-5);
    shas.push_back(model.weights_sha256());
  }
  EXPECT_EQ(shas[0], shas[1]);
}

TEST(SyncBatchNormFit, IsRefusedWhereReplicasTakeTurns) {
  Model model = synchronized_model(kind_of("one_device", 2));
  EXPECT_THAT(message_of<UsageError>([&] { model.fit(synchronized_data(), {.verbose = 0}); }),
              AllOf(HasSubstr("(SyncBatchNorm): under one_device"), HasSubstr("take turns")));
}

// One pixel and one sample a replica: a batch norm of the own part would have no variance.
TEST(SyncBatchNormFit, NeedsTwoSamplesOfTheGlobalBatchAlone) {
  const auto pixel = [] {
    const auto input = nn::input({1, 4, 4});
    auto x = nn::batch_norm2d({.synchronized = true})(nn::conv2d(3, 4)(input));
    return nn::Graph(input, nn::linear(3)(nn::flatten()(x)));
  };
  Model model(kind_of("mirrored", 2), pixel);
  model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}),
                 .loss = losses::sparse_categorical_crossentropy()});
  const History history = model.fit(synchronized_data().batch(2), {.epochs = 1, .verbose = 0});
  EXPECT_EQ(history.steps, 5);
}

// ---- frozen ones ----

// Buffers after an epoch, with the norm frozen before; and whether all are those from before it.
template <class Make>
bool statistics_stay(const std::string& kind, Make make, bool frozen) {
  Model model(strategy_of(kind, 2), make);
  std::vector<at::Tensor> before;
  for (int local = 0; local < 2; ++local) {
    const auto& module = model.modules().module(local);
    for (const auto& parameter : module->named_parameters())
      if (parameter.key().find("norm") != std::string::npos && frozen)
        parameter.value().set_requires_grad(false);
    for (const auto& buffer : module->buffers()) before.push_back(buffer.clone());
  }
  model.compile(adam_and_accuracy());
  const auto data = three_classes(24).batch(6);
  model.fit(data, {.epochs = 2, .validation = data, .verbose = 0});
  size_t number = 0;
  bool stay = true;
  for (int local = 0; local < 2; ++local)
    for (const auto& buffer : model.modules().module(local)->buffers())
      stay &= at::equal(buffer, before.at(number++));
  return stay;
}

template <class Norm>
struct NormedNet : torch::nn::Module {
  NormedNet() {
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", Norm(8));
    last = register_module("last", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return last(norm(first(x)).relu()); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  Norm norm{nullptr};
};

TEST(FrozenNormFit, LeavesTheRunningStatistics) {
  const auto plain = [] { return std::make_shared<NormedNet<torch::nn::BatchNorm1d>>(); };
  const auto synchronized = [] { return std::make_shared<NormedNet<nn::SyncBatchNorm>>(); };
  for (const bool frozen : {false, true}) {
    EXPECT_EQ(statistics_stay("mirrored", plain, frozen), frozen);
    EXPECT_EQ(statistics_stay("one_device", plain, frozen), frozen);
    EXPECT_EQ(statistics_stay("mirrored", synchronized, frozen), frozen);
  }
}

TEST(FrozenNormFit, OfAGraphToo) {
  const auto graph = [] {
    const auto input = nn::input({1, 2, 2});
    auto x = nn::conv2d(4, 1).named("first")(input);
    x = nn::flatten()(nn::batch_norm2d().named("norm")(x));
    return nn::Graph(input, nn::linear(3)(x));
  };
  const auto fits = [&](bool frozen) {
    Model model(strategy_of("mirrored", 2), graph);
    for (int local = 0; local < 2; ++local)
      for (const auto& parameter : model.modules().module(local)->named_parameters())
        if (parameter.key().starts_with("norm")) parameter.value().set_requires_grad(!frozen);
    model.compile(adam_and_accuracy());
    const auto tracked = [&] {
      const auto buffers = model.modules().module(0)->named_buffers();
      return buffers["norm.num_batches_tracked"].item<int64_t>();
    };
    model.fit(three_classes(24, {1, 2, 2}).batch(6), {.verbose = 0});
    return tracked();
  };
  EXPECT_EQ(fits(false), 4);
  EXPECT_EQ(fits(true), 0);
}

}  // namespace
}  // namespace tutti
