/// How long a schedule takes, from what each stage takes: every rank does its actions in order,
/// each as soon as what it needs is there. Nothing else is modelled: sends overlap with work, and
/// ranks share no core.
///
/// Thread rule: pure functions.
#pragma once

#include <vector>

#include "tutti/mesh/schedule.h"

namespace tutti::mesh {

/// Of one microbatch, in any unit of time, each >= 0.
struct StageCost {
  double forward = 1;
  double backward = 1;  ///< of the input
  double weight = 1;    ///< where backward is not split, B takes both
};

struct Costs {
  std::vector<StageCost> stages{};  ///< one a stage; one alone: all the same; empty: of 1 each
  double send = 0;                  ///< from the end of one action to another rank's that needs it
};

struct Timed {
  Action action;
  double begin = 0;
  double end = 0;
};

struct Simulation {
  std::vector<std::vector<Timed>> timeline;  ///< by rank
  double seconds = 0;                        ///< the end of the last action, in the costs' unit
  std::vector<double> busy;                  ///< by rank
  std::vector<double> waiting;  ///< by rank, between its first action's begin and its last's end

  /// The share of all ranks' time in which they have nothing to do: 1 - busy / (ranks x seconds).
  double bubble() const;
};

/// The schedule has to be one without fault (check.h). Throws UsageError for a number of costs that
/// is neither 0, 1 nor that of the stages.
Simulation simulate(const Schedule& schedule, const Costs& costs);

}  // namespace tutti::mesh
