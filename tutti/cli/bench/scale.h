/// `tutti bench scale`: what more replicas give, beside what as many would give that never talk.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/cli/bench/step.h"
#include "tutti/observe/speeds.h"

namespace tutti::cli {

struct ScaleFlags {
  StepFlags step;  ///< strategy, model, data; the batch is that of one replica
  std::string replicas = "1,2";
  int64_t batch_per_replica = 64;
  int64_t rounds = 3;
  std::string svg{};  ///< file of the picture; "": none
};

/// What is measured of one number of replicas; medians of all rounds.
struct ScaleRow {
  int64_t replicas = 1;
  double images_per_second = 0;
  double limit = 0;           ///< images a second of as many that never talk
  double share_of_limit = 0;  ///< the median of the rounds' ratios
};

/// What is wrong with flags and data, before anything is measured; returns the numbers of replicas.
std::vector<int64_t> check_scale(const ScaleFlags& flags);

/// Threads of each replica, so that all numbers of replicas have the same.
int64_t threads_of_scale(const ScaleFlags& flags, const std::vector<int64_t>& counts);

/// Of one number of replicas: each measurement is a process of its own, strategy and limit in turn.
ScaleRow measure_scale(const ScaleFlags& flags, int64_t replicas, int64_t threads);

/// The picture, with the ideal line. `rows`: replicas ascending.
drawings::Speeds speeds_of(const ScaleFlags& flags, const std::vector<ScaleRow>& rows);

/// Prints a table and a JSON line for each number of replicas, smallest first: images_per_second,
/// speedup (against the first), efficiency (speedup a replica), limit_images_per_second and
/// share_of_limit. Writes all lines to --json, and the picture to --svg.
int bench_scale(const ScaleFlags& flags);

}  // namespace tutti::cli
