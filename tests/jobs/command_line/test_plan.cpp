// tutti plan: the table of schedules, a picture, and schedules of one's own.
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

TEST(PlanPipeline, WrongUseIsAnswered) {
  EXPECT_THAT(planned({"--schedule", "zb-h2"}).err, HasSubstr("did you mean \"zb-h1\"?"));
  EXPECT_THAT(planned({"--svg", "a.svg"}).err, HasSubstr("name it with --schedule"));
  EXPECT_THAT(planned({"--schedule", "1f1b", "--forward", "1,2"}).err,
              HasSubstr("costs of 2 stages, expected one, or one for each of 4"));
  EXPECT_EQ(planned({"--schedule", "none.csv"}).exit_code, 2);
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

TEST(PlanTable, WrongUseIsAnswered) {
  EXPECT_THAT(table({"alexnt"}).err, HasSubstr("did you mean \"alexnet\"?"));
  EXPECT_THAT(table({"--link", "10,50us"}).err, HasSubstr("the rate has no unit"));
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"--hosts", "0"}, {"--batch", "0"}, {"--gflops", "0"}, {"--link", "1Gbit"}})
    EXPECT_EQ(table(words).exit_code, 2) << words[0];
}

}  // namespace
}  // namespace tutti::test
