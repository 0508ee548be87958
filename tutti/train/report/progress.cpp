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

/// How far and how fast it goes: of the whole, samples a second, and seconds that are left.
struct Estimate {
  double share = 0, rate = 0, left = 0;
};

Estimate estimate_of(int64_t done, int64_t all, int64_t samples, TimePoint::duration since) {
  const double seconds = std::chrono::duration<double>(since).count();
  const double share = static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, all));
  return {.share = share,
          .rate = seconds > 0 ? static_cast<double>(samples) / seconds : 0,
          .left = share > 0 ? seconds * (1 - share) / share : 0};
}

/// A bar is written over the one before; ESC[K clears what a longer one left.
constexpr const char* kOverBar = "\r\x1b[K";

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
  const Estimate estimate = estimate_of(done, steps_, images, now - begin_);
  const std::string before = fmt::format("epoch {}/{}  ", epoch_ + 1, epochs_);
  const std::string after =
      fmt::format("step {}/{}{}  {} images/s  {} left", done, steps_, joined(values),
                  with_commas(estimate.rate), clock_words(estimate.left));
  write(terminal_ ? in_one_row(before, estimate.share, after, columns_of(out_)) : before + after,
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
  say_to(out_, "{}{}{}", bar_shown_ ? kOverBar : "", text, stays ? "\n" : "");
  bar_shown_ = !stays;
}

EvaluationBar::EvaluationBar(bool wanted, TimePoint now, std::FILE* out)
    : out_(wanted && isatty(fileno(out)) == 1 ? out : nullptr), begin_(now), next_(now) {}

EvaluationBar::~EvaluationBar() {
  if (shown_) say_words(out_, kOverBar);
}

void EvaluationBar::show(int64_t done, int64_t batches, int64_t samples, TimePoint now) {
  if (out_ == nullptr || now < next_) return;
  next_ = now + kBarEvery;
  const Estimate estimate = estimate_of(done, batches, samples, now - begin_);
  const std::string after = fmt::format("batch {}/{}  {} samples/s  {} left", done, batches,
                                        with_commas(estimate.rate), clock_words(estimate.left));
  say_to(out_, "{}{}", shown_ ? kOverBar : "",
         in_one_row("evaluate  ", estimate.share, after, columns_of(out_)));
  shown_ = true;
}

}  // namespace tutti
