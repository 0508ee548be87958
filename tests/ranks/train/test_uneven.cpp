// Uneven inputs with replicas in several processes: what the parts in turn give, for every case.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/run_workers.h"
#include "tests/support/uneven.h"

namespace tutti {
namespace {

// Adam; a global norm with classes that weigh differently; several batches to an update.
std::string uneven_stories(const Strategy& strategy, const test::Uneven& uneven) {
  const auto accumulated =
      test::uneven_story(strategy, uneven, optim::lamb({.learning_rate = 0.05}), {.accumulate = 2},
                         true, Precision::bfloat16);
  return accumulated + " / " +
         test::uneven_story(strategy, uneven, optim::adam({.learning_rate = 0.05})) + " / " +
         test::uneven_story(strategy, uneven,
                            optim::Recipe(optim::sgd({.learning_rate = 0.1}), {.global_norm = 0.3}),
                            {.class_weight = {{1, 2.0}}});
}

Strategy uneven_strategy(const std::string& kind, int replicas) {
  return Strategy({.kind = kind, .replicas = replicas, .threads_per_replica = 1, .seed = 7});
}

RANK_PROGRAM(tell_uneven_stories) {
  const int replicas = std::stoi(rank.arguments[0]);
  const Strategy strategy = uneven_strategy("multi_worker", replicas);
  for (const test::Uneven& uneven : test::uneven_cases({replicas}))
    rank.mark(uneven.words() + ": " + uneven_stories(strategy, uneven));
}

TEST(UnevenWorkers, TellTheStoriesOfThePartsInTurn) {
  for (const auto& [workers, replicas] : {std::pair{2, 2}, std::pair{3, 3}, std::pair{2, 4}}) {
    const auto out = test::run_workers(workers, "tell_uneven_stories", {std::to_string(replicas)});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    for (const test::Uneven& uneven : test::uneven_cases({replicas})) {
      const auto expected = uneven_stories(uneven_strategy("one_device", replicas), uneven);
      EXPECT_THAT(test::lines_after(out.log, uneven.words() + ": "),
                  testing::AllOf(testing::SizeIs(workers), testing::Each(expected)));
    }
  }
}

// One sample's loss is finite and has no gradient: the derivative of a root at 0. The update that
// it is in is left out by all workers.
std::string story_of_an_overflow(const Strategy& strategy) {
  Model model(strategy, [] { return test::FeaturesNet(); });
  const Loss loss("breaks", [](const at::Tensor& y, const at::Tensor& labels) {
    const auto bad = (labels == 3).to(at::kFloat);
    const auto each = torch::cross_entropy_loss(y, labels.clamp_max(2), {}, at::Reduction::None);
    return each + ((1 - bad) + bad * y.pow(2).sum(1) * 0).sqrt();
  });
  model.compile({.optimizer = optim::adam({.learning_rate = 0.05}),
                 .loss = loss,
                 .loss_scaling = optim::LossScaling{.initial = 1024}});
  test::NumberedSamples samples(24);
  samples.y[13] = 3;
  model.fit(samples.plain().batch(4), {.epochs = 2, .verbose = 0, .accumulate = 2});
  const auto scale = model.optimizer().loss_scale();
  return fmt::format("{} {} {}", scale->value(), scale->skipped(), model.weights_sha256());
}

RANK_PROGRAM(tell_of_an_overflow) {
  rank.mark("overflow: " + story_of_an_overflow(uneven_strategy("multi_worker", 3)));
}

TEST(UnevenWorkers, LeaveOutAStepThatOverflowsOnOneOfThem) {
  const auto out = test::run_workers(3, "tell_of_an_overflow");
  ASSERT_EQ(out.exit_code, 0) << out.log;
  const auto expected = story_of_an_overflow(uneven_strategy("one_device", 3));
  EXPECT_THAT(expected, testing::StartsWith("256 2 "));
  EXPECT_THAT(test::lines_after(out.log, "overflow: "),
              testing::AllOf(testing::SizeIs(3), testing::Each(expected)));
}

// Class 2 does not count: of 13 samples in batches of 4, some replicas have none that does.
std::string story_of_what_counts(const Strategy& strategy) {
  std::string story;
  for (const int64_t accumulate : {1, 2}) {
    Model model(strategy, [] { return test::FeaturesNet(); });
    model.compile({.optimizer = optim::adam({.learning_rate = 0.05}),
                   .loss = losses::sparse_categorical_crossentropy({.ignore_label = 2}),
                   .metrics = {metrics::accuracy()}});
    const test::NumberedSamples samples(13);
    const History history = model.fit(samples.plain().shuffle().batch(4),
                                      {.epochs = 2, .verbose = 0, .accumulate = accumulate});
    story += fmt::format("{:.10f} {:.10f} {} ", history.last("train_loss"),
                         history.last("accuracy"), model.weights_sha256());
  }
  return story;
}

RANK_PROGRAM(tell_what_counts) {
  rank.mark("counts: " + story_of_what_counts(uneven_strategy("multi_worker", 3)));
}

TEST(UnevenWorkers, DivideByWhatCountsOnAllOfThem) {
  const auto out = test::run_workers(3, "tell_what_counts");
  ASSERT_EQ(out.exit_code, 0) << out.log;
  const auto expected = story_of_what_counts(uneven_strategy("one_device", 3));
  EXPECT_THAT(test::lines_after(out.log, "counts: "),
              testing::AllOf(testing::SizeIs(3), testing::Each(expected)));
}

}  // namespace
}  // namespace tutti
