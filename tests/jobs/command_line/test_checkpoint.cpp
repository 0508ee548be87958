// Checkpoints as a user has them: a training that is killed or asked to end goes on to the same
// weights, and `tutti checkpoint` says what there is.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

// A training that is cut off in the middle of an epoch.
struct Cut {
  std::string model;
  int epochs;
  int step;   // whose checkpoint is there when it is cut off
  int every;  // steps from checkpoint to checkpoint
  int samples, batch;
  int slowed;  // while it is watched, so that nothing is missed that happens between two steps
};
const Cut kDoodleCnn{"doodle_cnn", 3, 6, 1, 256, 64, 20};  // 12 steps
const Cut kResnet18{"resnet18", 1, 4, 2, 96, 8, 2};        // 12, with batch statistics

// It is tested on few samples: what is shown here are its weights.
Words training(const Cut& cut, const std::string& strategy, const Words& more) {
  return words_of(fmt::format(
             "{} train {} --data {} --take {} --batch-size {} --epochs {} --strategy {} "
             "--replicas 2 --threads 1 --validation-split 0.001",
             TUTTI_PROGRAM, cut.model, kDoodles, cut.samples, cut.batch, cut.epochs, strategy)) +
         more;
}

Words training(const std::string& strategy, const Words& more, int epochs = kDoodleCnn.epochs) {
  Cut longer = kDoodleCnn;
  longer.epochs = epochs;
  return training(longer, strategy, more);
}

// Into $OUT.
Words watched(const TempFolder& folder, const Cut& cut, const std::string& strategy) {
  return training(cut, strategy,
                  {"--out", folder / "out", "--checkpoint-every", std::to_string(cut.every),
                   "--keep-checkpoints", "40", "--slow-worker", fmt::format("0:{}", cut.slowed)});
}

std::string sha256_of(const std::string& file) { return json_in(file).at("weights_sha256"); }

const std::string& straight(const Cut& cut = kDoodleCnn) {
  static std::map<std::string, std::string> known;
  const auto [sha256, fresh] = known.try_emplace(cut.model);
  if (fresh) sha256->second = sha_of(figures_of(training(cut, "mirrored", {})));
  return sha256->second;
}

// A bash script whose $@ are `words`, $LOG and $OUT files for its log and its output.
CommandResult in_script(const TempFolder& folder, const std::string& script, const Words& words) {
  return run_command(Words{"bash", "-c", script, "bash"} + words,
                     {"LOG=" + (folder / "log").string(), "OUT=" + (folder / "out").string()},
                     kProgramLimit);
}

// Begins a training into $OUT; once it has the checkpoint of its step, `signal` goes to $TO.
CommandResult cut_off(const TempFolder& folder, const std::string& strategy,
                      const std::string& signal, const std::string& to,
                      const Cut& cut = kDoodleCnn) {
  const std::string script = fmt::format(
      "set -m; \"$@\" > $LOG 2>&1 & job=$!; until [ -e $OUT/checkpoints/step-{:012} ]; "
      "do kill -0 $job || {{ cat $LOG; exit 99; }}; sleep 0.02; done; kill -{} -- {}; "
      "wait $job; code=$?; cat $LOG; exit $code",
      cut.step, signal, to);
  return in_script(folder, script, watched(folder, cut, strategy));
}

void expect_the_same_end(const TempFolder& folder, const std::string& strategy,
                         const Cut& cut = kDoodleCnn) {
  ASSERT_THAT(run_command(training(cut, strategy,
                                   {"--out", folder / "out", "--resume", "--json",
                                    folder / "resumed.json"}),
                          {}, kProgramLimit),
              Exits(0, Out(HasSubstr("goes on from step-0000000000"))));
  EXPECT_EQ(sha256_of(folder / "resumed.json"), straight(cut)) << strategy;
}

CommandResult checkpoint(const Words& words) { return tutti(Words{"checkpoint"} + words); }

void expect_a_killed_one_goes_on(const Cut& cut, const std::string& strategy) {
  const TempFolder folder;
  const auto killed = cut_off(folder, strategy, "KILL", "-$job", cut);
  EXPECT_EQ(killed.exit_code, 137) << killed.out;
  const auto verified = checkpoint({"verify", folder / "out"});
  EXPECT_EQ(verified.exit_code, 0) << verified.out;
  expect_the_same_end(folder, strategy, cut);
}

TEST(Checkpoint, AKilledTrainingGoesOnToTheSameWeights) {
  for (const char* strategy : {"mirrored", "multi_worker"})
    expect_a_killed_one_goes_on(kDoodleCnn, strategy);
}

TEST(Checkpoint, SoDoesOneWithBatchStatistics) {
  expect_a_killed_one_goes_on(kResnet18, "multi_worker");
}

