/// Samples held out of a training at random, to test on.
#pragma once

#include <cstdint>

#include "tutti/data/dataset.h"

namespace tutti::data {

struct HoldOutOptions {
  double share = 0.1;  ///< of the samples; floor(n * (1 - share)) are trained on
  uint64_t seed = 0;   ///< of the order whose end is held out, whatever the training's
};

struct Halves {
  Dataset train, held_out;
};

/// Before batch(). The same samples in every epoch and every training. What is learnt of the
/// samples, means say, should be learnt of `train`: of a table csv_halves() does so. Throws
/// UsageError unless 0 < share < 1 and a sample is left to train on.
Halves hold_out(const Dataset& all, HoldOutOptions options = {});

}  // namespace tutti::data
