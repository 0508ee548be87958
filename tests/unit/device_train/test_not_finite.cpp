// A loss on a device that is not finite: the host learns it steps later, and it is as if it had
// known at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>

#include "tests/support/message_of.h"
#include "tests/unit/device_train/device_model.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class NotFiniteOnDevices : public test::FakeCudaTest {};

constexpr int64_t kSamples = 90;  // ten steps of nine

data::Dataset good() { return three_classes(kSamples).batch(9); }

// In the third step of ten; it meets one replica alone.
data::Dataset bad() {
  const auto flat = three_classes(kSamples).batch(kSamples).epoch({}).batch(0);
  flat.columns[0].as<float>()[20 * 4] = NAN;
  return data::from_arrays(flat.columns).batch(9);
}

template <class Run>
void everywhere(Run run) {
  for (const DevicePlace& place : device_places()) {
    SCOPED_TRACE(words_of(place));
    test::in_all_orders(4, [&] { run(place); });
  }
}

std::string after_two_steps(const DevicePlace& place) {
  Model model = small_model(strategy_at(place));
  model.fit(good(), {.max_steps = 2, .verbose = 0});
  return model.weights_sha256();
}

TEST_F(NotFiniteOnDevices, WeightsAreThoseBeforeTheStepAndTrainingCanGoOn) {
  everywhere([](const DevicePlace& place) {
    Model model = small_model(strategy_at(place));
    EXPECT_THAT(test::message_of<Error>([&] { model.fit(bad(), {.epochs = 2, .verbose = 0}); }),
                AllOf(HasSubstr("epoch 1 of 2, step 3 of 10"),
                      HasSubstr("input of sample 20 of the dataset has nan at element 0")));
    EXPECT_EQ(model.weights_sha256(), after_two_steps(place));
    EXPECT_EQ(model.optimizer().version(), 2);
    Model other = small_model(strategy_at(place));
    other.fit(good(), {.max_steps = 2, .verbose = 0});
    for (Model* either : {&model, &other}) either->fit(good(), {.verbose = 0});
    EXPECT_EQ(model.weights_sha256(), other.weights_sha256());
    EXPECT_EQ(model.optimizer().version(), 12);
  });
}

TEST_F(NotFiniteOnDevices, MayEndTheTrainingWithTheHistoryOfWhatWasMade) {
  std::map<std::string, double> accuracy;  // by place
  everywhere([&](const DevicePlace& place) {
    Model model = small_model(strategy_at(place));
    const History history =
        model.fit(bad(), {.epochs = 3, .validation = good(), .verbose = 0, .on_nan = OnNan::end});
    EXPECT_EQ(history.steps, 2);
    EXPECT_EQ(history.step_ms.size(), 2U);
    EXPECT_EQ(history.images, 18);
    EXPECT_EQ(history.rows.size(), 1U);
    EXPECT_TRUE(std::isfinite(history.last("val_loss")));
    EXPECT_EQ(model.weights_sha256(), after_two_steps(place));
    // Which steps are counted does not depend on what had come when.
    const auto first = accuracy.emplace(words_of(place), history.last("accuracy")).first;
    EXPECT_EQ(history.last("accuracy"), first->second);
  });
}

TEST_F(NotFiniteOnDevices, GoesOnWhereItIsToldTo) {
  everywhere([](const DevicePlace& place) {
    Model model = small_model(strategy_at(place));
    EXPECT_EQ(model.fit(bad(), {.verbose = 0, .on_nan = OnNan::go_on}).steps, 10);
    EXPECT_EQ(model.optimizer().version(), 10);
  });
}

TEST_F(NotFiniteOnDevices, AnyBatchOfAGroupEndsItBeforeItsUpdate) {
  everywhere([](const DevicePlace& place) {
    Model model = small_model(strategy_at(place));
    const std::string before = model.weights_sha256();
    EXPECT_THAT(test::message_of<Error>([&] { model.fit(bad(), {.verbose = 0, .accumulate = 5}); }),
                HasSubstr("step 1 of 2"));
    EXPECT_EQ(model.weights_sha256(), before);
  });
}

TEST_F(NotFiniteOnDevices, NamesTheParameterThatSpoilsTheOutput) {
  everywhere([](const DevicePlace& place) {
    Model model = small_model(strategy_at(place));
    {
      const at::NoGradGuard no_grad;
      for (int local = 0; local < place.replicas; ++local)
        model.modules().module(local)->parameters()[1][2].fill_(INFINITY);
    }
    EXPECT_THAT(test::message_of<Error>([&] { model.fit(good(), {.verbose = 0}); }),
                AllOf(HasSubstr("step 1 of 10; replica 0: parameter \""),
                      HasSubstr("\" has inf at element 2")));
  });
}

TEST_F(NotFiniteOnDevices, NamesTheOutputWhereAllBeforeItIsFinite) {
  everywhere([](const DevicePlace& place) {
    Model model(strategy_at(place), [] {
      return torch::nn::Sequential(
          torch::nn::Linear(4, 3),
          torch::nn::Functional([](const at::Tensor& x) { return x / (x - x); }));
    });
    model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}),
                   .loss = losses::sparse_categorical_crossentropy()});
    EXPECT_THAT(test::message_of<Error>([&] { model.fit(good(), {.verbose = 0}); }),
                AllOf(HasSubstr("step 1 of 10"), HasSubstr("output of sample 0 of the dataset")));
  });
}

TEST_F(NotFiniteOnDevices, AGradientOfTheLastStepIsFoundInTheParameters) {
  const Loss rooted("root",
                    [](const at::Tensor& y, const at::Tensor&) { return (y * 0).sqrt().sum(1); });
  everywhere([&](const DevicePlace& place) {
    Model model(strategy_at(place), [] { return small_graph(); });
    model.compile({.optimizer = optim::sgd({.learning_rate = 0.1}), .loss = rooted});
    EXPECT_THAT(
        test::message_of<Error>([&] { model.fit(three_classes(10).batch(10), {.verbose = 0}); }),
        AllOf(HasSubstr("after epoch 1 of 1, whose losses were finite, parameter \""),
              HasSubstr("has nan")));
  });
}

TEST_F(NotFiniteOnDevices, NoCheckpointIsOfTheStepOrOneAfterIt) {
  everywhere([](const DevicePlace& place) {
    const test::TempFolder folder;
    const auto checkpoints = folder / "checkpoints";
    Model model = small_model(strategy_at(place));
    EXPECT_THROW(
        model.fit(bad(), {.verbose = 0, .checkpoints = {.folder = checkpoints, .every_steps = 1}}),
        Error);
    EXPECT_EQ(trainings_in(checkpoints).size(), 2U);
    Model loaded = small_model(strategy_at(place));
    loaded.load(trainings_in(checkpoints).back());
    EXPECT_EQ(loaded.weights_sha256(), after_two_steps(place));
  });
}

}  // namespace
}  // namespace tutti
