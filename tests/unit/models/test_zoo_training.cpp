// Every network of the zoo trains under every strategy that one process can have.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/support/zoo_training.h"

namespace tutti {
namespace {

class ZooTrains : public ::testing::TestWithParam<test::SmallNetwork> {};

TEST_P(ZooTrains, TheSameWeightsUnderEveryStrategy) {
  const auto expected = test::train_of_zoo(GetParam(), "one_device");  // the parts in turn
  EXPECT_NE(expected.before, expected.after);
  EXPECT_TRUE(std::isfinite(expected.loss));
  for (const char* kind : {"mirrored", "central_storage"}) {
    const auto got = test::train_of_zoo(GetParam(), kind);
    EXPECT_EQ(got.before, expected.before) << kind;
    EXPECT_EQ(got.after, expected.after) << kind;
    EXPECT_EQ(got.loss, expected.loss) << kind;
  }
  const auto by_autograd = test::train_of_zoo(GetParam(), "mirrored", /*planned=*/false);
  EXPECT_EQ(by_autograd.after, expected.after);
  EXPECT_EQ(by_autograd.loss, expected.loss);
}

INSTANTIATE_TEST_SUITE_P(Zoo, ZooTrains, ::testing::ValuesIn(test::small_zoo()),
                         [](const auto& info) { return info.param.name; });

// With its auxiliary classifier, weighted as in the paper, under Model.
TEST(Zoo, InceptionTrainsBothClassifiers) {
  const auto data = test::zoo_data({1, 30, 30});
  const auto batch = data.epoch({}).batch(0);
  const auto x = tensor_of(batch.columns[0]);
  const auto labels = tensor_of(batch.columns[1]);
  const auto trained = [&](const char* kind) {
    Model model(Strategy({.kind = kind, .replicas = 2, .threads_per_replica = 1}), [] {
      return models::inception_v3(
          {.classes = 3, .input = {1, 30, 30}, .width = 1.0 / 32, .auxiliary = true});
    });
    const auto entropy = losses::sparse_categorical_crossentropy();
    model.compile({.outputs = {{.name = "output", .loss = entropy},
                               {.name = "auxiliary", .loss = entropy, .weight = 0.3}}});
    const auto before = model.modules().module(0)->named_parameters()["AuxLogits.fc.bias"].clone();
    const Scores scores = model.train_on_batch({x}, {labels, labels});
    EXPECT_NEAR(scores.loss, scores.at("output_loss") + 0.3 * scores.at("auxiliary_loss"), 1e-9);
    EXPECT_FALSE(
        torch::equal(model.modules().module(0)->named_parameters()["AuxLogits.fc.bias"], before));
    return model.weights_sha256();
  };
  EXPECT_EQ(trained("mirrored"), trained("one_device"));
}

TEST(Zoo, NoNetworkIsLeftOut) {
  std::set<std::string> trained{"cnn", "linear_regression"};  // doodle_cnn, and no network
  for (const auto& network : test::small_zoo()) trained.insert(network.name);
  EXPECT_EQ(trained, std::set(models::model_names().begin(), models::model_names().end()));
}

}  // namespace
}  // namespace tutti
