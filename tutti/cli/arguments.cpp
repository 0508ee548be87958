#include "tutti/cli/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <system_error>

#include <CLI/CLI.hpp>

#include "tutti/base/error.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/suggest.h"
#include "tutti/cluster/join/exit_code.h"

namespace tutti::cli {
namespace {

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flags.push_back("-" + name);
  }
  return flags;
}

/// Those that --help lists.
std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({}))
    if (!sub->get_group().empty()) names.push_back(sub->get_name());
  return names;
}

/// The deepest subcommand that was used.
const CLI::App& used(const CLI::App& app) {
  const auto subs = app.get_subcommands();
  return subs.empty() ? app : used(*subs.front());
}

/// CLI11 only says that a subcommand is required; this names the word that is none.
void refuse_unknown_subcommand(const CLI::App& app, int argc, const char* const* argv) {
  const auto names = subcommands_of(app);
  if (argc < 2 || names.empty()) return;
  const std::string word = argv[1];
  if (word.empty() || word.front() == '-') return;
  const auto is_it = [&](const CLI::App* sub) { return sub->get_name() == word; };
  const auto is_place = [](const CLI::Option* option) { return option->get_positional(); };
  if (app.get_subcommands(is_it).empty()) {
    if (!app.get_options(is_place).empty()) return;  // the command has words of its own
    throw UsageError(unknown_message("command", word, names));
  }
  refuse_unknown_subcommand(*app.get_subcommand(word), argc - 1, argv + 1);
}

/// Where "--" stands between the flags and the program of a command that starts one (CLI11 would
/// end the command there); argc: nowhere.
int mark_before_program(const CLI::App& app, int argc, const char* const* argv) {
  const auto named = [&](const CLI::App* sub) { return argc > 1 && sub->get_name() == argv[1]; };
  const auto commands = app.get_subcommands(named);
  if (commands.empty() || !commands.front()->get_prefix_command()) return argc;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") return i;
    if (word.empty() || word.front() != '-') break;
    const CLI::Option* const flag = commands.front()->get_option_no_throw(word);
    if (flag != nullptr && flag->get_items_expected_max() > 0) ++i;  // its value
  }
  return argc;
}

[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = used(app);
  for (const std::string& word : command.remaining(true)) refuse_unknown_flag(command, word);
  for (const std::string& word : app.remaining(true)) refuse_unknown_flag(command, word);
  throw UsageError(fmt::format("{} (--help shows what is possible)", error.what()));
}

}  // namespace

void parse(CLI::App& app, int argc, const char* const* argv) {
  refuse_unknown_subcommand(app, argc, argv);
  try {
    std::vector<const char*> words(argv, argv + argc);
    if (const int mark = mark_before_program(app, argc, argv); mark < argc)
      words.erase(words.begin() + mark);
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::Success& wish) {  // --help, --version
    app.exit(wish);
  } catch (const CLI::ParseError& error) {
    refuse(app, error);
  }
}

void refuse_unknown_flag(const CLI::App& app, const std::string& word) {
  if (word.size() < 2 || word.front() != '-') return;
  const std::string flag = word.substr(0, word.find('='));
  throw UsageError(unknown_message("flag", flag, flags_of(app)));
}

std::vector<std::string> typed_in(const CLI::App& command) {
  std::vector<std::string> typed;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const bool has_value = option->get_items_expected_max() > 0;
    typed.push_back(
        fmt::format("--{}{}{}", option->get_lnames().front(), has_value ? " " : "",
                    has_value ? fmt::to_string(fmt::join(option->results(), ",")) : ""));
  }
  return typed;
}

int guarded(const std::function<std::string()>& place, const std::function<int()>& body) {
  try {
    const int exit_code = body();
    flush_results();
    return exit_code;
  } catch (const std::system_error& error) {
    // Whoever read the results has gone (`| head`), and needs no more of them.
    if (error.code() == std::errc::broken_pipe) return 128 + SIGPIPE;
    return report_ending(place(), error);
  } catch (const std::exception& error) {
    return report_ending(place(), error);
  }
}

}  // namespace tutti::cli