TEST(Checkpoint, GoesOnUnderAnotherStrategy) {
  const TempFolder folder;
  cut_off(folder, "mirrored", "KILL", "-$job");
  expect_the_same_end(folder, "multi_worker");
}

TEST(Checkpoint, WhoIsAskedToEndSavesAndEndsWith143) {
  for (const std::string strategy : {"mirrored", "multi_worker"}) {
    const TempFolder folder;
    const auto asked = cut_off(folder, strategy, "TERM", "$job");
    EXPECT_EQ(asked.exit_code, 143) << asked.out;
    EXPECT_THAT(asked.out, AllOf(HasSubstr("saved step-"), HasSubstr("SIGTERM"))) << strategy;
    expect_the_same_end(folder, strategy);
  }
}

// Of a job in the background, $job, whose output is in $LOG: worker 1 of its last life is killed.
constexpr const char* kKillingTwice =
    "set -m; \"$@\" > $LOG 2>&1 & job=$!; "
    "until_true() { until eval \"$1\"; do kill -0 $job || { cat $LOG; exit 99; }; sleep 0.02; "
    "done; }; "
    "saved() { ls -d $OUT/checkpoints/step-* 2> /dev/null | wc -l; }; "
    "kill_one() { kill -KILL $(grep -o 'worker 1 pid [0-9]*' $LOG | tail -1 | cut -d ' ' -f 4); }; "
    "until_true '[ $(saved) -gt 1 ]'; kill_one; "
    "until_true 'grep -q \"goes on from\" $LOG'; before=$(saved); "
    "until_true '[ $(saved) -gt $((before + 2)) ]'; kill_one; "  // past the step of the first
    "wait $job; code=$?; cat $LOG; exit $code";

Words under_run(const Words& words) {
  return Words{TUTTI_PROGRAM, "run", "-n", "2", "--restarts", "3"} + words;
}

TEST(Checkpoint, AJobWhoseWorkerIsKilledTwiceIsStartedAgainAndEndsWithTheSameWeights) {
  const TempFolder folder;
  ASSERT_THAT(in_script(folder, kKillingTwice,
                        under_run(watched(folder, kDoodleCnn, "multi_worker")) +
                            Words{"--json", folder / "f.json"}),
              Exits(0, Out(AllOf(HasSubstr("rank 1 was killed by SIGKILL\n"),
                                 HasSubstr("the whole job is started again (1 of 3)"),
                                 HasSubstr("the whole job is started again (2 of 3)"),
                                 Not(HasSubstr("(3 of 3)"))))));
  EXPECT_EQ(sha256_of(folder / "f.json"), straight());
}

TEST(Checkpoint, AStepThatAlwaysFailsEndsItsJobTheSecondTime) {
  const TempFolder folder;
  const auto result = run_command(under_run(training(kDoodleCnn, "multi_worker",
                                                     {"--out", folder / "out", "--checkpoint-every",
                                                      "1", "--learning-rate", "1e30"})),
                                  {}, kProgramLimit);
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("goes on from step-000000000001"));
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("the loss is not finite (NaN or infinite) since epoch 1 of 3, step 2"),
            HasSubstr("that was in step 2; the whole job is started again (1 of 3)"),
            HasSubstr("step 2 has failed for the second time: the job is not started "
                      "again\n"),
            Not(HasSubstr("(2 of 3)"))));
}

// Each worker writes what its replica has not sent yet, and gets it back.
TEST(Checkpoint, WhatCompressionKeepsBackGoesOn) {
  const auto sha256 = [&](const std::string& strategy, const Words& more) {
    return sha_of(figures_of(training(strategy, Words{"--compression", "topk:0.05"} + more)));
  };
  const TempFolder folder;
  const std::string whole = sha256("mirrored", {});
  sha256("multi_worker", {"--out", folder / "out", "--max-steps", "7"});
  EXPECT_EQ(sha256("multi_worker", {"--out", folder / "out", "--resume"}), whole);
}

