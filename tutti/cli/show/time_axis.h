/// Of drawings whose axis is the clock. Thread rule: a pure function.
#pragma once

#include <vector>

#include "tutti/observe/drawing.h"

namespace tutti::cli {

/// Round numbers of us, ms or s up to `end_us`, then that itself; at most `most` + 1 of them, none
/// with an exponent. `end_us` >= 1: below a millisecond, a second it is us, ms.
std::vector<drawings::Tick> clock_ticks(double end_us, int most = 8);

}  // namespace tutti::cli
