// Every example runs and says what its page says; the linear regression equals its closed form.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>

#include <nlohmann/json.hpp>

#include "tutti/data/safetensors.h"

#include "tests/jobs/examples/programs.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

const std::string kTutti = (kPrograms / "tutti").string();
const std::string kData = kDoodles;

TEST(Examples, HelloRanks) {
  const auto out = run_command({kTutti, "run", "-n", "4", example("01_hello_ranks")});
  ASSERT_EQ(out.exit_code, 0) << out.out << out.err;
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(out.out, HasSubstr("[" + std::to_string(rank) + "] rank " + std::to_string(rank) +
                                   " of 4: the sum is 10"));
  EXPECT_THAT(run_command({example("01_hello_ranks")}).out, HasSubstr("rank 0 of 1: the sum is 1"));
}

// The losses of both epochs, as the example prints them with full precision.
std::vector<double> losses_in(const std::string& output) {
  std::vector<double> losses;
  const std::regex pattern("epoch \\d+: loss ([0-9.e-]+)");
  for (std::sregex_iterator it(output.begin(), output.end(), pattern), end; it != end; ++it)
    losses.push_back(std::stod((*it)[1]));
  return losses;
}

// Prediction w + b starts at 0.5; a step with learning rate 0.01 on (p - 1)^2 changes both w and b
// by 0.02 (1 - p), so what is missing shrinks by 0.96 a step. An epoch has 10 steps; its loss is
// the mean.
std::vector<double> closed_form() {
  std::vector<double> losses;
  double missing = 0.5;
  for (int epoch = 0; epoch < 2; ++epoch) {
    double sum = 0;
    for (int step = 0; step < 10; ++step) {
      sum += missing * missing;
      missing *= 0.96;
    }
    losses.push_back(sum / 10);
  }
  return losses;
}

TEST(Examples, LinearRegressionEqualsItsClosedFormOnAnyStrategy) {
  const std::string program = example("02_linear_regression");
  const std::vector<std::vector<std::string>> commands = {
      {program},
      {program, "--strategy", "mirrored", "--replicas", "2"},
      {program, "--strategy", "mirrored", "--replicas", "3"},
      {program, "--strategy", "one_device", "--replicas", "2"},
      {kTutti, "run", "-n", "2", program, "--strategy", "multi_worker"}};
  for (const auto& command : commands) {
    const auto out = run_command(command);
    ASSERT_EQ(out.exit_code, 0) << out.out << out.err;
    const auto losses = losses_in(out.out);
    ASSERT_EQ(losses.size(), 2u) << out.out;
    for (int epoch = 0; epoch < 2; ++epoch)
      EXPECT_NEAR(losses[epoch], closed_form()[epoch], 1e-6) << out.out;
  }
}

TEST(Examples, QuickDrawTrainsAndSaves) {
  const TempFolder folder;
  const auto out = run_command({"env", "--chdir=" + folder.path().string(), example("03_quickdraw"),
                                "--strategy", "mirrored", "--replicas", "2", kData, "1"});
  ASSERT_EQ(out.exit_code, 0) << out.out << out.err;
  EXPECT_TRUE(std::filesystem::exists(folder / "doodle.safetensors"));
}

// "mean loss" of each epoch, as numbers with all digits.
std::vector<double> mean_losses(const std::string& output) {
  std::vector<double> losses;
  const std::regex pattern("epoch \\d+: mean loss ([0-9.e-]+)");
  for (std::sregex_iterator it(output.begin(), output.end(), pattern), end; it != end; ++it)
    losses.push_back(std::stod((*it)[1]));
  return losses;
}

// The Keras way and the loop written out: one training, to the bit.
TEST(Examples, CustomLoopHasTheLossesOfFitOnAnyStrategy) {
  const std::string program = example("04_custom_loop");
  const TempFolder folder;
  const std::string figures = folder / "figures.json";
  const auto fit =
      run_command({kTutti, "train", "doodle_cnn", "--data", kFewDoodles, "--strategy", "mirrored",
                   "--replicas", "2", "--epochs", "1", "--seed", "3", "--json", figures});
  ASSERT_EQ(fit.exit_code, 0) << fit.out << fit.err;
  std::ifstream file(figures);
  const auto expected = json::parse(file).at("train_loss").get<std::vector<double>>();
  ASSERT_EQ(expected.size(), 1u);
  const std::vector<std::vector<std::string>> commands = {
      {program, "--strategy", "mirrored", "--replicas", "2"},
      {program, "--strategy", "one_device", "--replicas", "2"},
      {kTutti, "run", "-n", "2", program, "--strategy", "multi_worker"}};
  for (auto command : commands) {
    command.insert(command.end(), {"--seed", "3", kFewDoodles, "1"});
    const auto loop = run_command(command);
    ASSERT_EQ(loop.exit_code, 0) << loop.out << loop.err;
    EXPECT_EQ(mean_losses(loop.out), expected) << loop.out;
  }
}

