#include "tutti/train/report/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "tutti/base/standard_streams.h"

namespace tutti {

namespace {

constexpr Millis kBarEvery{100};    // faster than people read, slow enough to cost nothing
constexpr Millis kLineEvery{5000};  // a log of an hour stays under a thousand lines
constexpr int kBarWidth = 20;
constexpr int kShortestBar = 5;  // less says nothing
constexpr int kColumns = 80;     // of a terminal that does not know

std::string joined(const NamedValues& values) {
  std::string out;
  for (const auto& [name, value] : values) out += fmt::format("  {} {:.4f}", name, value);
  return out;
}

std::string bar(double share, int width) {
  const int full = std::clamp(static_cast<int>(share * width), 0, width);
  return fmt::format("[{}{}]  ", std::string(static_cast<size_t>(full), '='),
                     std::string(static_cast<size_t>(width - full), ' '));
}

int columns_of(std::FILE* terminal) {
  winsize size{};
  const bool known = ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kColumns;
}

/// The two texts with a bar between them, in one row of the terminal: "\r" cannot take back a
/// second one. The bar gives way first, then the end.
std::string in_one_row(const std::string& before, double share, const std::string& after,
                       int columns) {
  const int room = std::max(0, columns - 1);  // in the last column the cursor would wrap
  const int width = room - static_cast<int>(before.size() + bar(0, 0).size() + after.size());
  if (width >= kShortestBar) return before + bar(share, std::min(width, kBarWidth)) + after;
  return (before + after).substr(0, static_cast<size_t>(room));
}

}  // namespace

std::string with_commas(double number) {
  std::string digits = fmt::format("{:.0f}", number);
  const int first = digits[0] == '-' ? 1 : 0;
  for (int place = static_cast<int>(digits.size()) - 3; place > first; place -= 3) {
    digits.insert(static_cast<size_t>(place), 1, ',');
  }
  return digits;
}

std::string clock_words(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  const int64_t hours = total / 3600;
  const int64_t minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

Progress::Progress(Verbose verbose, int64_t epochs, std::FILE* out)
    : verbose_(verbose), epochs_(epochs), out_(out), terminal_(isatty(fileno(out)) == 1) {}

Progress::~Progress() {
  if (bar_shown_) std::fputc('\n', out_);
}

void Progress::begin_epoch(int64_t epoch, int64_t steps, TimePoint now) {
  epoch_ = epoch;
  steps_ = steps;
  begin_ = now;
  if (verbose_ == Verbose::automatic) next_ = now + (terminal_ ? kBarEvery : kLineEvery);
}

void Progress::show(int64_t done, int64_t images, const NamedValues& values, TimePoint now) {
  next_ = now + (terminal_ ? kBarEvery : kLineEvery);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double share =
      static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, steps_));
  const double left = share > 0 ? seconds * (1 - share) / share : 0;
  const double rate = seconds > 0 ? static_cast<double>(images) / seconds : 0;
  const std::string before = fmt::format("epoch {}/{}  ", epoch_ + 1, epochs_);
  const std::string after = fmt::format("step {}/{}{}  {} images/s  {} left", done, steps_,
                                        joined(values), with_commas(rate), clock_words(left));
  write(terminal_ ? in_one_row(before, share, after, columns_of(out_)) : before + after,
        !terminal_);
}

void Progress::end_epoch(const NamedValues& values, double seconds, double images_per_second) {
  next_ = TimePoint::max();
  if (verbose_ == Verbose::silent) return;
  write(fmt::format("epoch {}/{}{}  {:.2f} s  {} images/s", epoch_ + 1, epochs_, joined(values),
                    seconds, with_commas(images_per_second)),
        true);
}

void Progress::say(const std::string& text) {
  if (verbose_ != Verbose::silent) write(text, true);
}

void Progress::write(const std::string& text, bool stays) {
  // A bar is written over the one before; ESC[K clears what a longer one left.
  const char* begin = bar_shown_ ? "\r\x1b[K" : "";
  say_to(out_, "{}{}{}", begin, text, stays ? "\n" : "");
  bar_shown_ = !stays;
}

}  // namespace tutti
