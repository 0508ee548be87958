// What training in bfloat16 reaches, beside float32 from the same three seeds.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tutti/data/quickdraw.h"
#include "tutti/data/sources/text.h"
#include "tutti/models/gpt.h"
#include "tutti/models/models.h"

#include "tests/unit/train/small_model.h"

namespace tutti {
namespace {

struct Task {
  nn::Graph graph;
  data::Dataset train, test;
};

/// Loss of validation, by seed.
std::vector<double> losses_in(Precision precision, const Task& task, double rate, int64_t epochs) {
  std::vector<double> losses;
  for (const uint64_t seed : {1U, 2U, 3U}) {
    Model model(
        Strategy({.kind = "one_device", .replicas = 1, .threads_per_replica = 1, .seed = seed}),
        [&] { return task.graph; });
    model.compile({.optimizer = optim::adam({.learning_rate = rate}),
                   .loss = losses::sparse_categorical_crossentropy(),
                   .precision = precision});
    const History history =
        model.fit(task.train, {.epochs = epochs, .validation = task.test, .verbose = 0});
    losses.push_back(history.last("val_loss"));
  }
  return losses;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The means lie no further apart than seeds of float32 do, and each seed learns.
void expect_within_the_noise_of_seeds(const Task& task, double rate, int64_t epochs,
                                      double untrained) {
  const auto full = losses_in(Precision::float32, task, rate, epochs);
  const auto lower = losses_in(Precision::bfloat16, task, rate, epochs);
  const auto [least, most] = std::ranges::minmax(full);
  EXPECT_LE(std::abs(mean_of(lower) - mean_of(full)), most - least)
      << "float32 " << ::testing::PrintToString(full) << ", bfloat16 "
      << ::testing::PrintToString(lower);
  EXPECT_NE(full, lower) << "bfloat16 makes a difference";
  for (const double loss : lower) EXPECT_LT(loss, 0.8 * untrained);
}

TEST(Bfloat16Accuracy, OfDoodlesIsThatOfFloat32WithinTheNoiseOfSeeds) {
  const auto doodles = [](const char* split) {
    return data::quickdraw(TUTTI_SOURCE_DIR "/examples/data/quickdraw", {.split = split});
  };
  constexpr int64_t kTrain = 4000, kTest = 1000;
  const auto some = [](const data::Dataset& all, int64_t count) {
    return all.shuffle({.seed = 1, .each_epoch = false}).take(count);
  };
  expect_within_the_noise_of_seeds(
      {models::doodle_cnn(), some(doodles("train"), kTrain).shuffle().batch(64),
       some(doodles("test"), kTest).batch(250)},
      1e-3, 2, std::log(10.0));
}

TEST(Bfloat16Accuracy, OfTextIsThatOfFloat32WithinTheNoiseOfSeeds) {
  const auto text = [](double begin, double end) {
    return data::text(TUTTI_SOURCE_DIR "/docs/guide/model.md",
                      {.length = 32, .stride = 8, .begin = begin, .end = end});
  };
  const auto train = text(0, 0.9);
  const int64_t vocabulary = train.num_classes();
  expect_within_the_noise_of_seeds(
      {models::gpt({.vocabulary = vocabulary, .context = 32, .layers = 2, .features = 64}),
       train.shuffle().take(3200).batch(32), text(0.9, 1).batch(64)},
      3e-3, 1, std::log(static_cast<double>(vocabulary)));
}

}  // namespace
}  // namespace tutti
