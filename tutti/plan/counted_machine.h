/// A Machine by counting, for who has none to measure: an accelerator known by what it computes.
///
/// Thread rule: a pure function.
#pragma once

#include <string>

#include "tutti/plan/arithmetic.h"
#include "tutti/plan/machine.h"

namespace tutti::plan {

/// Compute is Arithmetic::operations() at `operations_per_second` (> 0; what it does in fact, a
/// third to a half of what is on paper), a third of it forward, for any batch alike, without
/// jitter. Memory moves 10^12 bytes a second and has no end; the engine between hosts takes 10 us
/// and 100 GB/s. compute_error is 0.2: nothing was measured.
Machine counted_machine(const std::string& model, const Arithmetic& counted,
                        double operations_per_second);

}  // namespace tutti::plan
