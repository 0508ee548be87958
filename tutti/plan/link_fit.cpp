#include "tutti/plan/link_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/plan/detail/quantile.h"
#include "tutti/plan/predict.h"

namespace tutti::plan {
namespace {

constexpr size_t kLeastSizes = 3;
constexpr size_t kLeastTimes = 4;

struct Median {
  double bytes = 0, seconds = 0;
};

Median median_of_quiet(int ranks, const AllReduceTimes& times, double most_spread) {
  const double median = detail::median_of(times.seconds);
  const double spread = detail::spread_of(times.seconds);
  if (spread > most_spread)
    throw Error(fmt::format(
        "all-reduces of {:.0f} bytes between {} hosts take {:.4g} ms in the middle, and the middle "
        "half of them spreads over {:.0f} % of that; {:.0f} % is the most that says anything: "
        "measure while nobody else uses the link and the hosts, or for longer",
        times.bytes, ranks, 1e3 * median, 100 * spread, 100 * most_spread));
  return {times.bytes, median};
}

void check_times(int ranks, std::span<const AllReduceTimes> times, double most_spread) {
  if (ranks < 2)
    throw UsageError(fmt::format("fit of a link: {} ranks; expected 2 or more", ranks));
  if (!(most_spread > 0))
    throw UsageError(fmt::format("fit of a link: spread {}; expected more than 0", most_spread));
  if (times.size() < kLeastSizes)
    throw UsageError(fmt::format("fit of a link: all-reduces of {} sizes; expected {} or more",
                                 times.size(), kLeastSizes));
  double last = 0;
  for (const AllReduceTimes& one : times) {
    if (!(one.bytes > last) || !std::isfinite(one.bytes))
      throw UsageError(fmt::format(
          "fit of a link: {} bytes after {}; expected sizes above 0 that ascend", one.bytes, last));
    last = one.bytes;
    if (one.seconds.size() < kLeastTimes)
      throw UsageError(fmt::format("fit of a link: {} times of {:.0f} bytes; expected {} or more",
                                   one.seconds.size(), one.bytes, kLeastTimes));
    for (double seconds : one.seconds)
      if (!(seconds > 0) || !std::isfinite(seconds))
        throw UsageError(
            fmt::format("fit of a link: {:.0f} bytes took {} s; expected a number above 0",
                        one.bytes, seconds));
  }
}

/// The best of all links with one product of latency and rate, in bytes.
struct FitTry {
  double product = 0;
  double second_a_byte = 0;
  double off = std::numeric_limits<double>::infinity();  ///< as in FittedLink
};

// A schedule whose latency and seconds a byte both double takes twice as long. With s the seconds
// of a size on a link of 1 byte a second, over its median, the sum of |g s - 1| = s |g - 1 / s| is
// least where g is the median of 1 / s, each of weight s.
FitTry best_with(double product, int ranks, std::span<const Median> medians) {
  std::vector<double> shares;
  double sum = 0;
  for (const Median& median : medians) {
    const double seconds =
        engine_seconds(ranks, median.bytes, {.bytes_per_second = 1, .latency = product});
    shares.push_back(seconds / median.seconds);
    sum += shares.back();
  }
  std::ranges::sort(shares, std::greater());
  auto middle = shares.begin();
  for (double weight = *middle; weight < sum / 2; weight += *middle) ++middle;
  FitTry best{.product = product, .second_a_byte = 1 / *middle, .off = 0};
  for (double share : shares)
    best.off += std::abs(best.second_a_byte * share - 1) / static_cast<double>(shares.size());
  return best;
}

// From a byte (a microsecond at 1 MB/s) to 10 GB (0.1 s at 100 GB/s) under way, by tenths of a
// power of ten, then thirds of what is left around the best.
FitTry best_of_products(int ranks, std::span<const Median> medians) {
  constexpr int kTenths = 100;
  constexpr int kThirds = 60;
  const auto with = [&](double tenth) {
    return best_with(std::pow(10, tenth / 10), ranks, medians);
  };
  FitTry best;
  int place = 0;
  for (int tenth = 0; tenth <= kTenths; ++tenth) {
    const FitTry one = with(tenth);
    if (one.off >= best.off) continue;
    best = one;
    place = tenth;
  }
  if (place == kTenths)
    throw Error(fmt::format(
        "all-reduces of {:.0f} bytes take no longer than the messages that they are sent in: no "
        "rate can be told from them; measure larger ones",
        medians.back().bytes));
  double low = place - 1, high = place + 1;
  for (int i = 0; i < kThirds; ++i) {
    const double third = (high - low) / 3;
    if (with(low + third).off < with(high - third).off)
      high -= third;
    else
      low += third;
  }
  const FitTry fine = with((low + high) / 2), none = best_with(0, ranks, medians);
  for (const FitTry& one : {fine, none})
    if (one.off <= best.off) best = one;
  return best;
}

}  // namespace

FittedLink fit_link(int ranks, std::span<const AllReduceTimes> times, double most_spread) {
  check_times(ranks, times, most_spread);
  std::vector<Median> medians;
  for (const AllReduceTimes& one : times)
    medians.push_back(median_of_quiet(ranks, one, most_spread));
  const FitTry best = best_of_products(ranks, medians);
  const Link flow{.bytes_per_second = 1 / best.second_a_byte,
                  .latency = best.product * best.second_a_byte};
  if (best.off > most_spread)
    throw Error(
        fmt::format("no latency and rate explain the all-reduces between {} hosts: the nearest, "
                    "{}, are off by {:.0f} %; {:.0f} % is the most that says anything: measure "
                    "while nobody else uses the link and the hosts, or for longer",
                    ranks, plan::words_of(flow), 100 * best.off, 100 * most_spread));
  return {.flow = flow, .off = best.off};
}

void set_link(Machine& machine, const Link& flow, int hosts) {
  machine.tcp.latency = std::min(machine.tcp.latency, flow.latency);
  machine.tcp.bytes_per_second = std::max(machine.tcp.bytes_per_second, flow.bytes_per_second);
  machine.link = {.wire = {.bytes_per_second = flow.bytes_per_second / machine.payload,
                           .latency = flow.latency - machine.tcp.latency},
                  .hosts = hosts};
}

}  // namespace tutti::plan
