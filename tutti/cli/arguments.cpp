#include "tutti/cli/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <system_error>
#include <type_traits>
#include <utility>

#include "tutti/base/detail/check.h"
#include "tutti/base/error.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/suggest.h"
#include "tutti/cluster/join/exit_code.h"

namespace tutti::cli {
namespace {

// What stands at the target as --help says it; "": none.
std::string text_at(const std::string* text) { return *text; }

template <class Number>
  requires std::is_arithmetic_v<Number>
std::string text_at(const Number* number) {
  return *number == 0 ? "" : fmt::to_string(*number);
}

template <class Value>
std::string text_at(const std::optional<Value>* /*unset*/) {
  return "";
}

template <class Value>
std::string text_at(const std::vector<Value>* values) {
  return values->empty() ? "" : fmt::format("[{}]", fmt::join(*values, ","));
}

}  // namespace

std::vector<std::string> Argument::names() const {
  if (is_place()) return {};
  return short_name.empty() ? std::vector{name} : std::vector{name, short_name};
}

std::string Argument::default_text() const {
  if (preset || !takes_value()) return preset.value_or("");
  return std::visit([](const auto* target) { return text_at(target); }, to);
}

Command::Command(std::string own_name, std::string own_help)
    : name(std::move(own_name)), help(std::move(own_help)) {
  flag("--help", nullptr, "Print this help message and exit").short_name = "-h";
}

Argument& Command::add(std::string argument, std::string value, Target to, Check check,
                       std::string words) {
  return arguments.emplace_back(Argument{.name = std::move(argument),
                                         .value = std::move(value),
                                         .to = to,
                                         .help = std::move(words),
                                         .check = std::move(check),
                                         .group = group});
}

Argument& Command::add(std::string argument, std::string value, Target to, std::string words) {
  return add(std::move(argument), std::move(value), to, Check{}, std::move(words));
}

Argument& Command::flag(std::string argument, bool* to, std::string words) {
  return add(std::move(argument), "", to, std::move(words));
}

Argument& Command::place(std::string argument, Target to, Check check, std::string words) {
  Argument& added = add(std::move(argument), "", to, std::move(check), std::move(words));
  added.required = true;
  return added;
}

void Command::add_version(std::string text) {
  version = std::move(text);
  flag("--version", nullptr, "Print the version and exit");
}

Command& Command::command(std::string its_name, std::string its_help) {
  Command& added = commands.emplace_back(std::move(its_name), std::move(its_help));
  added.footer = footer;
  return added;
}

Argument& Command::at(const std::string& argument) {
  const auto found = std::ranges::find(arguments, argument, &Argument::name);
  TUTTI_CHECK(found != arguments.end(), "{} has no argument {}", name, argument);
  return *found;
}

std::vector<std::string> Command::typed() const {
  std::vector<std::string> typed;
  for (const Argument& argument : arguments) {
    if (argument.is_place() || argument.given.empty()) continue;
    typed.push_back(argument.takes_value()
                        ? fmt::format("{} {}", argument.name, fmt::join(argument.given, ","))
                        : argument.name);
  }
  return typed;
}

void refuse_name_of_others(const Command& command, const std::string& word) {
  const std::string flag = word.substr(0, word.find('='));
  for (const Argument& argument : command.arguments)
    if (std::ranges::find(argument.also, flag) != argument.also.end())
      throw UsageError(fmt::format("unknown flag \"{}\"; here it is {} {}: {}", flag, argument.name,
                                   argument.value, argument.help));
}

void refuse_unknown_flag(const Command& command, const std::string& word) {
  if (word.size() < 2 || word.front() != '-') return;
  refuse_name_of_others(command, word);
  std::vector<std::string> known;
  for (const Argument& argument : command.arguments)
    for (const std::string& name : argument.names()) known.push_back(name);
  throw UsageError(unknown_message("flag", word.substr(0, word.find('=')), known));
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
