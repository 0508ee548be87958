// A model with two inputs and two outputs whose replicas are in several processes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/support/command.h"
#include "tests/support/run_workers.h"
#include "tests/support/two_outputs.h"
#include "tests/support/uneven.h"

namespace tutti {
namespace {

Strategy strategy_for_outputs(const std::string& kind, int replicas, int staleness = 0) {
  StrategyOptions options{.kind = kind, .replicas = replicas, .threads_per_replica = 1, .seed = 11};
  options.served.staleness = ps::Staleness{staleness};
  return Strategy(options);
}

/// Two epochs, the scores of one sample and all predictions, as text with all digits.
std::string outputs_story(const Strategy& strategy) {
  Model model = test::two_output_model(strategy);
  const History history = model.fit(test::places(27).batch(10), {.epochs = 2, .verbose = 0});
  std::string out;
  for (const auto* name :
       {"train_loss", "kind_loss", "height_loss", "kind_accuracy", "height_mean_absolute_error"})
    out += fmt::format("{:.17g} ", history.last(name));
  const Scores scores = model.evaluate(test::places(1).batch(4));
  out += fmt::format("{:.17g} {} ", scores.loss, scores.matrix("kind_confusion_matrix").size());
  for (const at::Tensor& output : model.predict_all(test::places(7).batch(3)))
    out += fmt::format("{:.17g} ", output.sum().item<double>());
  return out + model.weights_sha256();
}

/// arguments: strategy.
RANK_PROGRAM(tell_of_outputs) {
  rank.mark("outputs " + outputs_story(strategy_for_outputs(rank.arguments.at(0), 2)));
}

// Workers of two replicas each that are not in step: what they count meets on the servers.
RANK_PROGRAM(outputs_out_of_step) {
  Model model = test::two_output_model(strategy_for_outputs("parameter_server", 4, 2));
  const History history = model.fit(test::places(27).batch(6), {.epochs = 3, .verbose = 0});
  const bool adds_up = std::abs(history.last("train_loss") - history.last("kind_loss") -
                                0.25 * history.last("height_loss")) < 1e-9;
  rank.mark(fmt::format("out of step: {} images, {}", history.images,
                        adds_up ? "losses add up" : "losses do not add up"));
}

test::CommandResult run_with_servers(const std::string& program, const std::string& arguments) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  return test::run_command({TUTTI_PROGRAM, "run", "-n", "2", "--servers", "1", self},
                           {"TUTTI_TEST_PROGRAM=" + program, "TUTTI_TEST_ARGUMENTS=" + arguments});
}

TEST(OutputWorkers, TellTheStoryOfThePartsInTurn) {
  const auto expected = "outputs " + outputs_story(strategy_for_outputs("one_device", 2));
  const auto workers = test::run_workers(2, "tell_of_outputs", {"multi_worker"});
  ASSERT_EQ(workers.exit_code, 0) << workers.log;
  EXPECT_THAT(test::lines_after(workers.log, expected), ::testing::SizeIs(2)) << expected << "\n"
                                                                              << workers.log;
  const auto served = run_with_servers("tell_of_outputs", "parameter_server\n");
  ASSERT_EQ(served.exit_code, 0) << served.out << served.err;
  EXPECT_THAT(test::lines_after(served.out + served.err, expected), ::testing::SizeIs(2))
      << expected << "\n"
      << served.out << served.err;
}

TEST(OutputWorkers, OutOfStepCountEachSampleOnce) {
  const auto out = run_with_servers("outputs_out_of_step", "");
  ASSERT_EQ(out.exit_code, 0) << out.out << out.err;
  EXPECT_THAT(test::lines_after(out.out + out.err, "out of step: "),
              ::testing::ElementsAre("81 images, losses add up", "81 images, losses add up"));
}

// Class 2 does not count. Nothing is learnt, so that the order of batches does not matter.
std::string mean_of_what_counts(const Strategy& strategy) {
  Model model(strategy, [] { return test::FeaturesNet(); });
  model.compile({.optimizer = optim::sgd({.learning_rate = 1e-12}),
                 .loss = losses::sparse_categorical_crossentropy({.ignore_label = 2})});
  const test::NumberedSamples samples(13);
  const History history = model.fit(samples.plain().batch(4), {.epochs = 2, .verbose = 0});
  return fmt::format("{:.6f} {}", history.last("train_loss"), history.images);
}

RANK_PROGRAM(tell_the_mean) {
  rank.mark("mean: " + mean_of_what_counts(strategy_for_outputs("parameter_server", 4, 2)));
}

TEST(OutputWorkers, OutOfStepDivideByWhatCountsInEachOnesBatches) {
  const auto expected = mean_of_what_counts(strategy_for_outputs("one_device", 1));
  const auto out = run_with_servers("tell_the_mean", "");
  ASSERT_EQ(out.exit_code, 0) << out.out << out.err;
  EXPECT_THAT(test::lines_after(out.out + out.err, "mean: "),
              ::testing::ElementsAre(expected, expected));
}

}  // namespace
}  // namespace tutti
