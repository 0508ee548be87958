/// What a command takes from the command line, as data: its flags, its places, the commands in it.
/// A command describes itself once; the parser, --help, completion and the man page go by that.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tutti/cli/checks.h"

namespace tutti::cli {

/// Where a value goes: outlives the parsing.
using Target = std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*,
                            std::optional<int64_t>*, std::optional<double>*, std::vector<int>*,
                            std::vector<int64_t>*, std::vector<double>*, std::vector<std::string>*>;

/// How an argument takes several values.
enum class Several {
  words,            ///< one after another
  words_or_commas,  ///< "1 2,4"
  commas,           ///< "1,2,4", one word
  again,            ///< the flag again for each
};

/// A flag ("--seed") or a place ("MODEL").
struct Argument {
  std::string name;
  std::string value;  ///< what --help calls it: "S"; "": nothing
  Target to;
  std::string help;
  Check check{};
  std::string group = "Options";  ///< under which --help lists it; "": it does not
  std::string short_name{};       ///< "-n"
  bool required = false;
  bool sets = true;  ///< what a flag without a value makes of its bool
  Several several = Several::words;
  std::vector<std::string> also{};  ///< what others call it ("--lr"): refused, with its name here
  std::vector<std::string> excludes{};  ///< flags declared before, which do not go with it
  /// What --help says of a value that is not given. Unset: the value as it is, unless it is 0 or
  /// empty, which stand for none. "": nothing.
  std::optional<std::string> preset{};
  std::vector<std::string> given{};  ///< once parsed: its values; empty: it was not typed

  bool is_place() const { return !name.starts_with('-'); }
  bool takes_value() const { return !std::holds_alternative<bool*>(to); }
  std::vector<std::string> names() const;  ///< "--workers", "-n"; of a place none
  std::string default_text() const;        ///< by `preset`
};

/// `tutti run`: the program itself is one, too. Stays where it is: what it declares is referred to.
struct Command {
  explicit Command(std::string name = "", std::string help = "");
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  /// Each describes one more argument, in `group`; the answer is for what is not usual of it.
  Argument& add(std::string name, std::string value, Target to, Check check, std::string help);
  Argument& add(std::string name, std::string value, Target to, std::string help);
  Argument& flag(std::string name, bool* to, std::string help);
  Argument& place(std::string name, Target to, Check check, std::string help);  ///< required
  void add_version(std::string text);  ///< what --version prints

  /// A command in this one, which has this one's footer until it gets its own.
  Command& command(std::string name, std::string help);

  Argument& at(const std::string& name);
  bool was_typed(const std::string& name) { return !at(name).given.empty(); }
  /// The flags that were typed, each with its value: "--engine nccl".
  std::vector<std::string> typed() const;

  std::string name, help;
  std::string footer;             ///< of --help: examples, exit codes
  std::string version;            ///< "": there is no --version
  std::string group = "Options";  ///< of what is described next
  std::list<Argument> arguments;
  std::list<Command> commands;
  bool hidden = false;                ///< --help does not list it
  bool starts_program = false;        ///< from the first word that is no flag on, all go to `rest`
  std::function<void()> when_parsed;  ///< before any action, once values are in their places
  std::function<int()> action;        ///< gives the exit code; none: one of `commands` must follow

  // Once parsed:
  Command* chosen = nullptr;      ///< of `commands`
  std::vector<std::string> rest;  ///< the program that it starts, and its arguments
};

/// Parses `words`, which stand behind the program's name, and runs the chosen command's action: its
/// exit code, or 0 after --help. Throws UsageError for wrong flags, commands and values; the
/// message names the nearest known one.
int parse(Command& program, std::vector<std::string> words);

/// Throws UsageError when `word` is a flag that `command` does not know; for commands that take the
/// rest of the line as it is.
void refuse_unknown_flag(const Command& command, const std::string& word);

/// Throws UsageError when other programs call a flag of `command` so (Argument::also).
void refuse_name_of_others(const Command& command, const std::string& word);

/// Calls `body` and returns its exit code; an error is told to the launcher, printed to stderr as
/// `PLACE: message`, and becomes 2 (UsageError, DataError), 128+signal (Interrupted) or 1 (others).
int guarded(const std::function<std::string()>& place, const std::function<int()>& body);

}  // namespace tutti::cli
