// Uneven inputs with replicas in several processes: what the parts in turn give, for every case.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/cluster/join/join.h"
#include "tutti/strategy/input/torch_data.h"
#include "tutti/train/model/weight_average.h"

#include "tests/support/run_workers.h"
#include "tests/support/temp_folder.h"
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

// ---- what fit() is given beside data: a step, an average, tensors, a part of a file ----

// 23 samples in batches of 4: replicas have unequal parts, and none of the last.
std::string story_of_extras(const Strategy& strategy, const std::string& folder) {
  const test::NumberedSamples samples(23);
  Model model(strategy, [] { return test::FeaturesNet(); });
  const auto step = [](const StepData& data) -> StepOutcome {
    const at::Tensor y = data.forward(data.inputs)[0];
    return {.losses = torch::cross_entropy_loss(y, data.targets[0], {}, at::Reduction::None) +
                      0.1 * y.square().mean(1),
            .outputs = {y}};
  };
  model.compile({.optimizer = optim::adam({.learning_rate = 0.05}),
                 .metrics = {metrics::accuracy()},
                 .train_step = step,
                 .test_step = step});
  const auto average =
      std::make_shared<WeightAverage>(model, WeightAverageOptions{.momentum = 0.5});
  const History history = model.fit(
      samples.plain().shuffle().batch(4),
      {.epochs = 2, .validation = samples.plain().batch(5), .callbacks = {average}, .verbose = 0});
  std::string story = fmt::format("{:.10f} {:.10f} {} ", history.last("train_loss"),
                                  history.last("val_loss"), model.weights_sha256());
  const std::string file = folder + "/averaged.safetensors";
  {
    const auto averaged = average->use();
    story += model.weights_sha256() + " ";
    model.save(file);
  }
  const LoadReport report = model.load(file, {.skip = {"*.bias"}});
  return story + fmt::format("{} {}", report.to_string(), model.weights_sha256());
}

struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(5));
    last = register_module("last", torch::nn::Linear(5, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return last(norm(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(NormedNet);

// Statistics of a batch norm that load() leaves out are each replica's own, as those of fit() are.
std::string story_of_own_statistics(const Strategy& strategy, const std::string& folder) {
  Model model(strategy, [] { return NormedNet(); });
  const std::string file = folder + "/normed.safetensors";
  model.save(file);
  model.compile({.optimizer = optim::adam({.learning_rate = 0.05}),
                 .loss = losses::sparse_categorical_crossentropy()});
  const auto data = test::NumberedSamples(24).plain().batch(8);
  model.fit(data, {.verbose = 0});
  model.load(file, {.skip = {"norm.running_*"}});
  const std::string loaded = model.weights_sha256();
  model.fit(data, {.verbose = 0});
  return loaded + " " + model.weights_sha256();
}

std::string all_extras(const Strategy& strategy, const std::string& folder) {
  return story_of_extras(strategy, folder) + " " + story_of_own_statistics(strategy, folder);
}

RANK_PROGRAM(tell_of_extras) {
  const Strategy strategy = uneven_strategy("multi_worker", std::stoi(rank.arguments[0]));
  rank.mark("extras: " + all_extras(strategy, rank.arguments[1]));
  Model model(strategy, [] { return test::FeaturesNet(); });
  try {
    model.load(rank.arguments[1] + "/averaged.safetensors",
               {.skip = {strategy.world().chief ? "*.bias" : "*.weight"}});
  } catch (const Mismatch& error) {
    rank.mark(std::string("refused: ") + error.what());
  }
}

TEST(UnevenWorkers, StepsAveragesAndPartsOfFilesAreThoseOfThePartsInTurn) {
  const test::TempFolder folder;
  for (const auto& [workers, replicas] : {std::pair{2, 2}, std::pair{3, 3}, std::pair{2, 4}}) {
    const auto out =
        test::run_workers(workers, "tell_of_extras", {std::to_string(replicas), folder.path()});
    ASSERT_EQ(out.exit_code, 0) << out.log;
    const auto expected = all_extras(uneven_strategy("one_device", replicas), folder.path());
    EXPECT_THAT(test::lines_after(out.log, "extras: "),
                testing::AllOf(testing::SizeIs(workers), testing::Each(expected)));
    EXPECT_THAT(test::lines_after(out.log, "refused: "), testing::SizeIs(workers)) << out.log;
  }
}

// An error that is one worker's: in a callback of the validation.
std::string story_of_a_failed_validation(const Strategy& strategy, bool first) {
  const test::NumberedSamples samples(23);
  Model model(strategy, [] { return test::FeaturesNet(); });
  model.compile({.optimizer = optim::adam({.learning_rate = 0.05}),
                 .loss = losses::sparse_categorical_crossentropy()});
  const auto average =
      std::make_shared<WeightAverage>(model, WeightAverageOptions{.momentum = 0.5});
  const auto fails = callbacks::lambda(
      "fails", {.on_test_begin =
                    [first](const PassFacts&) {
                      if (first) throw Error("broken here");
                    },
                .on_test_step_end = [](const PassFacts&) { throw Error("broken here"); }});
  std::string story;
  try {
    model.fit(samples.plain().batch(4),
              {.epochs = 2,
               .validation = samples.plain().batch(5),
               .callbacks = first ? Callbacks{fails, average} : Callbacks{average, fails},
               .verbose = 0});
  } catch (const Error& error) {
    story = std::string(error.what()).find("broken here") != std::string::npos ? "own " : "other ";
  }
  story += model.weights_sha256();
  const auto averaged = average->use();
  return story + " " + model.weights_sha256();
}

RANK_PROGRAM(fail_in_a_validation) {
  const Strategy strategy = uneven_strategy("multi_worker", 2);
  for (const bool first : {true, false})
    rank.mark("failed: " + story_of_a_failed_validation(strategy, first));
}

TEST(UnevenWorkers, AllHaveTheirWeightsAgainWhereACallbackOfTheChiefFails) {
  const auto out = test::run_workers(2, "fail_in_a_validation");
  ASSERT_EQ(out.exit_code, 0) << out.log;
  const Strategy in_turn = uneven_strategy("one_device", 2);
  std::vector<std::string> expected;
  for (const bool first : {true, false}) {
    const std::string own = story_of_a_failed_validation(in_turn, first);
    ASSERT_TRUE(own.starts_with("own ")) << own;
    expected.push_back(own);
    expected.push_back("other " + own.substr(4));
  }
  EXPECT_THAT(test::lines_after(out.log, "failed: "), testing::UnorderedElementsAreArray(expected))
      << out.log;
}

RANK_PROGRAM(sample_by_rank) {
  Group world = tutti::join();
  data::BatchSampler sampler(world, 34, 9, {.seed = 5});
  std::string rows;
  for (int epoch = 0; epoch < 2; ++epoch) {
    sampler.reset();
    while (const auto own = sampler.next(1)) rows += fmt::format("{} | ", fmt::join(*own, " "));
  }
  rank.mark(fmt::format("rows: {} {}", world.rank(), rows));
  data::require_unlike_batches(world, torch::full({2}, world.rank()));
  try {
    data::require_unlike_batches(world, torch::ones({2}));
  } catch (const UsageError& error) {
    rank.mark(std::string("alike: ") + error.what());
  }
  try {
    data::BatchSampler(world, 34 + world.rank(), 9);
  } catch (const Mismatch& error) {
    rank.mark(std::string("unlike: ") + error.what());
  }
}

TEST(BatchSamplerOfProcesses, GivesEachRankItsOwnAndNamesWhoWasGivenOthers) {
  const auto out = test::run_workers(3, "sample_by_rank");
  EXPECT_EQ(out.exit_code, 0);
  const data::RankBatches batches(34, 9, 3, {.seed = 5});
  std::vector<std::string> expected;
  for (int rank = 0; rank < 3; ++rank) {
    std::string rows;
    for (const int64_t epoch : {0, 1}) {
      const data::Epoch order = batches.epoch(epoch);
      for (int64_t step = 0; step < batches.num_batches(); ++step)
        rows += fmt::format("{} | ", fmt::join(batches.rows(order, step, rank), " "));
    }
    expected.push_back(fmt::format("{} {}", rank, rows));
  }
  EXPECT_THAT(test::lines_after(out.log, "rows: "), testing::UnorderedElementsAreArray(expected))
      << out.log;
  EXPECT_THAT(
      test::lines_after(out.log, "alike: "),
      testing::AllOf(testing::SizeIs(3),
                     testing::Each(testing::HasSubstr("ranks 0 and 1 have the same batch"))));
  EXPECT_THAT(
      test::lines_after(out.log, "unlike: "),
      testing::AllOf(testing::SizeIs(3),
                     testing::Each(testing::StartsWith(
                         "BatchSampler: rank 0 has \"samples: 34\", rank 1 has \"samples: 35\""))));
}

}  // namespace
}  // namespace tutti
