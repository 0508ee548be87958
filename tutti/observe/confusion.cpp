#include "tutti/observe/confusion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/observe/detail/xml.h"

namespace tutti::plots {
namespace {

using Counts = std::vector<std::vector<double>>;

// Pixels: what a telephone is wide, and what of it the squares have.
constexpr double kPageWidth = 375;
constexpr double kLeftOfSquares = 40;  // the axis' name, numbers of labels
constexpr double kTopOfSquares = 66;   // title, axis' name, numbers of predictions
constexpr double kSquares = 325;
constexpr double kLeastSquare = 3.25;
constexpr double kLine = 17;
constexpr double kCharacterWidth = 7;  // of text of 12 pixels, or less
constexpr size_t kMistakesBelow = 10;

struct Colour {
  double red, green, blue;
};
constexpr Colour kNone{255, 255, 255}, kAll{8, 48, 107};

double mixed(double from, double to, double share) { return from + (to - from) * share; }

std::string colour_of(double share) {
  return fmt::format("#{:02x}{:02x}{:02x}", std::lround(mixed(kNone.red, kAll.red, share)),
                     std::lround(mixed(kNone.green, kAll.green, share)),
                     std::lround(mixed(kNone.blue, kAll.blue, share)));
}

// Whichever stands out more: at 0.66 both contrasts are 4.6 (WCAG asks for 4.5).
const char* text_on(double share) { return share > 0.66 ? "#ffffff" : "#000000"; }

double sum_of(const std::vector<double>& row) {
  return std::accumulate(row.begin(), row.end(), 0.0);
}

void require_picture(std::span<const std::string> classes, const Counts& counts) {
  if (classes.empty() || classes.size() > kMostClassesOfAPicture || counts.size() != classes.size())
    throw UsageError(
        fmt::format("confusion picture: got {} names of classes and {} rows; expected as many, 1 "
                    "to {}",
                    classes.size(), counts.size(), kMostClassesOfAPicture));
  for (size_t label = 0; label < counts.size(); ++label) {
    if (counts[label].size() != classes.size())
      throw UsageError(fmt::format("confusion picture: row {} has {} counts, expected {}", label,
                                   counts[label].size(), classes.size()));
    for (const double count : counts[label])
      if (!(count >= 0 && std::isfinite(count)))
        throw UsageError(fmt::format(
            "confusion picture: row {} has {}, expected counts of 0 or more", label, count));
  }
}

/// At most four characters, as a square has room for: "873", "1.2k", "45k", "3M"; of weights "0.5".
std::string short_count(double count) {
  if (count < 9999.5) return fmt::format("{:.{}f}", count, count == std::floor(count) ? 0 : 1);
  for (const auto& [unit, sign] : {std::pair{1e3, 'k'}, std::pair{1e6, 'M'}, std::pair{1e9, 'G'}})
    if (count < 999.5 * unit)
      return fmt::format("{:.{}f}{}", count / unit, count < 9.95 * unit ? 1 : 0, sign);
  return fmt::format("{:.0e}", count);
}

std::string text_of(double x, double y, std::string_view text, std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, more,
                     detail::xml_escaped(text));
}

/// Cut to what the page has room for, with a sign that it was.
std::string fitting(std::string_view text, double width) {
  const auto most = static_cast<size_t>(width / kCharacterWidth);
  if (detail::num_characters(text) <= most) return std::string(text);
  size_t end = 0;
  for (size_t characters = 0; end < text.size(); ++end)
    if ((static_cast<unsigned char>(text[end]) & 0xC0U) != 0x80 && ++characters == most) break;
  return std::string(text.substr(0, end)) + "\xE2\x80\xA6";
}

struct Picture {
  std::string_view title;
  std::span<const std::string> classes;
  const Counts& counts;
  double square = 0, all = 0, width = 0;

  std::string squares() const;
  std::string numbers() const;
  std::string scale(double y) const;
  std::string below(double y) const;
  double height_below() const;

 private:
  std::string lines_of_classes(double y) const;
  std::string lines_of_mistakes(double y) const;
};

std::string Picture::squares() const {
  std::string out;
  const double font = std::min(12.0, square / 2.7);
  for (size_t label = 0; label < counts.size(); ++label) {
    const double in_row = sum_of(counts[label]);
    for (size_t said = 0; said < counts.size(); ++said) {
      const double count = counts[label][said];
      if (count == 0 && classes.size() > kNumberedClasses && said != label) continue;  // white
      const double share = in_row == 0 ? 0 : count / in_row;
      const double x = kLeftOfSquares + square * static_cast<double>(said);
      const double y = kTopOfSquares + square * static_cast<double>(label);
      out += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"{}/>\n", x,
          y, square, square, colour_of(share),
          said == label && square > 6 ? " stroke=\"#222222\" stroke-width=\"1.5\"" : "");
      if (classes.size() <= kNumberedClasses)
        out += text_of(x + square / 2, y + square / 2 + font / 3, short_count(count),
                       fmt::format(" text-anchor=\"middle\" font-size=\"{:.1f}\" fill=\"{}\"", font,
                                   count == 0 ? "#767676" : text_on(share)));
    }
  }
  return out + fmt::format(
                   "<rect x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"none\" "
                   "stroke=\"#555555\"/>\n",
                   kLeftOfSquares, kTopOfSquares, all, all);
}

