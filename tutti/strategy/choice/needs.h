/// What options are of use for, and what a launcher has started that a strategy has no part for.
/// Without LibTorch. Thread rule: pure functions, but for check_launched(), which reads the
/// environment.
#pragma once

#include <vector>

#include "tutti/base/idle.h"
#include "tutti/strategy/choice/options.h"

namespace tutti {

/// Options that other ones have to give a use, by their flags ("--deterministic"), or by name where
/// they have none. check_options() refuses others.
const std::vector<NeededBy<StrategyOptions>>& needs_of_options();

/// UsageError for one that has none.
void refuse_idle_options(const StrategyOptions& options);

/// UsageError for options of NCCL: where it is known that nobody in the world has it.
void refuse_nccl_options(const StrategyOptions& options);

/// UsageError where a launcher, whichever it is, has started what the strategy has no part for:
/// several workers under one of one process, of which each would be the chief and do all of the
/// work, or servers under one that has none. Not where options.alone. Strategy asks it.
void check_launched(const StrategyOptions& options);

}  // namespace tutti
