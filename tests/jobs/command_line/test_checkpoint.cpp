// Checkpoints as a user has them: a training that is killed or asked to end goes on to the same
// weights, and `tutti checkpoint` says what there is.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Words = std::vector<std::string>;
using nlohmann::json;

constexpr Millis kLimit{240'000};

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
  Words words = words_of(fmt::format(
      "{} train {} --data {} --take {} --batch-size {} --epochs {} --strategy {} --replicas 2 "
      "--threads 1 --validation-split 0.001",
      TUTTI_PROGRAM, cut.model, kDoodles, cut.samples, cut.batch, cut.epochs, strategy));
  words.insert(words.end(), more.begin(), more.end());
  return words;
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

std::string sha256_of(const std::string& file) {
  return json::parse(std::ifstream(file)).at("weights_sha256");
}

const std::string& straight(const Cut& cut = kDoodleCnn) {
  static std::map<std::string, std::string> known;
  const auto [sha256, fresh] = known.try_emplace(cut.model);
  if (fresh) {
    const TempFolder folder;
    const auto result =
        run_command(training(cut, "mirrored", {"--json", folder / "straight.json"}), {}, kLimit);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    sha256->second = sha256_of(folder / "straight.json");
  }
  return sha256->second;
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
  Words words = watched(folder, cut, strategy);
  words.insert(words.begin(), {"bash", "-c", script, "bash"});
  return run_command(
      words, {"LOG=" + (folder / "log").string(), "OUT=" + (folder / "out").string()}, kLimit);
}

void expect_the_same_end(const TempFolder& folder, const std::string& strategy,
                         const Cut& cut = kDoodleCnn) {
  const auto result = run_command(
      training(cut, strategy,
               {"--out", folder / "out", "--resume", "--json", folder / "resumed.json"}),
      {}, kLimit);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("goes on from step-0000000000"));
  EXPECT_EQ(sha256_of(folder / "resumed.json"), straight(cut)) << strategy;
}

CommandResult checkpoint(Words words) {
  words.insert(words.begin(), {TUTTI_PROGRAM, "checkpoint"});
  return run_command(words, {}, kLimit);
}

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
    "saved() { ls $OUT/checkpoints 2> /dev/null | wc -l; }; "
    "kill_one() { kill -KILL $(grep -o 'worker 1 pid [0-9]*' $LOG | tail -1 | cut -d ' ' -f 4); }; "
    "until_true '[ $(saved) -gt 2 ]'; kill_one; "
    "until_true 'grep -q \"goes on from\" $LOG'; before=$(saved); "
    "until_true '[ $(saved) -gt $((before + 2)) ]'; kill_one; "  // past the step of the first
    "wait $job; code=$?; cat $LOG; exit $code";

Words under_run(const Words& words) {
  Words all = {TUTTI_PROGRAM, "run", "-n", "2", "--restarts", "3"};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

TEST(Checkpoint, AJobWhoseWorkerIsKilledTwiceIsStartedAgainAndEndsWithTheSameWeights) {
  const TempFolder folder;
  Words words = under_run(watched(folder, kDoodleCnn, "multi_worker"));
  words.insert(words.end(), {"--json", folder / "f.json"});
  words.insert(words.begin(), {"bash", "-c", kKillingTwice, "bash"});
  const auto result = run_command(
      words, {"LOG=" + (folder / "log").string(), "OUT=" + (folder / "out").string()}, kLimit);
  ASSERT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, AllOf(HasSubstr("rank 1 was killed by SIGKILL\n"),
                                HasSubstr("the whole job is started again (1 of 3)"),
                                HasSubstr("the whole job is started again (2 of 3)"),
                                Not(HasSubstr("(3 of 3)"))));
  EXPECT_EQ(sha256_of(folder / "f.json"), straight());
}

