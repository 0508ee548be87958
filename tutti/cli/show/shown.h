/// What every command of `tutti show` does with the job that it ran: a picture, a text or an
/// animation in the terminal, figures.
/// Thread rule: the main thread alone.
#pragma once

#include <string>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/observe/drawing.h"

namespace tutti::cli {

struct Command;

/// A job that has been run, as its trace shows it.
struct Shown {
  drawings::Drawing drawing;  ///< title alone where what follows is there
  std::string svg{};          ///< the picture, where it is no drawing
  std::vector<std::string> frames{};
  OrderedJson figures;             ///< an object; "show": which command
  std::vector<std::string> lines;  ///< that are printed below
};

/// Flags that all of them have.
struct ShowFlags {
  std::string svg;  ///< the picture; as the command is called, unless given
  std::string json;
  bool animation = true;
};

void add_show_flags(Command& command, ShowFlags& flags);

/// Before the job: throws UsageError where a file cannot be written.
void require_outputs(const ShowFlags& flags);

/// Throws UsageError "show NAME: FLAG got VALUE; expected LOW to HIGH, WHAT; try ...".
void require_on_screen(const std::string& flag, int64_t got, int64_t low, int64_t high,
                       const std::string& what_to_try);

/// Writes picture and figures, and prints the frames: where stdout is a terminal as an animation,
/// unless flags.animation is false; else one after another. Returns the exit code.
int present(const Shown& shown, const ShowFlags& flags);

}  // namespace tutti::cli
