/// `tutti bench scale`: what more replicas give, beside what as many would give that never talk.
/// Thread rule: the main thread alone.
#pragma once

#include <string>

#include "tutti/cli/bench/step.h"

namespace tutti::cli {

struct ScaleFlags {
  StepFlags step;  ///< strategy, model, data; the batch is that of one replica
  std::string replicas = "1,2";
  int64_t batch_per_replica = 64;
  int64_t rounds = 3;
};

/// Prints a table and a JSON line for each number of replicas, smallest first: images_per_second,
/// speedup (against the first), efficiency (speedup a replica), limit_images_per_second and
/// share_of_limit. Each measurement is a process of its own; strategy and limit take turns, medians
/// of all rounds count. Writes all lines to --json.
int bench_scale(const ScaleFlags& flags);

}  // namespace tutti::cli
