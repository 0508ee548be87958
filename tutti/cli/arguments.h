/// Parsing of the command line: CLI11, with the nearest known word in the answer to an unknown one,
/// and the one place where errors become messages and exit codes.
/// Thread rule: the main thread alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace tutti::cli {

/// Parses and runs the chosen subcommand's callback. Prints help for --help and returns. Throws
/// UsageError for wrong flags, subcommands and values; the message names the nearest known one.
void parse(CLI::App& app, int argc, const char* const* argv);

/// The flags of `command` that were typed, each with its value: "--engine nccl".
std::vector<std::string> typed_in(const CLI::App& command);

/// Throws UsageError when `word` is a flag that `app` does not know; for commands that take the
/// rest of the line as it is.
void refuse_unknown_flag(const CLI::App& app, const std::string& word);

/// Calls `body` and returns its exit code; an error is told to the launcher, printed to stderr as
/// `PLACE: message`, and becomes 2 (UsageError, DataError), 128+signal (Interrupted) or 1 (others).
int guarded(const std::function<std::string()>& place, const std::function<int()>& body);

}  // namespace tutti::cli
