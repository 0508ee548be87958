// The clock beside a drawing, against its numbers read back.
#include <gmock/gmock.h>

#include <map>

#include "tutti/cli/show/time_axis.h"

namespace tutti::cli {
namespace {

TEST(TimeAxis, NamesAreShortAndSayWhereTheyStand) {
  const std::map<std::string, double> units = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}};
  for (double end_us = 1; end_us < 9e9; end_us *= 1.0137) {
    const auto ticks = clock_ticks(end_us);
    ASSERT_FALSE(ticks.empty());
    EXPECT_EQ(ticks.back().at, end_us);
    EXPECT_LE(ticks.size(), 9u);
    for (const drawings::Tick& tick : ticks) {
      // Seven characters, of which one is a blank, are what stands left of the lanes.
      EXPECT_LE(tick.name.size(), 7u) << tick.name;
      const size_t blank = tick.name.find(' ');
      ASSERT_NE(blank, std::string::npos) << tick.name;
      EXPECT_EQ(tick.name.find_first_not_of("0123456789."), blank) << "an exponent: " << tick.name;
      EXPECT_NEAR(std::stod(tick.name) * units.at(tick.name.substr(blank + 1)), tick.at,
                  0.006 * tick.at)
          << tick.name;
    }
  }
}

TEST(TimeAxis, LongTimesAreSeconds) {
  EXPECT_EQ(clock_ticks(1234e3).back().name, "1.23 s");
  EXPECT_EQ(clock_ticks(999.7e3).back().name, "1.00 s");
  EXPECT_EQ(clock_ticks(999.4e3).back().name, "999 ms");
  EXPECT_EQ(clock_ticks(35'400).back().name, "35.4 ms");
  EXPECT_EQ(clock_ticks(35'400)[0].name, "5 ms");
  EXPECT_EQ(clock_ticks(250).back().name, "250 us");
}

}  // namespace
}  // namespace tutti::cli
