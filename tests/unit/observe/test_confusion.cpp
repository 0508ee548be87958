// Pictures of confusion matrices: what is in the SVG, and what is refused.
#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>

#include "tutti/observe/confusion.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using plots::confusion_svg;

std::vector<std::string> groups(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at)
    found.push_back((*at)[1].str());
  return found;
}

std::vector<std::string> names_of(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back("class " + std::to_string(i));
  return names;
}

std::vector<std::vector<double>> all_right(size_t classes) {
  std::vector<std::vector<double>> counts(classes, std::vector<double>(classes));
  for (size_t i = 0; i < classes; ++i) counts[i][i] = 10;
  return counts;
}

// Relative luminance, WCAG 2.2.
double luminance_of(const std::string& colour) {
  double sum = 0;
  const double shares[] = {0.2126, 0.7152, 0.0722};
  for (size_t i = 0; i < 3; ++i) {
    const double level = std::stoi(colour.substr(2 * i, 2), nullptr, 16) / 255.0;
    sum += shares[i] * (level <= 0.04045 ? level / 12.92 : std::pow((level + 0.055) / 1.055, 2.4));
  }
  return sum;
}

TEST(ConfusionPicture, HasASquareOfItsShareAndACountForEachPair) {
  const std::vector<std::string> classes{"cat", "dog <&>"};
  const std::string svg = confusion_svg("a < b", classes, {{3, 1}, {0, 12'345}});
  EXPECT_THAT(svg, AllOf(HasSubstr("<title>a &lt; b</title>"), HasSubstr(">dog &lt;&amp;&gt;<"),
                         HasSubstr(">75.0% of 4 right<"), HasSubstr(">100.0% of 12k right<")));
  EXPECT_THAT(groups(svg, "font-size=\"12.0\" fill=\"#[0-9a-f]+\">([^<]+)<"),
              ElementsAre("3", "1", "0", "12k"));
  // 3 of 4, 1 of 4, none and all: from white to the darkest.
  EXPECT_THAT(groups(svg, "height=\"60.00\" fill=\"#([0-9a-f]{6})\""),
              ElementsAre("466490", "c1cbda", "ffffff", "08306b"));
}

TEST(ConfusionPicture, IsOfOneHueWhoseLightnessFallsAndTextStandsOutOnIt) {
  const auto classes = names_of(12);
  std::vector<std::vector<double>> counts(12, std::vector<double>(12));
  for (size_t said = 0; said < 12; ++said) counts[0][said] = static_cast<double>(said * said);
  for (size_t label = 1; label < 12; ++label)
    counts[label] = {0, 100 - 9.0 * static_cast<double>(label), 9.0 * static_cast<double>(label)};
  for (auto& row : counts) row.resize(12);
  const std::string svg = confusion_svg("shades", classes, counts);
  const auto fills = groups(svg, "height=\"27.08\" fill=\"#([0-9a-f]{6})\"");
  const auto texts = groups(svg, "font-size=\"10.0\" fill=\"#([0-9a-f]{6})\">[^<]+<");
  ASSERT_EQ(fills.size(), 144U);
  ASSERT_EQ(texts.size(), 144U);
  for (size_t i = 0; i < fills.size(); ++i) {
    const double square = luminance_of(fills[i]), text = luminance_of(texts[i]);
    const double contrast = (std::max(square, text) + 0.05) / (std::min(square, text) + 0.05);
    EXPECT_GE(contrast, 4.5) << fills[i] << " " << texts[i];
  }
  for (size_t said = 2; said < 12; ++said)
    EXPECT_LT(luminance_of(fills[said]), luminance_of(fills[said - 1]));
}

TEST(ConfusionPicture, FitsATelephoneUpToAHundredClasses) {
  for (const size_t classes : {1, 2, 12, 13, 100})
    EXPECT_THAT(confusion_svg("t", names_of(classes), all_right(classes)),
                HasSubstr("width=\"375\""))
        << classes;
  EXPECT_THAT(confusion_svg("t", names_of(200), all_right(200)), HasSubstr("width=\"700\""));
  const std::vector<std::string> names{std::string(300, 'x'), "\xC3\xA9"};
  EXPECT_THAT(confusion_svg("t", names, all_right(2)),
              HasSubstr(">" + std::string(20, 'x') + "\xE2\x80\xA6<"));
}

TEST(ConfusionPicture, OfManyClassesSaysTheMostFrequentMistakes) {
  auto counts = all_right(13);
  EXPECT_THAT(confusion_svg("t", names_of(13), counts),
              HasSubstr("no sample was taken for one of another class"));
  for (size_t label = 0; label < 12; ++label) counts[label][12] = static_cast<double>(label);
  const std::string svg = confusion_svg("t", names_of(13), counts);
  EXPECT_THAT(groups(svg, ">(class \\d+ taken for class \\d+)<"),
              ElementsAre("class 11 taken for class 12", "class 10 taken for class 12",
                          "class 9 taken for class 12", "class 8 taken for class 12",
                          "class 7 taken for class 12", "class 6 taken for class 12",
                          "class 5 taken for class 12", "class 4 taken for class 12",
                          "class 3 taken for class 12", "class 2 taken for class 12"));
}

TEST(ConfusionPicture, OfWhatIsNoMatrixIsAnError) {
  const auto message = [](size_t names, const std::vector<std::vector<double>>& counts) {
    return message_of<UsageError>([&] { confusion_svg("t", names_of(names), counts); });
  };
  EXPECT_THAT(message(0, {}), HasSubstr("got 0 names of classes and 0 rows; expected as many, 1"));
  EXPECT_THAT(message(2, {{1, 2}}), HasSubstr("2 names of classes and 1 rows"));
  EXPECT_THAT(message(1025, all_right(1025)), HasSubstr("1 to 1024"));
  EXPECT_THAT(message(2, {{1, 2}, {3}}), HasSubstr("row 1 has 1 counts, expected 2"));
  EXPECT_THAT(message(1, {{-1}}), HasSubstr("row 0 has -1, expected counts of 0 or more"));
  EXPECT_THAT(message(1, {{std::numeric_limits<double>::infinity()}}), HasSubstr("has inf"));
}

}  // namespace
}  // namespace tutti
