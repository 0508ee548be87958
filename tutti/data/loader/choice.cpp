#include "tutti/data/loader/detail/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tutti::data::detail {
namespace {

constexpr double kToSpare = 1.1;
// Of a step, and in seconds: what is less is not worth a thread that wakes up for it.
constexpr double kWorthIt = 0.03;
constexpr double kWorthASwitch = 100e-6;
constexpr int kMostThreads = 256;

int keeping_up(double seconds, double period) {
  if (seconds <= std::max(kWorthIt * period, kWorthASwitch)) return 0;
  return static_cast<int>(
      std::min<double>(kMostThreads, std::ceil(kToSpare * seconds / std::max(period, 1e-6))));
}

// No step is shorter than so many cores compute for it: where nobody computes beside the loader,
// whoever sleeps would else be followed by as many threads as there may be.
double period_with(int cores, const LoadFigures& figures) {
  return cores > 0 ? std::max(figures.period, figures.compute / cores) : figures.period;
}

}  // namespace

WorkerChoice choose_workers(const LoadFigures& figures) {
  const double period = period_with(figures.free_cores, figures);
  const int cores = std::min(keeping_up(figures.compute, period), std::max(0, figures.free_cores));
  WorkerChoice choice{.at_once = cores + keeping_up(figures.blocked, period),
                      .readers = keeping_up(figures.reading, period)};
  if (choice.readers > 0) choice.at_once = std::max(choice.at_once, 1);
  choice.at_once = std::min(choice.at_once, kMostThreads);
  choice.readers = std::min(choice.readers, kMostThreads - choice.at_once);
  return choice;
}

WorkerChoice with_workers(int asked, const LoadFigures& figures) {
  if (asked == 0) return {};
  return {
      .at_once = asked,
      .readers = std::min(keeping_up(figures.reading, period_with(asked, figures)), kMostThreads)};
}

std::string words_of(const WorkerChoice& choice, const LoadFigures& figures) {
  const auto share = [&](double seconds) { return 100 * seconds / std::max(figures.period, 1e-9); };
  return fmt::format(
      "loader: {} worker{} and {} reader{}; a step of {:.2f} ms wants {:.0f} % of a core, and "
      "waits "
      "{:.0f} % of its time in reads and {:.0f} % in other stages; {} core{} free",
      choice.at_once, choice.at_once == 1 ? "" : "s", choice.readers,
      choice.readers == 1 ? "" : "s", 1e3 * figures.period, share(figures.compute),
      share(figures.reading), share(figures.blocked), figures.free_cores,
      figures.free_cores == 1 ? " is" : "s are");
}

}  // namespace tutti::data::detail
