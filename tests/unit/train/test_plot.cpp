// Pictures of curves: what is in the SVG, and that it is XML.
#include <cstdlib>
#include <limits>
#include <regex>

#include "tutti/base/file.h"
#include "tutti/observe/plot.h"
#include "tutti/train/report/history.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();

/// The first group of each match, or all of it, in order.
std::vector<std::string> all_of_svg(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at)
    found.push_back(at->size() > 1 ? (*at)[1].str() : at->str());
  return found;
}

std::vector<std::string> tick_labels(const std::string& svg, const std::string& anchor) {
  return all_of_svg(svg, "text-anchor=\"" + anchor + "\">(-?[0-9][^<]*)<");
}

std::string svg_of_y(const std::vector<double>& y) {
  std::vector<double> x;
  for (size_t i = 1; i <= y.size(); ++i) x.push_back(static_cast<double>(i));
  const plots::Panel panel{"Loss", "epoch", "loss", {{"train_loss", x, y}}};
  return plots::svg("one curve", {&panel, 1});
}

History history_of_three() {
  History history;
  history.columns = {"train_loss",   "accuracy", "val_loss",
                     "val_accuracy", "seconds",  "images_per_second"};
  history.rows = {
      {1.5, 0.25, 1.25, 0.5, 3, 1e4}, {1, 0.5, kGap, 0.75, 3, 1e4}, {0.5, 0.75, 1, 0.875, 3, 1e4}};
  return history;
}

TEST(Plot, RoundNumbersAreMultiplesOfOneTwoOrFive) {
  using plots::round_numbers;
  EXPECT_THAT(round_numbers(0, 1, 5), ElementsAre(0, 0.2, 0.4, 0.2 * 3, 0.8, 1));
  EXPECT_THAT(round_numbers(1, 30, 10, true), ElementsAre(5, 10, 15, 20, 25, 30));
  EXPECT_THAT(round_numbers(1, 3, 10, true), ElementsAre(1, 2, 3));
  EXPECT_THAT(round_numbers(-7, 7, 3), ElementsAre(-5, 0, 5));
  EXPECT_THAT(round_numbers(0.98, 1.01, 5), ElementsAre(::testing::DoubleEq(0.98), 0.99, 1, 1.01));
  EXPECT_THAT(round_numbers(0, 7e20, 2), ElementsAre(0, 5e20));
  for (double high = 1e-12; high < 1e12; high *= 1.7) {
    const auto numbers = round_numbers(0, high, 6);
    EXPECT_GE(numbers.size(), 3U) << high;
    EXPECT_LE(numbers.size(), 7U) << high;
    EXPECT_LE(numbers.back(), high * (1 + 1e-9));
  }
}

