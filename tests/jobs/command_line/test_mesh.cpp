// `tutti train` on a mesh: what it refuses, and that it trains the weights of one device.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;
using MeshWords = std::vector<std::string>;

CommandResult train_on_mesh(MeshWords words) {
  words.insert(words.begin(), {TUTTI_PROGRAM, "train", "doodle_cnn", "--data", kDoodles});
  return run_command(words, {}, Millis{240'000});
}

TEST(TrainOnMesh, AnswersBadInputBeforeTraining) {
  const struct {
    MeshWords words;
    std::vector<const char*> answer;
  } cases[] = {
      {{"--replicas", "6", "--mesh", "data=2,stage=2,tensor=2"}, {"needs 8 replicas, got 6"}},
      {{"--mesh", "data=2,stages=2"}, {"unknown axis \"stages\"", "did you mean \"stage\"?"}},
      {{"--mesh", "stage=0"}, {"--mesh stage=0", "expected stage=N"}},
      {{"--mesh", "stage=2,stage=2"}, {"stage is there twice"}},
      {{"--mesh", "shard=2"}, {"axis shard", "--shard state, gradients or parameters"}},
      {{"--mesh", "stage=2", "--pipeline", "1f1bb"}, {"did you mean \"1f1b\"?"}},
      {{"--mesh", "stage=2", "--pipeline", "interleaved:x"},
       {"expected NAME or interleaved:CHUNKS"}},
      {{"--mesh", "stage=2", "--cut", "conv2"},
       {"no layer \"conv2\"", "did you mean \"conv2d_1\"?"}},
      {{"--mesh", "stage=2", "--pipeline", "interleaved:2", "--microbatches", "3"},
       {"3 microbatches do not divide by 2 ranks", "use 2 or 4"}},
      {{"--mesh", "stage=2", "--recompute", "some"}, {"\"some\" matches no layer"}},
      {{"--recompute", "every:0"}, {"expected every:K"}},
      {{"--recompute", "blocks"}, {"the model has no blocks", "every:K"}},
      {{"--mesh", "stage=2", "--microbatches", "0"}, {"--microbatches", "1 to 4096"}},
      {{"--mesh", "tensor=2", "--tensor-blocks", "0"}, {"--tensor-blocks"}},
      {{"--mesh", "stage=2", "--optimizer", "lamb"}, {"optimizer lamb", "elementwise rule"}},
      {{"--mesh", "stage=2", "--device", "cuda"}, {"device"}},
      {{"--mesh", "stage=2", "--precision", "bfloat16"}, {"float32 in this version"}},
      {{"--mesh", "stage=2", "--accumulate", "2"}, {"more microbatches in place of it"}},
      {{"--mesh", "stage=2", "--loss-scaling", "initial=8"}, {"losses are not scaled"}},
      {{"--mesh", "stage=2", "--on-bad", "replace"}, {"leave on_bad out"}},
  };
  for (const auto& c : cases) {
    MeshWords words = c.words;
    words.insert(words.end(), {"--strategy", "mirrored"});
    const std::string line = testing::PrintToString(words);
    const auto result = train_on_mesh(words);
    EXPECT_EQ(result.exit_code, 2) << line << result.err;
    EXPECT_THAT(result.err, StartsWith("tutti train: ")) << line;
    for (const char* part : c.answer) EXPECT_THAT(result.err, HasSubstr(part)) << line;
  }
  // One device has all stages, and looks at the names too.
  const auto in_turn = train_on_mesh({"--mesh", "stage=2", "--cut", "conv2"});
  EXPECT_EQ(in_turn.exit_code, 2) << in_turn.out;
  EXPECT_THAT(in_turn.err, HasSubstr("did you mean \"conv2d_1\"?"));
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
