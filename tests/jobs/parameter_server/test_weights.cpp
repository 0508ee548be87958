// What parameter servers train: the bits of mirrored in step, every batch once out of step.
#include <cmath>

#include "tests/jobs/parameter_server/served_job.h"

namespace tutti::test {
namespace {

constexpr int64_t kSamples = 25'000;  // of the doodles to train on

struct Same {
  const char* name;
  Words all;  // of every strategy
  int replicas;
  Words servers;  // of parameter_server alone

  friend void PrintTo(const Same& same, std::ostream* out) { *out << same.name; }
};

class SameWeights : public testing::TestWithParam<Same> {};

TEST_P(SameWeights, AsMirrored) {
  const Same& same = GetParam();
  const Words common =
      same.all + Words{"--max-steps", "7", "--epochs",   "1",
                       "--seed",      "5", "--replicas", std::to_string(same.replicas)};
  const auto train = [&](const std::string& strategy, const Words& more) {
    return figures_of(Words{TUTTI_PROGRAM, "train"} + common +
                      Words{"--data", kDoodles, "--threads", "1", "--strategy", strategy} + more);
  };
  const json served = train("parameter_server", same.servers);
  EXPECT_EQ(sha_of(served), sha_of(train("mirrored", {})));
  EXPECT_EQ(served.at("replicas"), same.replicas);
  EXPECT_EQ(served.at("updates"), 7);
  EXPECT_EQ(served.at("dropped"), 0);
  EXPECT_EQ(served.at("staleness_histogram"), (json{{"0", 7}}));
  EXPECT_GT(served.at("bytes_pushed").get<int64_t>(), 0);
  EXPECT_GT(served.at("bytes_pulled").get<int64_t>(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, SameWeights,
    testing::Values(
        Same{"cnn", {"doodle_cnn"}, 2, {"--servers", "2", "--staleness", "0"}},
        Same{"sgd", {"mlp", "--optimizer", "sgd"}, 2, {"--servers", "3", "--partition", "fixed:3"}},
        Same{"adagrad",
             {"mlp", "--optimizer", "adagrad"},
             3,
             {"--servers", "2", "--placement", "round_robin"}},
        Same{"ftrl",
             {"mlp", "--optimizer", "ftrl"},
             2,
             {"--servers", "2", "--partition", "max:64K"}},
        Same{"adamw",
             {"mlp", "--optimizer", "adamw"},
             2,
             {"--servers", "2", "--no-backups", "--partition", "min:32K:4"}},
        Same{"amsgrad",
             {"mlp", "--optimizer", "adam", "--optimizer-options", "amsgrad=true,beta2=0.5"},
             2,
             {"--servers", "2"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ServedWeights, OfTwoReplicasAWorkerUnderTheLauncher) {
  const Words common = {"--replicas", "4", "--max-steps", "7", "--epochs", "1"};
  const json served =
      figures_of(Words{TUTTI_PROGRAM, "run", "--servers", "1", "-n", "2"} + train_served(common));
  EXPECT_EQ(served.at("replicas"), 4);
  EXPECT_EQ(sha_of(served), sha_of(figures_of(train_mlp({"--strategy", "mirrored"}) + common)));
}

TEST(CentralStorage, HasTheWeightsOfMirrored) {
  const Words common = {"doodle_cnn", "--data",      kDoodles, "--threads", "1", "--replicas",
                        "2",          "--max-steps", "7",      "--epochs",  "1"};
  const auto train = [&](const std::string& strategy) {
    return figures_of(Words{TUTTI_PROGRAM, "train"} + common + Words{"--strategy", strategy});
  };
  const json central = train("central_storage");
  EXPECT_EQ(central.at("strategy"), "central_storage");
  EXPECT_EQ(central.at("replicas"), 2);
  EXPECT_EQ(sha_of(central), sha_of(train("mirrored")));
}

// Each of two workers trains its half of the global batch alone.
class OutOfStep : public testing::TestWithParam<const char*> {};

TEST_P(OutOfStep, EveryBatchIsOneUpdate) {
  const std::string staleness = GetParam();
  const json all = figures_of(train_served({"--servers", "2", "--replicas", "2", "--epochs", "2",
                                            "--batch-size", "100", "--staleness", staleness}));
  const int64_t batches = 2 * (kSamples / 50);
  EXPECT_EQ(all.at("updates"), batches);
  EXPECT_EQ(all.at("staleness"), staleness);
  int64_t counted = 0;
  for (const auto& [steps, updates] : all.at("staleness_histogram").items())
    counted += updates.get<int64_t>();
  EXPECT_EQ(counted, batches);
  ASSERT_EQ(all.at("train_loss").size(), 2u);
  EXPECT_LT(all.at("train_loss")[1].get<double>(), all.at("train_loss")[0].get<double>());
  EXPECT_GT(all.at("val_accuracy").get<double>(), 0.65);
}

INSTANTIATE_TEST_SUITE_P(Jobs, OutOfStep, testing::Values("2", "inf"),
                         [](const auto& info) { return std::string(info.param); });

// A last step of --max-steps is one update, whoever made it.
TEST(ServedWeights, MaxStepsCountsUpdatesOfAllWorkers) {
  const json all = figures_of(train_served(
      {"--servers", "1", "--replicas", "2", "--max-steps", "33", "--staleness", "inf"}));
  EXPECT_EQ(all.at("updates"), 33);
  EXPECT_EQ(all.at("epochs"), 1);
}

}  // namespace
}  // namespace tutti::test
