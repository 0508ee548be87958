// `tutti train` on a mesh: what it refuses, and that it trains the weights of one device.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using MeshWords = std::vector<std::string>;

CommandResult train_on_mesh(MeshWords words) {
  words.insert(words.begin(), {TUTTI_PROGRAM, "train", "doodle_cnn", "--data", kDoodles,
                               "--validation-split", "0.01"});
  return run_command(words, {}, Millis{240'000});
}

json figures_on_mesh(MeshWords words) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  words.insert(words.end(), {"--json", file, "--take", "512", "--epochs", "1", "--threads", "1"});
  const auto result = train_on_mesh(words);
  EXPECT_EQ(result.exit_code, 0) << testing::PrintToString(words) << result.err << result.out;
  return result.exit_code == 0 ? json::parse(get_bytes(file)) : json{};
}

TEST(TrainOnMesh, TrainsTheWeightsOfOneDevice) {
  const json parts = figures_on_mesh({"--replicas", "4"});
  const json stages = figures_on_mesh({"--strategy", "mirrored", "--mesh", "stage=2",
                                       "--microbatches", "4", "--pipeline", "zb-h1"});
  EXPECT_EQ(stages.at("weights_sha256"), parts.at("weights_sha256"));
  EXPECT_EQ(parts.at("mesh"), "data=4");
  EXPECT_EQ(parts.at("microbatches"), 1);
  EXPECT_EQ(stages.at("mesh"), "stage=2");
  EXPECT_EQ(stages.at("microbatches"), 4);
}

TEST(TrainOnMesh, ItsCheckpointBecomesOneFile) {
  const TempFolder folder;
  const auto trained = train_on_mesh({"--strategy", "mirrored", "--mesh", "stage=2", "--take",
                                      "256", "--epochs", "1", "--out", folder.path()});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::string weights = folder / "converted.safetensors";
  const auto converted =
      run_command({TUTTI_PROGRAM, "checkpoint", "convert", folder.path(), weights});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_EQ(get_bytes(weights), get_bytes(folder / "model.safetensors"));
}

TEST(TrainOnMesh, SaysWhatItTrains) {
  const auto result =
      train_on_mesh({"--strategy", "mirrored", "--mesh", "stage=2", "--microbatches", "4", "--take",
                     "512", "--max-steps", "2", "--verbose", "0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("mesh: 2 replicas: stage 2; pipeline 1f1b, 4 microbatches"));
  EXPECT_THAT(result.out, HasSubstr("in 2 processes"));
}

}  // namespace
}  // namespace tutti::test
