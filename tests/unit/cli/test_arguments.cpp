// What a command says of itself as data, and what parse() makes of it.
#include "tutti/cli/arguments.h"

#include "tests/support/expect.h"

namespace tutti::cli {
namespace {

using Strings = std::vector<std::string>;

TEST(Arguments, DefaultsAreValuesThatStandForSomething) {
  Command command;
  int64_t zero = 0, five = 5;
  double rate = 0.5;
  std::optional<double> unset;
  bool flag = true;
  std::string name = "mlp", none;
  std::vector<double> list = {1, 2.5};
  const auto shown = [&](Target to) { return command.add("--x", "X", to, "").default_text(); };
  EXPECT_EQ(shown(&five), "5");
  EXPECT_EQ(shown(&rate), "0.5");
  EXPECT_EQ(shown(&name), "mlp");
  EXPECT_EQ(shown(&list), "[1,2.5]");
  EXPECT_EQ(shown(&zero) + shown(&none) + shown(&unset) + shown(&flag), "");
  Argument& seed = command.add("--seed", "S", &zero, "");
  seed.preset = "0";
  EXPECT_EQ(seed.default_text(), "0");
}

TEST(Arguments, WhatWasTypedIsKnownBeforeTheActionAndGivesItsExitCode) {
  Command program;
  Command& command = program.command("go", "");
  int64_t steps = 0;
  bool backups = true, quick = false;
  Strings without, typed;
  command.add("--steps", "K", &steps, "").short_name = "-k";
  command.add("--without", "A,B", &without, "").several = Several::commas;
  command.flag("--no-backups", &backups, "").sets = false;
  command.flag("--quick", &quick, "");
  command.when_parsed = [&] { typed = command.typed(); };
  command.action = [] { return 7; };
  EXPECT_EQ(parse(program, {"go", "-k", "3", "--without", "a,b", "--no-backups"}), 7);
  EXPECT_EQ(program.chosen, &command);
  EXPECT_EQ(steps, 3);
  EXPECT_FALSE(backups);
  EXPECT_THAT(without, ElementsAre("a", "b"));
  EXPECT_THAT(typed, ElementsAre("--steps 3", "--without a,b", "--no-backups"));
  EXPECT_TRUE(command.was_typed("--steps"));
  EXPECT_FALSE(command.was_typed("--quick"));
}

TEST(Arguments, AProgramBehindTheFlagsKeepsItsOwn) {
  Command program;
  Command& run = program.command("run", "");
  int64_t workers = 1;
  run.add("--workers", "N", &workers, "").short_name = "-n";
  run.starts_program = true;
  run.action = [] { return 0; };
  parse(program, {"run", "-n", "2", "--", "train", "--workers", "9"});
  EXPECT_EQ(workers, 2);
  EXPECT_THAT(run.rest, ElementsAre("train", "--workers", "9"));
}

TEST(Arguments, AnActionOfACommandWithCommandsIsForLinesWithoutThem) {
  Command program;
  Command& plan = program.command("plan", "");
  plan.action = [] { return 1; };
  plan.command("table", "").action = [] { return 2; };
  EXPECT_EQ(parse(program, {"plan"}), 1);
  EXPECT_EQ(parse(program, {"plan", "table"}), 2);
}

TEST(Arguments, ALeadingZeroIsNoOctalNumber) {
  Command program;
  Command& command = program.command("go", "");
  int64_t steps = 0;
  command.add("--steps", "K", &steps, whole_number(1, 100), "");
  command.action = [] { return 0; };
  parse(program, {"go", "--steps", "010"});
  EXPECT_EQ(steps, 10);
}

TEST(Arguments, WrongLinesNameWhatIsNearest) {
  Command program;
  Command& command = program.command("train", "");
  std::string model, out, in;
  command.place("MODEL", &model, {}, "");
  command.add("--out", "DIR", &out, "");
  command.add("--in", "DIR", &in, "").excludes = {"--out"};
  command.action = [] { return 0; };
  program.command("secret", "").hidden = true;
  const auto refusal = [&](const Strings& words) {
    return message_of<UsageError>([&] { parse(program, words); });
  };
  EXPECT_THAT(refusal({"trian"}), AllOf(HasSubstr("\"train\""), Not(HasSubstr("secret"))));
  EXPECT_THAT(refusal({"train", "mlp", "--uot", "x"}), HasSubstr("--out"));
  EXPECT_THAT(refusal({"train"}), HasSubstr("MODEL is required"));
  EXPECT_THAT(refusal({"train", "mlp", "--in", "a", "--out", "b"}), HasSubstr("excludes"));
  EXPECT_THAT(refusal({}), HasSubstr("subcommand"));
}

TEST(Arguments, WordsOfOtherProgramsAreAnsweredWithThoseHere) {
  Command program;
  Command& run = program.command("run", "");
  int64_t workers = 1;
  Argument& flag = run.add("--workers", "N", &workers, whole_number(1, 100), "How many workers");
  flag.short_name = "-n";
  flag.also = {"--np", "-np"};
  run.starts_program = true;
  run.action = [&run] {
    refuse_unknown_flag(run, run.rest.front());
    return 0;
  };
  const auto refusal = [&](const Strings& words) {
    return message_of<UsageError>([&] { parse(program, words); });
  };
  const std::string here = "; here it is --workers N: How many workers";
  EXPECT_EQ(refusal({"run", "--np", "2", "true"}), "unknown flag \"--np\"" + here);
  EXPECT_EQ(refusal({"run", "--np=2", "true"}), "unknown flag \"--np\"" + here);
  EXPECT_EQ(refusal({"run", "-np", "2", "true"}), "unknown flag \"-np\"" + here);
  EXPECT_THAT(refusal({"run", "-n", "two", "mpirun", "-np", "2"}), HasSubstr("got \"two\""));
  EXPECT_EQ(parse(program, {"run", "-n", "2", "mpirun", "-np", "3"}), 0);
  EXPECT_THAT(run.rest, ElementsAre("mpirun", "-np", "3"));
}

}  // namespace
}  // namespace tutti::cli
