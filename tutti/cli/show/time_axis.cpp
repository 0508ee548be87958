#include "tutti/cli/show/time_axis.h"

#include <fmt/format.h>

#include "tutti/observe/plot.h"

namespace tutti::cli {
namespace {

struct TimeUnit {
  const char* name;
  double us;
};

TimeUnit unit_for(double end_us) {
  if (end_us < 1e3) return {"us", 1};
  if (end_us < 999.5e3) return {"ms", 1e3};  // "999.7 ms" is rounded to "1000 ms"
  return {"s", 1e6};
}

/// Three digits, or as many as stand before the point.
std::string three_digits(double value) {
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

}  // namespace

std::vector<drawings::Tick> clock_ticks(double end_us, int most) {
  std::vector<drawings::Tick> ticks;
  const TimeUnit unit = unit_for(end_us);
  const double end = end_us / unit.us;
  for (const double at : plots::round_numbers(0, end, most))
    if (at > 0 && at < 0.93 * end)
      ticks.push_back({unit.us * at, fmt::format("{:.12g} {}", at, unit.name)});
  ticks.push_back({end_us, three_digits(end) + " " + unit.name});
  return ticks;
}

}  // namespace tutti::cli
