#include "tutti/cli/from_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include <CLI/CLI.hpp>

#include "tutti/cli/checks.h"

namespace tutti::cli {
namespace {

struct Flag {
  std::vector<std::string> names;  ///< "--replicas", "-n"; empty: a positional
  std::string value;               ///< "N", "DIR"; empty: it takes none
  std::string preset;              ///< value where it is not given; empty: none, or not told
  std::string help;
  std::vector<std::string> words;  ///< that it takes; empty: any
  bool takes_path() const { return value == "DIR" || value == "FILE" || value == "PROGRAM"; }
};

struct Command {
  std::vector<std::string> path;  ///< {"bench", "step"}; empty: the program
  std::string help;
  std::vector<Flag> flags;
  std::string footer;
  std::vector<std::string> subcommands;
  bool starts_program = false;  ///< that the rest of the line names
};

/// What one_of() has left at an option.
std::vector<std::string> words_of(CLI::Option& option) {
  std::vector<std::string> words;
  try {
    const std::string joined = option.get_validator(0)->get_name();
    for (size_t at = 0; at < joined.size();) {
      const size_t end = std::min(joined.find(' ', at), joined.size());
      words.push_back(joined.substr(at, end - at));
      at = end + 1;
    }
  } catch (const CLI::OptionNotFound&) {
  }
  return words;
}

Flag flag_of(CLI::Option& option) {
  Flag flag{.names = {},
            .value = "",
            .preset = option.get_default_str(),
            .help = option.get_description(),
            .words = words_of(option)};
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  if (flag.names.empty())
    flag.value = option.get_name();
  else if (option.get_items_expected_max() > 0)
    flag.value = option.get_type_name();
  return flag;
}

void list_commands(CLI::App& app, const std::vector<std::string>& path, std::vector<Command>& all) {
  if (app.get_group().empty()) return;  // hidden
  Command command{.path = path,
                  .help = app.get_description(),
                  .flags = {},
                  .footer = "",
                  .subcommands = {},
                  .starts_program = app.get_prefix_command()};
  command.footer = app.get_footer();
  for (CLI::Option* const option : app.get_options([](const CLI::Option*) { return true; }))
    command.flags.push_back(flag_of(*option));
  const auto subs = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* const sub : subs)
    if (!sub->get_group().empty()) command.subcommands.push_back(sub->get_name());
  all.push_back(std::move(command));
  for (CLI::App* const sub : subs) {
    auto deeper = path;
    deeper.push_back(sub->get_name());
    list_commands(*sub, deeper, all);
  }
}

std::vector<Command> commands_of(CLI::App& app) {
  std::vector<Command> all;
  list_commands(app, {}, all);
  return all;
}

std::string joined(const std::vector<std::string>& words, const char* between = " ") {
  return fmt::format("{}", fmt::join(words, between));
}

// ---- bash ----

/// "--strategy|-s) words=... ;;": what follows a flag.
std::string bash_values(const Command& command) {
  std::string cases;
  for (const Flag& flag : command.flags) {
    if (flag.names.empty() || flag.value.empty()) continue;
    const std::string then = flag.takes_path()    ? "files=yes"
                             : flag.words.empty() ? "none=yes"
                                                  : "words='" + joined(flag.words) + "'";
    cases += fmt::format("        {}) {} ;;\n", joined(flag.names, "|"), then);
  }
  return cases;
}

/// What may stand where no flag's value does.
std::string bash_words(const Command& command) {
  std::vector<std::string> words = command.subcommands;
  bool files = command.starts_program;
  for (const Flag& flag : command.flags) {
    words.insert(words.end(), flag.names.begin(), flag.names.end());
    if (!flag.names.empty()) continue;
    words.insert(words.end(), flag.words.begin(), flag.words.end());
    files = files || flag.words.empty();
  }
  return fmt::format("words='{}'{}", joined(words), files ? "; files=yes" : "");
}

std::string bash(const std::vector<Command>& commands) {
  std::string deeper;
  std::string cases;
  for (const Command& command : commands) {
    const std::string path = joined(command.path);
    if (!path.empty()) deeper += fmt::format("      '{}') command='{}' ;;\n", path, path);
    cases +=
        fmt::format("    '{}')\n      case \"$before\" in\n{}        *) {} ;;\n      esac ;;\n",
                    path, bash_values(command), bash_words(command));
  }
  return fmt::format(
      R"(# Completion of tutti for bash, made by: tutti completion bash
_tutti() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local command='' words='' files='' none='' at
  if [ "$before" = = ]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi  # bash cuts --flag=word there
  if [ "$word" = = ]; then word=''; fi
  for ((at = 1; at < COMP_CWORD; ++at)); do
    case "${{command:+$command }}${{COMP_WORDS[at]}}" in
{}    esac
  done
  case "$command" in
{}  esac
  COMPREPLY=()
  [ -z "$none" ] || return 0
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  if [ -n "$files" ]; then
    compopt -o filenames 2>/dev/null
    local paths
    mapfile -t paths < <(compgen -f -- "$word")
    COMPREPLY+=("${{paths[@]}}")
  fi
}}
complete -F _tutti tutti
)",
      deeper, cases);
}

// ---- zsh ----

/// Between single quotes, where _arguments gives brackets and colons a meaning, _describe colons.
std::string zsh_text(std::string_view text, std::string_view special = "[]:\\") {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'')
      quoted += "'\\''";
    else if (special.find(c) != std::string_view::npos)
      quoted += std::string("\\") + c;
    else
      quoted += c == '\n' ? ' ' : c;
  }
  return quoted;
}

