/// What is made of the flags that the command line declares: completion for shells, and a man page.
/// Thread rule: pure functions of a program whose commands are all there.
#pragma once

#include <string>
#include <string_view>

namespace tutti::cli {

struct Command;

/// A script that bash, or zsh, reads: commands, their flags, and the words or files that follow
/// these. `shell` is "bash" or "zsh".
std::string completion_of(const Command& program, std::string_view shell);

/// A page for man(1), in roff: what --help says of each command.
std::string man_page_of(const Command& program, std::string_view version);

/// The commands that print them: `completion SHELL`, and `man-page`, which --help does not list.
void add_from_flags(Command& program);

}  // namespace tutti::cli