TEST(Plot, AxesHaveTicksAtRoundNumbers) {
  const std::string svg = svg_of_y({0.93, 0.41, 0.22});
  EXPECT_THAT(tick_labels(svg, "middle"), ElementsAre("1", "2", "3"));
  EXPECT_THAT(tick_labels(svg, "end"), ElementsAre("0.2", "0.4", "0.6", "0.8", "1"));
  // The last point is at the right end, a tenth of the way up from 0.2 to 0.4.
  EXPECT_THAT(svg, HasSubstr(" 480.0,214.5\""));
  for (const char* text : {">Loss<", ">epoch<", ">loss<", ">train_loss<", "<title>one curve<"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_THAT(tick_labels(svg_of_y({-300, 300}), "end"),
              ElementsAre("-400", "-200", "0", "200", "400"));
}

TEST(Plot, WhatIsNotFiniteIsAGap) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto count = [](const std::vector<double>& y, const char* element) {
    return all_of_svg(svg_of_y(y), element).size();
  };
  EXPECT_EQ(count({1, 2, 3, 4}, "<polyline"), 1U);
  EXPECT_EQ(count({1, 2, kGap, 3, 4}, "<polyline"), 2U);
  EXPECT_EQ(count({kGap, 1, 2, -inf, inf, 3, 4, 1e301}, "<polyline"), 2U);
  EXPECT_EQ(count({1, kGap, 2, kGap}, "<polyline"), 0U);
  EXPECT_EQ(count({1, kGap, 2, kGap}, "<circle"), 2U);
  EXPECT_EQ(count({kGap}, "<circle"), 0U);
  // Of many points only those without a neighbour have a dot.
  std::vector<double> many(100, 1);
  EXPECT_EQ(count(many, "<circle"), 0U);
  many[98] = kGap;
  EXPECT_EQ(count(many, "<circle"), 1U);
}

TEST(Plot, EveryRangeHasNumbersOnItsAxes) {
  const std::vector<double> cases[] = {{0},
                                       {5},
                                       {5, 5},
                                       {-1e300, 1e300},
                                       {1e-310},
                                       {1, 1 + 1e-15},
                                       {1e12, 1e12 + 1},
                                       {1e-200, 3e-200},
                                       {kGap},
                                       {}};
  for (const auto& y : cases) {
    const std::string svg = svg_of_y(y);
    EXPECT_THAT(svg, Not(ContainsRegex("[^a-z]nan|[^a-z]inf"))) << svg;
    const auto labels = tick_labels(svg, "end");
    EXPECT_GE(labels.size(), 3U) << svg;
    EXPECT_LE(labels.size(), 8U) << svg;
    EXPECT_EQ(std::set<std::string>(labels.begin(), labels.end()).size(), labels.size()) << svg;
  }
  EXPECT_THAT(tick_labels(svg_of_y({0.5}), "middle"), ElementsAre("1"));
}

TEST(Plot, NamesAreText) {
  const auto name_in_svg = [](const std::string& name) {
    const plots::Panel panel{"", "", "", {{name, {1}, {1}}}};
    return all_of_svg(plots::svg("", {&panel, 1}), "\"start\">([^<]+)</text>").at(0);
  };
  EXPECT_EQ(name_in_svg("a<b> & \"c\""), "a&lt;b&gt; &amp; \"c\"");
  EXPECT_EQ(name_in_svg("Größe € 😀"), "Größe € 😀");
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(name_in_svg("a\x01"
                        "b"),
            "a" + mark + "b");
  EXPECT_EQ(name_in_svg("a\xFF"), "a" + mark);
  EXPECT_EQ(name_in_svg("cut \xE2\x82"), "cut " + mark + mark);
  EXPECT_EQ(name_in_svg("\xC0\xAF \xED\xA0\x80"), mark + mark + " " + mark + mark + mark);
  const plots::Panel uneven{"", "", "", {{"loss", {1, 2}, {1}}}};
  EXPECT_EQ(message_of<UsageError>([&] { plots::svg("", {&uneven, 1}); }),
            "plot: curve loss has 2 x and 1 y; expected as many");
}

TEST(HistoryPlot, HasAPanelOfLossesAndOneOfMetrics) {
  const TempFolder folder;
  history_of_three().plot(folder / "run.svg");
  EXPECT_THAT(folder.names(), ElementsAre("run.svg"));
  const std::string svg = get_bytes(folder / "run.svg");
  EXPECT_THAT(all_of_svg(svg, "font-weight=\"bold\">([^<]*)<"), ElementsAre("Loss", "Metrics"));
  // val_loss of epochs 1 and 3 is two dots.
  EXPECT_EQ(all_of_svg(svg, "<polyline").size(), 3U);
  EXPECT_EQ(all_of_svg(svg, "<circle").size(), 11U);
  EXPECT_THAT(all_of_svg(svg, "\"start\">([a-z_]+)</text>"),
              ElementsAre("train_loss", "val_loss", "accuracy", "val_accuracy"));

  History no_metrics;
  no_metrics.columns = {"train_loss", "seconds", "images_per_second"};
  no_metrics.rows = {{1, 2, 3}};
  no_metrics.plot(folder / "one.svg");
  EXPECT_THAT(get_bytes(folder / "one.svg"),
              AllOf(HasSubstr("Training of 1 epoch<"), Not(HasSubstr("Metrics"))));
}

TEST(HistoryPlot, RefusesOtherNamesAndNoEpochs) {
  const auto answer = [](const History& history, const char* path) {
    return message_of<UsageError>([&] { history.plot(path); });
  };
  EXPECT_EQ(answer(history_of_three(), "run.png"),
            "plot: run.png is no name of a picture; .svg expected");
  EXPECT_EQ(answer(history_of_three(), ".svg"),
            "plot: .svg is no name of a picture; .svg expected");
  EXPECT_EQ(answer(History{}, "run.svg"), "plot: no epoch has ended yet");
  EXPECT_THROW(history_of_three().plot("/no/such/folder/run.svg"), Error);
}

TEST(HistoryPlot, IsXml) {
  if (std::system("python3 --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no python3";
  const TempFolder folder;
  History history = history_of_three();
  history.columns[1] = "a<b> & \"c\" \x01\xFF Größe";
  history.plot(folder / "run.svg");
  const std::string program =
      "import sys, xml.etree.ElementTree as e\n"
      "root = e.parse(sys.argv[1]).getroot()\n"
      "s = '{http://www.w3.org/2000/svg}'\n"
      "texts = [t.text for t in root.iter(s + 'text')]\n"
      "assert root.tag == s + 'svg' and len(list(root.iter(s + 'polyline'))) == 3\n"
      "assert 'a<b> & \"c\" \\ufffd\\ufffd Gr\\u00f6\\u00dfe' in texts, texts\n";
  write_file_atomically(folder / "check.py", program);
  EXPECT_EQ(std::system(
                ("python3 " + (folder / "check.py").string() + " " + (folder / "run.svg").string())
                    .c_str()),
            0);
}

}  // namespace
}  // namespace tutti
