// `tutti_bench servers`.
#include <gmock/gmock.h>

#include "tests/jobs/compare/bench_program.h"

namespace tutti::test {
namespace {

TEST(Servers, ReachWhatTheRowsSay) {
  const TempFolder folder;
  for (const std::string engine : {"shm", "tcp"})
    for (const bool backups : {true, false}) {
      Words words = {"servers",        "--servers", "2",        "--workers", "2", "--engine",
                     engine,           "--bytes",   "4,300000", "--rounds",  "1", "--json",
                     folder / "f.json"};
      if (!backups) words.push_back("--no-backups");
      const auto result = tutti_bench(words);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      const auto lines = lines_of(folder / "f.json");
      ASSERT_EQ(lines.size(), 4u);
      EXPECT_EQ(lines[0].at("staleness"), "inf");
      EXPECT_EQ(lines[1].at("staleness"), "0");
      EXPECT_EQ(lines[3].at("bytes"), 300'000);
      for (const nlohmann::json& line : lines) {
        EXPECT_EQ(line.at("bench"), "ps");
        EXPECT_EQ(line.at("servers"), 2);
        EXPECT_EQ(line.at("workers"), 2);
        EXPECT_EQ(line.at("engine"), engine);
        EXPECT_EQ(line.at("backups"), backups);
        EXPECT_EQ(line.at("correct"), true) << line.dump();
        for (const char* name :
             {"pull_gb_s", "push_gb_s", "push_pull_gb_s", "limit_gb_s", "fraction"})
          EXPECT_TRUE(line.at(name).is_number()) << name;
      }
    }
}

TEST(Servers, MoveRowsOfTables) {
  const TempFolder folder;
  const auto result =
      tutti_bench({"servers", "--servers", "2", "--workers", "2", "--rows", "5000", "--width", "3",
                   "--keys", "70", "--rounds", "1", "--json", folder / "f.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = lines_of(folder / "f.json");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("staleness"), "inf");
  EXPECT_EQ(lines[1].at("staleness"), "0");
  for (const nlohmann::json& line : lines) {
    EXPECT_EQ(line.at("bench"), "ps_sparse");
    EXPECT_EQ(line.at("rows"), 5000);
    EXPECT_EQ(line.at("keys"), 70);
    EXPECT_EQ(line.at("correct"), true) << line.dump();
    for (const char* name : {"push_pull_us", "copy_us", "ratio"})
      EXPECT_GT(line.at(name).get<double>(), 0) << name;
  }
}

}  // namespace
}  // namespace tutti::test
