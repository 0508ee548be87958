// Links from times of all-reduces: those that the schedules make of a known link, with and without
// noise, against every link of a grid; what says nothing is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tutti/base/error.h"
#include "tutti/plan/link_fit.h"
#include "tutti/plan/predict.h"

#include "tests/support/message_of.h"
#include "tests/unit/plan/some_machine.h"

namespace tutti::plan {
namespace {

using test::message_of;
using test::some_machine;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<double> kSizes{8, 4096, 65536, 262144, 1 << 20, 4 << 20, 16 << 20};

/// What the schedules take on `link`, five times each, times 1 + a draw up to `noise` either way.
std::vector<AllReduceTimes> times_of(int ranks, const Link& link, double noise = 0,
                                     uint64_t seed = 0) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<> draw(-noise, noise);
  std::vector<AllReduceTimes> all;
  for (double bytes : kSizes) {
    AllReduceTimes times{.bytes = bytes, .seconds = {}};
    for (int i = 0; i < 5; ++i)
      times.seconds.push_back(engine_seconds(ranks, bytes, link) * (1 + draw(random)));
    all.push_back(times);
  }
  return all;
}

double off_of(int ranks, const std::vector<AllReduceTimes>& all, const Link& link) {
  double sum = 0;
  for (AllReduceTimes times : all) {
    std::ranges::nth_element(times.seconds, times.seconds.begin() + 2);
    sum += std::abs(engine_seconds(ranks, times.bytes, link) / times.seconds[2] - 1);
  }
  return sum / static_cast<double>(all.size());
}

/// The least of all latencies and rates that lie within a factor of 2, by steps of a 24th part of a
/// power of two.
double least_off_of_grid(int ranks, const std::vector<AllReduceTimes>& all, const Link& around) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = -24; i <= 24; ++i)
    for (int k = -24; k <= 24; ++k)
      least = std::min(least, off_of(ranks, all,
                                     {.bytes_per_second = around.bytes_per_second * exp2(i / 24.0),
                                      .latency = around.latency * exp2(k / 24.0)}));
  return least;
}

TEST(LinkFit, FindsTheLinkOfWhichTheTimesAre) {
  const Link links[] = {{1.25e9, 20e-6}, {2.5e7, 100e-6}, {1e5, 0.05}, {5e10, 1e-6}, {1e8, 0}};
  for (int ranks : {2, 3, 4, 8, 33})
    for (const Link& link : links) {
      const FittedLink fitted = fit_link(ranks, times_of(ranks, link));
      EXPECT_NEAR(fitted.flow.bytes_per_second / link.bytes_per_second, 1, 1e-4) << ranks;
      EXPECT_NEAR(fitted.flow.latency, link.latency, 1e-4 * link.latency + 1e-15) << ranks;
      EXPECT_LT(fitted.off, 1e-4);
    }
}

TEST(LinkFit, OfNoisyTimesIsNoWorseThanAnyOfAGrid) {
  const Link link{1.25e8, 60e-6};
  for (int ranks : {2, 5})
    for (uint64_t seed : {1, 2, 3}) {
      const auto times = times_of(ranks, link, 0.2, seed);
      const FittedLink fitted = fit_link(ranks, times);
      EXPECT_NEAR(fitted.flow.bytes_per_second / link.bytes_per_second, 1, 0.2);
      EXPECT_NEAR(fitted.flow.latency / link.latency, 1, 0.2);
      EXPECT_NEAR(fitted.off, off_of(ranks, times, fitted.flow), 1e-9);
      EXPECT_LE(fitted.off, least_off_of_grid(ranks, times, link));
    }
}

TEST(LinkFit, ASizeThatIsOffByItselfMovesNothing) {
  const Link link{1.25e8, 60e-6};
  for (size_t which : {0, 2, 3, 6}) {
    auto times = times_of(2, link);
    for (double& seconds : times[which].seconds) seconds *= 1.5;
    const FittedLink fitted = fit_link(2, times);
    EXPECT_NEAR(fitted.flow.bytes_per_second / link.bytes_per_second, 1, 1e-4) << which;
    EXPECT_NEAR(fitted.flow.latency / link.latency, 1, 1e-4) << which;
    EXPECT_NEAR(fitted.off, 0.5 / 1.5 / 7, 1e-4);
  }
}

