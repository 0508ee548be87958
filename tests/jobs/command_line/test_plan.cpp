// tutti plan: the table of schedules, a picture, schedules of one's own; networks; replays of runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

CommandResult planned(std::vector<std::string> words) {
  words.insert(words.begin(), {TUTTI_PROGRAM, "plan", "pipeline"});
  return run_command(words, {}, Millis{60'000});
}

TEST(PlanPipeline, ComparesAllSchedules) {
  const TempFolder folder;
  const auto result = planned({"--ranks", "4", "--microbatches", "8", "--json", folder / "f.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("1f1b"), HasSubstr("27.3 %"), HasSubstr("dualpipe-v")));
  const auto rows = nlohmann::json::parse(std::ifstream(folder / "f.json"));
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_EQ(rows[3]["schedule"], "zb-h1");
  EXPECT_EQ(rows[3]["time"], 27);
}

TEST(PlanPipeline, DrawsOneAndReadsWhatItWrote) {
  const TempFolder folder;
  const auto drawn = planned({"--ranks", "2", "--microbatches", "2", "--schedule", "1f1b", "--svg",
                              folder / "a.svg", "--csv", folder / "own.csv"});
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  EXPECT_THAT(get_bytes(folder / "a.svg"), AllOf(HasSubstr("<svg"), HasSubstr("rank 1")));
  EXPECT_EQ(planned({"--schedule", folder / "own.csv", "--forward", "1,2"}).exit_code, 0);
  std::ofstream(folder / "own.csv") << "F0,B0,F1,B1\nF0,F1,B0,B1\n";
  const auto refused = planned({"--schedule", folder / "own.csv"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("ranks wait for each other: rank 0 at B 0.0"));
}

CommandResult table(std::vector<std::string> words) {
  words.insert(words.begin(), {TUTTI_PROGRAM, "plan", "table"});
  return run_command(words, {}, Millis{60'000});
}

// Inception before ResNet before AlexNet: what each computes for a parameter.
TEST(PlanTable, OrdersNetworksByWhatTheyComputeForAByte) {
  const TempFolder folder;
  const auto result = table({"alexnet", "resnet18", "inception_v3", "--link", "10Gbit,50us",
                             "--hosts", "16", "--json", folder / "f.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("communication"), HasSubstr("10 Gbit/s, 50 us")));
  const auto rows = nlohmann::json::parse(std::ifstream(folder / "f.json"));
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0]["model"], "inception_v3");
  EXPECT_EQ(rows[1]["model"], "resnet18");
  EXPECT_EQ(rows[2]["model"], "alexnet");
  EXPECT_LT(rows[2]["efficiency"], 1);
  // 2 x 15 / 16 of 244.4 MB at 1.25 GB/s, and two latencies.
  EXPECT_NEAR(rows[2]["send_seconds"].get<double>(), 0.36671, 1e-5);
  // 32 x 6 x 714,188,480 at 10^12 a second.
  EXPECT_NEAR(rows[2]["compute_seconds"].get<double>(), 0.13712, 1e-5);
  EXPECT_EQ(rows[2]["balance"], 86);
}

CommandResult replayed(std::vector<std::string> words) {
  words.insert(words.begin(), {TUTTI_PROGRAM, "plan", "replay"});
  return run_command(words, {}, Millis{60'000});
}

CommandResult trained(const TempFolder& folder, std::vector<std::string> words) {
  words.insert(words.begin(),
               {TUTTI_PROGRAM, "train", "mlp", "--data", kDoodles, "--threads", "1", "--batch-size",
                "96", "--max-steps", "9", "--epochs", "1", "--trace", folder / "trace.json"});
  return run_command(words, {}, Millis{240'000});
}

// Replicas of processes and of threads, and gradients that accumulate.
TEST(PlanReplay, OfARunOfEachKindAddsUp) {
  for (const std::string kind : {"multi_worker", "mirrored"}) {
    const TempFolder folder;
    const auto run = trained(folder, {"--strategy", kind, "--replicas", "3", "--accumulate", "2"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto result =
        replayed({folder.path(), "--without", "rank:2,rank:0", "--json", folder / "replay.json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr("3 ranks of " + kind), HasSubstr("without rank 2, 0"),
                                  HasSubstr("the other 1 ranks"), HasSubstr("33.3 %")));
    const auto json = nlohmann::json::parse(std::ifstream(folder / "replay.json"));
    EXPECT_EQ(json["steps"], 8) << kind;  // of 9, the first left out
    EXPECT_EQ(json["without"]["ranks"], nlohmann::json({2, 0}));
    int64_t last = 0;
    for (const auto& rank : json["by_rank"]) last += rank["last_in"].get<int64_t>();
    EXPECT_EQ(last, 8);
    // Fewer ranks to wait for are never a longer wait.
    EXPECT_LE(json["without"]["mean_step_ms"], json["as_it_was"]["mean_step_ms"]);
    const double as_it_was = 96 * 2 * 1e3 / json["as_it_was"]["mean_step_ms"].get<double>();
    EXPECT_NEAR(json["as_it_was"]["images_per_second"].get<double>() / as_it_was, 1, 1e-6);
  }
}

TEST(PlanReplay, RunsThatItCannotReplayAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--strategy", "one_device", "--replicas", "2"}, "take turns"},
      {{"--strategy", "mirrored", "--replicas", "2", "--mesh", "stage=2"}, "parts of one model"}};
  for (const auto& [words, why] : cases) {
    const TempFolder folder;
    const auto run = trained(folder, words);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto result = replayed({folder.path(), "--without", "rank:1"});
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, AllOf(HasSubstr(why), HasSubstr("expected one of mirrored")));
  }
}

}  // namespace
}  // namespace tutti::test
