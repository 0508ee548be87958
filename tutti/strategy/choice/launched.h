/// What a launcher has started that a strategy has no part for. Without LibTorch.
/// Thread rule: it reads the environment, for the main thread.
#pragma once

#include "tutti/strategy/choice/options.h"

namespace tutti {

/// UsageError where a launcher, whichever it is, has started what the strategy has no part for:
/// several workers under one of one process, of which each would be the chief and do all of the
/// work, or servers under one that has none. Not where options.alone. Strategy asks it.
void check_launched(const StrategyOptions& options);

}  // namespace tutti
