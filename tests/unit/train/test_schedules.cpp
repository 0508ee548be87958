// Schedules against tables of Keras's and PyTorch's: tests/tables/make_schedules.py writes them.
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "tutti/train/callbacks/schedules.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using ScheduleJson = nlohmann::json;

RateSchedule schedule_of(const ScheduleJson& row) {
  const std::string name = row.at("schedule");
  const ScheduleJson& o = row.at("options");
  if (name == "piecewise_constant") {
    return schedules::piecewise_constant(
        {.boundaries = o.at("boundaries"), .values = o.at("values")});
  }
  if (name == "cosine_restarts") {
    return schedules::cosine_restarts({.initial = o.at("initial"),
                                       .first_decay_steps = o.at("first_decay_steps"),
                                       .t_mul = o.at("t_mul"),
                                       .m_mul = o.at("m_mul"),
                                       .alpha = o.at("alpha")});
  }
  if (name == "one_cycle") {
    return schedules::one_cycle({.max = o.at("max"),
                                 .total_steps = o.at("total_steps"),
                                 .pct_start = o.value("pct_start", 0.3),
                                 .div_factor = o.value("div_factor", 25.0),
                                 .final_div_factor = o.value("final_div_factor", 1e4)});
  }
  const double initial = o.at("initial");
  const int64_t steps = o.at("decay_steps");
  const bool staircase = o.value("staircase", false);
  if (name == "exponential")
    return schedules::exponential({initial, steps, o.at("decay_rate"), staircase});
  if (name == "inverse_time")
    return schedules::inverse_time({initial, steps, o.at("decay_rate"), staircase});
  if (name == "polynomial")
    return schedules::polynomial({initial, steps, o.at("end"), o.at("power"), o.at("cycle")});
  EXPECT_EQ(name, "cosine");
  return schedules::cosine({initial, steps, o.at("alpha")});
}

std::vector<ScheduleJson> schedule_table() {
  std::ifstream file("tests/tables/schedules.json");
  EXPECT_TRUE(file) << "run it in the root of the sources";
  return ScheduleJson::parse(file);
}

void expect_rate(double got, double expected, double tolerance, int64_t step) {
  // A rate on its way to 0 has the rounding of the terms that cancel, 0.1 in these tables.
  EXPECT_NEAR(got, expected, tolerance * std::max(0.1, std::abs(expected))) << "step " << step;
}

TEST(ScheduleTables, RatesAreThoseOfKerasAndPyTorch) {
  std::set<std::string> seen;
  for (const ScheduleJson& row : schedule_table()) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    seen.insert(row.at("schedule"));
    RateSchedule schedule = schedule_of(row);
    EXPECT_EQ(schedule.name(), row.at("schedule").get<std::string>());
    const ScheduleJson& options = row.at("options");
    if (options.contains("warm_up"))
      schedule = schedules::warm_up(options.at("warm_up"), schedule, options.at("from"));
    const std::vector<int64_t> steps = row.at("steps");
    const std::vector<double> rates = row.at("rates");
    ASSERT_EQ(steps.size(), rates.size());
    for (size_t i = 0; i < steps.size(); ++i)
      expect_rate(schedule(steps[i]), rates[i], row.at("tolerance"), steps[i]);
  }
  EXPECT_THAT(seen, ElementsAre("cosine", "cosine_restarts", "exponential", "inverse_time",
                                "one_cycle", "piecewise_constant", "polynomial"));
}

TEST(ScheduleTables, AWarmUpComesBeforeEachOfThem) {
  for (const ScheduleJson& row : schedule_table()) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const RateSchedule then = schedule_of(row);
    const RateSchedule warm = schedules::warm_up(8, then, 0.01);
    EXPECT_EQ(warm.name(), "warm_up of " + then.name());
    EXPECT_EQ(warm(0), 0.01);
    for (int64_t step = 0; step < 8; ++step) {
      const double expected =
          (0.01 * static_cast<double>(8 - step) + then(0) * static_cast<double>(step)) / 8;
      expect_rate(warm(step), expected, 1e-12, step);
    }
    for (const int64_t step : row.at("steps")) EXPECT_EQ(warm(step + 8), then(step)) << step;
    EXPECT_EQ(schedules::warm_up(0, then)(0), then(0));
    EXPECT_EQ(schedules::warm_up(2, then)(0), 0);
  }
}

TEST(Schedules, AreFiniteForEveryStep) {
  std::vector<RateSchedule> all;
  for (const ScheduleJson& row : schedule_table()) all.push_back(schedule_of(row));
  all.push_back(schedules::constant(0));
  all.push_back(schedules::exponential({1e-7, 1, 10}));
  all.push_back(schedules::exponential({1, 1, 1e-300}));
  all.push_back(schedules::inverse_time({1, 1, 1e308}));
  all.push_back(schedules::polynomial({.initial = 1, .decay_steps = 1, .cycle = true}));
  all.push_back(schedules::cosine_restarts({.initial = 1, .first_decay_steps = 1, .m_mul = 1e9}));
  all.push_back(schedules::cosine_restarts({.initial = 1, .first_decay_steps = 3, .t_mul = 1e300}));
  for (const double pct_start : {0.0, 0.25, 0.5, 1.0}) {
    for (const int64_t total_steps : {1, 2, 4})
      all.push_back(
          schedules::one_cycle({.max = 1, .total_steps = total_steps, .pct_start = pct_start}));
  }
  const size_t plain = all.size();
  for (size_t i = 0; i < plain; ++i) all.push_back(schedules::warm_up(7, all[i]));
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const RateSchedule& schedule : all) {
    std::vector<int64_t> steps{most - 1, most};
    for (int64_t step = 0; step < 40; ++step) steps.push_back(step);
    for (int64_t power = 64; power < most / 2; power *= 2)
      steps.insert(steps.end(), {power - 1, power, power + 1});
    for (const int64_t step : steps) {
      const double rate = schedule(step);
      EXPECT_TRUE(std::isfinite(rate) && rate >= 0)
          << schedule.name() << " step " << step << ": " << rate;
    }
  }
}

