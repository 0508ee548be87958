// fit with batch norms over all replicas: another number of replicas is the same training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/base/error.h"
#include "tutti/nn/sync_batch_norm.h"
#include "tutti/sync/tensors.h"
#include "tutti/train/model.h"

#include "tests/support/message_of.h"
#include "tests/support/synchronized_model.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using test::synchronized_data;
using test::synchronized_model;
using ::testing::AllOf;
using ::testing::HasSubstr;

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
  const test::TempFolder folder;
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
  EXPECT_THAT(test::message_of<UsageError>([&] { model.fit(synchronized_data(), {.verbose = 0}); }),
              AllOf(HasSubstr("fit: "), HasSubstr("SyncBatchNorm"), HasSubstr("take turns")));
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

}  // namespace
}  // namespace tutti
