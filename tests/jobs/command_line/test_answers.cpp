// What cannot be right is answered before work starts, and what went wrong by its exit code.
#include <gmock/gmock.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Words = std::vector<std::string>;
using nlohmann::json;

CommandResult answer_to(Words words, const Words& environment = {}) {
  words.insert(words.begin(), TUTTI_PROGRAM);
  return run_command(words, environment, Millis{240'000});
}

CommandResult train_some(const Words& more) {
  Words words = {"train", "mlp", "--data", kDoodles, "--max-steps", "20", "--epochs", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return answer_to(words);
}

CommandResult evaluate_at(const std::filesystem::path& checkpoints, const Words& more) {
  Words words = {"evaluate", "mlp", "--data", kDoodles, "--checkpoints", checkpoints};
  words.insert(words.end(), more.begin(), more.end());
  return answer_to(words);
}

TEST(Evaluate, WeightsThatAreNoNumbersAreAFailure) {
  const TempFolder folder;
  const std::string out = folder / "run", file = folder / "test.json";
  ASSERT_EQ(train_some({"--learning-rate", "1e30", "--nan", "ignore", "--checkpoint-every", "7",
                        "--out", out})
                .exit_code,
            0);
  for (const Words& more : {Words{}, Words{"--follow"}}) {
    Words words = {"--json", file};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = evaluate_at(out, words);
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_THAT(
        result.err,
        AllOf(StartsWith("tutti evaluate: "), HasSubstr(out),
              HasSubstr("the test loss is no number (NaN)"),
              ContainsRegex("parameter \"[a-z0-9_.]+\" has (nan|-?inf) at element [0-9]+")));
    EXPECT_THAT(result.out, ContainsRegex("test loss -?nan"));
    EXPECT_TRUE(json::parse(get_bytes(file)).at("loss").is_null());
  }
}

// Who reads the figures, from a pipe, removes the checkpoint first.
TEST(Evaluate, AFailureStaysOneWhoseCheckpointIsRemovedMeanwhile) {
  const TempFolder folder;
  const std::string out = folder / "run";
  ASSERT_EQ(train_some({"--learning-rate", "1e30", "--nan", "ignore", "--out", out}).exit_code, 0);
  std::filesystem::remove_all(out + "/checkpoints");
  const std::string script =
      "mkfifo $DIR/figures; \"$@\" --json $DIR/figures > $DIR/log 2>&1 & job=$!; "
      "until grep -q 'test loss' $DIR/log; do kill -0 $job || break; sleep 0.05; done; "
      "rm $DIR/run/model.safetensors; cat $DIR/figures > /dev/null; "
      "wait $job; code=$?; cat $DIR/log; exit $code";
  const auto result =
      run_command({"bash", "-c", script, "bash", TUTTI_PROGRAM, "evaluate", "mlp", "--data",
                   kDoodles, "--checkpoints", out, "--follow", "--idle-limit", "5"},
                  {"DIR=" + folder.path().string()}, Millis{240'000});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("the test loss is no number (NaN)"),
                                Not(HasSubstr("was removed before it was read"))));
}

TEST(Train, ATraceThatCannotBeWrittenIsAFailureAndTheLastOne) {
  for (const Words& where : {Words{"--strategy", "one_device"},
                             Words{"--strategy", "multi_worker", "--replicas", "1"}}) {
    const TempFolder folder;
    const std::string out = folder / "run", file = folder / "figures.json";
    Words words = {"--trace", "/dev/full", "--out", out, "--json", file};
    words.insert(words.end(), where.begin(), where.end());
    const auto result = train_some(words);
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_THAT(result.err, AllOf(HasSubstr(": the trace is lost: "), HasSubstr("/dev/full"),
                                  HasSubstr("No space left on device")));
    EXPECT_EQ(json::parse(get_bytes(file)).at("epochs"), 1);
    for (const char* name : {"model.safetensors", "history.csv", "history.svg"})
      EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(out) / name)) << name;
  }
}

TEST(Train, ASlowWorkerThatIsNotThereIsRefusedBeforeTraining) {
  const struct {
    Words where;
    std::string slow, expected;
  } cases[] = {
      {{"--strategy", "multi_worker", "--replicas", "2"}, "9:2", "0 to 1"},
      {{"--strategy", "multi_worker", "--replicas", "2"}, "2:2:0.5", "0 to 1"},
      {{"--strategy", "parameter_server", "--replicas", "3"}, "3:2", "0 to 2"},
      {{"--strategy", "mirrored", "--replicas", "2"}, "1:2", "0"},
      {{"--strategy", "one_device"}, "1e300:2", "0"},
  };
  for (const auto& c : cases) {
    const TempFolder folder;
    Words words = c.where;
    words.insert(words.end(), {"--slow-worker", c.slow, "--out", folder / "run"});
    const auto result = train_some(words);
    EXPECT_EQ(result.exit_code, 2) << c.slow;
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("--slow-worker " + c.slow + ": there is no such worker"),
                      EndsWith(c.expected + "\n")));
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  }
  EXPECT_EQ(train_some({"--strategy", "multi_worker", "--replicas", "2", "--slow-worker", "1:2"})
                .exit_code,
            0);
}

