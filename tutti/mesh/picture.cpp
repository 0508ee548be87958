#include "tutti/mesh/picture.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti::mesh {
namespace {

// Pixels.
constexpr double kRow = 26;
constexpr double kLabel = 64;
constexpr double kTop = 36;
constexpr double kBottom = 30;
constexpr double kWidest = 1400;  // of all actions
constexpr double kPerUnit = 26;   // of the shortest action, where that fits
constexpr double kLeastForNumber = 14;

// For the inside of an element.
std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<')
      safe += "&lt;";
    else if (c == '&')
      safe += "&amp;";
    else
      safe += c;
  }
  return safe;
}

const char* colour_of(const Action& action) {
  static constexpr const char* kColours[3][2] = {
      {"#0072B2", "#7FB8D8"}, {"#D55E00", "#EAAE7F"}, {"#009E73", "#7FCEB9"}};
  return kColours[static_cast<size_t>(action.kind)][action.chunk % 2];
}

double pixels_per_second(const Simulation& simulation) {
  double shortest = simulation.seconds;
  for (const auto& timeline : simulation.timeline)
    for (const Timed& timed : timeline)
      if (timed.end > timed.begin) shortest = std::min(shortest, timed.end - timed.begin);
  if (shortest <= 0) return 1;
  return std::min(kPerUnit / shortest, kWidest / simulation.seconds);
}

std::string box(const Timed& timed, double y, double scale) {
  const double x = kLabel + timed.begin * scale;
  const double width = (timed.end - timed.begin) * scale;
  std::string text = fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"{}\" "
      "stroke=\"#fff\" stroke-width=\"0.6\"><title>{}, {:.6g} to {:.6g}</title></rect>\n",
      x, y, width, kRow - 2, colour_of(timed.action), to_string(timed.action), timed.begin,
      timed.end);
  if (width >= kLeastForNumber)
    text += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\">{}</text>\n",
        x + width / 2, y + kRow / 2 + 3, timed.action.chunk % 2 == 0 ? "#fff" : "#000",
        timed.action.microbatch);
  return text;
}

}  // namespace

std::string to_svg(const Schedule& schedule, const Simulation& simulation) {
  const double scale = pixels_per_second(simulation);
  const double width = kLabel + simulation.seconds * scale + 10;
  const double height = kTop + kRow * schedule.ranks() + kBottom;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"{2:.0f}\" y=\"20\" font-size=\"13\">{3}: {4} ranks, {5} microbatches, "
      "{6:.1f} % idle</text>\n",
      width, height, kLabel, escaped(schedule.name), schedule.ranks(), schedule.microbatches,
      100 * simulation.bubble());
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const double y = kTop + kRow * rank;
    svg += fmt::format("<text x=\"8\" y=\"{:.1f}\">rank {}</text>\n", y + kRow / 2 + 3, rank);
    for (const Timed& timed : simulation.timeline[static_cast<size_t>(rank)])
      svg += box(timed, y, scale);
  }
  double x = kLabel;
  for (const auto& [kind, words] : {std::pair{Kind::forward, "forward"},
                                    {Kind::backward, "backward"},
                                    {Kind::weight, "backward: weights"}}) {
    if (kind == Kind::weight && !schedule.split) break;
    svg += fmt::format(
        "<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"10\" height=\"10\" fill=\"{2}\"/>"
        "<text x=\"{3:.0f}\" y=\"{4:.0f}\">{5}</text>\n",
        x, height - 20, colour_of({.kind = kind}), x + 14, height - 11, words);
    x += 80;
  }
  return svg + "</svg>\n";
}

}  // namespace tutti::mesh
