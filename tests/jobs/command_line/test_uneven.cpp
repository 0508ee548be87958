// `tutti train` with fewer samples than a batch has places for, by hand and under every strategy.
#include <algorithm>
#include <cmath>

#include "tutti/data/safetensors.h"

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

struct Outcome {
  json figures;
  data::Safetensors weights;
  std::string out;
};

Outcome train_on_few(const Words& more) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const auto result = tutti(Words{"train", "mlp", "--data", kDoodles, "--threads", "1", "--out",
                                  folder / "out", "--json", file} +
                            more);
  EXPECT_EQ(result.exit_code, 0) << testing::PrintToString(more) << result.err << result.out;
  return {json_in(file), data::read_safetensors(folder / "out/model.safetensors"), result.out};
}

// Largest |a - b| over largest |b|.
double relative_difference(const data::Safetensors& a, const data::Safetensors& b) {
  double difference = 0, scale = 0;
  EXPECT_EQ(a.arrays.size(), b.arrays.size());
  for (const auto& [name, array] : b.arrays) {
    const auto expected = array.as<float>();
    const auto got = a.find(name)->as<float>();
    for (size_t i = 0; i < expected.size(); ++i) {
      difference = std::max(difference, static_cast<double>(std::abs(got[i] - expected[i])));
      scale = std::max(scale, static_cast<double>(std::abs(expected[i])));
    }
  }
  return difference / scale;
}

TEST(TrainOnFew, TenSamplesOnThreeReplicasGiveOneSetOfWeights) {
  // Batches of 4, 4 and 2: the third replica has 1, 1 and 0 samples.
  const Words common = {"--take", "10", "--replicas", "3", "--batch-size", "4", "--epochs", "3"};
  const auto train = [&](const std::string& strategy) {
    return train_on_few(common + Words{"--strategy", strategy}).figures;
  };
  const auto in_turn = train("one_device");
  for (const char* strategy : {"mirrored", "multi_worker", "central_storage", "parameter_server"}) {
    const auto figures = train(strategy);
    EXPECT_EQ(figures.at("weights_sha256"), in_turn.at("weights_sha256")) << strategy;
    EXPECT_EQ(figures.at("train_loss"), in_turn.at("train_loss")) << strategy;
    EXPECT_EQ(figures.at("val_accuracy"), in_turn.at("val_accuracy")) << strategy;
  }
}

// 17 samples in batches of 4 and 1, three to an update; everything at once.
TEST(TrainOnFew, AccumulationAndBfloat16GiveOneSetOfWeights) {
  const Words common = words_of(
      "--take 17 --replicas 3 --batch-size 4 --epochs 2 --accumulate 3 --precision bfloat16");
  std::vector<std::string> fingerprints;
  for (const char* strategy :
       {"one_device", "mirrored", "multi_worker", "central_storage", "parameter_server"}) {
    const auto outcome = train_on_few(common + Words{"--strategy", strategy});
    fingerprints.push_back(outcome.figures.at("weights_sha256"));
    EXPECT_EQ(outcome.figures.at("precision"), "bfloat16");
    EXPECT_EQ(outcome.figures.at("accumulate"), 3);
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr("an update every 3 batches"), HasSubstr("after 4 steps")));
    for (const auto& [name, array] : outcome.weights.arrays)
      EXPECT_EQ(array.dtype(), DType::float32) << name;
  }
  EXPECT_THAT(fingerprints, Each(fingerprints[0]));
}

TEST(TrainOnFew, AccumulatedBatchesAreOneLargeBatch) {
  const auto parts = train_on_few({"--take", "100", "--batch-size", "10", "--accumulate", "4",
                                   "--epochs", "1", "--optimizer", "sgd"});
  const auto large =
      train_on_few({"--take", "100", "--batch-size", "40", "--epochs", "1", "--optimizer", "sgd"});
  EXPECT_LT(relative_difference(parts.weights, large.weights), 1e-5);
}

TEST(TrainOnFew, OneStepOfThreeReplicasIsThatOfOne) {
  const Words common = {"--take", "10", "--batch-size", "4", "--max-steps", "1"};
  const auto of_three = train_on_few(common + Words{"--replicas", "3", "--strategy", "mirrored"});
  const auto of_one = train_on_few(common);
  EXPECT_LT(relative_difference(of_three.weights, of_one.weights), 1e-5);
  EXPECT_NEAR(of_three.figures.at("train_loss")[0].get<double>(),
              of_one.figures.at("train_loss")[0].get<double>(), 1e-6);
}

TEST(TrainOnFew, MoreReplicasThanSamplesAreSaidAloud) {
  const TempFolder folder;
  std::vector<std::string> fingerprints;
  for (const char* strategy : {"one_device", "mirrored", "multi_worker", "parameter_server"}) {
    const std::string file = folder / "figures.json";
    const auto result =
        tutti({"train", "mlp", "--data", kDoodles, "--take", "2", "--replicas", "3", "--batch-size",
               "2", "--epochs", "2", "--threads", "1", "--strategy", strategy, "--json", file});
    ASSERT_EQ(result.exit_code, 0) << strategy << result.err;
    EXPECT_THAT(result.err + result.out, HasSubstr("1 of 3 replicas have no sample"));
    fingerprints.push_back(json_in(file).at("weights_sha256"));
  }
  EXPECT_THAT(fingerprints, Each(fingerprints[0]));
}

}  // namespace
}  // namespace tutti::test
