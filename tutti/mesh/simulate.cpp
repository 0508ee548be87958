#include "tutti/mesh/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/mesh/check.h"

namespace tutti::mesh {
namespace {

class Clock {
 public:
  Clock(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        ends_(
            static_cast<size_t>(schedule.stages()) * 3 * static_cast<size_t>(schedule.microbatches),
            kUnknown),
        free_(schedule.actions.size()) {}

  // Whether all that it needs has an end.
  bool add(int rank, const Action& action, std::vector<Timed>& timeline) {
    const int stage = schedule_.stage_of(rank, action.chunk);
    double begin = free_[static_cast<size_t>(rank)];
    for (const Needed& needed : needs_of(schedule_, action.kind, stage)) {
      const double end = end_of(needed.kind, needed.stage, action.microbatch);
      if (end == kUnknown) return false;
      const bool sent = schedule_.rank_of(needed.stage) != rank;
      begin = std::max(begin, end + (sent ? costs_.send : 0));
    }
    const double end = begin + cost_of(action.kind, stage);
    timeline.push_back({action, begin, end});
    end_of(action.kind, stage, action.microbatch) = free_[static_cast<size_t>(rank)] = end;
    return true;
  }

 private:
  static constexpr double kUnknown = -1;

  double& end_of(Kind kind, int stage, int microbatch) {
    const size_t row = static_cast<size_t>(stage) * 3 + static_cast<size_t>(kind);
    return ends_[row * static_cast<size_t>(schedule_.microbatches) +
                 static_cast<size_t>(microbatch)];
  }
  double cost_of(Kind kind, int stage) const {
    if (costs_.stages.empty()) return cost_of(kind, StageCost{});
    return cost_of(kind, costs_.stages[costs_.stages.size() == 1 ? 0 : static_cast<size_t>(stage)]);
  }
  double cost_of(Kind kind, const StageCost& stage) const {
    if (kind == Kind::forward) return stage.forward;
    if (kind == Kind::weight) return stage.weight;
    return schedule_.split ? stage.backward : stage.backward + stage.weight;
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<double> ends_;  // by stage, kind and microbatch
  std::vector<double> free_;  // by rank
};

}  // namespace

double Simulation::bubble() const {
  if (seconds == 0) return 0;
  return 1 - std::accumulate(busy.begin(), busy.end(), 0.0) /
                 (static_cast<double>(busy.size()) * seconds);
}

Simulation simulate(const Schedule& schedule, const Costs& costs) {
  if (const auto given = std::ssize(costs.stages); given > 1 && given != schedule.stages())
    throw UsageError(
        fmt::format("simulate: costs of {} stages, expected one, or one for each of {}", given,
                    schedule.stages()));
  Clock clock(schedule, costs);
  Simulation result;
  result.timeline.resize(schedule.actions.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      const auto& actions = schedule.actions[static_cast<size_t>(rank)];
      auto& timeline = result.timeline[static_cast<size_t>(rank)];
      while (timeline.size() < actions.size() &&
             clock.add(rank, actions[timeline.size()], timeline))
        moved = true;
    }
  }
  for (const auto& timeline : result.timeline) {
    double busy = 0;
    for (const Timed& timed : timeline) busy += timed.end - timed.begin;
    const double window = timeline.empty() ? 0 : timeline.back().end - timeline.front().begin;
    result.busy.push_back(busy);
    result.waiting.push_back(window - busy);
    if (!timeline.empty()) result.seconds = std::max(result.seconds, timeline.back().end);
  }
  return result;
}

}  // namespace tutti::mesh
