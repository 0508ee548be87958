/// `tutti show t1-t2` and `tutti show scaling`: what a step is made of, and what more replicas
/// give. Thread rule: the main thread alone; t1_t2_shown() and scaling_shown() are pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/cli/bench/scale.h"
#include "tutti/cli/show/shown.h"

namespace tutti::cli {

struct Command;

/// What a step of a model is made of: milliseconds of one step, or sum, that was measured, the one
/// in the middle of several.
struct StepParts {
  std::string model;
  int64_t replicas = 2;
  int64_t gradient_bytes = 0;  ///< of one replica
  double t1_ms = 0;            ///< forward and backward, of as many replicas that never talk
  double t2_ms = 0;            ///< the sum of all gradients while nobody computes
  double compute_ms = 0;       ///< forward and backward, of replicas that talk
  double sync_ms = 0;          ///< from the end of backward until the parameters are new
  double step_ms = 0;          ///< all of that step; what is missing comes before computing
};

Shown t1_t2_shown(const StepParts& parts);

/// `rows`: replicas ascending, 1 to 12 of them.
Shown scaling_shown(const ScaleFlags& flags, const std::vector<ScaleRow>& rows);

void add_show_t1_t2(Command& show);
void add_show_scaling(Command& show);

}  // namespace tutti::cli
