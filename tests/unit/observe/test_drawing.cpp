// Drawings against what they are made of: XML, one element for each thing, places by hand.
#include <gmock/gmock.h>

#include <regex>

#include "tutti/base/error.h"
#include "tutti/observe/drawing.h"
#include "tutti/observe/recorder.h"

#include "tests/support/command.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace tutti::drawings {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Two lanes; a works and sends to b, which waits for it first.
Drawing small() {
  Drawing drawing;
  drawing.title = "a & b";
  drawing.lanes = {"rank <0>", "rank 1"};
  drawing.bars = {{.lane = 0, .begin = 0, .end = 5, .kind = Kind::first, .label = "F0"},
                  {.lane = 1, .begin = 0, .end = 8, .kind = Kind::wait, .words = "waited 8 us"}};
  drawing.arrows = {
      {.from = 0, .to = 1, .begin = 5, .end = 8, .kind = Kind::second, .label = "p1"}};
  drawing.ticks = {{5, "5 us"}, {10, "10 us"}};
  drawing.legend = {{Kind::first, "forward"}, {Kind::wait, "waits"}};
  drawing.notes = {"one line"};
  return drawing;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Drawing, HasAnElementForEachThing) {
  const std::string picture = svg(small());
  EXPECT_EQ(count_of(picture, "<rect class=\"k0\""), 2u) << "a bar, and the legend's";
  EXPECT_EQ(count_of(picture, "<rect class=\"k3 h\""), 2u);
  EXPECT_EQ(count_of(picture, "marker-end=\"url(#m1)\""), 1u);
  for (const char* text : {">F0<", ">p1<", ">5 us<", ">forward<", ">one line<", "waited 8 us",
                           ">rank &lt;0&gt;<", "<title>a &amp; b</title>"})
    EXPECT_THAT(picture, HasSubstr(text));
}

