/// What flags of a job, and of `tutti train`, are of use for. Without LibTorch.
/// Thread rule: pure functions.
#pragma once

#include <vector>

#include "tutti/base/idle.h"
#include "tutti/cli/train/flags.h"

namespace tutti::cli {

/// Flags that other ones have to give a use, beside those of a strategy (needs_of_options()): of
/// all jobs, and those of `tutti train` alone. UsageError for one that was typed and has none.
const std::vector<NeededBy<JobFlags>>& needs_of_jobs();
const std::vector<NeededBy<TrainFlags>>& needs_of_training();

}  // namespace tutti::cli
