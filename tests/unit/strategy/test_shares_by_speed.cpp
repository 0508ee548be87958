// What becomes of measured times, against the slow and obvious way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tutti/strategy/run/shares_by_speed.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

double longest(const std::vector<int64_t>& rows, const std::vector<double>& seconds) {
  double most = 0;
  for (size_t i = 0; i < rows.size(); ++i)
    most = std::max(most, static_cast<double>(rows[i]) * seconds[i]);
  return most;
}

// Tries all ways to deal `left` rows out to the replicas from `at` on.
void try_all(int64_t left, size_t at, std::vector<int64_t>& rows,
             const std::vector<double>& seconds, double& least) {
  if (at + 1 == rows.size()) {
    rows[at] = left;
    least = std::min(least, longest(rows, seconds));
    return;
  }
  for (int64_t own = 1; left - own >= std::ssize(rows) - static_cast<int64_t>(at) - 1; ++own) {
    rows[at] = own;
    try_all(left - own, at + 1, rows, seconds, least);
  }
}

TEST(FastestRows, TakeNoLongerThanTheBestOfAllWays) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> seconds_of(0.01, 1);
  for (const int replicas : {1, 2, 3, 4})
    for (const int64_t all : {4, 5, 7, 12, 17})
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<double> seconds;
        for (int i = 0; i < replicas; ++i) seconds.push_back(seconds_of(random));
        const std::vector<int64_t> rows = fastest_rows(all, seconds);
        EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), int64_t{0}), all);
        EXPECT_GE(*std::ranges::min_element(rows), 1);
        std::vector<int64_t> tried(seconds.size());
        double least = std::numeric_limits<double>::infinity();
        try_all(all, 0, tried, seconds, least);
        EXPECT_EQ(longest(rows, seconds), least) << replicas << " of " << all;
      }
}

