/// Measures what a Machine says: steps of one replica at several batch sizes, and memory.
///
/// Thread rule: measure() calls the subject from its own thread, one call at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/plan/machine.h"

namespace tutti::plan {

/// Seconds of one step. What overlaps with what is left to who measures: the sum is the step.
struct StepSeconds {
  double input = 0;     ///< until the batch lies ready
  double forward = 0;   ///< the loss too
  double backward = 0;  ///< updates that are made while it goes on, too
  double update = 0;    ///< from the end of backward until the parameters are new
};

/// What is measured: a model, real or emulated.
struct Subject {
  std::string model;
  int64_t parameters = 0;
  int64_t bytes = 0;                               ///< of their gradients
  int64_t largest_parameter = 0;                   ///< bytes
  double update_streams = 7;                       ///< as in Machine
  std::function<StepSeconds(int64_t batch)> step;  ///< one step of so many samples
};

struct MeasureOptions {
  std::string name;                                  ///< of the machine
  std::vector<int64_t> batches{8, 16, 32, 64, 128};  ///< ascending
  double seconds = 15;       ///< for all batches together, in equal shares; > 0
  int least_steps = 12;      ///< of a batch, whatever that takes
  double most_spread = 0.3;  ///< of the middle half of a batch's steps, over their median
  /// Told before each batch: which, of how many.
  std::function<void(size_t batch, size_t batches)> progress;
};

/// A machine without its engines: times are medians, jitter is that of all steps over the median of
/// their batch, compute_error what medians of quarters of the steps differ by (0.02 at least).
/// Memory is the process's, from batch to batch. Throws UsageError for options that cannot be, and
/// Error where the times of a batch spread too far to say anything.
Machine measure(const Subject& subject, const MeasureOptions& options);

/// Bytes a second that `threads` cores read and write together, each copying 64 MiB.
double memory_rate_of(int threads);

}  // namespace tutti::plan
