// `tutti train` on a mesh: what it refuses, and that it trains the weights of one device.

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

const Words kTraining = {"train", "doodle_cnn", "--data", kDoodles, "--validation-split", "0.01"};

CommandResult train_on_mesh(const Words& words) { return tutti(kTraining + words); }

json figures_on_mesh(const Words& words) {
  return figures_of(Words{TUTTI_PROGRAM} + kTraining + words +
                    words_of("--take 512 --epochs 1 --threads 1"));
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
  const auto converted = tutti({"checkpoint", "convert", folder.path(), weights});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_EQ(get_bytes(weights), get_bytes(folder / "model.safetensors"));
}

TEST(TrainOnMesh, SaysWhatItTrains) {
  EXPECT_THAT(train_on_mesh({"--strategy", "mirrored", "--mesh", "stage=2", "--microbatches", "4",
                             "--take", "512", "--max-steps", "2"}),
              Exits(0, Out(HasSubstr("mesh: 2 replicas: stage 2; pipeline 1f1b, 4 microbatches")),
                    Out(HasSubstr("in 2 processes"))));
}

}  // namespace
}  // namespace tutti::test
