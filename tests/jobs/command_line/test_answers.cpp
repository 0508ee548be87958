// What cannot be right is answered before work starts, and what went wrong by its exit code.
#include <filesystem>

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

CommandResult train_some(const Words& more) {
  return tutti(Words{"train", "mlp", "--data", kDoodles, "--max-steps", "20", "--epochs", "1"} +
               more);
}

CommandResult evaluate_at(const std::filesystem::path& checkpoints, const Words& more) {
  return tutti(Words{"evaluate", "mlp", "--data", kDoodles, "--checkpoints", checkpoints} + more);
}

TEST(Evaluate, WeightsThatAreNoNumbersAreAFailure) {
  const TempFolder folder;
  const std::string out = folder / "run", file = folder / "test.json";
  ASSERT_EQ(train_some({"--learning-rate", "1e30", "--nan", "ignore", "--checkpoint-every", "7",
                        "--out", out})
                .exit_code,
            0);
  for (const Words& more : {Words{}, Words{"--follow"}}) {
    const auto result = evaluate_at(out, Words{"--json", file} + more);
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_THAT(
        result.err,
        AllOf(StartsWith("tutti evaluate: "), HasSubstr(out),
              HasSubstr("the test loss is no number (NaN)"),
              ContainsRegex("parameter \"[a-z0-9_.]+\" has (nan|-?inf) at element [0-9]+")));
    EXPECT_THAT(result.out, ContainsRegex("test loss -?nan"));
    EXPECT_TRUE(json_in(file).at("loss").is_null());
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
  EXPECT_THAT(run_command({"bash", "-c", script, "bash", TUTTI_PROGRAM, "evaluate", "mlp", "--data",
                           kDoodles, "--checkpoints", out, "--follow", "--idle-limit", "5"},
                          {"DIR=" + folder.path().string()}, Millis{240'000}),
              Exits(1, Out(AllOf(HasSubstr("the test loss is no number (NaN)"),
                                 Not(HasSubstr("was removed before it was read"))))));
}

TEST(Train, ATraceThatCannotBeWrittenIsAFailureAndTheLastOne) {
  for (const Words& where : {Words{"--strategy", "one_device"},
                             Words{"--strategy", "multi_worker", "--replicas", "1"}}) {
    const TempFolder folder;
    const std::string out = folder / "run", file = folder / "figures.json";
    EXPECT_THAT(train_some(Words{"--trace", "/dev/full", "--out", out, "--json", file} + where),
                Exits(1, Err(AllOf(HasSubstr(": the trace is lost: "), HasSubstr("/dev/full"),
                                   HasSubstr("No space left on device")))));
    EXPECT_EQ(json_in(file).at("epochs"), 1);
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
    EXPECT_THAT(train_some(c.where + Words{"--slow-worker", c.slow, "--out", folder / "run"}),
                Exits(2,
                      Err(AllOf(HasSubstr("--slow-worker " + c.slow + ": there is no such worker"),
                                EndsWith(c.expected + "\n"))),
                      Out("")))
        << c.slow;
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
  const Words workers = train + Words{"--strategy", "multi_worker", "--replicas", "2"};
  for (const auto& c : cases) {
    for (const Words& words : {train, workers, Words{"run", "-n", "2", "true"}}) {
      EXPECT_THAT(
          tutti(words, {c.variable}),
          Exits(2, Err(AllOf(StartsWith("tutti " + words[0] + ": "), HasSubstr(c.why))), Out("")))
          << c.variable << "nothing was started";
    }
    EXPECT_EQ(tutti({"train", "--help"}, {c.variable}).exit_code, 0);
    EXPECT_THAT(
        tutti({"doctor"}, {c.variable}),
        Exits(1, Out(AllOf(HasSubstr("cores"), HasSubstr("What is wrong:"), HasSubstr(c.why)))));
  }
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(CommandLine, NamesOfFilesAreShownAsTheyCanBePrinted) {
  const std::string tricky = "\x1b[2J\x1b]0;owned\x07\ntutti evaluate: all is well";
  EXPECT_THAT(evaluate_at(tricky, {}),
              Exits(2, Err(AllOf(HasSubstr("\\x1b[2J\\x1b]0;owned\\x07"), Not(HasSubstr("\x1b")),
                                 HasSubstr("no checkpoint is there"),
                                 Not(HasSubstr("\ntutti evaluate: all is well")),
                                 HasSubstr("\n  --follow waits for one")))));

  EXPECT_THAT(tutti({"run", "./" + tricky}),
              Exits(2, Err(AllOf(HasSubstr("\\x1b[2J"), Not(HasSubstr("\x1b"))))));

  const auto flag = tutti({"train", "mlp", "--data", kDoodles, "--nan", std::string(100'000, 'x')});
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_THAT(flag.err, AllOf(StartsWith("tutti train: "), HasSubstr("bytes left out"),
                              HasSubstr("(--help shows what is possible)")));
  EXPECT_LT(flag.err.size(), 5'000U);
}

TEST(Run, WhatAWorkerSaidLastIsReportedAsItCanBePrinted) {
  const auto result =
      tutti({"run", "sh", "-c",
             "printf '\\033[31mred\\n'; head -c 100000 /dev/zero | tr '\\0' x; exit 3"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("  \\x1b[31mred\n"), HasSubstr("bytes left out"),
                                EndsWith("tutti run: rank 0 exited with code 3\n")));
  EXPECT_LT(result.err.size(), 5'000U);
  EXPECT_THAT(result.out, HasSubstr("[0] \x1b[31mred\n")) << "its output itself is its own";
}

}  // namespace
}  // namespace tutti::test
