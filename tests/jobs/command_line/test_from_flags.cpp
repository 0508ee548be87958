// What tutti prints for shells and for man(1), as these read it.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/jobs/program.h"

namespace tutti::test {
namespace {

class Completion : public testing::Test {
 protected:
  void SetUp() override {
    const CommandResult script = tutti({"completion", "bash"});
    ASSERT_EQ(script.exit_code, 0) << script.err;
    std::ofstream(folder_.path() / "tutti.bash") << script.out;
    std::ofstream(folder_.path() / "doodles.npy") << "";
  }

  /// What bash offers for the last word of a line, in a folder that has doodles.npy.
  Words offered(const Words& line) const {
    std::string words;
    for (const std::string& word : line) words += " '" + word + "'";
    const CommandResult bash = run_command(
        {"bash", "-c",
         "cd '" + folder_.path().string() + "' && source tutti.bash && COMP_WORDS=(" + words +
             ") && COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) && _tutti && "
             "for word in \"${COMPREPLY[@]}\"; do printf '%s\\n' \"$word\"; done"},
        {}, Millis{60'000});
    EXPECT_EQ(bash.exit_code, 0) << bash.err;
    std::istringstream lines(bash.out);
    Words all;
    for (std::string word; std::getline(lines, word);) all.push_back(word);
    return all;
  }

  TempFolder folder_;
};

TEST_F(Completion, OffersCommandsFlagsAndTheirWords) {
  EXPECT_THAT(offered({"tutti", "t"}), UnorderedElementsAre("train"));
  EXPECT_THAT(offered({"tutti", ""}), AllOf(Contains("bench"), Not(Contains("man-page"))));
  EXPECT_THAT(offered({"tutti", "train", "--strat"}), UnorderedElementsAre("--strategy"));
  EXPECT_THAT(offered({"tutti", "train", "mlp", "--strategy", "m"}),
              UnorderedElementsAre("mirrored", "multi_worker"));
  EXPECT_THAT(offered({"tutti", "train", "mlp", "--strategy", "=", "m"}),  // as bash cuts it
              UnorderedElementsAre("mirrored", "multi_worker"));
  EXPECT_THAT(offered({"tutti", "train", "mlp", "--strategy", "="}), Contains("one_device"));
  EXPECT_THAT(offered({"tutti", "train", ""}), IsSupersetOf({"mlp", "resnet18", "--data"}));
  EXPECT_THAT(offered({"tutti", "bench", "st"}), UnorderedElementsAre("step"));
  EXPECT_THAT(offered({"tutti", "bench", "step", "--mod"}), UnorderedElementsAre("--model"));
}

TEST_F(Completion, OffersFilesWhereTheyAreMeantAndNothingWhereNothingIsKnown) {
  EXPECT_THAT(offered({"tutti", "train", "mlp", "--data", "doo"}),
              UnorderedElementsAre("doodles.npy"));
  EXPECT_THAT(offered({"tutti", "run", "-n", "4", "doo"}), UnorderedElementsAre("doodles.npy"));
  EXPECT_THAT(offered({"tutti", "train", "--seed", ""}), IsEmpty());
}

TEST(CompletionOfZsh, NamesEachFlagWithItsHelpAndWords) {
  if (run_command({"bash", "-c", "command -v zsh"}, {}, Millis{60'000}).exit_code != 0)
    GTEST_SKIP() << "no zsh here";
  const CommandResult script = tutti({"completion", "zsh"});
  ASSERT_EQ(script.exit_code, 0) << script.err;
  TempFolder folder;
  std::ofstream(folder / "_tutti") << script.out;
  // What zsh's own functions are given.
  const CommandResult zsh = run_command(
      {"zsh", "-f", "-c",
       "autoload -Uz compinit && compinit -D -u && source " + (folder / "_tutti").string() +
           " && print $_comps[tutti] && _arguments() { print -rl -- \"$@\"; state=command } && "
           "_describe() { print -rl -- ${(P)2} } && _tutti_train && _tutti"},
      {}, Millis{60'000});
  EXPECT_EQ(zsh.exit_code, 0) << zsh.err;
  EXPECT_EQ(zsh.err, "");
  EXPECT_THAT(zsh.out, StartsWith("_tutti\n"));
  EXPECT_THAT(zsh.out,
              HasSubstr("*--seed=[Of initial weights, order of samples and dropout]:S: \n"));
  EXPECT_THAT(zsh.out, HasSubstr(":NAME:(greedy round_robin)\n"));
  EXPECT_THAT(
      zsh.out,
      HasSubstr("train:Train a model of the zoo on photos, tables, text, IDX or doodles\n"));
}

TEST(CompletionOfOthers, IsAnsweredWithThoseThatAreKnown) {
  EXPECT_THAT(tutti({"completion", "fish"}), Exits(2, Err(HasSubstr("unknown shell \"fish\""))));
}

TEST(ManPage, IsNoneOfTheCommandsThatAreNamed) {
  EXPECT_THAT(tutti({"trian"}),
              Exits(2, Err(AllOf(HasSubstr("did you mean \"train\"?"), HasSubstr("completion"),
                                 Not(HasSubstr("man-page"))))));
}

TEST(ManPage, SaysWhatHelpSays) {
  ASSERT_THAT(tutti({"man-page"}),
              Exits(0, Out(HasSubstr(".TH TUTTI 1")), Out(HasSubstr(".SS tutti bench step\n")),
                    Out(HasSubstr("\\fB\\-\\-seed\\fR \\fIS\\fR=0\nOf initial weights")),
                    Out(HasSubstr("Exit codes: 0 done"))));
}

TEST(Version, IsPrintedAndIsOfThisBuild) {
  EXPECT_THAT(tutti({"--version"}), Exits(0, Out("tutti " TUTTI_VERSION "\n")));
}

}  // namespace
}  // namespace tutti::test
