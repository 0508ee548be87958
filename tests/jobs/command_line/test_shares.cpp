// `tutti train --shares`: by a file, by speed and what that records, and what is no share.
#include "tutti/data/share_schedule.h"

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

std::string weights_by(const std::string& strategy, const std::string& shares) {
  Words words = Words{TUTTI_PROGRAM} +
                words_of(
                    "train mlp --threads 1 --take 150 --epochs 4 --replicas 2 --time-limit 20"
                    " --batch-size 20") +
                Words{"--data", kDoodles, "--strategy", strategy};
  if (!shares.empty()) words = words + Words{"--shares", shares};
  return sha_of(figures_of(words));
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
