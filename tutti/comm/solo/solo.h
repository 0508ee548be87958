/// The engine of a group of one: every operation is done when it is submitted.
///
/// The oracle of the other engines' conventions: argument errors, abort, allocate.
/// Thread rule: as Engine.
#pragma once

#include <memory>

#include "tutti/comm/engine/engine.h"

namespace tutti {

/// Makes a group of one: rank 0 of 1.
std::shared_ptr<Engine> make_solo();

}  // namespace tutti
