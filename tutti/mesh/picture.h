/// A picture of a schedule: a row a rank, time from left to right, as SVG that stands alone.
/// Thread rule: a pure function.
#pragma once

#include <string>

#include "tutti/mesh/simulate.h"

namespace tutti::mesh {

/// F blue, B orange, W green (Okabe and Ito's colours), paler in odd chunks; numbers are
/// microbatches, where there is room for them. White is waiting.
std::string to_svg(const Schedule& schedule, const Simulation& simulation);

}  // namespace tutti::mesh