TEST(Checkpoint, AStepThatAlwaysFailsEndsItsJobTheSecondTime) {
  const TempFolder folder;
  const auto result = run_command(under_run(training(kDoodleCnn, "multi_worker",
                                                     {"--out", folder / "out", "--checkpoint-every",
                                                      "1", "--learning-rate", "1e30"})),
                                  {}, kLimit);
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
  const Words compressed = {"--compression", "topk:0.05"};
  const auto sha256 = [&](const std::string& strategy, const TempFolder& folder, Words more) {
    more.insert(more.end(), compressed.begin(), compressed.end());
    more.insert(more.end(), {"--json", folder / "f.json"});
    const auto result = run_command(training(strategy, more), {}, kLimit);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return result.exit_code == 0 ? sha256_of(folder / "f.json") : "";
  };
  const TempFolder folder, other;
  const std::string whole = sha256("mirrored", other, {});
  sha256("multi_worker", folder, {"--out", folder / "out", "--max-steps", "7"});
  EXPECT_EQ(sha256("multi_worker", folder, {"--out", folder / "out", "--resume"}), whole);
}

TEST(Checkpoint, WhoseTimeIsUpSavesAndEndsWith143) {
  const TempFolder folder;
  const auto ended =
      run_command(training("multi_worker", {"--out", folder / "out", "--stop-after", "2"}, 100'000),
                  {}, kLimit);
  EXPECT_EQ(ended.exit_code, 143) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("saved step-"));
}

TEST(Checkpoint, OneJobAFolder) {
  const TempFolder folder;
  const std::string script =
      "set -m; \"$@\" > $LOG 2>&1 & job=$!; until [ -e $OUT/checkpoints/step-000000000003 ]; do "
      "kill -0 $job || exit 99; sleep 0.02; done; \"$@\" --resume; code=$?; echo first $job; "
      "kill -KILL -- -$job; exit $code";
  Words words = training("mirrored", {"--out", folder / "out", "--checkpoint-every", "3"}, 100'000);
  words.insert(words.begin(), {"bash", "-c", script, "bash"});
  const auto second = run_command(
      words, {"LOG=" + (folder / "log").string(), "OUT=" + (folder / "out").string()}, kLimit);
  EXPECT_EQ(second.exit_code, 2) << second.out << second.err;
  const std::string pid = second.out.substr(second.out.find("first ") + 6);
  EXPECT_THAT(second.err, AllOf(HasSubstr("another job writes there: process " +
                                          pid.substr(0, pid.find('\n')) + " on ")));
}

TEST(Checkpoint, ListsVerifiesAndConverts) {
  const TempFolder folder;
  const std::string out = folder / "out";
  const auto trained = run_command(
      training("multi_worker", {"--out", out, "--json", folder / "f.json"}, 2), {}, kLimit);
  ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("2 checkpoints in "));

  const auto listed = checkpoint({"ls", out, "--json", folder / "ls.json"});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_THAT(listed.out, AllOf(HasSubstr("step-000000000004"), HasSubstr("step-000000000008"),
                                HasSubstr("multi_worker x2"), HasSubstr("val_accuracy")));
  const json list = json::parse(std::ifstream(folder / "ls.json"));
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[1].at("step"), 8);

  // The same weights as training itself has saved.
  const std::string weights = folder / "weights.safetensors";
  EXPECT_EQ(checkpoint({"convert", out, weights}).exit_code, 0);
  const auto evaluated =
      run_command({TUTTI_PROGRAM, "evaluate", "doodle_cnn", "--data", "examples/data/quickdraw",
                   "--checkpoints", weights, "--json", folder / "e.json"},
                  {}, kLimit);
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.out << evaluated.err;
  EXPECT_EQ(sha256_of(folder / "e.json"), sha256_of(folder / "f.json"));

  EXPECT_EQ(checkpoint({"verify", out}).exit_code, 0);
  const std::string part = out + "/checkpoints/step-000000000004/part-1-of-2.safetensors";
  std::filesystem::resize_file(part, std::filesystem::file_size(part) - 1);
  const auto damaged = checkpoint({"verify", out});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.out,
              AllOf(HasSubstr("step-000000000004: DAMAGED"), HasSubstr("part-1-of-2.safetensors"),
                    HasSubstr("step-000000000008: whole")));

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
    Words words = training("mirrored", {"--dense-kernel", kernel}, epochs);
    words.insert(words.end(), more.begin(), more.end());
    return run_command(words, {}, kLimit);
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
