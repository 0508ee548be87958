// Embedding tables on servers train what those in one process train.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>

#include "tests/jobs/examples/programs.h"
#include "tests/jobs/parameter_server/served_job.h"
#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using Figures = std::map<std::string, double>;

const std::filesystem::path kSharedData =
    std::filesystem::path(TUTTI_SOURCE_DIR).parent_path() / "shared/data";

CommandResult run_example(const std::string& example, const Words& launcher, const Words& strategy,
                          const Words& arguments) {
  Words words = launcher;
  words.push_back((kPrograms / example).string());
  for (const Words& more : {strategy, {"--threads", "1"}, arguments})
    words.insert(words.end(), more.begin(), more.end());
  return run_command(words, {}, Millis{100'000});
}

// "test rmse 0.9" and "test accuracy 0.8 auc 0.9", printed so that no bit is lost.
Figures figures_in(const CommandResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  Figures figures;
  const size_t line = result.out.find("test ");
  if (line == std::string::npos) return figures;
  const std::string rest = result.out.substr(line + 4);
  const std::regex pattern(" ([a-z]+) ([0-9.]+)");
  for (std::sregex_iterator it(rest.begin(), rest.end(), pattern), end; it != end; ++it)
    figures[(*it)[1]] = std::stod((*it)[2]);
  return figures;
}

// Two workers, two servers.
Figures served(const std::string& example, const std::string& staleness, const Words& arguments) {
  return figures_in(
      run_example(example, {(kPrograms / "tutti").string(), "run", "--servers", "2", "-n", "2"},
                  {"--strategy", "parameter_server", "--staleness", staleness}, arguments));
}

Figures in_process(const std::string& example, const std::string& strategy,
                   const Words& arguments) {
  return figures_in(
      run_example(example, {}, {"--strategy", strategy, "--replicas", "2"}, arguments));
}

void expect_near(const Figures& got, const Figures& oracle, double tolerance) {
  ASSERT_EQ(got.size(), oracle.size());
  for (const auto& [name, value] : oracle) EXPECT_NEAR(got.at(name), value, tolerance) << name;
}

struct Real {
  const char* example;
  const char* folder;
  Figures quality;   // at least, or at most for an error
  double tolerance;  // of what the workers' pace decides

  friend void PrintTo(const Real& real, std::ostream* out) { *out << real.folder; }
};

class RealData : public testing::TestWithParam<Real> {};

TEST_P(RealData, ReachesTheQualityOfOneProcess) {
  const Real& real = GetParam();
  const Words folder = {(kSharedData / real.folder).string()};
  if (!std::filesystem::exists(folder[0])) GTEST_SKIP() << folder[0] << " is not there";
  const Figures oracle = in_process(real.example, "one_device", folder);
  for (const auto& [name, value] : real.quality) {
    ASSERT_TRUE(oracle.contains(name));
    if (name == "rmse")
      EXPECT_LT(oracle.at(name), value);
    else
      EXPECT_GT(oracle.at(name), value);
  }
  EXPECT_EQ(in_process(real.example, "mirrored", folder), oracle);
  EXPECT_EQ(served(real.example, "0", folder), oracle);
  expect_near(served(real.example, "inf", folder), oracle, real.tolerance);
}

// Means alone give an error of 1.06; the larger class alone an accuracy of 0.76.
INSTANTIATE_TEST_SUITE_P(
    Embeddings, RealData,
    testing::Values(Real{"07_movielens", "movielens-small", {{"rmse", 0.875}}, 0.01},
                    Real{"08_adult", "adult", {{"accuracy", 0.848}, {"auc", 0.9}}, 0.01}),
    [](const auto& info) { return std::regex_replace(info.param.folder, std::regex("-"), "_"); });

// 3,000 ratings by a rule, in the form of MovieLens.
class FewRatings : public testing::Test {
 protected:
  FewRatings() {
    std::ofstream file(folder_ / "ratings.csv");
    file << "userId,movieId,rating,timestamp\n";
    for (int i = 0; i < 3000; ++i) {
      const int user = i * 7 % 61, film = i * 13 % 89;
      file << user << "," << film << "," << 1 + (user + film) % 5 << ",0\n";
    }
  }
  Words arguments() const { return {folder_.path().string(), "2"}; }

  TempFolder folder_;
};

TEST_F(FewRatings, GiveTheBitsOfOneProcessInStep) {
  const Figures oracle = in_process("07_movielens", "one_device", arguments());
  EXPECT_EQ(oracle.size(), 1u);
  EXPECT_EQ(served("07_movielens", "0", arguments()), oracle);
  EXPECT_EQ(in_process("07_movielens", "central_storage", arguments()), oracle);
}

// Two replicas a worker: their sum comes before those of other workers.
TEST_F(FewRatings, AddTwoReplicasOfAWorkerFirst) {
  const auto four = [&](const Words& launcher, const std::string& strategy) {
    return figures_in(run_example("07_movielens", launcher,
                                  {"--strategy", strategy, "--replicas", "4"}, arguments()));
  };
  const Figures oracle = four({}, "one_device");
  EXPECT_EQ(oracle.size(), 1u);
  const Words launcher = {(kPrograms / "tutti").string(), "run", "--servers", "1", "-n", "2"};
  expect_near(four(launcher, "parameter_server"), oracle, 1e-5);
}

// Rows and their optimizer states are in its backup.
TEST_F(FewRatings, LoseNoBitWithAServer) {
  const Words strategy = {"--strategy", "parameter_server", "--threads", "1"};
  const Words many = {folder_.path().string(), "150"};
  Job job(Words{(kPrograms / "tutti").string(), "run", "--servers", "2", "-n", "2",
                example("07_movielens")} +
          strategy + many);
  job.wait_for("epoch 3");
  job.send("server 1", SIGKILL);
  ASSERT_EQ(job.end(Millis{60'000}), 0) << last_part(job.log());
  EXPECT_THAT(job.log(), HasSubstr("partition 1: server 0 took over from server 1 after"));
  EXPECT_EQ(figures_in(CommandResult{.exit_code = 0, .out = job.log()}),
            in_process("07_movielens", "one_device", many));
}

TEST_F(FewRatings, GoOnFromWhereTheyWereKilled) {
  for (const std::string strategy : {"one_device", "mirrored"}) {
    const Words many = {folder_.path().string(), "400"};
    const TempFolder folder;
    const Words words =
        Words{
            example("07_movielens"), "--strategy", strategy, "--replicas", "2", "--threads", "1"} +
        many + Words{folder / "c"};
    EXPECT_THAT(cut_off(words, folder / "c", 60), Exits(137));
    EXPECT_EQ(figures_in(run_command(words)), in_process("07_movielens", strategy, many));
  }
}

TEST_F(FewRatings, TrainUnderABound) {
  const Figures oracle = in_process("07_movielens", "one_device", arguments());
  expect_near(served("07_movielens", "2", arguments()), oracle, 0.1);
}

TEST_F(FewRatings, AreRefusedByMultiWorker) {
  const auto result =
      run_example("07_movielens", {(kPrograms / "tutti").string(), "run", "-n", "2"},
                  {"--strategy", "multi_worker"}, arguments());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("embedding table \"user\": strategy multi_worker"));
  EXPECT_THAT(result.err, HasSubstr("use parameter_server"));
}

}  // namespace
}  // namespace tutti::test
