#include "tutti/observe/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "tutti/base/error.h"
#include "tutti/observe/detail/xml.h"

namespace tutti::plots {
namespace {

// Pixels. Text is 12 high; a character of it is 7 wide or less in the usual fonts.
constexpr double kCharacter = 7;
constexpr double kPlotWidth = 480;
constexpr double kPlotHeight = 220;
constexpr double kTitleHeight = 34;  ///< above the first panel
constexpr double kAbove = 30;        ///< of a panel: its title
constexpr double kBelow = 52;        ///< of a panel: tick labels and the name of x
constexpr double kLegendRow = 18;
constexpr double kLegendLine = 28;

constexpr double kLargest = 1e300;  // beyond it, sums and differences of coordinates overflow
// Up to so many points, each gets a dot.
constexpr size_t kDottedPoints = 30;

// Okabe and Ito 2008, "Color Universal Design", without their yellow, which is faint on white.
constexpr std::array kColours = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                 "#E69F00", "#56B4E9", "#000000"};
// Four, so that colours and dashes do not come round together.
constexpr std::array kDashes = {"", " stroke-dasharray=\"7 3\"", " stroke-dasharray=\"2 3\"",
                                " stroke-dasharray=\"9 3 2 3\""};

struct Range {
  double low = 0, high = 1;
};

bool drawable(double x, double y) { return std::abs(x) <= kLargest && std::abs(y) <= kLargest; }

double width_of(std::string_view text) {
  return kCharacter * static_cast<double>(detail::num_characters(text));
}

double round_step(double low, double high, int most, bool whole) {
  const double least = (high - low) / most;
  const double power = std::pow(10, std::floor(std::log10(least)));
  double step = 10 * power;
  for (const double factor : {5, 2, 1}) {
    // The slack is for a quotient that should be a whole number.
    if (factor * power >= least * (1 - 1e-9)) step = factor * power;
  }
  return whole ? std::max(step, 1.0) : step;
}

/// low .. high, both included.
std::vector<double> multiples_of(double step, double low, double high) {
  const double first = std::ceil(low / step - 1e-9);
  const auto count = static_cast<int64_t>(std::floor(high / step + 1e-9) - first) + 1;
  std::vector<double> multiples;
  for (int64_t i = 0; i < count; ++i) multiples.push_back((first + static_cast<double>(i)) * step);
  return multiples;
}

std::string label_of(double tick) {
  // 12 digits drop the rounding of a multiple of 0.1, and tell ticks apart: see wide_enough().
  return fmt::format("{:.12g}", tick == 0 ? 0.0 : tick);
}

/// A range of which the ticks can be told apart in 12 digits.
Range wide_enough(Range range) {
  const double size = std::max(std::abs(range.low), std::abs(range.high));
  if (range.high - range.low > 1e-9 * size && size > 1e-300) return range;
  const double half = size > 1e-300 ? size / 10 : 1;
  return {range.low - half, range.high + half};
}

/// Where the points of one axis lie; 0 to 1 without any.
template <typename Coordinate>
Range range_of(const Panel& panel, Coordinate coordinate) {
  bool some = false;
  Range range;
  for (const Curve& curve : panel.curves) {
    for (size_t i = 0; i < curve.x.size(); ++i) {
      if (!drawable(curve.x[i], curve.y[i])) continue;
      const double at = coordinate(curve, i);
      range.low = some ? std::min(range.low, at) : at;
      range.high = some ? std::max(range.high, at) : at;
      some = true;
    }
  }
  return range;
}

/// A panel with all that must be known before it is drawn.
struct Axes {
  Range x, y;
  std::vector<double> x_ticks, y_ticks;

  double across(double at) const { return kPlotWidth * ((at - x.low) / (x.high - x.low)); }
  double down(double at) const { return kPlotHeight * (1 - (at - y.low) / (y.high - y.low)); }
};

Axes axes_of(const Panel& panel) {
  Axes axes;
  bool whole = true;
  axes.x = range_of(panel, [&](const Curve& curve, size_t i) {
    whole = whole && curve.x[i] == std::floor(curve.x[i]);
    return curve.x[i];
  });
  // One whole number, as a first epoch, is the only one on its axis.
  if (whole && axes.x.low == axes.x.high) axes.x = {axes.x.low - 0.5, axes.x.high + 0.5};
  axes.x = wide_enough(axes.x);
  axes.x_ticks = round_numbers(axes.x.low, axes.x.high, 10, whole);

  const Range y = wide_enough(range_of(panel, [](const Curve& c, size_t i) { return c.y[i]; }));
  const double step = round_step(y.low, y.high, 5, false);
  axes.y = {step * std::floor(y.low / step + 1e-9), step * std::ceil(y.high / step - 1e-9)};
  axes.y_ticks = multiples_of(step, axes.y.low, axes.y.high);
  return axes;
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text,
                    std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, more, detail::xml_escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2, std::string_view more) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, more);
}