/// Of classes along both axes, so many that they do not touch.
std::string Picture::numbers() const {
  std::string out;
  const auto every =
      static_cast<size_t>(std::ceil(3 * kCharacterWidth / square / (square > 16 ? 2 : 1)));
  for (size_t number = 0; number < classes.size(); number += every) {
    const double along = square * (static_cast<double>(number) + 0.5);
    const std::string text = std::to_string(number);
    out += text_of(kLeftOfSquares + along, kTopOfSquares - 6, text, " text-anchor=\"middle\"");
    out += text_of(kLeftOfSquares - 5, kTopOfSquares + along + 4, text, " text-anchor=\"end\"");
  }
  out +=
      text_of(kLeftOfSquares + all / 2, kTopOfSquares - 22, "taken for", " text-anchor=\"middle\"");
  return out + text_of(-(kTopOfSquares + all / 2), 13, "label",
                       " text-anchor=\"middle\" transform=\"rotate(-90)\"");
}

std::string Picture::scale(double y) const {
  std::string out = text_of(kLeftOfSquares, y + 12, "share of a row:");
  constexpr double kWidth = 40;
  double x = kLeftOfSquares + 104;
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"17\" fill=\"{}\" "
        "stroke=\"#555555\" stroke-width=\"0.5\"/>\n",
        x, y, kWidth, colour_of(share));
    out += text_of(x + kWidth / 2, y + 13, fmt::format("{:.0f}%", 100 * share),
                   fmt::format(" text-anchor=\"middle\" fill=\"{}\"", text_on(share)));
    x += kWidth;
  }
  return out;
}

std::string Picture::lines_of_classes(double y) const {
  std::string out;
  const double names = kLeftOfSquares + 4, recall = width - 12;
  for (size_t label = 0; label < classes.size(); ++label, y += kLine) {
    const double in_row = sum_of(counts[label]);
    out += text_of(kLeftOfSquares - 5, y, std::to_string(label), " text-anchor=\"end\"");
    out += text_of(names, y, fitting(classes[label], 150));
    out +=
        text_of(recall, y,
                in_row == 0 ? std::string("no samples")
                            : fmt::format("{:.1f}% of {} right",
                                          100 * counts[label][label] / in_row, short_count(in_row)),
                " text-anchor=\"end\"");
  }
  return out;
}

std::string Picture::lines_of_mistakes(double y) const {
  std::vector<std::tuple<double, size_t, size_t>> mistakes;
  for (size_t label = 0; label < counts.size(); ++label)
    for (size_t said = 0; said < counts.size(); ++said)
      if (said != label && counts[label][said] > 0)
        mistakes.emplace_back(-counts[label][said], label, said);
  std::ranges::sort(mistakes);
  mistakes.resize(std::min(mistakes.size(), kMistakesBelow));
  if (mistakes.empty()) return text_of(14, y, "no sample was taken for one of another class");
  std::string out = text_of(14, y, "the most frequent mistakes:");
  for (const auto& [less, label, said] : mistakes) {
    y += kLine;
    out += text_of(kLeftOfSquares + 12, y, short_count(-less), " text-anchor=\"end\"");
    out += text_of(
        kLeftOfSquares + 20, y,
        fmt::format("{} taken for {}", fitting(classes[label], 110), fitting(classes[said], 110)));
  }
  return out;
}

std::string Picture::below(double y) const {
  return classes.size() <= kNumberedClasses ? lines_of_classes(y) : lines_of_mistakes(y);
}

double Picture::height_below() const {
  const size_t lines = classes.size() <= kNumberedClasses ? classes.size() : kMistakesBelow + 1;
  return kLine * static_cast<double>(lines);
}

}  // namespace

std::string confusion_svg(std::string_view title, std::span<const std::string> classes,
                          const std::vector<std::vector<double>>& counts) {
  require_picture(classes, counts);
  const auto number = static_cast<double>(classes.size());
  Picture picture{.title = title, .classes = classes, .counts = counts};
  picture.square = std::max(kLeastSquare, std::min(60.0, kSquares / number));
  picture.all = picture.square * number;
  picture.width = std::max(kPageWidth, kLeftOfSquares + picture.all + 10);
  const double below = kTopOfSquares + picture.all + 14;
  const double height = below + 44 + picture.height_below() + 6;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
             "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\" "
             "fill=\"#222222\">\n<title>{2}</title>\n"
             "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n",
             picture.width, height, detail::xml_escaped(title)) +
         text_of(12, 22, fitting(title, picture.width), " font-size=\"14\" font-weight=\"bold\"") +
         picture.squares() + picture.numbers() + picture.scale(below) + picture.below(below + 44) +
         "</svg>\n";
}

}  // namespace tutti::plots
