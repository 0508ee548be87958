#include "tutti/cli/from_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"

namespace tutti::cli {
namespace {

/// A command, and the words that lead to it: {"bench", "step"}; of the program none.
struct Entry {
  std::vector<std::string> path;
  const Command* command;
};

/// "N", "DIR"; of a place its name; "": it takes none.
std::string value_of(const Argument& argument) {
  if (argument.is_place()) return argument.name;
  const std::string& described = argument.check.described;
  return argument.value + (described.empty() ? "" : ":" + described);
}

bool takes_path(const Argument& argument) {
  return argument.value == "DIR" || argument.value == "FILE" || argument.value == "PROGRAM";
}

void list_commands(const Command& command, const std::vector<std::string>& path,
                   std::vector<Entry>& all) {
  if (command.hidden) return;
  all.push_back({path, &command});
  for (const Command& one : command.commands) {
    auto deeper = path;
    deeper.push_back(one.name);
    list_commands(one, deeper, all);
  }
}

std::vector<Entry> commands_of(const Command& program) {
  std::vector<Entry> all;
  list_commands(program, {}, all);
  return all;
}

std::vector<const Command*> listed_in(const Command& command) {
  std::vector<const Command*> listed;
  for (const Command& one : command.commands)
    if (!one.hidden) listed.push_back(&one);
  return listed;
}

std::string joined(const std::vector<std::string>& words, const char* between = " ") {
  return fmt::format("{}", fmt::join(words, between));
}

// ---- bash ----

/// "--strategy|-s) words=... ;;": what follows a flag.
std::string bash_values(const Command& command) {
  std::string cases;
  for (const Argument& flag : command.arguments) {
    if (flag.is_place() || value_of(flag).empty()) continue;
    const std::string then = takes_path(flag) ? "files=yes"
                             : flag.check.words.empty()
                                 ? "none=yes"
                                 : "words='" + joined(flag.check.words) + "'";
    cases += fmt::format("        {}) {} ;;\n", joined(flag.names(), "|"), then);
  }
  return cases;
}

/// What may stand where no flag's value does.
std::string bash_words(const Command& command) {
  std::vector<std::string> words;
  for (const Command* const one : listed_in(command)) words.push_back(one->name);
  bool files = command.starts_program;
  for (const Argument& argument : command.arguments) {
    const auto more = argument.is_place() ? argument.check.words : argument.names();
    words.insert(words.end(), more.begin(), more.end());
    files = files || (argument.is_place() && more.empty());
  }
  return fmt::format("words='{}'{}", joined(words), files ? "; files=yes" : "");
}

std::string bash(const std::vector<Entry>& entries) {
  std::string deeper;
  std::string cases;
  for (const Entry& entry : entries) {
    const std::string path = joined(entry.path);
    if (!path.empty()) deeper += fmt::format("      '{}') command='{}' ;;\n", path, path);
    cases +=
        fmt::format("    '{}')\n      case \"$before\" in\n{}        *) {} ;;\n      esac ;;\n",
                    path, bash_values(*entry.command), bash_words(*entry.command));
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
std::string zsh_value(const Argument& flag) {
  const std::string value = value_of(flag);
  if (value.empty()) return "";
  const std::string action = takes_path(flag)           ? "_files"
                             : flag.check.words.empty() ? " "
                                                        : "(" + joined(flag.check.words) + ")";
  return fmt::format(":{}:{}", zsh_text(value), action);
}

std::string zsh_function(const std::vector<std::string>& path) {
  return path.empty() ? "_tutti" : "_tutti_" + joined(path, "_");
}

std::string zsh_arguments(const Command& command) {
  std::string text;
  for (const Argument& argument : command.arguments) {
    const std::vector<std::string>& words = argument.check.words;
    if (argument.is_place())
      text += fmt::format(" \\\n    '*:{}:{}'", zsh_text(argument.name),
                          words.empty() ? std::string("_files") : "(" + joined(words) + ")");
    for (const std::string& name : argument.names())
      text += fmt::format(" \\\n    '*{}{}[{}]{}'", name,
                          argument.takes_value() && name.starts_with("--") ? "=" : "",
                          zsh_text(argument.help), zsh_value(argument));
  }
  return text + (command.starts_program ? " \\\n    '*:PROGRAM:_files'" : "");
}

std::string zsh(const std::vector<Entry>& entries) {
  std::string text =
      "#compdef tutti\n# Completion of tutti for zsh, made by: tutti completion zsh\n";
  for (const auto& [path, command] : entries) {
    text += zsh_function(path) + "() {\n";
    const auto listed = listed_in(*command);
    if (listed.empty()) {
      text += "  _arguments -s -S" + zsh_arguments(*command) + "\n}\n";
      continue;
    }
    text += "  local state line\n  _arguments -C" + zsh_arguments(*command) +
            " \\\n    '1:command:->command' '*::argument:->argument'\n  case $state in\n"
            "    command)\n      local -a names=(\n";
    std::string cases;
    for (const Command* const one : listed) {
      auto deeper = path;
      deeper.push_back(one->name);
      text += fmt::format("        '{}:{}'\n", one->name, zsh_text(one->help, ":\\"));
      cases += fmt::format("        {}) {} ;;\n", one->name, zsh_function(deeper));
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
  for (const Argument& argument : command.arguments) {
    const std::string by_default = argument.default_text(), called = value_of(argument);
    const std::string preset = by_default.empty() ? "" : "=" + roff(by_default);
    const std::string value = called.empty() ? "" : "\\fI" + roff(called) + "\\fR" + preset;
    const std::string names = roff(joined(argument.names(), ", "));
    text += fmt::format(".TP\n{}{}{}\n{}\n", names.empty() ? "" : "\\fB" + names + "\\fR",
                        names.empty() || value.empty() ? "" : " ", value, roff(argument.help));
  }
  return text;
}

}  // namespace

std::string completion_of(const Command& program, std::string_view shell) {
  const auto entries = commands_of(program);
  return shell == "bash" ? bash(entries) : zsh(entries);
}

std::string man_page_of(const Command& program, std::string_view version) {
  std::string text = fmt::format(
      ".\\\" Made by: tutti man\\-page\n.TH TUTTI 1 \"\" \"tutti {}\" \"User Commands\"\n"
      ".SH NAME\ntutti \\- distributed deep\\-learning training on LibTorch\n.SH SYNOPSIS\n"
      ".B tutti\n\\fICOMMAND\\fR [\\fIFLAGS\\fR]\n.SH DESCRIPTION\n"
      "Trains one model on many replicas, as threads, as processes and on several hosts, with the "
      "same weights on each.\n.SH COMMANDS\n",
      roff(version));
  for (const auto& [path, command] : commands_of(program)) {
    if (path.empty()) continue;
    text += fmt::format(".SS tutti {}\n{}\n{}", roff(joined(path)), roff(command->help),
                        man_flags(*command));
    if (!command->footer.empty()) text += fmt::format(".PP\n.nf\n{}\n.fi\n", roff(command->footer));
  }
  text += fmt::format(".SH EXAMPLES AND EXIT STATUS\n.nf\n{}\n.fi\n", roff(program.footer));
  return text + ".SH SEE ALSO\n.BR mpirun (1),\n.BR torchrun (1)\n";
}

void add_from_flags(Command& program) {
  Command& completion =
      program.command("completion", "Print what a shell reads to complete commands and flags");
  const auto shell = std::make_shared<std::string>();
  completion.add("SHELL", "TEXT", shell.get(), one_of("shell", {"bash", "zsh"}), "bash or zsh")
      .required = true;
  completion.footer =
      "Examples:\n  source <(tutti completion bash)\n"
      "  tutti completion zsh > ~/.zfunc/_tutti";
  completion.action = [&program, shell] {
    fmt::print("{}", completion_of(program, *shell));
    return 0;
  };
  Command& page = program.command("man-page", "Print the man page, as roff");
  page.hidden = true;
  page.action = [&program] {
    fmt::print("{}", man_page_of(program, TUTTI_VERSION));
    return 0;
  };
}

}  // namespace tutti::cli
