/// Wrong words of a command line, answered by the program's own parser and checks in this process:
/// in one of its own each would pay LibTorch's start.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/cli/program.h"

#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {

/// What `tutti WORDS...` prints, and its exit code.
inline CommandResult run_here(const Words& words) {
  std::vector<const char*> argv = {"tutti"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  CommandResult result;
  result.exit_code = cli::run_program(static_cast<int>(argv.size()), argv.data());
  result.out = testing::internal::GetCapturedStdout();
  result.err = testing::internal::GetCapturedStderr();
  return result;
}

/// Of a command line: one text, cut at its blanks, or a word each.
struct Line : Words {
  Line(const char* line) : Words(words_of(line)) {}
  Line(const std::string& line) : Words(words_of(line)) {}
  Line(std::initializer_list<std::string> words) : Words(words) {}
};

struct Refusal {
  Line words;
  std::vector<std::string> answer;  ///< parts of it
};

/// What may stand on stdout before the answer: nothing, or words about data and model.
enum class Before { nothing, words };

/// `tutti COMMAND... WORDS...` of each case ends with 2, and a line of its own has the answer, with
/// all of its parts; what to try is said in flags, not in fields of structures.
inline void expect_refused(const Words& command, const std::vector<Refusal>& cases,
                           Before before = Before::nothing) {
  const std::string place = "(^|\n)tutti" + (command.empty() ? "" : " " + command[0] + ": ");
  for (const Refusal& one : cases) {
    const auto result = run_here(command + one.words);
    const std::string line = testing::PrintToString(one.words);
    EXPECT_EQ(result.exit_code, 2) << line << result.err;
    EXPECT_THAT(result.err, ContainsRegex(place)) << line;
    for (const std::string& part : one.answer) EXPECT_THAT(result.err, HasSubstr(part)) << line;
    EXPECT_THAT(result.err, Not(ContainsRegex("(Options|Unit|Layout)::|[{ (][.][a-z_]+ = ")))
        << line;
    if (before == Before::nothing) {
      EXPECT_EQ(result.out, "") << line;
    }
  }
}

}  // namespace tutti::test