TEST(FastestRows, AreInProportionToSpeeds) {
  EXPECT_THAT(fastest_rows(6, std::vector<double>{1, 1, 1}), ElementsAre(2, 2, 2));
  EXPECT_THAT(fastest_rows(7, std::vector<double>{1, 1, 1}), ElementsAre(3, 2, 2));
  EXPECT_THAT(fastest_rows(6, std::vector<double>{1, 2}), ElementsAre(4, 2));
  EXPECT_THAT(fastest_rows(64, std::vector<double>{1, 2}), ElementsAre(43, 21));
  EXPECT_THAT(fastest_rows(3, std::vector<double>{1, 1000, 1}), ElementsAre(1, 1, 1));
  EXPECT_THAT(fastest_rows(8, std::vector<double>{1, 1000}), ElementsAre(7, 1));
  EXPECT_THAT(fastest_rows(3'000'000'000, std::vector<double>{1, 2}),
              ElementsAre(2'000'000'000, 1'000'000'000));
}

// One row after another, to who would be done first.
std::vector<int64_t> one_by_one(int64_t rows, const std::vector<double>& seconds) {
  std::vector<int64_t> taken(seconds.size(), 1);
  for (int64_t left = rows - std::ssize(taken); left > 0; --left) {
    size_t first = 0;
    for (size_t i = 1; i < taken.size(); ++i)
      if (static_cast<double>(taken[i] + 1) * seconds[i] <
          static_cast<double>(taken[first] + 1) * seconds[first])
        first = i;
    ++taken[first];
  }
  return taken;
}

TEST(FastestRows, AreThoseOfOneRowAfterAnother) {
  std::mt19937 random(6);
  std::uniform_real_distribution<double> exponent(-3, 3);
  for (const int replicas : {1, 2, 5, 40})
    for (const int64_t rows : {40, 97, 1000, 4096})
      for (int repeat = 0; repeat < 5; ++repeat) {
        std::vector<double> seconds;
        for (int i = 0; i < replicas; ++i) seconds.push_back(std::pow(10, exponent(random)));
        EXPECT_EQ(fastest_rows(rows, seconds), one_by_one(rows, seconds)) << replicas;
      }
}

TEST(RowTimes, AreTheMedianAndTheSpreadOfTheQuartiles) {
  EXPECT_EQ(row_times({}, 8), RowTimes{});
  const RowTimes one = row_times({3}, 8);
  EXPECT_EQ(one, (RowTimes{.seconds = 3, .spread = 0, .steps = 1, .batch = 8}));
  // Quartiles of 1 to 9 are 3, 5 and 7.
  const RowTimes nine = row_times({9, 1, 8, 2, 7, 3, 6, 4, 5}, 8);
  EXPECT_DOUBLE_EQ(nine.seconds, 5);
  EXPECT_DOUBLE_EQ(nine.spread, 4.0 / 5);
  // One step that took ten times as long changes neither.
  EXPECT_EQ(row_times({9, 1, 80, 2, 7, 3, 6, 4, 5}, 8), nine);
  // Of an even number between two: of 1 to 4 they are 1.75, 2.5 and 3.25.
  const RowTimes four = row_times({4, 3, 2, 1}, 8);
  EXPECT_DOUBLE_EQ(four.seconds, 2.5);
  EXPECT_DOUBLE_EQ(four.spread, 1.5 / 2.5);
  EXPECT_DOUBLE_EQ(four.error(), 0.93 * 1.5 / 2.5 / 2);
  EXPECT_EQ(RowTimes{}.error(), 0);
}

RowTimes steady(double seconds, double spread = 0.1, int64_t steps = 20, int64_t batch = 64) {
  return {.seconds = seconds, .spread = spread, .steps = steps, .batch = batch};
}

TEST(SharesVerdict, IsWorthAChangeOrSaysWhyNot) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct Case {
    const char* name;
    std::vector<double> now;
    std::vector<RowTimes> figures;
    std::vector<int64_t> shares;
    bool unusable;
    const char* says;
  };
  const Case cases[] = {
      {"half as fast", {}, {steady(1), steady(2)}, {43, 21}, false, "48.8 % faster"},
      {"already so",
       {43, 21},
       {steady(1), steady(2)},
       {},
       false,
       "0.0 % faster, less than the 5 %"},
      {"alike", {}, {steady(1), steady(1)}, {}, false, "0.0 % faster"},
      {"hardly unlike", {}, {steady(1), steady(1.08)}, {}, false, "less than the 5 %"},
      {"unlike enough", {}, {steady(1), steady(1.2)}, {35, 29}, false, "9.7 % faster"},
      {"back to equal", {43, 21}, {steady(1), steady(1)}, {32, 32}, false, "34.4 % faster"},
      {"noisy",
       {},
       {steady(1), steady(2, 0.7)},
       {},
       true,
       "too noisy: the times of replica 1 spread by 70 % of their median of 2e+03 ms a row "
       "(quartiles of 20 steps), which leaves it uncertain by 15 %, of 10 % at most"},
      {"more steps", {}, {steady(1), steady(2, 0.7, 80)}, {43, 21}, false, "48.8 % faster"},
      {"uncertain",
       {},
       {steady(1, 0.4), steady(1.15)},
       {},
       false,
       "less than the 8 % by which times are uncertain"},
      {"no spread",
       {},
       {steady(1, kNan), steady(2)},
       {},
       true,
       "too noisy: the times of replica 0"},
      {"few steps",
       {},
       {steady(1), steady(2, 0.1, 4)},
       {},
       true,
       "replica 1 has measured 4 steps, 5 at least are needed"},
      {"no steps", {}, {RowTimes{}, steady(2)}, {}, true, "replica 0 has measured 0 steps"},
      {"small batch",
       {},
       {steady(1, 0, 9, 1), steady(2, 0, 9, 1)},
       {},
       true,
       "a batch of 1 has less than a row for each of 2 replicas"},
      {"three", {}, {steady(1), steady(2), steady(4)}, {37, 18, 9}, false, "% faster"},
  };
  for (const Case& one : cases) {
    const SharesVerdict verdict = decide_shares(one.now, one.figures, BySpeed{});
    EXPECT_EQ(verdict.shares, one.shares) << one.name;
    EXPECT_EQ(verdict.unusable, one.unusable) << one.name;
    EXPECT_THAT(verdict.why, HasSubstr(one.says)) << one.name;
  }
}

TEST(SharesVerdict, TakesOnlyWhatIsAllowed) {
  const std::vector<RowTimes> figures = {steady(1), steady(2)};
  const SharesVerdict refused = decide_shares(
      {}, figures, {}, [](std::span<const int64_t> shares) { return shares[1] > 21; });
  EXPECT_THAT(refused.shares, IsEmpty());
  EXPECT_FALSE(refused.unusable);
  EXPECT_THAT(refused.why, AllOf(HasSubstr("[43, 21] of 64 rows"), HasSubstr("single sample")));
  EXPECT_THAT(decide_shares({}, figures, {}, [](auto shares) { return shares[1] > 20; }).shares,
              ElementsAre(43, 21));
}

TEST(SharesVerdict, KeepsToItsOptions) {
  const std::vector<RowTimes> figures = {steady(1), steady(1.2, 0.3)};
  EXPECT_THAT(decide_shares({}, figures, {.least_gain = 0.2}).why, HasSubstr("less than the 20 %"));
  EXPECT_THAT(decide_shares({}, figures, {.most_error = 0.05}).why, HasSubstr("too noisy"));
  EXPECT_THAT(decide_shares({}, figures, {.least_gain = 0.0}).shares, ElementsAre(35, 29));
}

}  // namespace
}  // namespace tutti
