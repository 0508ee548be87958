/// Pictures of curves, as SVG that stands alone: no scripts, no fonts of its own, no links.
///
/// Thread rule: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::plots {

/// Points in the order in which they are joined, x as long as y. A point with a coordinate that is
/// not finite, or beyond 1e300, is a gap.
struct Curve {
  std::string name;
  std::vector<double> x, y;
};

/// One pair of axes. Both reach over all points; y also to the next round numbers.
struct Panel {
  std::string title;
  std::string x_label, y_label;
  std::vector<Curve> curves;
};

/// Round numbers that divide low .. high, ascending and all within it: multiples of 1, 2 or 5 times
/// a power of ten, at most `most` + 1 of them. `whole`: whole numbers only. Finite, low < high,
/// most >= 1.
std::vector<double> round_numbers(double low, double high, int most, bool whole = false);

/// The panels below each other under one title, as an SVG document in UTF-8. Colours can be told
/// apart by people who are colour-blind, and dashes where there are no colours. Names are text of
/// any kind. Throws UsageError for a curve whose x and y differ in length.
std::string svg(std::string_view title, std::span<const Panel> panels);

}  // namespace tutti::plots
