#include "tutti/plan/link.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <span>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"

namespace tutti::plan {
namespace {

struct Unit {
  std::string_view name;
  double size;
};
constexpr std::array<Unit, 6> kRates{{{"kbit", 1e3 / 8},
                                      {"Mbit", 1e6 / 8},
                                      {"Gbit", 1e9 / 8},
                                      {"Tbit", 1e12 / 8},
                                      {"MB", 1e6},
                                      {"GB", 1e9}}};
constexpr std::array<Unit, 4> kTimes{{{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}};

/// "20us" by one of the units; nothing where it has none.
std::optional<double> number_with_unit(std::string_view text, std::span<const Unit> units) {
  for (const auto& [name, size] : units) {
    if (!text.ends_with(name)) continue;
    const auto number = number_in<double>(text.substr(0, text.size() - name.size()));
    if (number) return *number * size;
  }
  return std::nullopt;
}

}  // namespace

Link parse_link(std::string_view text) {
  const auto parts = parts_of(text, ',');
  const auto refuse = [&](const char* what) {
    throw UsageError(fmt::format(
        "link \"{}\": {}; expected as 25Gbit,20us: kbit, Mbit, Gbit or Tbit a second (MB or GB for "
        "bytes), and ns, us, ms or s",
        text, what));
  };
  if (parts.size() != 2) refuse("not a rate and a latency");
  const auto rate = number_with_unit(parts[0], kRates);
  const auto latency = number_with_unit(parts[1], kTimes);
  if (!rate) refuse("the rate has no unit that is known");
  if (!latency) refuse("the latency has no unit that is known");
  if (*rate <= 0) refuse("the rate is not above 0");
  if (*latency < 0) refuse("the latency is below 0");
  if (*rate < 1 || *rate > 1e15 || *latency > 3600) refuse("no link is like that");
  return {*rate, *latency};
}

std::string words_of(const Link& link) {
  const auto with_unit = [](double value, std::span<const Unit> units, size_t usual) {
    Unit unit = units[usual];
    for (const Unit& one : units)
      if (value >= one.size && one.size > unit.size) unit = one;
    return fmt::format("{:.4g} {}", value / unit.size, unit.name);
  };
  return with_unit(link.bytes_per_second, std::span(kRates).first(4), 0) + "/s, " +
         with_unit(link.latency, kTimes, 0);
}

}  // namespace tutti::plan
