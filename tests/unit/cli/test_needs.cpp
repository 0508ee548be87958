// Flags of commands without a training that do nothing where they stand, numbers that are none, and
// what is too large to begin with: through the parser, as they are typed.
#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/commands.h"

#include "tests/support/message_of.h"

namespace tutti::cli {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using Words = std::vector<std::string>;

// Runs the command in this process.
void run(const Words& words) {
  Command program;
  add_plan(program);
  add_run(program);
  add_evaluate(program);
  add_generate(program);
  add_bench(program);
  parse(program, words);
}

std::string refusal(const Words& words) {
  return message_of<UsageError>([&] { run(words); });
}

TEST(CommandNeeds, AFlagThatDoesNothingIsRefusedWithTheValueThatItHasAnyway) {
  const Words plan = {"plan", "mlp", "--gflops", "1000", "--link", "1Gbit,1us"};
  const auto planned = [&](const Words& more) {
    Words words = plan;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Words evaluate = {"evaluate", "mlp", "--data", "d", "--checkpoints", "c"};
  const auto evaluated = [&](const Words& more) {
    Words words = evaluate;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::pair<Words, const char*> cases[] = {
      {{"plan", "table", "--hosts", "8"}, "--hosts 8: "},
      {{"plan", "table", "--batch", "32"}, "--batch 32: "},
      {{"plan", "table", "--gflops", "1000"}, "--gflops 1000: "},
      {{"plan", "pipeline", "--schedule", "own.csv", "--ranks", "4"}, "--ranks 4: "},
      {{"plan", "pipeline", "--schedule", "own.csv", "--microbatches", "8"}, "--microbatches 8: "},
      {{"plan", "pipeline", "--schedule", "gpipe", "--chunks", "1"}, "--chunks 1: "},
      {planned({"--servers", "1"}), "--servers 1: "},
      {planned({"--staleness", "0"}), "--staleness 0: "},
      {planned({"--bucket-mib", "25"}), "--bucket-mib 25: "},
      {planned({"--strategy", "parameter_server", "--overlap"}), "--overlap: "},
      {{"plan", "choose", "mlp", "--gflops", "1000", "--link", "1Gbit,1us", "--target-images",
        "1e6", "--servers", "1"},
       "--servers 1: "},
      {evaluated({"--idle-limit", "600"}), "--idle-limit 600: "},
      {evaluated({"--workers", "0", "--ahead", "2"}), "--ahead 2: "},
      {evaluated({"--workers", "0", "--loader-memory", "1024"}), "--loader-memory 1024: "},
      {evaluated({"--deterministic"}), "--deterministic under one_device: "},
      {evaluated({"--memory-limit", "8"}), "--memory-limit under one_device: "},
      {{"generate", "w", "--top-k", "1", "--temperature", "1"}, "--temperature 1: "},
      {{"generate", "w", "--top-k", "1", "--seed", "0"}, "--seed 0: "},
      {{"run", "--node-rank", "0", "true"}, "--node-rank 0: "},
      {{"run", "--job", "x", "true"}, "--job x: "},
      {{"run", "--silence", "15", "true"}, "--silence 15: "},
      {{"run", "--snapshots-kept", "2", "true"}, "--snapshots-kept 2: "},
      {{"run", "--servers", "1", "--snapshots-kept", "2", "true"}, "--snapshots-kept 2: "},
  };
  for (const auto& [words, answer] : cases)
    EXPECT_THAT(refusal(words), AllOf(HasSubstr(answer), HasSubstr("; leave --")))
        << testing::PrintToString(words);
}

TEST(CommandNeeds, AFlagThatWasRenamedIsTakenAndToldOf) {
  testing::internal::CaptureStderr();
  EXPECT_THAT(refusal({"run", "--restarts", "1", "--servers", "1", "--on-failure", "end", "true"}),
              HasSubstr("--on-lost-worker end with servers"));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("is --on-lost-worker now"));
  EXPECT_THAT(refusal({"run", "--on-failure", "contniue", "true"}),
              HasSubstr("did you mean \"continue\"?"));
}

TEST(CommandNeeds, FlagsOfUseAreTaken) {
  testing::internal::CaptureStdout();
  run({"plan", "table", "mlp", "--link", "1Gbit,1us", "--hosts", "8", "--gflops", "1000"});
  run({"plan", "pipeline", "--ranks", "2", "--microbatches", "4", "--chunks", "2"});
  run({"plan", "pipeline", "--schedule", "interleaved", "--ranks", "2", "--microbatches", "4",
       "--chunks", "2"});
  run({"plan", "mlp", "--gflops", "1000", "--link", "1Gbit,1us", "--strategy", "all", "--servers",
       "1", "--staleness", "0", "--overlap", "--bucket-mib", "25"});
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("interleaved"));
}

TEST(CommandNeeds, WhatIsNoNumberIsRefused) {
  for (const std::string number : {"nan", "-nan", "inf", "1e300", "-1"}) {
    const Words cases[] = {
        {"plan", "table", "--link", "1Gbit,1us", "--gflops", number},
        {"plan", "mlp", "--link", "1Gbit,1us", "--gflops", number},
        {"plan", "mlp", "--gflops", "1", "--link", "1Gbit,1us", "--overlap", "--bucket-mib",
         number},
        {"plan", "mlp", "--gflops", "1", "--link", number + "Gbit,1us"},
        {"plan", "mlp", "--gflops", "1", "--link", "1Gbit," + number + "us"},
        {"plan", "pipeline", "--forward", "1," + number},
        {"plan", "pipeline", "--backward", number},
        {"plan", "pipeline", "--weight", number},
        {"plan", "pipeline", "--send", number},
        {"plan", "choose", "mlp", "--gflops", "1", "--link", "1Gbit,1us", "--target-images",
         number},
        {"plan", "choose", "mlp", "--gflops", "1", "--link", "1Gbit,1us", "--target-images", "1",
         "--within", number},
        {"plan", "choose", "mlp", "--gflops", "1", "--link", "1Gbit,1us", "--target-images", "1",
         "--noise-scale", number},
        {"plan", "measure", "mlp", "--data", "d", "--out", "o", "--seconds", number},
        {"plan", "measure", "mlp", "--data", "d", "--out", "o", "--link-seconds", number},
        {"plan", "measure", "mlp", "--data", "d", "--out", "o", "--most-spread", number},
        {"plan", "replay", "d", "--skip", number},
        {"run", "--grace", number, "true"},
        {"run", "--servers", "1", "--silence", number, "true"},
        {"generate", "w", "--temperature", number}};
    for (const Words& words : cases)
      EXPECT_THAT(refusal(words), testing::AnyOf(HasSubstr("expected"), HasSubstr("possible")))
          << testing::PrintToString(words);
  }
}

TEST(CommandNeeds, APipelineThatIsTooLargeIsRefusedBeforeItIsMade) {
  EXPECT_THAT(refusal({"plan", "pipeline", "--ranks", "4096", "--microbatches", "4096"}),
              AllOf(HasSubstr("--ranks 4096"), HasSubstr("16777216 parts of a step"),
                    HasSubstr("at most 1048576")));
}

}  // namespace
}  // namespace tutti::cli
