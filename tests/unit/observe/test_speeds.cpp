// The picture of speeds, against places by hand.
#include <gmock/gmock.h>

#include <regex>

#include "tutti/observe/speeds.h"

namespace tutti::drawings {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Speeds, BarsAreAsHighAsTheirRates) {
  const std::string picture =
      svg(Speeds{.title = "t", .speeds = {{1, 100, 0}, {2, 150, 0}, {4, 200, 0}}, .notes = {}});
  const std::regex bar("<rect class=\"k0\"[^>]*width=\"56.0\" height=\"([0-9.]+)\"");
  std::vector<double> heights;
  for (std::sregex_iterator at(picture.begin(), picture.end(), bar), end; at != end; ++at)
    heights.push_back(std::stod((*at)[1]));
  // The ideal of four, 400, is 220 pixels high.
  EXPECT_THAT(heights, testing::ElementsAre(55, 82.5, 110));
  EXPECT_THAT(picture, HasSubstr(">2.00x<"));
  EXPECT_THAT(picture, Not(HasSubstr("never talk"))) << "no limit was measured";
}

TEST(Speeds, TwelveOfThemHaveRoomBesideEachOther) {
  Speeds speeds{.title = "t", .speeds = {}, .notes = {}};
  for (int i = 1; i <= 12; ++i) speeds.speeds.push_back({i, 123'456.0 * i, 0});
  const std::string picture = svg(speeds);
  for (const char* text : {">123k<", ">1.5M<", ">9.0<", ">12<"})
    EXPECT_THAT(picture, HasSubstr(text));
  EXPECT_THAT(picture, Not(HasSubstr(">123456<")));
}

TEST(Speeds, TheIdealGoesUpInALineAndLimitsAreMarked) {
  const std::string picture =
      svg(Speeds{.title = "t", .speeds = {{2, 100, 110}, {4, 150, 190}}, .notes = {"a note"}});
  // 2 to 4 replicas: half of the height, then all of it, which begins at 46.
  std::smatch points;
  ASSERT_TRUE(std::regex_search(picture, points,
                                std::regex("points=\"[0-9.]+,([0-9.]+) [0-9.]+,([0-9.]+)\"")));
  EXPECT_EQ(points[1], "156.0");
  EXPECT_EQ(points[2], "46.0");
  EXPECT_THAT(picture, HasSubstr("as many that never talk"));
  EXPECT_THAT(picture, HasSubstr("a note"));
}

}  // namespace
}  // namespace tutti::drawings
