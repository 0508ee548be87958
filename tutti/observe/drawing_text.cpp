// Drawings as text: what is seen so far, tick by tick.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/observe/detail/xml.h"
#include "tutti/observe/drawing.h"

namespace tutti::drawings {
namespace {

constexpr int kLeastColumns = 60;
constexpr size_t kMostLines = 14;  // of what was sent since the tick before
constexpr char kFill[] = {'#', '=', '+', '.'};

struct TextRows {
  const Drawing& drawing;
  int cells = 0;  ///< of time
  size_t label = 0;

  int cell(double at) const {
    const double share = at / drawing.ticks.back().at;
    return std::clamp(static_cast<int>(std::lround(share * cells)), 0, cells);
  }
};

/// The first lane once more is not said again in text.
int lanes_said(const Drawing& drawing) {
  return static_cast<int>(drawing.lanes.size()) - (drawing.closes_ring ? 1 : 0);
}

const std::string& lane_name(const Drawing& drawing, int lane) {
  const bool again = drawing.closes_ring && lane + 1 == std::ssize(drawing.lanes);
  return drawing.lanes[again ? 0 : static_cast<size_t>(lane)];
}

std::string row_of(const TextRows& rows, int lane, double until) {
  std::string row(static_cast<size_t>(rows.cells), ' ');
  for (const Bar& bar : rows.drawing.bars) {
    if (bar.lane != lane || bar.begin >= until) continue;
    const int begin = rows.cell(bar.begin);
    const int end = std::max(rows.cell(std::min(bar.end, until)), std::min(begin + 1, rows.cells));
    for (int i = begin; i < end; ++i)
      row[static_cast<size_t>(i)] = kFill[static_cast<size_t>(bar.kind)];
    if (bar.kind != Kind::wait && std::ssize(bar.label) <= end - begin)
      row.replace(static_cast<size_t>(begin), bar.label.size(), bar.label);
  }
  return row;
}

std::string cut(std::string line, int columns) {
  if (std::ssize(line) > columns) line.resize(static_cast<size_t>(columns));
  return line;
}

/// "rank 0 -> rank 1: piece 4", by when it was sent.
std::vector<std::string> what_was_sent(const Drawing& drawing, double after, double until) {
  std::vector<const Arrow*> sent;
  for (const Arrow& arrow : drawing.arrows)
    if (arrow.begin >= after && arrow.begin < until) sent.push_back(&arrow);
  std::ranges::stable_sort(sent, {}, [](const Arrow* arrow) { return arrow->begin; });
  std::vector<std::string> lines;
  for (const Arrow* arrow : sent)
    lines.push_back(fmt::format("  {} -> {}: {}", lane_name(drawing, arrow->from),
                                lane_name(drawing, arrow->to),
                                arrow->words.empty() ? arrow->label : arrow->words));
  return lines;
}

std::vector<std::string> who_waited(const Drawing& drawing, double after, double until) {
  std::vector<std::string> lines;
  for (const Bar& bar : drawing.bars)
    if (bar.kind == Kind::wait && bar.end > after && bar.end <= until && !bar.words.empty())
      lines.push_back(fmt::format("  {}: {}", lane_name(drawing, bar.lane), bar.words));
  return lines;
}

std::vector<std::string> a_few(std::vector<std::string> lines) {
  if (lines.size() <= kMostLines) return lines;
  const size_t more = lines.size() - kMostLines + 1;
  lines.resize(kMostLines - 1);
  lines.push_back(fmt::format("  and {} more", more));
  return lines;
}

}  // namespace

std::vector<std::string> frames(const Drawing& drawing, int columns) {
  check(drawing);
  columns = std::max(columns, kLeastColumns);
  TextRows rows{.drawing = drawing};
  for (const std::string& name : drawing.lanes) rows.label = std::max(rows.label, name.size());
  rows.cells = columns - static_cast<int>(rows.label) - 3;
  std::vector<std::string> texts;
  double before = 0;
  for (size_t i = 0; i < drawing.ticks.size(); ++i) {
    const Tick& tick = drawing.ticks[i];
    const bool last = i + 1 == drawing.ticks.size();
    // What ends with the drawing is seen in its last frame.
    const double until = last ? std::nextafter(tick.at, 2 * tick.at + 1) : tick.at;
    std::string text = fmt::format("{} ({} of {})\n", tick.name, i + 1, drawing.ticks.size());
    for (int lane = 0; lane < lanes_said(drawing); ++lane)
      text += fmt::format("{:<{}} |{}|\n", lane_name(drawing, lane), rows.label,
                          row_of(rows, lane, until));
    for (const auto& lines :
         {what_was_sent(drawing, before, until), who_waited(drawing, before, until)})
      for (const std::string& line : a_few(lines)) text += cut(line, columns) + "\n";
    texts.push_back(std::move(text));
    before = until;
  }
  return texts;
}

}  // namespace tutti::drawings
