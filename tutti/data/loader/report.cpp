#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tutti/data/loader/loader.h"

namespace tutti::data {
namespace {

double all_seconds(const std::vector<StageReport>& stages) {
  return std::accumulate(stages.begin(), stages.end(), 0.0,
                         [](double sum, const StageReport& stage) { return sum + stage.seconds; });
}

}  // namespace

double LoaderReport::wait_share() const { return seconds > 0 ? waiting_seconds / seconds : 0; }

std::string LoaderReport::to_string() const {
  // Below this it is noise: a lock, a look.
  constexpr double kInputBound = 0.05;
  std::string words =
      fmt::format("{}{:.0f} % of step time waiting for input",
                  wait_share() > kInputBound ? "input-bound: " : "input: ", 100 * wait_share());
  if (!stages.empty() && all_seconds(stages) > 0)
    words += fmt::format("; {} takes {:.0f} % of worker time", stages[0].name,
                         100 * stages[0].seconds / all_seconds(stages));
  if (replaced.empty()) return words;
  words += fmt::format("\n{} damaged sample{} replaced:", replaced.size(),
                       replaced.size() == 1 ? " was" : "s were");
  constexpr size_t kShown = 20;
  for (size_t i = 0; i < std::min(kShown, replaced.size()); ++i) words += "\n  " + replaced[i];
  if (replaced.size() > kShown) words += fmt::format("\n  and {} more", replaced.size() - kShown);
  return words;
}

std::string LoaderReport::table() const {
  size_t width = 5;
  for (const StageReport& stage : stages) width = std::max(width, stage.name.size());
  std::string table = fmt::format("{:<{}}  {:>12}  {:>7}  {:>14}\n", "stage", width, "ms a sample",
                                  "share", "samples/s");
  for (const StageReport& stage : stages) {
    const double a_sample =
        stage.seconds / static_cast<double>(std::max<int64_t>(1, stage.samples));
    table += fmt::format("{:<{}}  {:>12.4f}  {:>5.1f} %  {:>14.0f}\n", stage.name, width,
                         1e3 * a_sample, 100 * stage.seconds / std::max(1e-12, all_seconds(stages)),
                         a_sample > 0 ? 1 / a_sample : 0);
  }
  return table;
}

}  // namespace tutti::data
