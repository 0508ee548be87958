#include "tutti/cli/show/shown.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/results.h"

namespace tutti::cli {
namespace {

constexpr Millis kFrame{350};
constexpr Millis kWholeAnimation{8'000};

int terminal_columns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 78;
  return std::min<int>(size.ws_col - 1, 120);
}

/// Each frame over the one before.
void animate(const std::vector<std::string>& frames) {
  const Millis each = std::min(kFrame, kWholeAnimation / static_cast<int>(frames.size()));
  std::ptrdiff_t lines = 0;
  for (const std::string& frame : frames) {
    if (lines > 0) fmt::print("\x1b[{}A\x1b[J", lines);
    fmt::print("{}", frame);
    std::fflush(stdout);
    lines = std::ranges::count(frame, '\n');
    std::this_thread::sleep_for(each);
  }
}

}  // namespace

void add_show_flags(Command& command, ShowFlags& flags) {
  command.add("--svg", "FILE", &flags.svg, some_name(), "The picture");
  command.add("--json", "FILE", &flags.json, some_name(), "File for the figures, a JSON object");
  Argument& animation =
      command.flag("--no-animation", &flags.animation,
                   "Print the frames one after another, as where the output is no terminal");
  animation.sets = false;
}

void require_outputs(const ShowFlags& flags) {
  require_writable(flags.svg, "--svg");
  if (!flags.json.empty()) require_writable(flags.json, "--json");
}

void require_on_screen(const std::string& flag, int64_t got, int64_t low, int64_t high,
                       const std::string& what_to_try) {
  if (got >= low && got <= high) return;
  throw UsageError(fmt::format("{}: got {}, expected {} to {}, what a screen holds; try {}", flag,
                               got, low, high, what_to_try));
}

int present(const Shown& shown, const ShowFlags& flags) {
  write_file_atomically(flags.svg, shown.svg.empty() ? drawings::svg(shown.drawing) : shown.svg);
  if (!flags.json.empty()) write_file_atomically(flags.json, json_text(shown.figures, 2) + "\n");
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  const auto frames = shown.frames.empty()
                          ? drawings::frames(shown.drawing, terminal ? terminal_columns() : 78)
                          : shown.frames;
  fmt::print("{}\n", shown.drawing.title);
  if (terminal && flags.animation)
    animate(frames);
  else
    for (const std::string& frame : frames) fmt::print("\n{}", frame);
  fmt::print("\n");
  for (const std::string& line : shown.lines) print_line("{}", line);
  print_line("drawn in {}", flags.svg);
  return 0;
}

}  // namespace tutti::cli
