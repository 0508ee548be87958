// Reading a command line by what commands say of themselves: with CLI11, which no other file sees,
// for it is seconds of a build.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/cli/arguments.h"

namespace tutti::cli {
namespace {

CLI::Option* add_plain(CLI::App& app, const Argument& argument) {
  const std::string name =
      argument.short_name.empty() ? argument.name : argument.short_name + "," + argument.name;
  return std::visit(
      [&](auto* to) {
        if constexpr (std::is_same_v<decltype(to), bool*>)
          return app.add_flag((argument.sets ? "" : "!") + name, *to, argument.help);
        else
          return app.add_option(name, *to, argument.help)->type_name(argument.value);
      },
      argument.to);
}

void add_argument(CLI::App& app, const Argument& argument) {
  CLI::Option* const option = add_plain(app, argument);
  option->group(argument.group)->required(argument.required);
  option->default_str(argument.default_text());
  // One that may change the value.
  if (const Check& check = argument.check; check.answer)
    option->transform(CLI::Validator(check.answer, check.described));
  const Several several = argument.several;
  if (several == Several::commas || several == Several::words_or_commas) option->delimiter(',');
  if (several == Several::commas || several == Several::again) option->allow_extra_args(false);
  for (const std::string& other : argument.excludes) option->excludes(app.get_option(other));
}

// --help and --version are CLI11's own.
bool is_its_own(const Argument& argument) {
  return std::visit([](const auto* to) { return to == nullptr; }, argument.to);
}

void take_what_was_typed(const CLI::App& app, Command& command) {
  for (Argument& argument : command.arguments)
    argument.given = app.get_option(argument.name)->results();
  command.rest = app.remaining();
}

void declare(CLI::App& app, Command& command, int& exit_code) {
  command.chosen = nullptr;
  app.footer(command.footer);
  if (command.hidden) app.group("");
  app.prefix_command(command.starts_program);
  if (!command.version.empty())
    app.set_version_flag("--version", command.version, command.at("--version").help);
  for (const Argument& argument : command.arguments)
    if (!is_its_own(argument)) add_argument(app, argument);
  if (command.when_parsed)
    app.parse_complete_callback([&app, &command] {
      take_what_was_typed(app, command);
      command.when_parsed();
    });
  if (command.action)
    app.callback([&app, &command, &exit_code] {
      if (command.chosen != nullptr) return;
      take_what_was_typed(app, command);
      exit_code = command.action();
    });
  if (command.commands.empty()) return;
  app.require_subcommand(command.action ? 0 : 1, 1);
  for (Command& one : command.commands) {
    CLI::App& its = *app.add_subcommand(one.name, one.help);
    its.preparse_callback([&command, &one](size_t) { command.chosen = &one; });
    declare(its, one, exit_code);
  }
}

// CLI11 only says that a command is required; this names the word that is none.
void refuse_unknown_command(const Command& command, std::span<const std::string> words) {
  if (words.empty() || words[0].empty() || words[0].front() == '-') return;
  const auto found = std::ranges::find(command.commands, words[0], &Command::name);
  if (found != command.commands.end()) return refuse_unknown_command(*found, words.subspan(1));
  if (std::ranges::any_of(command.arguments, &Argument::is_place)) return;  // has words of its own
  std::vector<std::string> names;
  for (const Command& one : command.commands)
    if (!one.hidden) names.push_back(one.name);
  if (!names.empty()) throw UsageError(unknown_message("command", words[0], names));
}

// Where in `words`, the first of which is the command, its flags and their values end.
size_t end_of_flags(const Command& command, std::span<const std::string> words) {
  size_t at = 1;
  for (; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (word == "--" || word.empty() || word.front() != '-') break;
    const auto has_name = [&](const Argument& one) {
      return word == one.name || word == one.short_name;
    };
    const auto flag = std::ranges::find_if(command.arguments, has_name);
    if (flag != command.arguments.end() && flag->takes_value()) ++at;
  }
  return std::min(at, words.size());
}

// Takes out the "--" between the flags and the program of a command that starts one: CLI11 would
// end the command there.
void drop_mark_before_program(const Command& program, std::vector<std::string>& words) {
  if (words.empty()) return;
  const auto command = std::ranges::find(program.commands, words[0], &Command::name);
  if (command == program.commands.end() || !command->starts_program) return;
  const size_t end = end_of_flags(*command, words);
  if (end < words.size() && words[end] == "--")
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(end));
}

[[noreturn]] void refuse_line(const Command& program, const CLI::App& app,
                              std::span<const std::string> words, const CLI::ParseError& error) {
  const Command* command = &program;
  const CLI::App* used = &app;
  while (command->chosen != nullptr) {
    command = command->chosen;
    used = used->get_subcommand(command->name);
  }
  for (const CLI::App* const one : {used, &app})
    for (const std::string& word : one->remaining(true)) {
      if (command->starts_program && !word.starts_with('-')) break;  // the program and its words
      refuse_unknown_flag(*command, word);
    }
  // "-np 2" is to CLI11 "-n" with the value "p".
  for (const std::string& word : words.first(end_of_flags(*command, words)))
    refuse_name_of_others(*command, word);
  throw UsageError(fmt::format("{} (--help shows what is possible)", error.what()));
}

}  // namespace

int parse(Command& program, std::vector<std::string> words) {
  refuse_unknown_command(program, words);
  drop_mark_before_program(program, words);
  CLI::App app(program.help, program.name);
  int exit_code = 0;
  declare(app, program, exit_code);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // as CLI11 takes them
  } catch (const CLI::Success& wish) {                                  // --help, --version
    app.exit(wish);
  } catch (const CLI::ParseError& error) {
    refuse_line(program, app, words, error);
  }
  return exit_code;
}

}  // namespace tutti::cli