TEST(Drawing, IsXmlAndNarrow) {
  const test::TempFolder folder;
  test::put_bytes(folder / "d.svg", svg(small()));
  const auto result = test::run_command({"python3", "-c",
                                         "import sys, xml.etree.ElementTree as E\n"
                                         "root = E.parse(sys.argv[1]).getroot()\n"
                                         "print(root.tag, root.get('viewBox').split()[2])\n",
                                         folder / "d.svg"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "{http://www.w3.org/2000/svg}svg 360\n");
}

TEST(Drawing, PutsThingsWhereTheyHappened) {
  const std::string picture = svg(small());
  const std::regex bars("<rect class=\"k[03][^>]* y=\"([0-9.]+)\"[^>]* height=\"([0-9.]+)\"");
  std::vector<double> tops, heights;
  for (std::sregex_iterator at(picture.begin(), picture.end(), bars), end; at != end; ++at) {
    tops.push_back(std::stod((*at)[1]));
    heights.push_back(std::stod((*at)[2]));
  }
  ASSERT_GE(heights.size(), 2u);
  EXPECT_EQ(tops[0], tops[1]) << "both begin at 0";
  EXPECT_NEAR(heights[1] / heights[0], 8.0 / 5, 0.01);
}

// Of digits and blanks, whose advances in DejaVu Sans are 0.636 and 0.318 of the text's size, bold
// 0.696 and 0.348.
double width_of_digits(const std::string& text, double digit) {
  return digit * (static_cast<double>(text.size()) -
                  static_cast<double>(std::ranges::count(text, ' ')) / 2);
}

TEST(Drawing, TextStaysOnThePaperInWideFonts) {
  Drawing drawing = small();
  std::string digits;
  for (int i = 0; i < 30; ++i) digits += "12345678 ";
  drawing.title = digits;
  drawing.notes = {digits};
  drawing.legend = {{Kind::first, digits}, {Kind::wait, "waits"}};
  drawing.lanes = {"12345678 01", "12345678 02", "12345678 03", "12345678 04"};  // 75 wide each
  drawing.ticks.back().name = "12345678";
  const std::string picture = svg(drawing);
  const std::regex line("<text x=\"([0-9.]+)\"[^>]*text-anchor=\"start\"([^>]*)>([0-9 ]+)<");
  int lines = 0;
  for (std::sregex_iterator at(picture.begin(), picture.end(), line), end; at != end;
       ++at, ++lines) {
    const double digit = (*at)[2].length() > 0 ? 0.696 * 14 : 0.636 * 11;
    EXPECT_LE(std::stod((*at)[1]) + width_of_digits((*at)[3], digit), 356) << (*at)[3];
  }
  EXPECT_GE(lines, 3 * 5);
  EXPECT_THAT(picture, HasSubstr(">01<")) << "the whole name is 80 wide";
  // The first lane's middle is right of what the axis says, by half a column.
  std::smatch axis;
  ASSERT_TRUE(std::regex_search(picture, axis, std::regex("<line class=\"n\" x1=\"([0-9.]+)\"")));
  EXPECT_GE(std::stod(axis[1]) - (352 - std::stod(axis[1])) / 7,
            4 + width_of_digits("12345678", 7));
}

TEST(Drawing, TextShowsWhatIsThereSoFar) {
  const auto texts = frames(small(), 60);
  ASSERT_EQ(texts.size(), 2u);
  // 60 columns less the longest name and " ||": 49 cells for 10 us.
  EXPECT_EQ(texts[0],
            "5 us (1 of 2)\n"
            "rank <0> |F0" +
                std::string(23, '#') + std::string(24, ' ') + "|\n" + "rank 1   |" +
                std::string(25, '.') + std::string(24, ' ') + "|\n");
  EXPECT_EQ(texts[1],
            "10 us (2 of 2)\n"
            "rank <0> |F0" +
                std::string(23, '#') + std::string(24, ' ') + "|\n" + "rank 1   |" +
                std::string(39, '.') + std::string(10, ' ') + "|\n" +
                "  rank <0> -> rank 1: p1\n"
                "  rank 1: waited 8 us\n");
}

TEST(Drawing, ARingSaysItsFirstLaneOnceInText) {
  Drawing drawing = small();
  drawing.lanes.push_back("rank <0>");
  drawing.closes_ring = true;
  drawing.arrows = {{.from = 1, .to = 2, .begin = 5, .end = 8, .label = "p1"}};
  const auto texts = frames(drawing, 60);
  EXPECT_EQ(count_of(texts[0], "|\n"), 2u);
  EXPECT_THAT(texts[1], HasSubstr("rank 1 -> rank <0>: p1"));
}

TEST(Drawing, RefusesWhatItCannotShow) {
  const auto refusal = [](auto change) {
    Drawing drawing = small();
    change(drawing);
    return message_of<UsageError>([&] { svg(drawing); });
  };
  EXPECT_THAT(refusal([](Drawing& d) { d.lanes.clear(); }),
              HasSubstr("0 columns; expected 1 to 13"));
  EXPECT_THAT(refusal([](Drawing& d) { d.lanes.resize(14); }), HasSubstr("14 columns"));
  EXPECT_THAT(refusal([](Drawing& d) { d.bars[0].lane = 2; }), HasSubstr("lane 2"));
  EXPECT_THAT(refusal([](Drawing& d) { d.bars[0].end = -1; }), HasSubstr("from 0 to -1"));
  EXPECT_THAT(refusal([](Drawing& d) { d.arrows[0].to = 0; }), HasSubstr("lane 0 to 0"));
  EXPECT_THAT(refusal([](Drawing& d) { d.ticks.clear(); }), HasSubstr("ticks"));
  EXPECT_THAT(refusal([](Drawing& d) { d.ticks = {{5, ""}, {4, ""}}; }), HasSubstr("ticks"));
}

TEST(Recorder, KeepsTheEventsOfItsAreasUntilItsEnd) {
  Recorder recorder({"a.", "b.x"});
  emit("a.one", {{"n", int64_t{3}}, {"us", 2.5}, {"who", std::string_view("me")}});
  emit("c.other");
  emit("b.xy");
  const auto events = recorder.end();
  emit("a.late");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].name, "a.one");
  EXPECT_EQ(events[0].number("n"), 3);
  EXPECT_EQ(events[0].text("who"), "me");
  EXPECT_EQ(events[0].begin_us(), events[0].when_us - 2.5);
  EXPECT_EQ(events[1].name, "b.xy");
  EXPECT_LE(events[0].when_us, events[1].when_us);
  EXPECT_THAT(message_of<Error>([&] { events[0].number("m"); }),
              HasSubstr("a.one has no field \"m\""));
  EXPECT_THAT(message_of<Error>([&] { events[0].number("us"); }),
              HasSubstr("\"us\" is no whole number"));
}

}  // namespace
}  // namespace tutti::drawings
