#include "tutti/extras/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"

namespace tutti::plan {
namespace {

double sum_of_steps(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// The ranks that stay, ascending.
std::vector<size_t> ranks_that_stay(const RunRecord& record, std::span<const int> without) {
  for (const int rank : without)
    if (rank < 0 || rank >= record.ranks())
      throw UsageError(
          fmt::format("without rank:{}: the run has no such rank; expected rank:0 to rank:{}", rank,
                      record.ranks() - 1));
  std::vector<size_t> stay;
  for (int rank = 0; rank < record.ranks(); ++rank)
    if (std::ranges::find(without, rank) == without.end())
      stay.push_back(static_cast<size_t>(rank));
  if (stay.empty())
    throw UsageError(fmt::format("without all {} ranks of the run nothing is left: leave one in",
                                 record.ranks()));
  return stay;
}

double last_of(const RunStep& step, const std::vector<size_t>& ranks) {
  double last = step.there[ranks.front()];
  for (const size_t rank : ranks) last = std::max(last, step.there[rank]);
  return last;
}

}  // namespace

double Replayed::mean() const {
  return sum_of_steps(seconds) / static_cast<double>(seconds.size());
}

double Replayed::median() const {
  std::vector<double> sorted = seconds;
  std::ranges::sort(sorted);
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double Replayed::samples_per_second() const { return samples / sum_of_steps(seconds); }

Replayed replay(const RunRecord& record, std::span<const int> without) {
  const std::vector<size_t> stay = ranks_that_stay(record, without);
  if (record.steps.empty()) throw UsageError("replay: the record has no steps");
  double share = 0;
  for (const size_t rank : stay) share += record.shares[rank];
  Replayed replayed;
  for (const RunStep& step : record.steps) {
    const double follows = step.seconds - std::ranges::max(step.there);
    replayed.seconds.push_back(last_of(step, stay) + follows);
    replayed.exposed += follows / static_cast<double>(record.steps.size());
    replayed.samples += share * static_cast<double>(step.samples);
  }
  return replayed;
}

std::vector<RankCost> costs_of_ranks(const RunRecord& record) {
  std::vector<RankCost> costs(record.shares.size());
  for (const RunStep& step : record.steps) {
    ++costs[static_cast<size_t>(std::ranges::max_element(step.there) - step.there.begin())].last;
    for (size_t rank = 0; rank < costs.size(); ++rank) costs[rank].there += step.there[rank];
  }
  const double as_it_was = replay(record).mean();
  for (int rank = 0; rank < record.ranks(); ++rank) {
    RankCost& cost = costs[static_cast<size_t>(rank)];
    cost.there /= static_cast<double>(record.steps.size());
    if (record.ranks() > 1) cost.seconds = as_it_was - replay(record, std::span(&rank, 1)).mean();
  }
  return costs;
}

std::vector<int> parse_ranks(std::string_view text) {
  constexpr std::string_view kPrefix = "rank:";
  std::vector<int> ranks;
  for (const std::string_view part : parts_of(text, ',')) {
    const auto rank =
        part.starts_with(kPrefix) ? number_in<int>(part.substr(kPrefix.size())) : std::nullopt;
    if (!rank || *rank < 0)
      throw UsageError(fmt::format(
          "ranks \"{}\": got \"{}\", expected rank:N, as rank:3 or rank:3,rank:0", text, part));
    ranks.push_back(*rank);
  }
  return ranks;
}

}  // namespace tutti::plan