TEST(LinkFit, WhatSaysNothingIsRefused) {
  const Link link{1.25e8, 60e-6};
  auto times = times_of(2, link);
  // The middle half of 1, 1, 1.5, 2, 2 times as long.
  for (size_t i : {0, 1, 2, 3, 4})
    times[4].seconds[i] *= std::min(2.0, 1 + 0.5 * std::max(0.0, i - 1.0));
  EXPECT_THAT(message_of<Error>([&] { fit_link(2, times); }),
              AllOf(HasSubstr("all-reduces of 1048576 bytes between 2 hosts"),
                    HasSubstr("spreads over 67 % of that; 30 % is the most")));
  EXPECT_NO_THROW(fit_link(2, times, 0.7));

  times = times_of(2, link);
  for (double& seconds : times[2].seconds) seconds *= 40;
  for (double& seconds : times[4].seconds) seconds /= 10;
  EXPECT_THAT(message_of<Error>([&] { fit_link(2, times); }),
              AllOf(HasSubstr("no latency and rate explain the all-reduces between 2 hosts"),
                    HasSubstr("30 % is the most")));

  times = times_of(2, {.bytes_per_second = 1e15, .latency = 1e-3});
  EXPECT_THAT(message_of<Error>([&] { fit_link(2, times); }), HasSubstr("no rate can be told"));
}

TEST(LinkFit, WhatCannotBeIsRefused) {
  const auto good = times_of(2, {1.25e8, 60e-6});
  const auto message = [](int ranks, const std::vector<AllReduceTimes>& times, double spread) {
    return message_of<UsageError>([&] { fit_link(ranks, times, spread); });
  };
  EXPECT_THAT(message(1, good, 0.3), HasSubstr("1 ranks; expected 2 or more"));
  EXPECT_THAT(message(2, good, 0), HasSubstr("spread 0; expected more than 0"));
  EXPECT_THAT(message(2, {good[0], good[1]}, 0.3), HasSubstr("2 sizes; expected 3 or more"));
  EXPECT_THAT(message(2, {good[1], good[0], good[2]}, 0.3), HasSubstr("8 bytes after 4096"));
  auto times = good;
  times[1].seconds.resize(3);
  EXPECT_THAT(message(2, times, 0.3), HasSubstr("3 times of 4096 bytes; expected 4 or more"));
  for (double seconds : {0.0, -1.0, std::nan("")}) {
    times = good;
    times[6].seconds[2] = seconds;
    EXPECT_THAT(message(2, times, 0.3), HasSubstr("16777216 bytes took"));
  }
}

// Whether the wire or the engine of two threads was the faster one.
TEST(SetLink, PredictsWhatOneFlowTook) {
  const Link flows[] = {{1e8, 1e-4}, {5e9, 1e-4}, {1e8, 1e-6}, {5e9, 1e-6}};
  for (const Link& flow : flows)
    for (int hosts : {2, 5}) {
      Machine machine = some_machine();
      set_link(machine, flow, hosts);
      EXPECT_NO_THROW(check(machine));
      ASSERT_TRUE(machine.link);
      EXPECT_EQ(machine.link->hosts, hosts);
      const Prediction step =
          predict(machine, {.hosts = hosts, .batch = 8, .link = machine.link->wire});
      const double pieces = hosts == 2 ? 4 : 2;
      // Of two hosts the next piece hides the latency of one; of five each waits for the one
      // before.
      const Link before{flow.bytes_per_second, hosts == 2 ? 0 : flow.latency};
      const double whole = (pieces - 1) * engine_seconds(hosts, 4e6 / pieces, before) +
                           engine_seconds(hosts, 4e6 / pieces, flow),
                   small = engine_seconds(hosts, 64, flow);
      EXPECT_NEAR(step.exchange / (whole + small), 1, 1e-9);
    }
  // A wire that is slower than the engine says nothing of it.
  Machine machine = some_machine();
  set_link(machine, {1e8, 1e-4}, 2);
  EXPECT_EQ(machine.tcp, some_machine().tcp);
  EXPECT_NEAR(machine.link->wire.bytes_per_second, 1e8 * 1538 / 1448, 1);
  EXPECT_NEAR(machine.link->wire.latency, 9e-5, 1e-12);
}

}  // namespace
}  // namespace tutti::plan
