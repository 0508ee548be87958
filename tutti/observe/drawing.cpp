// Drawings as SVG; as text in drawing_text.cpp.
#include "tutti/observe/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/observe/detail/paper.h"
#include "tutti/observe/detail/xml.h"

namespace tutti::drawings {
namespace {

using detail::kLine;
using detail::kTextLeft;
using detail::lines_of;
using detail::text_line;
using detail::text_width;
using detail::xml_escaped;

constexpr double kWidth = detail::kPaperWidth;

// Pixels.
constexpr double kLeft = 50;  ///< of the lanes: what the axis says, or more
constexpr double kAxisLeft = 4;
constexpr double kRight = 8;
constexpr double kPerTick = 44;  ///< at least so much, where the drawing stays below kHighest
constexpr double kPerBar = 34;   ///< of the lane that has most
constexpr double kLowest = 300, kHighest = 1100;
constexpr double kWidestBar = 30;
constexpr double kLeastForText = 11;
constexpr double kNarrow = 34;  ///< a column with no room for what arrows say

std::string words_inside(const std::string& words) {
  return words.empty() ? "" : "<title>" + xml_escaped(words) + "</title>";
}

/// Where everything is.
struct Places {
  const Drawing& drawing;
  double top = 0, height = 0;
  double left = kLeft;
  double column() const {
    return (kWidth - left - kRight) / static_cast<double>(drawing.lanes.size());
  }
  double bar() const { return std::min(kWidestBar, (column() < kNarrow ? 0.55 : 0.66) * column()); }
  double x(int lane) const { return left + column() * (lane + 0.5); }
  double y(double at) const { return top + height * at / drawing.ticks.back().at; }
};

double height_of(const Drawing& drawing) {
  std::vector<int> bars(drawing.lanes.size());
  for (const Bar& bar : drawing.bars) ++bars[static_cast<size_t>(bar.lane)];
  const double wanted = std::max(kPerTick * static_cast<double>(drawing.ticks.size()),
                                 kPerBar * std::ranges::max(bars));
  return std::clamp(wanted, kLowest, kHighest);
}

/// "rank 3" in a column that has no room: "3", or "w3" where lanes are of several sorts.
std::string short_name(const Drawing& drawing, const std::string& name) {
  const auto sort_of = [](const std::string& one) { return one.substr(0, one.rfind(' ')); };
  const bool one_sort = std::ranges::all_of(
      drawing.lanes, [&](const std::string& one) { return sort_of(one) == sort_of(name); });
  const size_t blank = name.rfind(' ');
  if (blank == std::string::npos) return name;
  return (one_sort ? "" : name.substr(0, 1)) + name.substr(blank + 1);
}

std::string axes_of(const Places& at) {
  const Drawing& drawing = at.drawing;
  std::string out;
  for (const Tick& tick : drawing.ticks) {
    const double y = at.y(tick.at);
    out +=
        fmt::format("<line class=\"g\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                    kAxisLeft, y, kWidth - kRight, y);
    out += text_line(kAxisLeft, y - 4, "start", tick.name);
  }
  bool whole = true;
  for (const std::string& name : drawing.lanes)
    whole = whole && text_width(name, detail::kTextSize, true) <= at.column();
  for (int lane = 0; lane < std::ssize(drawing.lanes); ++lane) {
    const std::string& name = drawing.lanes[static_cast<size_t>(lane)];
    const std::string shown = whole ? name : short_name(drawing, name);
    const bool again = drawing.closes_ring && lane + 1 == std::ssize(drawing.lanes);
    out += text_line(at.x(lane), at.top - 8, "middle", shown,
                     again ? " opacity=\"0.6\"" : " font-weight=\"bold\"");
    out += fmt::format(
        "<line class=\"n\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"{3}/>\n",
        at.x(lane), at.top, at.top + at.height, again ? " stroke-dasharray=\"1 3\"" : "");
  }
  return out;
}

std::string bar_of(const Places& at, const Bar& bar) {
  const auto kind = static_cast<int>(bar.kind);
  const bool waits = bar.kind == Kind::wait;
  const double width = waits ? at.bar() * 0.5 : at.bar();
  const double y = at.y(bar.begin), height = std::max(1.0, at.y(bar.end) - y);
  std::string out = fmt::format(
      "<rect class=\"k{}{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
      "height=\"{:.1f}\">{}</rect>\n",
      kind, waits ? " h\" stroke-width=\"0.8" : "", at.x(bar.lane) - width / 2, y, width, height,
      words_inside(bar.words));
  const bool fits = text_width(bar.label) <= width;
  if (!bar.label.empty() && !waits && fits && height >= kLeastForText)
    out += text_line(at.x(bar.lane), y + height / 2 + 4, "middle", bar.label,
                     fmt::format(" class=\"b{}\"", kind));
  return out;
}

/// Ends of a line between the edges of two lanes' bars.
struct Line {
  double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
};

Line line_of(const Places& at, const Arrow& arrow) {
  const double side = arrow.to > arrow.from ? 1 : -1, half = at.bar() / 2;
  return {at.x(arrow.from) + side * half, at.y(arrow.begin), at.x(arrow.to) - side * (half + 1),
          at.y(arrow.end)};
}

std::string arrow_of(const Places& at, const Arrow& arrow) {
  const Line line = line_of(at, arrow);
  return fmt::format(
      "<line class=\"l{0}\" x1=\"{1:.1f}\" y1=\"{2:.1f}\" x2=\"{3:.1f}\" y2=\"{4:.1f}\" "
      "stroke-width=\"1.5\" marker-end=\"url(#m{0})\">{5}</line>\n",
      static_cast<int>(arrow.kind), line.x1, line.y1, line.x2, line.y2, words_inside(arrow.words));
}

std::string label_of(const Places& at, const Arrow& arrow) {
  if (arrow.label.empty() || at.column() < kNarrow) return "";
  const Line line = line_of(at, arrow);
  return text_line((line.x1 + line.x2) / 2, (line.y1 + line.y2) / 2 + 3, "middle", arrow.label,
                   " class=\"o\"");
}

std::string legend_of(const Drawing& drawing, double& y) {
  std::string out;
  for (const auto& [kind, name] : drawing.legend) {
    const auto number = static_cast<int>(kind);
    const bool is_bar =
        std::ranges::any_of(drawing.bars, [&](const Bar& bar) { return bar.kind == kind; });
    const bool is_arrow =
        std::ranges::any_of(drawing.arrows, [&](const Arrow& arrow) { return arrow.kind == kind; });
    if (is_bar || !is_arrow)
      out +=
          fmt::format("<rect class=\"k{}{}\" x=\"8\" y=\"{:.1f}\" width=\"22\" height=\"11\"/>\n",
                      number, kind == Kind::wait ? " h" : "", y - 10);
    else
      out += fmt::format(
          "<line class=\"l{0}\" x1=\"8\" y1=\"{1:.1f}\" x2=\"26\" y2=\"{1:.1f}\" "
          "stroke-width=\"1.5\" "
          "marker-end=\"url(#m{0})\"/>\n",
          number, y - 4);
    for (const std::string& line : lines_of(name, kWidth - 38 - kTextLeft)) {
      out += text_line(38, y, "start", line);
      y += kLine;
    }
  }
  return out;
}

[[noreturn]] void refuse(const std::string& what) { throw UsageError("drawing: " + what); }

}  // namespace

void check(const Drawing& drawing) {
  const auto lanes = std::ssize(drawing.lanes);
  if (lanes < 1 || lanes > kMostLanes)
    refuse(fmt::format("{} columns; expected 1 to {}", lanes, kMostLanes));
  if (std::ssize(drawing.bars) > kMostBars * lanes)
    refuse(fmt::format("{} bars; expected at most {}", drawing.bars.size(), kMostBars * lanes));
  if (drawing.ticks.empty() || !(drawing.ticks.back().at > 0) ||
      !std::ranges::is_sorted(drawing.ticks, {}, &Tick::at))
    refuse("no ticks that ascend to a number above 0");
  const auto is_lane = [&](int lane) { return lane >= 0 && lane < lanes; };
  for (const Bar& bar : drawing.bars)
    if (!is_lane(bar.lane) || !(bar.begin <= bar.end))
      refuse(fmt::format(
          "a bar of lane {} from {} to {}; expected one of {} lanes, and from before to", bar.lane,
          bar.begin, bar.end, lanes));
  for (const Arrow& arrow : drawing.arrows)
    if (!is_lane(arrow.from) || !is_lane(arrow.to) || arrow.from == arrow.to)
      refuse(fmt::format("an arrow from lane {} to {}; expected two of {}", arrow.from, arrow.to,
                         lanes));
}

std::string svg(const Drawing& drawing) {
  check(drawing);
  const auto title = detail::title_lines(drawing.title);
  Places at{.drawing = drawing};
  for (const Tick& tick : drawing.ticks)
    at.left = std::max(at.left, kAxisLeft + text_width(tick.name) + kAxisLeft);
  at.top = 12 + kLine * static_cast<double>(title.size()) + 24;
  at.height = height_of(drawing);
  std::string inside;
  for (size_t i = 0; i < title.size(); ++i)
    inside += text_line(8, 20 + kLine * static_cast<double>(i), "start", title[i],
                        " font-size=\"14\" font-weight=\"bold\"");
  inside += axes_of(at);
  for (const Arrow& arrow : drawing.arrows) inside += arrow_of(at, arrow);
  for (const Bar& bar : drawing.bars) inside += bar_of(at, bar);
  for (const Arrow& arrow : drawing.arrows) inside += label_of(at, arrow);
  double y = at.top + at.height + 22;
  inside += legend_of(drawing, y);
  y += 4;
  for (const std::string& note : drawing.notes)
    for (const std::string& line : lines_of(note, kWidth - 2 * kTextLeft)) {
      inside += text_line(kTextLeft, y, "start", line);
      y += kLine;
    }
  return detail::paper(drawing.title, y, inside);
}

}  // namespace tutti::drawings