TEST(CommandLine, WhatIsSetInTheEnvironmentIsCheckedBeforeWork) {
  const struct {
    std::string variable;
    const char* why;
  } cases[] = {
      {"TUTTI_TLS=/nope", "TUTTI_TLS: TLS: the authority's certificate in /nope/ca.pem"},
      {"TUTTI_TOKEN_FILE=/nope", "TUTTI_TOKEN_FILE: token file /nope: No such file"},
      {"TUTTI_TOKEN=123", "TUTTI_TOKEN holds no token"},
      {"TUTTI_INTERFACE=eth99", "TUTTI_INTERFACE \"eth99\": this machine has no interface"},
      {"TUTTI_CPU_VARIANT=avx9", "unknown TUTTI_CPU_VARIANT \"avx9\""},
  };
  const TempFolder folder;
  const std::string out = folder / "run";
  const Words train = {"train", "mlp", "--data", kDoodles, "--max-steps", "1", "--out", out};
  Words workers = train;
  workers.insert(workers.end(), {"--strategy", "multi_worker", "--replicas", "2"});
  for (const auto& c : cases) {
    for (const Words& words : {train, workers, Words{"run", "-n", "2", "true"}}) {
      const auto result = answer_to(words, {c.variable});
      EXPECT_EQ(result.exit_code, 2) << c.variable << result.err;
      EXPECT_THAT(result.err, AllOf(StartsWith("tutti " + words[0] + ": "), HasSubstr(c.why)));
      EXPECT_EQ(result.out, "") << "nothing was started";
    }
    EXPECT_EQ(answer_to({"train", "--help"}, {c.variable}).exit_code, 0);
    const auto doctor = answer_to({"doctor"}, {c.variable});
    EXPECT_EQ(doctor.exit_code, 1);
    EXPECT_THAT(doctor.out,
                AllOf(HasSubstr("cores"), HasSubstr("What is wrong:"), HasSubstr(c.why)));
  }
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(CommandLine, NamesOfFilesAreShownAsTheyCanBePrinted) {
  const std::string tricky = "\x1b[2J\x1b]0;owned\x07\ntutti evaluate: all is well";
  const auto result = evaluate_at(tricky, {});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("\\x1b[2J\\x1b]0;owned\\x07"), Not(HasSubstr("\x1b")),
                                HasSubstr("no checkpoint is there"),
                                Not(HasSubstr("\ntutti evaluate: all is well")),
                                HasSubstr("\n  --follow waits for one")));

  const auto program = answer_to({"run", "./" + tricky});
  EXPECT_EQ(program.exit_code, 2);
  EXPECT_THAT(program.err, AllOf(HasSubstr("\\x1b[2J"), Not(HasSubstr("\x1b"))));

  const auto flag =
      answer_to({"train", "mlp", "--data", kDoodles, "--nan", std::string(100'000, 'x')});
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_THAT(flag.err, AllOf(StartsWith("tutti train: "), HasSubstr("bytes left out"),
                              HasSubstr("(--help shows what is possible)")));
  EXPECT_LT(flag.err.size(), 5'000U);
}

TEST(Run, WhatAWorkerSaidLastIsReportedAsItCanBePrinted) {
  const auto result =
      answer_to({"run", "sh", "-c",
                 "printf '\\033[31mred\\n'; head -c 100000 /dev/zero | tr '\\0' x; exit 3"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("  \\x1b[31mred\n"), HasSubstr("bytes left out"),
                                EndsWith("tutti run: rank 0 exited with code 3\n")));
  EXPECT_LT(result.err.size(), 5'000U);
  EXPECT_THAT(result.out, HasSubstr("[0] \x1b[31mred\n")) << "its output itself is its own";
}

}  // namespace
}  // namespace tutti::test