TEST(Schedules, KeepTheLastValue) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const int64_t step : {int64_t{10}, int64_t{11}, most}) {
    EXPECT_EQ(schedules::piecewise_constant({{9}, {1, 0.5}})(step), 0.5);
    EXPECT_EQ(schedules::piecewise_constant({{9, most}, {1, 0.5, 2}})(step), 0.5);
    EXPECT_EQ(schedules::polynomial({1, 10, 0.25})(step), 0.25);
    EXPECT_DOUBLE_EQ(schedules::cosine({2, 10, 0.25})(step), 0.5);
    EXPECT_DOUBLE_EQ(schedules::one_cycle({1, 10, 0.3, 10, 100})(step), 1e-3);
  }
}

// Barely growing periods: each begins where the sum of those before it ends.
TEST(Schedules, RestartsBeginWhereTheLastPeriodEnded) {
  for (const double t_mul : {1 + 1e-9, 1.5, 2.0, 3.0}) {
    const RateSchedule restarts =
        schedules::cosine_restarts({.initial = 1, .first_decay_steps = 1024, .t_mul = t_mul});
    double begin = 0, length = 1024;
    for (int period = 0; period < 8; ++period) {
      const auto first = static_cast<int64_t>(std::ceil(begin));
      EXPECT_NEAR(restarts(first), 1, 1e-5) << t_mul << " period " << period;
      const double before = first > 0 ? restarts(first - 1) : 0;
      EXPECT_LT(before, 1e-4) << t_mul << " period " << period;
      begin += length;
      length *= t_mul;
    }
  }
}

TEST(Schedules, OnesOwnIsAFunctionWithAName) {
  const auto rate_at_two = [](const RateSchedule& schedule) { return schedule(2); };
  EXPECT_EQ(rate_at_two({"mine", [](int64_t step) { return 1.0 / static_cast<double>(step); }}),
            0.5);
  EXPECT_EQ(schedules::linear_scaling(0.1, 256, 8192), 3.2);
  EXPECT_EQ(schedules::constant(0.5)(1'000'000), 0.5);
}

TEST(Schedules, ErrorsNameScheduleFieldValueAndRange) {
  using namespace schedules;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const struct {
    std::function<void()> make;
    const char* answer;
  } cases[] = {
      {[=] { constant(nan); },
       "schedule constant: rate = nan is out of range; expected a finite number >= 0"},
      {[] { cosine({.initial = 0.1}); },
       "schedule cosine: decay_steps = 0 is out of range; expected >= 1"},
      {[] { cosine({.decay_steps = 5}); },
       "schedule cosine: initial = 0 is out of range; expected a finite number > 0"},
      {[] { cosine({.initial = 1, .decay_steps = 5, .alpha = 1.5}); },
       "schedule cosine: alpha = 1.5 is out of range; expected 0 to 1"},
      {[] { piecewise_constant({{5, 5}, {1, 2, 3}}); },
       "schedule piecewise_constant: boundaries = 5 is out of range; expected > 5, the one before"},
      {[] { piecewise_constant({{-1}, {1, 2}}); },
       "schedule piecewise_constant: boundaries = -1 is out of range; expected >= 0"},
      {[] { piecewise_constant({{5}, {1}}); },
       "schedule piecewise_constant: number of values = 1 is out of range; expected 2"},
      {[] { piecewise_constant({{5}, {1, -1}}); },
       "schedule piecewise_constant: values = -1 is out of range; expected a finite number >= 0"},
      {[] { exponential({1, 1, 0}); },
       "schedule exponential: decay_rate = 0 is out of range; expected a finite number > 0"},
      {[=] { inverse_time({inf, 1, 0}); },
       "schedule inverse_time: initial = inf is out of range; expected a finite number > 0"},
      {[=] { polynomial({1, 1, nan}); },
       "schedule polynomial: end = nan is out of range; expected a finite number >= 0"},
      {[] { polynomial({1, 1, 0, 0}); },
       "schedule polynomial: power = 0 is out of range; expected a finite number > 0"},
      {[] { cosine_restarts({1, 1, 0.5}); },
       "schedule cosine_restarts: t_mul = 0.5 is out of range; expected a finite number >= 1"},
      {[] { one_cycle({1, 10, -0.25}); },
       "schedule one_cycle: pct_start = -0.25 is out of range; expected 0 to 1"},
      {[] { one_cycle({1, 10, 0.3, 0}); },
       "schedule one_cycle: div_factor = 0 is out of range; expected a finite number >= 1"},
      {[] { warm_up(-1, constant(1)); },
       "schedule warm_up of constant: steps = -1 is out of range; expected >= 0"},
      {[] { linear_scaling(1, 0, 1); },
       "schedule linear_scaling: base_batch = 0 is out of range; expected >= 1"},
      {[] { RateSchedule("mine", nullptr); }, "schedule mine: there is no function"},
      {[] { constant(1)(-1); }, "schedule constant: step -1; steps are counted from 0"},
      {[=] { RateSchedule("mine", [=](int64_t) { return nan; })(3); },
       "schedule mine: got nan for step 3, expected a finite number"},
  };
  for (const auto& c : cases) EXPECT_EQ(message_of<UsageError>(c.make), c.answer);
}

}  // namespace
}  // namespace tutti
