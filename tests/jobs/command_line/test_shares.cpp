// `tutti train --shares`: by a file, by speed and what that records, and what is no share.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tutti/data/share_schedule.h"

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

CommandResult train_shared(const Words& more) {
  Words words = {TUTTI_PROGRAM, "train",      "mlp",    "--data",       kDoodles,
                 "--threads",   "1",          "--take", "150",          "--epochs",
                 "4",           "--replicas", "2",      "--time-limit", "20"};
  words.insert(words.end(), more.begin(), more.end());
  return run_command(words, {}, Millis{120'000});
}

// "" where it failed.
std::string weights_by(const std::string& strategy, const std::string& shares) {
  const TempFolder folder;
  const std::string figures = folder / "figures.json";
  Words words = {"--batch-size", "20", "--strategy", strategy, "--json", figures};
  if (!shares.empty()) words.insert(words.end(), {"--shares", shares});
  const auto result = train_shared(words);
  EXPECT_EQ(result.exit_code, 0) << strategy << " " << shares << result.err << result.out;
  if (result.exit_code != 0) return {};
  return nlohmann::json::parse(get_bytes(figures)).at("weights_sha256");
}

TEST(TrainShares, OfAFileGiveTheWeightsOfOneDevice) {
  const TempFolder folder;
  const std::string file = folder / "shares.json";
  put_bytes(file, data::ShareSchedule{{{3, {13, 7}}, {9, {2, 18}}, {20, {1, 1}}}}.to_json(2));
  const std::string in_turn = weights_by("one_device", "file:" + file);
  EXPECT_NE(in_turn, weights_by("one_device", ""));
  EXPECT_NE(in_turn, weights_by("one_device", "13,7"));
  for (const char* strategy : {"mirrored", "multi_worker", "central_storage"})
    EXPECT_EQ(weights_by(strategy, "file:" + file), in_turn) << strategy;
}

// Whether they have moved is up to this machine.
TEST(TrainShares, BySpeedAreRecordedForOneDevice) {
  for (const char* strategy : {"mirrored", "multi_worker"}) {
    const TempFolder folder;
    const std::string file = folder / "shares.json";
    const std::string trained = weights_by(strategy, "by-speed:" + file);
    EXPECT_EQ(weights_by("one_device", "file:" + file), trained) << get_bytes(file);
  }
}

TEST(TrainShares, ThatAreNoneExitWith2) {
  const TempFolder folder;
  const auto file_of = [&](const std::string& name, const std::string& text) {
    put_bytes(folder / name, text);
    return "file:" + (folder / name).string();
  };
  const data::ShareSchedule nothing{{{5, {20, 0}}}}, too_unlike{{{5, {1000, 1}}}}, fine;
  struct Case {
    Words words;
    std::string says;
  };
  const Case cases[] = {
      {{"--shares", "2,0"}, "got \"0\", expected a number above 0 for each replica"},
      {{"--shares", "fast"}, "by-speed, by-speed:RECORD or file:PATH"},
      {{"--shares", "2,1,1"}, "got 3 ([2, 1, 1]) for 2 replicas"},
      {{"--shares", "1000,1"}, "leave replica 1 of 2 none of the 128 rows"},
      {{"--shares", "1000,1", "--strategy", "multi_worker"}, "larger batch, or fewer replicas"},
      {{"--shares", "by-speed"}, "under one_device the replicas take turns"},
      {{"--shares", "by-speed", "--strategy", "parameter_server"}, "use mirrored, multi_worker"},
      {{"--shares", "by-speed", "--strategy", "mirrored", "--batch-size", "1"},
       "expected 2 or more"},
      {{"--shares", "by-speed:/no/such/file", "--strategy", "multi_worker"}, "/no/such/file"},
      {{"--shares", "file:/no/such/file"}, "/no/such/file"},
      {{"--shares", file_of("a", "{}")}, "format is not there"},
      {{"--shares", file_of("b", nothing.to_json(2))}, "that of replica 1 is 0, expected 1 to"},
      {{"--shares", file_of("c", too_unlike.to_json(2)), "--strategy", "mirrored"},
       "the shares from step 5 on [1000, 1] leave replica 1 of 2"},
      {{"--shares", file_of("d", fine.to_json(3))}, "replicas is 3, but here are 2"},
  };
  for (const Case& one : cases) {
    const auto result = train_shared(one.words);
    EXPECT_EQ(result.exit_code, 2) << one.says << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr(one.says));
  }
}

}  // namespace
}  // namespace tutti::test
