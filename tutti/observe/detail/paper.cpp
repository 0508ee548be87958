#include "tutti/observe/detail/paper.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <sstream>

#include "tutti/observe/detail/xml.h"

namespace tutti::detail {
namespace {

constexpr double kEnlarged = 1.5;  ///< where there is room

// Of the characters from ' ' to '~' in DejaVu Sans: hundredths of the size of the text.
constexpr std::array<uint8_t, 95> kAdvances = {
    32,  40, 46, 84, 64, 95, 78, 28, 39, 39, 50, 84, 32, 36, 32, 34,  //
    64,  64, 64, 64, 64, 64, 64, 64, 64, 64, 34, 34, 84, 84, 84, 53,  //
    100, 68, 69, 70, 77, 63, 58, 78, 75, 30, 30, 66, 56, 87, 75, 79,  //
    61,  79, 70, 64, 62, 73, 69, 99, 69, 62, 69, 39, 34, 39, 84, 50,  //
    50,  62, 64, 55, 64, 62, 36, 64, 64, 28, 28, 58, 28, 98, 64, 62,  //
    64,  64, 42, 52, 40, 64, 60, 82, 60, 60, 53, 64, 34, 64, 84};
constexpr double kOfAnother = 100;  // a character that is not ASCII
constexpr double kBold = 1.15;      // bold text, at most

// Okabe and Ito 2008; on dark the lighter of them. Lines of the second and third kind are dashed.
constexpr const char* kStyle =
    "<style>text{fill:#222}.p{fill:#fff}.g{stroke:#ddd}.n{stroke:#999}"
    ".k0{fill:#0072B2}.k1{fill:#E69F00}.k2{fill:#009E73}.k3{fill:url(#wait)}.h{stroke:#555}"
    ".l0{stroke:#0072B2}.l1{stroke:#D55E00;stroke-dasharray:6 3}"
    ".l2{stroke:#009E73;stroke-dasharray:2 2.5}"
    ".m0{fill:#0072B2}.m1{fill:#D55E00}.m2{fill:#009E73}"
    ".o{paint-order:stroke;stroke:#fff;stroke-width:3px}.b0{fill:#fff}.b1,.b2{fill:#000}"
    "@media screen and "
    "(prefers-color-scheme:dark){text{fill:#eee}.p{fill:#14171a}.g{stroke:#3a3f45}"
    ".n{stroke:#777}.k0{fill:#56B4E9}.k1{fill:#E69F00}.k2{fill:#2CC79A}.h{stroke:#aaa}"
    ".l0{stroke:#56B4E9}.l1{stroke:#FF9E4A}.l2{stroke:#2CC79A}.m0{fill:#56B4E9}.m1{fill:#FF9E4A}"
    ".m2{fill:#2CC79A}.o{stroke:#14171a}.b0,.b1,.b2{fill:#000}}</style>\n";

std::string definitions() {
  std::string out =
      "<defs><pattern id=\"wait\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"rotate(45)\"><rect class=\"p\" width=\"5\" height=\"5\"/>"
      "<line class=\"h\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"5\" stroke-width=\"2.5\"/></pattern>";
  for (int kind = 0; kind < 3; ++kind)
    out += fmt::format(
        "<marker id=\"m{0}\" markerWidth=\"7\" markerHeight=\"7\" refX=\"6\" refY=\"3\" "
        "orient=\"auto\" "
        "markerUnits=\"userSpaceOnUse\"><path class=\"m{0}\" d=\"M0 0L6 3L0 6Z\"/></marker>",
        kind);
  return out + "</defs>\n";
}

}  // namespace

double text_width(std::string_view text, double size, bool bold) {
  double sum = 0;
  for (const char one : text) {
    const auto byte = static_cast<unsigned char>(one);
    if (byte >= 0x80 && byte < 0xC0) continue;  // goes on with a character
    sum += byte >= ' ' && byte <= '~' ? kAdvances[byte - size_t{' '}] : kOfAnother;
  }
  return sum / 100 * size * (bold ? kBold : 1);
}

std::vector<std::string> lines_of(const std::string& text, double width, double size, bool bold) {
  std::vector<std::string> lines(1);
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!lines.back().empty() && text_width(lines.back() + " " + word, size, bold) > width)
      lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

std::string text_line(double x, double y, const char* anchor, const std::string& text,
                      const std::string& more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, more, xml_escaped(text));
}

std::string paper(const std::string& title, double height, const std::string& inside) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
             "width=\"{2:.0f}\" style=\"max-width:100%;height:auto\" font-family=\"sans-serif\" "
             "font-size=\"11\">\n<title>{3}</title>\n{4}{5}"
             "<rect class=\"p\" width=\"{0:.0f}\" height=\"{1:.0f}\"/>\n",
             kPaperWidth, height, kEnlarged * kPaperWidth, xml_escaped(title), kStyle,
             definitions()) +
         inside + "</svg>\n";
}

}  // namespace tutti::detail
