/// Runs a program and keeps what it printed.
#pragma once

#include <sys/types.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/deadline.h"

#include "tests/support/expect.h"

namespace tutti::test {

/// The drawings that the project brings (examples/data/quickdraw), unpacked.
extern const char* const kDoodles;
/// A tenth of them: 2,500 to train on, 500 to test on.
extern const char* const kFewDoodles;

using Words = std::vector<std::string>;

/// The words of a line, at its blanks.
Words words_of(const std::string& line);

/// The one behind the other.
Words operator+(Words words, const Words& more);

struct CommandResult {
  int exit_code = -1;  ///< 128 + signal when a signal ended it
  std::string out;
  std::string err;
  bool timed_out = false;
};

inline void PrintTo(const CommandResult& result, std::ostream* out) {
  *out << "exit code " << result.exit_code << (result.timed_out ? ", killed at the limit" : "")
       << "\n---- stdout ----\n"
       << result.out << "---- stderr ----\n"
       << result.err;
}

/// Starts `words` (the program first, searched in PATH) in a process group of its own, with extra
/// NAME=value in its environment. Of each of `descriptors` it has the first, under the second
/// number.
pid_t start_process(const Words& words, const Words& environment,
                    const std::vector<std::pair<int, int>>& descriptors);

/// Runs `words` (the program first, searched in PATH) with extra NAME=value in its environment, and
/// kills it with its process group at `limit`.
CommandResult run_command(const Words& words, const Words& environment = {},
                          Millis limit = Millis{60'000});

/// Of a CommandResult: its exit code, and what it said.
///   EXPECT_THAT(run_command({"ls", "nowhere"}), Exits(2, Err(HasSubstr("nowhere"))));
template <class... Said>
auto Exits(int code, const Said&... said) {
  return AllOf(testing::Field("exit code", &CommandResult::exit_code, code), said...);
}
template <class Text>
auto Err(const Text& text) {
  return testing::Field("stderr", &CommandResult::err, text);
}
template <class Text>
auto Out(const Text& text) {
  return testing::Field("stdout", &CommandResult::out, text);
}

}  // namespace tutti::test
