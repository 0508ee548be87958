// tutti plan: the table of schedules, a picture, schedules of one's own; networks; replays of runs.
#include <fstream>

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

CommandResult planned(const Words& words) { return tutti(Words{"plan", "pipeline"} + words); }

TEST(PlanPipeline, ComparesAllSchedules) {
  const TempFolder folder;
  ASSERT_THAT(
      planned({"--ranks", "4", "--microbatches", "8", "--json", folder / "f.json"}),
      Exits(0, Out(AllOf(HasSubstr("1f1b"), HasSubstr("27.3 %"), HasSubstr("dualpipe-v")))));
  const auto rows = json_in(folder / "f.json");
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
  EXPECT_THAT(planned({"--schedule", folder / "own.csv"}),
              Exits(2, Err(HasSubstr("ranks wait for each other: rank 0 at B 0.0"))));
}

// Inception before ResNet before AlexNet: what each computes for a parameter.
TEST(PlanTable, OrdersNetworksByWhatTheyComputeForAByte) {
  const TempFolder folder;
  ASSERT_THAT(tutti({"plan", "table", "alexnet", "resnet18", "inception_v3", "--link",
                     "10Gbit,50us", "--hosts", "16", "--json", folder / "f.json"}),
              Exits(0, Out(AllOf(HasSubstr("communication"), HasSubstr("10 Gbit/s, 50 us")))));
  const auto rows = json_in(folder / "f.json");
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

CommandResult replayed(const Words& words) { return tutti(Words{"plan", "replay"} + words); }

CommandResult trained(const TempFolder& folder, const Words& words) {
  return tutti(words_of("train mlp --threads 1 --batch-size 96 --max-steps 9 --epochs 1") +
               Words{"--data", kDoodles, "--trace", folder / "trace.json"} + words);
}

// Replicas of processes and of threads, and gradients that accumulate.
TEST(PlanReplay, OfARunOfEachKindAddsUp) {
  for (const std::string kind : {"multi_worker", "mirrored"}) {
    const TempFolder folder;
    const auto run = trained(folder, {"--strategy", kind, "--replicas", "3", "--accumulate", "2"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    ASSERT_THAT(
        replayed({folder.path(), "--without", "rank:2,rank:0", "--json", folder / "replay.json"}),
        Exits(0, Out(AllOf(HasSubstr("3 ranks of " + kind), HasSubstr("without rank 2, 0"),
                           HasSubstr("the other 1 ranks"), HasSubstr("33.3 %")))));
    const auto json = json_in(folder / "replay.json");
    EXPECT_EQ(json["steps"], 8) << kind;  // of 9, the first left out
    EXPECT_EQ(json["without"]["ranks"], test::json({2, 0}));
    int64_t last = 0;
    for (const auto& rank : json["by_rank"]) last += rank["last_in"].get<int64_t>();
    EXPECT_EQ(last, 8);
    // Fewer ranks to wait for are never a longer wait.
    EXPECT_LE(json["without"]["mean_step_ms"], json["as_it_was"]["mean_step_ms"]);
    EXPECT_GT(json["as_it_was"]["exposed_ms"], 0);
    EXPECT_LT(json["as_it_was"]["exposed_ms"], json["as_it_was"]["mean_step_ms"]);
    const double as_it_was = 96 * 2 * 1e3 / json["as_it_was"]["mean_step_ms"].get<double>();
    EXPECT_NEAR(json["as_it_was"]["images_per_second"].get<double>() / as_it_was, 1, 1e-6);
  }
}

TEST(PlanReplay, RunsThatItCannotReplayAreRefused) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--strategy", "one_device", "--replicas", "2"}, "take turns"},
      {{"--strategy", "mirrored", "--replicas", "2", "--mesh", "stage=2"}, "parts of one model"}};
  for (const auto& [words, why] : cases) {
    const TempFolder folder;
    const auto run = trained(folder, words);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(replayed({folder.path(), "--without", "rank:1"}),
                Exits(2, Err(AllOf(HasSubstr(why), HasSubstr("expected one of mirrored")))));
  }
}

}  // namespace
}  // namespace tutti::test
