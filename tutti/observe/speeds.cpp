#include "tutti/observe/speeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/observe/detail/paper.h"

namespace tutti::drawings {
namespace {

using detail::kLine;
using detail::kPaperWidth;
using detail::kTextLeft;
using detail::lines_of;
using detail::text_line;
using detail::text_width;

constexpr size_t kMostSpeeds = 12;
constexpr double kSpeedLeft = 16, kSpeedRight = 12, kSpeedHeight = 220;

void check_speeds(const Speeds& speeds) {
  const size_t count = speeds.speeds.size();
  if (count < 1 || count > kMostSpeeds)
    throw UsageError(
        fmt::format("speeds: {} numbers of replicas; expected 1 to {}", count, kMostSpeeds));
  for (size_t i = 0; i < count; ++i) {
    const Speed& one = speeds.speeds[i];
    if (one.replicas < 1 || !(one.rate > 0) || !std::isfinite(one.rate) || !(one.limit >= 0) ||
        (i > 0 && one.replicas <= speeds.speeds[i - 1].replicas))
      throw UsageError(
          fmt::format("speeds: {} replicas, {} {}, limit {}; expected replicas that "
                      "ascend from 1, and speeds above 0",
                      one.replicas, one.rate, speeds.unit, one.limit));
  }
}

double highest(const Speeds& speeds) {
  double most = 0;
  for (const Speed& one : speeds.speeds)
    most = std::max({most, one.rate, one.limit, ideal_of(speeds, one.replicas)});
  return most;
}

/// Where bars and lines are.
struct SpeedPlaces {
  double top = 0, step = 0, most = 0;
  double bottom() const { return top + kSpeedHeight; }
  double middle(size_t i) const { return kSpeedLeft + step * (static_cast<double>(i) + 0.5); }
  double width() const { return std::min(56.0, step * 0.6); }
  double down(double rate) const { return bottom() - kSpeedHeight * rate / most; }
};

std::string rate_within(double rate, double width) {
  std::string text = fmt::format("{:.0f}", rate);
  for (const char* const unit : {"k", "M", "G"}) {
    if (text_width(text) < width) break;
    rate /= 1000;
    text = fmt::format("{:.{}f}{}", rate, rate < 10 ? 1 : 0, unit);
  }
  return text;
}

std::string speedup_within(double speedup, double width) {
  std::string text = fmt::format("{:.2f}x", speedup);
  return text_width(text) < width ? text : fmt::format("{:.{}f}", speedup, speedup < 10 ? 1 : 0);
}

std::string bar_of_speed(const SpeedPlaces& at, size_t i, const Speed& one, double first_rate) {
  const double x = at.middle(i), height = at.bottom() - at.down(one.rate);
  std::string out = fmt::format(
      "<rect class=\"k0\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
      x - at.width() / 2, at.down(one.rate), at.width(), height);
  const std::string speedup = speedup_within(one.rate / first_rate, at.step);
  const bool fits = height >= 1.5 * kLine && text_width(speedup) <= at.width();
  out += text_line(x, fits ? at.bottom() - 8 : at.down(one.rate) - 4, "middle", speedup,
                   fits ? " class=\"b0\"" : " class=\"o\"");
  out += text_line(x, at.bottom() + kLine, "middle", std::to_string(one.replicas),
                   " font-weight=\"bold\"");
  out += text_line(x, at.bottom() + 2 * kLine, "middle", rate_within(one.rate, at.step));
  if (one.limit > 0)
    out += fmt::format(
        "<line class=\"l2\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" "
        "stroke-width=\"2\"/>\n",
        x - at.width() * 0.6, at.down(one.limit), x + at.width() * 0.6, at.down(one.limit));
  return out;
}

std::string ideal_line(const SpeedPlaces& at, const Speeds& speeds) {
  std::string points, dots;
  for (size_t i = 0; i < speeds.speeds.size(); ++i) {
    const double y = at.down(ideal_of(speeds, speeds.speeds[i].replicas));
    points += fmt::format("{}{:.1f},{:.1f}", i == 0 ? "" : " ", at.middle(i), y);
    dots += fmt::format("<circle class=\"m1\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n",
                        at.middle(i), y);
  }
  return fmt::format("<polyline class=\"l1\" points=\"{}\" fill=\"none\" stroke-width=\"2\"/>\n{}",
                     points, dots);
}

/// What colours and lines mean, then the notes; `y` goes on below.
std::string legend_of_speeds(const Speeds& speeds, double& y) {
  std::string out;
  const auto say = [&](double x, const std::string& words) {
    for (const std::string& line : lines_of(words, kPaperWidth - x - kTextLeft)) {
      out += text_line(x, y, "start", line);
      y += kLine;
    }
  };
  const auto sample = [&](const char* kind) {
    out += fmt::format(
        "<line class=\"{0}\" x1=\"8\" y1=\"{1:.1f}\" x2=\"30\" y2=\"{1:.1f}\" "
        "stroke-width=\"2\"/>\n",
        kind, y - 4);
  };
  out +=
      fmt::format("<rect class=\"k0\" x=\"8\" y=\"{:.1f}\" width=\"22\" height=\"11\"/>\n", y - 10);
  say(38, speeds.unit + " below the number of replicas");
  sample("l1");
  say(38, "ideal: as many times the first");
  if (std::ranges::any_of(speeds.speeds, [](const Speed& one) { return one.limit > 0; })) {
    sample("l2");
    say(38, "as many that never talk: the limit of this machine");
  }
  y += 4;
  for (const std::string& note : speeds.notes) say(kTextLeft, note);
  return out;
}

}  // namespace

double ideal_of(const Speeds& speeds, int64_t replicas) {
  const Speed& first = speeds.speeds.at(0);
  return first.rate * static_cast<double>(replicas) / static_cast<double>(first.replicas);
}

std::string svg(const Speeds& speeds) {
  check_speeds(speeds);
  const auto title = detail::title_lines(speeds.title);
  const SpeedPlaces at{
      .top = 30 + kLine * static_cast<double>(title.size()),
      .step = (kPaperWidth - kSpeedLeft - kSpeedRight) / static_cast<double>(speeds.speeds.size()),
      .most = highest(speeds)};
  std::string inside;
  for (size_t i = 0; i < title.size(); ++i)
    inside += text_line(8, 20 + kLine * static_cast<double>(i), "start", title[i],
                        " font-size=\"14\" font-weight=\"bold\"");
  for (size_t i = 0; i < speeds.speeds.size(); ++i)
    inside += bar_of_speed(at, i, speeds.speeds[i], speeds.speeds[0].rate);
  inside += ideal_line(at, speeds);
  inside += fmt::format(
      "<line class=\"n\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\"/>\n",
      kSpeedLeft, at.bottom(), kPaperWidth - kSpeedRight);
  double y = at.bottom() + 3.6 * kLine;
  inside += legend_of_speeds(speeds, y);
  return detail::paper(speeds.title, y, inside);
}

std::string text(const Speeds& speeds, int columns) {
  check_speeds(speeds);
  const int cells = std::max(20, columns - 36);
  const double most = highest(speeds);
  const auto cell = [&](double rate) {
    return static_cast<size_t>(std::clamp(std::lround(rate / most * cells), 0L, long{cells}));
  };
  std::string out = fmt::format("{:>8} {:>12} {:>8}\n", "replicas", speeds.unit, "speedup");
  for (const Speed& one : speeds.speeds) {
    std::string row(static_cast<size_t>(cells) + 1, ' ');
    std::fill_n(row.begin(), cell(one.rate), '#');
    if (one.limit > 0) row[cell(one.limit)] = ':';
    row[cell(ideal_of(speeds, one.replicas))] = '|';
    row.erase(row.find_last_not_of(' ') + 1);
    out += fmt::format("{:>8} {:>12.0f} {:>7.2f}x {}\n", one.replicas, one.rate,
                       one.rate / speeds.speeds[0].rate, row);
  }
  return out + "# measured, | ideal, : as many that never talk\n";
}

}  // namespace tutti::drawings