std::string frame_of(const Panel& panel, const Axes& axes, double left) {
  constexpr std::string_view grid = "stroke=\"#dddddd\"";
  std::string out = text_at(0, -10, "start", panel.title, " font-weight=\"bold\"");
  for (const double tick : axes.x_ticks) {
    const double x = axes.across(tick);
    out += line_at(x, 0, x, kPlotHeight, grid) +
           text_at(x, kPlotHeight + 17, "middle", label_of(tick));
  }
  for (const double tick : axes.y_ticks) {
    const double y = axes.down(tick);
    out += line_at(0, y, kPlotWidth, y, grid) + text_at(-7, y + 4, "end", label_of(tick));
  }
  out += fmt::format("<path d=\"M0 0V{0}H{1}\" fill=\"none\" stroke=\"#555555\"/>\n", kPlotHeight,
                     kPlotWidth);
  out += text_at(kPlotWidth / 2, kPlotHeight + 38, "middle", panel.x_label);
  return out + text_at(-kPlotHeight / 2, 16 - left, "middle", panel.y_label,
                       " transform=\"rotate(-90)\"");
}

std::string style_of(size_t curve) {
  return fmt::format("stroke=\"{}\"{}", kColours[curve % kColours.size()],
                     kDashes[curve % kDashes.size()]);
}

/// Lines through neighbours that can be drawn; dots for those without one, or for all of a few.
std::string curve_of(const Curve& curve, const Axes& axes, size_t place) {
  std::string lines, dots;
  const size_t points = curve.x.size();
  for (size_t begin = 0; begin < points;) {
    size_t end = begin;
    std::string joined;
    for (; end < points && drawable(curve.x[end], curve.y[end]); ++end) {
      const double x = axes.across(curve.x[end]), y = axes.down(curve.y[end]);
      joined += fmt::format("{}{:.1f},{:.1f}", end == begin ? "" : " ", x, y);
      const bool alone =
          end == begin && (end + 1 == points || !drawable(curve.x[end + 1], curve.y[end + 1]));
      if (alone || points <= kDottedPoints)
        dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\"/>\n", x, y);
    }
    if (end - begin > 1)
      lines += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke-width=\"2\" {}/>\n",
                           joined, style_of(place));
    begin = end + 1;
  }
  if (dots.empty()) return lines;
  return lines + fmt::format("<g fill=\"{}\">\n{}</g>\n", kColours[place % kColours.size()], dots);
}

std::string legend_of(const Panel& panel) {
  std::string out;
  for (size_t i = 0; i < panel.curves.size(); ++i) {
    const double x = kPlotWidth + 16, y = 8 + kLegendRow * static_cast<double>(i);
    out += line_at(x, y, x + kLegendLine, y, "stroke-width=\"2\" " + style_of(i)) +
           text_at(x + kLegendLine + 6, y + 4, "start", panel.curves[i].name);
  }
  return out;
}

double panel_height(const Panel& panel) {
  const double legend = kLegendRow * static_cast<double>(panel.curves.size());
  return kAbove + std::max(kPlotHeight + kBelow, legend);
}

}  // namespace

std::vector<double> round_numbers(double low, double high, int most, bool whole) {
  return multiples_of(round_step(low, high, most, whole), low, high);
}

std::string svg(std::string_view title, std::span<const Panel> panels) {
  std::vector<Axes> axes;
  double left = 0, legend = 0, height = kTitleHeight;
  for (const Panel& panel : panels) {
    for (const Curve& curve : panel.curves) {
      if (curve.x.size() != curve.y.size())
        throw UsageError(fmt::format("plot: curve {} has {} x and {} y; expected as many",
                                     curve.name, curve.x.size(), curve.y.size()));
      legend = std::max(legend, width_of(curve.name));
    }
    axes.push_back(axes_of(panel));
    for (const double tick : axes.back().y_ticks) left = std::max(left, width_of(label_of(tick)));
    height += panel_height(panel);
  }
  left += 34;  // the name of y, and the distance of tick labels
  const double width = std::max(left + kPlotWidth + 16 + kLegendLine + 6 + legend + 10,
                                2 * left + width_of(title) * 1.4);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\" "
      "fill=\"#222222\">\n<title>{2}</title>\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n",
      width, height, detail::xml_escaped(title));
  out += text_at(left, 24, "start", title, " font-size=\"16\"");
  double top = kTitleHeight;
  for (size_t i = 0; i < panels.size(); ++i) {
    out += fmt::format("<g transform=\"translate({:.0f} {:.0f})\">\n", left, top + kAbove);
    out += frame_of(panels[i], axes[i], left);
    for (size_t c = 0; c < panels[i].curves.size(); ++c)
      out += curve_of(panels[i].curves[c], axes[i], c);
    out += legend_of(panels[i]) + "</g>\n";
    top += panel_height(panels[i]);
  }
  return out + "</svg>\n";
}

}  // namespace tutti::plots
