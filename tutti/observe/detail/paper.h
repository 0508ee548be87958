/// The paper of drawings: a narrow SVG that stands alone, its colours by day and by night, and
/// lines of text on it. Thread rule: pure functions.
///
/// Classes: p paper, g grid, n axis, h hatched outline; k0 .. k3 areas, l0 .. l2 lines, m0 .. m2
/// heads of arrows, b0 .. b2 text in areas, o text over lines. Marker #m0 .. #m2 ends a line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::detail {

// Pixels.
inline constexpr double kPaperWidth = 360;
inline constexpr double kLine = 16;  ///< of text, which is 11 high
inline constexpr double kTextSize = 11, kTitleSize = 14;
inline constexpr double kTextLeft = 8;  ///< of lines below the picture, and right of them

/// Pixels that `text` takes at most: in DejaVu Sans or Verdana, the widest fonts that "sans-serif"
/// commonly is.
double text_width(std::string_view text, double size = kTextSize, bool bold = false);

/// `text` at its blanks in lines of at most `width` pixels, but for longer words.
std::vector<std::string> lines_of(const std::string& text, double width, double size = kTextSize,
                                  bool bold = false);

/// The lines of a drawing's title.
inline std::vector<std::string> title_lines(const std::string& title) {
  return lines_of(title, kPaperWidth - 2 * kTextLeft, kTitleSize, true);
}

/// anchor  start, middle or end
/// more    attributes, each with a blank before it
std::string text_line(double x, double y, const char* anchor, const std::string& text,
                      const std::string& more = "");

/// The document: elements `inside` on paper of that height.
std::string paper(const std::string& title, double height, const std::string& inside);

}  // namespace tutti::detail
