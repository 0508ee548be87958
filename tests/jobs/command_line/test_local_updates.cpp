// `--local-steps`: the same bits from all layouts, and trainings that go on with what each replica
// had for itself.
#include <gmock/gmock.h>

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

constexpr const char* kFlags =
    "--threads 1 --seed 5 --optimizer adamw --outer-learning-rate 0.7 --outer-momentum 0.9 "
    "--outer-nesterov";
constexpr const char *kOneEpoch = "--batch-size 96 --epochs 1", *kRoundsOfFour = "--local-steps 4";

Words training(const std::string& strategy, int replicas, const Words& more,
               const char* length = kOneEpoch, const char* rounds = kRoundsOfFour) {
  return Words{TUTTI_PROGRAM, "train",      "mlp",
               "--data",      kDoodles,     "--strategy",
               strategy,      "--replicas", std::to_string(replicas)} +
         words_of(kFlags) + words_of(length) + words_of(rounds) + more;
}

TEST(LocalUpdates, HaveTheSameBitsInTurnAsThreadsAndAsProcesses) {
  for (const int replicas : {2, 3}) {
    const Words more = {"--max-steps", "10"};  // 2 more than two rounds
    const json in_turn = figures_of(training("one_device", replicas, more));
    EXPECT_EQ(sha_of(figures_of(training("mirrored", replicas, more))), sha_of(in_turn));
    const json processes = figures_of(training("multi_worker", replicas, more));
    EXPECT_EQ(sha_of(processes), sha_of(in_turn));
    EXPECT_EQ(processes.at("val_loss"), in_turn.at("val_loss")) << "of the mean that is tested";
    const json together = figures_of(
        Words{TUTTI_PROGRAM, "train", "mlp", "--data", kDoodles, "--strategy", "mirrored",
              "--replicas", std::to_string(replicas)} +
        words_of("--batch-size 96 --threads 1 --seed 5 --epochs 1 --optimizer adamw --reduction "
                 "all_reduce") +
        more);
    const double bytes = together.at("wire_bytes_per_step").get<double>();
    EXPECT_NEAR(in_turn.at("wire_bytes_per_step").get<double>(), bytes / 4, bytes / 100);
  }
}

// Cut in the middle of a round, and at its end.
TEST(LocalUpdates, GoOnWithWhatEachReplicaHad) {
  const Words all = {"--max-steps", "14"};
  const std::string straight = sha_of(figures_of(training("mirrored", 2, all)));
  for (const char* strategy : {"mirrored", "multi_worker"})
    for (const char* cut : {"6", "8"}) {
      const TempFolder folder;
      const Words out = {"--out", folder / "run", "--checkpoint-every", "3"};
      figures_of(training(strategy, 2, out + Words{"--max-steps", cut}));
      const json resumed = figures_of(training(strategy, 2, out + all + Words{"--resume"}));
      EXPECT_EQ(sha_of(resumed), straight) << strategy << " cut after " << cut;
    }
}

// Epochs end in the middle of a round, where the mean is tested and hidden again.
TEST(LocalUpdates, HaveRoundsThatGoOnFromEpochToEpoch) {
  const char* const length = "--batch-size 5000 --epochs 2 --checkpoint-every 3";
  const auto train = [&](const std::string& strategy) {
    const TempFolder folder;
    return figures_of(training(strategy, 2, {"--out", folder / "run"}, length));
  };
  const json in_turn = train("one_device");
  ASSERT_EQ(in_turn.at("train_loss").size(), 2u) << "two epochs";
  EXPECT_EQ(sha_of(train("mirrored")), sha_of(in_turn));
  EXPECT_EQ(sha_of(train("multi_worker")), sha_of(in_turn));
}

TEST(LocalUpdates, DoNotGoOnWithOtherReplicasOrWithoutThem) {
  const TempFolder folder;
  const Words out = {"--out", folder / "run"};
  figures_of(training("mirrored", 2, out + Words{"--max-steps", "6"}));
  const Words on = out + words_of("--max-steps 9 --resume");
  const auto other = run_command(training("mirrored", 3, on), {}, kProgramLimit);
  EXPECT_EQ(other.exit_code, 2) << other.out;
  EXPECT_THAT(other.err, HasSubstr("2 replicas had weights and an optimizer of their own, and here "
                                   "are 3; go on with as many"));
  for (const auto& [rounds, why] :
       {std::pair{"--local-steps 4 --local-start 100",
                  "start_step (--local-start) was 0, and here it is 100"},
        std::pair{"--local-steps 8", "every (--local-steps) was 4, and here it is 8"}}) {
    const auto changed =
        run_command(training("mirrored", 2, on, kOneEpoch, rounds), {}, kProgramLimit);
    EXPECT_EQ(changed.exit_code, 2) << changed.out;
    EXPECT_THAT(changed.err, HasSubstr(why));
  }
  const auto without = run_command(
      Words{TUTTI_PROGRAM, "train", "mlp", "--data", kDoodles} +
          words_of("--strategy mirrored --replicas 2 --batch-size 96 --threads 1 --seed 5 --epochs "
                   "1 --optimizer adamw") +
          on,
      {}, kProgramLimit);
  EXPECT_EQ(without.exit_code, 2) << without.out;
  EXPECT_THAT(without.err, HasSubstr("local adamw"));
}

}  // namespace
}  // namespace tutti::test