/// ":N:(words)", what _arguments wants to know of a value.
std::string zsh_value(const Flag& flag) {
  if (flag.value.empty()) return "";
  const std::string action = flag.takes_path()    ? "_files"
                             : flag.words.empty() ? " "
                                                  : "(" + joined(flag.words) + ")";
  return fmt::format(":{}:{}", zsh_text(flag.value), action);
}

std::string zsh_function(const std::vector<std::string>& path) {
  return path.empty() ? "_tutti" : "_tutti_" + joined(path, "_");
}

std::string zsh(const std::vector<Command>& commands) {
  std::string text =
      "#compdef tutti\n# Completion of tutti for zsh, made by: tutti completion zsh\n";
  const auto help_of = [&](const std::vector<std::string>& path) {
    const auto found = std::ranges::find(commands, path, &Command::path);
    return found == commands.end() ? std::string() : found->help;
  };
  for (const Command& command : commands) {
    text += zsh_function(command.path) + "() {\n";
    std::string arguments;
    for (const Flag& flag : command.flags) {
      if (flag.names.empty())
        arguments += fmt::format(
            " \\\n    '*:{}:{}'", zsh_text(flag.value),
            flag.words.empty() ? std::string("_files") : "(" + joined(flag.words) + ")");
      for (const std::string& name : flag.names)
        arguments += fmt::format(" \\\n    '*{}{}[{}]{}'", name,
                                 flag.value.empty() || !name.starts_with("--") ? "" : "=",
                                 zsh_text(flag.help), zsh_value(flag));
    }
    if (command.starts_program) arguments += " \\\n    '*:PROGRAM:_files'";
    if (command.subcommands.empty()) {
      text += "  _arguments -s -S" + arguments + "\n}\n";
      continue;
    }
    text += "  local state line\n  _arguments -C" + arguments +
            " \\\n    '1:command:->command' '*::argument:->argument'\n  case $state in\n"
            "    command)\n      local -a names=(\n";
    std::string cases;
    for (const std::string& name : command.subcommands) {
      auto path = command.path;
      path.push_back(name);
      text += fmt::format("        '{}:{}'\n", name, zsh_text(help_of(path), ":\\"));
      cases += fmt::format("        {}) {} ;;\n", name, zsh_function(path));
    }
    text += "      )\n      _describe command names ;;\n    argument)\n      case $line[1] in\n" +
            cases + "      esac ;;\n  esac\n}\n";
  }
  return text + "if [ \"$funcstack[1]\" = _tutti ]; then _tutti; else compdef _tutti tutti; fi\n";
}

// ---- man ----

/// Text as roff takes it: no line begins with a control character, hyphens stay hyphens.
std::string roff(std::string_view text) {
  std::string escaped;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) escaped += "\\&";
    if (c == '\\')
      escaped += "\\e";
    else if (c == '-')
      escaped += "\\-";
    else
      escaped += c;
    begins = c == '\n';
  }
  return escaped;
}

std::string man_flags(const Command& command) {
  std::string text;
  for (const Flag& flag : command.flags) {
    const std::string preset = flag.preset.empty() ? "" : "=" + roff(flag.preset);
    const std::string value = flag.value.empty() ? "" : "\\fI" + roff(flag.value) + "\\fR" + preset;
    const std::string names = roff(joined(flag.names, ", "));
    text += fmt::format(".TP\n{}{}{}\n{}\n", names.empty() ? "" : "\\fB" + names + "\\fR",
                        names.empty() || value.empty() ? "" : " ", value, roff(flag.help));
  }
  return text;
}

}  // namespace

std::string completion_of(CLI::App& app, std::string_view shell) {
  const auto commands = commands_of(app);
  return shell == "bash" ? bash(commands) : zsh(commands);
}

std::string man_page_of(CLI::App& app, std::string_view version) {
  const auto commands = commands_of(app);
  std::string text = fmt::format(
      ".\\\" Made by: tutti man\\-page\n.TH TUTTI 1 \"\" \"tutti {}\" \"User Commands\"\n"
      ".SH NAME\ntutti \\- distributed deep\\-learning training on LibTorch\n.SH SYNOPSIS\n"
      ".B tutti\n\\fICOMMAND\\fR [\\fIFLAGS\\fR]\n.SH DESCRIPTION\n"
      "Trains one model on many replicas, as threads, as processes and on several hosts, with the "
      "same weights on each.\n.SH COMMANDS\n",
      roff(version));
  for (const Command& command : commands) {
    if (command.path.empty()) continue;
    text += fmt::format(".SS tutti {}\n{}\n{}", roff(joined(command.path)), roff(command.help),
                        man_flags(command));
    if (!command.footer.empty()) text += fmt::format(".PP\n.nf\n{}\n.fi\n", roff(command.footer));
  }
  text += fmt::format(".SH EXAMPLES AND EXIT STATUS\n.nf\n{}\n.fi\n", roff(commands[0].footer));
  return text + ".SH SEE ALSO\n.BR mpirun (1),\n.BR torchrun (1)\n";
}

void add_from_flags(CLI::App& app, int& exit_code) {
  CLI::App* const completion =
      app.add_subcommand("completion", "Print what a shell reads to complete commands and flags");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("SHELL", *shell, "bash or zsh")
      ->required()
      ->check(one_of("shell", {"bash", "zsh"}));
  completion->footer(
      "Examples:\n  source <(tutti completion bash)\n"
      "  tutti completion zsh > ~/.zfunc/_tutti");
  completion->callback([&app, &exit_code, shell] {
    fmt::print("{}", completion_of(app, *shell));
    exit_code = 0;
  });
  CLI::App* const page = app.add_subcommand("man-page", "Print the man page, as roff");
  page->group("");
  page->callback([&app, &exit_code] {
    fmt::print("{}", man_page_of(app, TUTTI_VERSION));
    exit_code = 0;
  });
}

}  // namespace tutti::cli
