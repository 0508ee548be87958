// `tutti train --shares`: by a file, by speed and what that records, and what is no share.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tutti/data/share_schedule.h"

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

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

}  // namespace
}  // namespace tutti::test