// "weights SHA" as an example prints it.
std::string weights_in(const CommandResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  std::smatch weights;
  const std::regex pattern("weights ([0-9a-f]{64})");
  return std::regex_search(result.out, weights, pattern) ? weights[1].str() : "none";
}

// Killed in the middle of an epoch as threads, they go on as processes, and the other way round.
TEST(Examples, CustomLoopGoesOnFromWhereItWasKilled) {
  const std::string program = example("04_custom_loop");
  for (const std::string replicas : {"2", "3"}) {
    const Words threads = {program, "--strategy", "mirrored", "--replicas", replicas};
    const Words processes = {kTutti, "run", "-n", replicas, program, "--strategy", "multi_worker"};
    const bool first = replicas == "2";
    const Words data = {"--threads", "1", kData, "1"};
    const auto straight = run_command(threads + data, {}, Millis{100'000});
    const TempFolder folder;
    const Words resumable = data + Words{folder / "c"};
    EXPECT_THAT(cut_off((first ? threads : processes) + resumable, folder / "c", 60), Exits(137));
    const auto resumed =
        run_command((first ? processes : threads) + resumable, {}, Millis{100'000});
    EXPECT_EQ(weights_in(resumed), weights_in(straight));
    EXPECT_EQ(mean_losses(resumed.out), mean_losses(straight.out));
  }
}

TEST(Examples, ExistingLoopGoesOnFromWhereItWasKilled) {
  for (const std::string ranks : {"1", "2", "3"}) {
    const Words job = {kTutti, "run", "-n", ranks, example("05_existing_loop"), "4000"};
    const std::string straight = weights_in(run_command(job));
    const TempFolder folder;
    EXPECT_THAT(cut_off(job + Words{folder / "c"}, folder / "c", 150), Exits(137));
    EXPECT_EQ(weights_in(run_command(job + Words{folder / "c"})), straight) << ranks;
  }
}

TEST(Examples, ExistingLoopThatIsAskedToEndSavesThatStepAndEndsWith143) {
  const Words job = {kTutti, "run", "-n", "2", example("05_existing_loop"), "4000"};
  const TempFolder folder;
  const auto asked = cut_off(job + Words{folder / "c"}, folder / "c", 150, "TERM", "$job");
  EXPECT_EQ(asked.exit_code, 143) << asked.out;
  EXPECT_THAT(asked.out, HasSubstr("it can go on from step-"));
  EXPECT_EQ(weights_in(run_command(job + Words{folder / "c"})), weights_in(run_command(job)));
}

TEST(Examples, ExistingLoopIsRefusedOnOtherRanks) {
  const auto job = [](const std::string& ranks, const std::string& folder) {
    return Words{kTutti, "run", "-n", ranks, example("05_existing_loop"), "60", folder};
  };
  const TempFolder folder;
  weights_in(run_command(job("2", folder / "c")));
  EXPECT_THAT(run_command(job("3", folder / "c")),
              Exits(2, Err(HasSubstr("replicas: 2 in the checkpoint, 3 here"))));
}

TEST(Examples, ExistingLoopLearns) {
  ASSERT_THAT(
      run_command({kTutti, "run", "-n", "2", example("05_existing_loop")}),
      Exits(0, Out(AllOf(HasSubstr("[0] step 50: loss"), HasSubstr("[0] step 200: loss 0.0")))));
}

// 06 in `folder`, on one server and two workers, with a snapshot every tenth of a second.
Words coordinated(const TempFolder& folder, const Words& flags, int64_t epochs) {
  if (!std::filesystem::exists(folder / "examples")) {
    std::filesystem::create_directories(folder / "examples/data");
    std::filesystem::create_directory_symlink(kData, folder / "examples/data/quickdraw");
  }
  return Words{"env", "--chdir=" + folder.path().string(), kTutti, "run", "--servers", "1", "-n",
               "2"} +
         flags + Words{"--coordinator", example("06_cluster_coordinator"), std::to_string(epochs)};
}

// Samples that an epoch's line counts, of all lines.
int64_t samples_in(const CommandResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  int64_t samples = 0;
  const std::regex pattern("mean loss [0-9.]+ of ([0-9]+) samples");
  for (std::sregex_iterator it(result.out.begin(), result.out.end(), pattern), end; it != end; ++it)
    samples += std::stoll((*it)[1]);
  return samples;
}

constexpr int64_t kSamples = 25'000, kBatch = 64, kSteps = 391;  // of an epoch

TEST(Examples, ClusterCoordinatorTrainsAndEvaluates) {
  const TempFolder folder;
  const auto out = run_command(coordinated(folder, {}, 2));
  EXPECT_EQ(samples_in(out), 2 * kSamples);
  std::smatch accuracy;
  const std::regex pattern("\\[0\\] epoch 1: mean loss .*, test accuracy ([0-9.]+)");
  ASSERT_TRUE(std::regex_search(out.out, accuracy, pattern)) << out.out;
  EXPECT_GT(std::stod(accuracy[1]), 0.7);
  EXPECT_TRUE(std::filesystem::exists(folder / "doodle.safetensors"));
}

// All of its processes are killed in the midst of an epoch. From the newest snapshot it has those
// weights, and each batch that is not in them is trained once.
TEST(Examples, ClusterCoordinatorGoesOnFromItsSnapshot) {
  const TempFolder folder;
  const std::string cuts = folder / "cuts";
  const Words kept = {"--snapshots", cuts, "--snapshot-every", "0.1"};
  const std::string in_its_second_epoch =
      "grep -qsE '^ \"step\": ([4-9][0-9][0-9]|[0-9]{4,}),' " + cuts + "/cut-*/manifest.json";
  EXPECT_THAT(cut_off_when(coordinated(folder, kept, 200), in_its_second_epoch, cuts + ".log"),
              Exits(137));
  std::filesystem::path newest;
  for (const auto& entry : std::filesystem::directory_iterator(cuts))
    if (std::filesystem::exists(entry.path() / "manifest.json"))
      newest = std::max(newest, entry.path());
  std::ifstream manifest(newest / "manifest.json");
  const auto step = json::parse(manifest).at("step").get<int64_t>();

  const Words restored = {"--restore", newest};
  ASSERT_EQ(samples_in(run_command(coordinated(folder, restored, 0))), 0);
  const auto ours = data::read_safetensors(folder / "doodle.safetensors");
  const auto theirs = data::read_safetensors(newest / "partition-0.safetensors");
  ASSERT_EQ(ours.arrays.size(), 4u);
  for (const auto& [name, array] : ours.arrays) {
    const auto* kept_there = theirs.find(fmt::format("{}[0:{}]", name, array.num_elements()));
    ASSERT_NE(kept_there, nullptr) << name;
    EXPECT_EQ(std::memcmp(array.data(), kept_there->data(), array.num_bytes()), 0) << name;
  }

  const int64_t epochs = step / kSteps + 2;
  const int64_t done =
      epochs * kSamples - samples_in(run_command(coordinated(folder, restored, epochs)));
  EXPECT_EQ(done / kSamples * kSteps + (done % kSamples + kBatch - 1) / kBatch, step);
}

// By hand, in stages, in blocks and all at once: the program compares, and fails where they differ.
TEST(Examples, ModelParallelHasTheWeightsOfOneDevice) {
  EXPECT_THAT(run_command({example("13_model_parallel")}),
              Exits(0, Out(AllOf(HasSubstr("by hand"), HasSubstr("data=2,stage=2,tensor=2"),
                                 Not(HasSubstr("DIFFERENT"))))));
}

TEST(Examples, WrongFlagsAreAnswered) {
  EXPECT_THAT(run_command({example("03_quickdraw"), "--strategy", "mirorred"}),
              Exits(2, Err(HasSubstr("did you mean \"mirrored\""))));
}

}  // namespace
}  // namespace tutti::test
