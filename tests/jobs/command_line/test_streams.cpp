// Commands whose standard streams are closed, as those of daemons are, or lose their reader.
#include <array>
#include <string>
#include <vector>

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

// Of 0, 1 and 2 those whose bit is set in `closed`.
Words with_closed(int closed, const Words& command) {
  std::string script = "exec \"$@\"";
  for (int stream = 0; stream < 3; ++stream)
    if ((closed >> stream & 1) != 0) script += " " + std::to_string(stream) + ">&-";
  return Words{"sh", "-c", script, "sh"} + command;
}

Words training(const std::filesystem::path& out, const Words& strategy = {"one_device"}) {
  return Words{TUTTI_PROGRAM, "train", "mlp", "--data", kDoodles, "--out", out} +
         words_of("--take 64 --threads 1 --batch-size 64 --epochs 1 --checkpoint-every 1") +
         Words{"--strategy"} + strategy;
}

// What is opened first has the lowest number: the lock of --out, a checkpoint, shared memory.
TEST(ClosedStreams, ATrainingLeavesTheSameFiles) {
  const TempFolder folder;
  ASSERT_EQ(run_command(training(folder / "open")).exit_code, 0);
  const std::string weights = get_bytes(folder / "open/model.safetensors");
  for (const int closed : {1, 2, 4, 7}) {
    const std::filesystem::path out = folder / std::to_string(closed);
    const auto result = run_command(with_closed(closed, training(out)));
    EXPECT_EQ(result.exit_code, 0) << closed << result.err;
    EXPECT_THAT(get_bytes(out / ".lock"), MatchesRegex("[0-9]+ [0-9]+ [^ ]+\n")) << closed;
    EXPECT_EQ(get_bytes(out / "model.safetensors"), weights) << closed;
    EXPECT_TRUE(std::filesystem::exists(out / "checkpoints/step-000000000001/manifest.json"));
  }
}

// Every command, each with other streams than the one before it.
TEST(ClosedStreams, EveryCommandDoesItsWork) {
  const TempFolder folder;
  ASSERT_EQ(run_command(training(folder / "out")).exit_code, 0);
  const std::string weights = folder / "out/model.safetensors";
  const std::string checkpoints = folder / "out/checkpoints";
  const std::string doodle = std::string(kDoodles) + "/bird.npy";
  const Words commands[] = {
      {"evaluate", "mlp", "--data", kDoodles, "--checkpoints", weights},
      {"predict", "mlp", "--weights", weights, doodle},
      {"checkpoint", "ls", checkpoints},
      {"checkpoint", "verify", checkpoints},
      {"data", "verify", kDoodles},
      {"plan", "table"},
      {"doctor"},
      {"run", "-n", "2", "true"},
      {"train", "mlp", "--data", kDoodles, "--take", "128", "--epochs", "1", "--strategy",
       "multi_worker", "--replicas", "2"},
      {"train", "mlp", "--data", kDoodles, "--take", "128", "--epochs", "1", "--strategy",
       "parameter_server", "--replicas", "1", "--servers", "1"},
  };
  constexpr std::array kSubsets = {7, 3, 1, 2, 6, 4, 5};
  for (size_t i = 0; i < std::size(commands); ++i) {
    const int closed = kSubsets[i % kSubsets.size()];
    const auto result = run_command(with_closed(closed, Words{TUTTI_PROGRAM} + commands[i]));
    EXPECT_EQ(result.exit_code, 0)
        << testing::PrintToString(commands[i]) << closed << result.out << result.err;
  }
}

constexpr const char* kToAReaderOfALine = "set -o pipefail; \"$@\" | head -1";
const Words kToAFullDisk = {"sh", "-c", "exec \"$@\" > /dev/full", "sh"};

TEST(BrokenStreams, ATrainingKeepsItsModel) {
  for (const Words& strategy : {Words{"one_device"}, Words{"multi_worker", "--replicas", "2"}}) {
    const TempFolder folder;
    EXPECT_THAT(run_command(Words{"bash", "-c", kToAReaderOfALine, "bash"} +
                            training(folder / "out", strategy)),
                Exits(0, Err("")))
        << "nobody misses those words";
    EXPECT_TRUE(std::filesystem::exists(folder / "out/model.safetensors"));
  }
}

TEST(BrokenStreams, ALogThatIsFullCostsNoModel) {
  const TempFolder folder;
  EXPECT_THAT(run_command(kToAFullDisk + training(folder / "out")),
              Exits(0, Err(HasSubstr("stdout cannot be written: No space left on device"))));
  EXPECT_TRUE(std::filesystem::exists(folder / "out/model.safetensors"));
}

TEST(BrokenStreams, ResultsThatAreLostAreAnError) {
  const Words command = {TUTTI_PROGRAM, "plan", "table"};
  EXPECT_THAT(
      run_command(kToAFullDisk + command),
      Exits(1, Err(AllOf(HasSubstr("tutti plan: "), HasSubstr("No space left on device")))));
  EXPECT_EQ(run_command(Words{"sh", "-c", "\"$@\" | exec true", "sh"} + command).err, "")
      << "nobody wants them";
}

}  // namespace
}  // namespace tutti::test