TEST(Checkpoint, WhoseTimeIsUpSavesAndEndsWith143) {
  const TempFolder folder;
  EXPECT_THAT(
      run_command(training("multi_worker", {"--out", folder / "out", "--stop-after", "2"}, 100'000),
                  {}, kProgramLimit),
      Exits(143, Out(HasSubstr("saved step-"))));
}

TEST(Checkpoint, OneJobAFolder) {
  const TempFolder folder;
  const std::string script =
      "set -m; \"$@\" > $LOG 2>&1 & job=$!; until [ -e $OUT/checkpoints/step-000000000003 ]; do "
      "kill -0 $job || exit 99; sleep 0.02; done; \"$@\" --resume; code=$?; echo first $job; "
      "kill -KILL -- -$job; exit $code";
  const auto second = in_script(
      folder, script,
      training("mirrored", {"--out", folder / "out", "--checkpoint-every", "3"}, 100'000));
  EXPECT_EQ(second.exit_code, 2) << second.out << second.err;
  const std::string pid = second.out.substr(second.out.find("first ") + 6);
  EXPECT_THAT(second.err, AllOf(HasSubstr("another job writes there: process " +
                                          pid.substr(0, pid.find('\n')) + " on ")));
}

TEST(Checkpoint, ListsVerifiesAndConverts) {
  const TempFolder folder;
  const std::string out = folder / "out";
  ASSERT_THAT(run_command(training("multi_worker", {"--out", out, "--json", folder / "f.json"}, 2),
                          {}, kProgramLimit),
              Exits(0, Out(HasSubstr("2 checkpoints in "))));

  EXPECT_THAT(checkpoint({"ls", out, "--json", folder / "ls.json"}),
              Exits(0, Out(AllOf(HasSubstr("step-000000000004"), HasSubstr("step-000000000008"),
                                 HasSubstr("multi_worker x2"), HasSubstr("val_accuracy")))));
  const json list = json_in(folder / "ls.json");
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[1].at("step"), 8);

  // The same weights as training itself has saved.
  const std::string weights = folder / "weights.safetensors";
  EXPECT_EQ(checkpoint({"convert", out, weights}).exit_code, 0);
  const auto evaluated = tutti({"evaluate", "doodle_cnn", "--data", "examples/data/quickdraw",
                                "--checkpoints", weights, "--json", folder / "e.json"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.out << evaluated.err;
  EXPECT_EQ(sha256_of(folder / "e.json"), sha256_of(folder / "f.json"));

  EXPECT_EQ(checkpoint({"verify", out}).exit_code, 0);
  const std::string part = out + "/checkpoints/step-000000000004/part-1-of-2.safetensors";
  std::filesystem::resize_file(part, std::filesystem::file_size(part) - 1);
  EXPECT_THAT(checkpoint({"verify", out}),
              Exits(1, Out(AllOf(HasSubstr("step-000000000004: DAMAGED"),
                                 HasSubstr("part-1-of-2.safetensors"),
                                 HasSubstr("step-000000000008: whole")))));

  // By its path: in the folder only those with a number are checkpoints.
  const std::string odd = out + "/checkpoints/step-\x1b[2Jred";
  std::filesystem::create_directory(odd);
  for (const char* command : {"ls", "verify"}) {
    EXPECT_THAT(checkpoint({command, odd}).out,
                AllOf(HasSubstr("step-\\x1b[2Jred"), HasSubstr("DAMAGED"), Not(HasSubstr("\x1b"))));
    EXPECT_THAT(checkpoint({command, out}).out, Not(HasSubstr("[2Jred")));
  }
}

// As on a processor for which the rule chooses the other one.
TEST(Checkpoint, OfAnotherDenseKernelIsRefusedAndGoesOnByItsOwn) {
  const auto by = [](const std::string& kernel, const Words& more, int epochs) {
    return run_command(training("mirrored", Words{"--dense-kernel", kernel} + more, epochs), {},
                       kProgramLimit);
  };
  if (const auto tried = by("onednn", {"--max-steps", "1"}, 1); tried.exit_code != 0) {
    EXPECT_EQ(tried.exit_code, 2);
    EXPECT_THAT(tried.err, HasSubstr("this LibTorch does not carry it"));
    GTEST_SKIP() << "this LibTorch carries one dense kernel";
  }
  for (const auto& [own, other] : {std::pair{"blas", "onednn"}, std::pair{"onednn", "blas"}}) {
    const TempFolder folder;
    const Words out = {"--out", folder / "out"}, json = {"--json", folder / "figures.json"};
    ASSERT_EQ(by(own, out, 1).exit_code, 0);
    const auto refused = by(other, {"--out", folder / "out", "--resume"}, 2);
    EXPECT_EQ(refused.exit_code, 2) << refused.out;
    EXPECT_THAT(
        refused.err,
        AllOf(HasSubstr(fmt::format("dense kernel: {} in the checkpoint, {} here", own, other)),
              HasSubstr(fmt::format("--dense-kernel {}", own))));
    const auto resumed = by(own, {"--out", folder / "out", "--resume", json[0], json[1]}, 2);
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_THAT(resumed.out, HasSubstr(fmt::format("dense kernel {}", own)));
    const std::string there = sha256_of(folder / "figures.json");
    ASSERT_EQ(by(own, json, 2).exit_code, 0);
    EXPECT_EQ(sha256_of(folder / "figures.json"), there);
  }
}

}  // namespace
}  // namespace tutti::test
