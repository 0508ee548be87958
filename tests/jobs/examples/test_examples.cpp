// Every example runs and says what its page says; the linear regression equals its closed form.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>

#include <nlohmann/json.hpp>

#include "tests/jobs/examples/programs.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

const std::filesystem::path kSource = TUTTI_SOURCE_DIR;
const std::string kTutti = (kPrograms / "tutti").string();
const std::string kData = (kSource / "examples/data/quickdraw").string();

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
      run_command({kTutti, "train", "doodle_cnn", "--data", kData, "--strategy", "mirrored",
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
    command.insert(command.end(), {"--seed", "3", kData, "1"});
    const auto loop = run_command(command);
    ASSERT_EQ(loop.exit_code, 0) << loop.out << loop.err;
    EXPECT_EQ(mean_losses(loop.out), expected) << loop.out;
  }
}

TEST(Examples, ExistingLoopLearns) {
  ASSERT_THAT(
      run_command({kTutti, "run", "-n", "2", example("05_existing_loop")}),
      Exits(0, Out(AllOf(HasSubstr("[0] step 50: loss"), HasSubstr("[0] step 200: loss 0.0")))));
}

TEST(Examples, ClusterCoordinatorTrainsAndEvaluates) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "examples/data");
  std::filesystem::create_directory_symlink(kData, folder / "examples/data/quickdraw");
  const auto out =
      run_command({"env", "--chdir=" + folder.path().string(), kTutti, "run", "--servers", "1",
                   "-n", "2", "--coordinator", example("06_cluster_coordinator"), "300"});
  ASSERT_EQ(out.exit_code, 0) << out.out << out.err;
  std::smatch accuracy;
  const std::regex pattern("\\[0\\] epoch 1: mean loss [0-9.]+, test accuracy ([0-9.]+)");
  ASSERT_TRUE(std::regex_search(out.out, accuracy, pattern)) << out.out;
  EXPECT_GT(std::stod(accuracy[1]), 0.7);
  EXPECT_TRUE(std::filesystem::exists(folder / "doodle.safetensors"));
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
