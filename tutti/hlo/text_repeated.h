/// main() of a program that is repeated: passes of @pass, one after the other.
/// Thread rule: a pure function.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/hlo/program.h"

namespace tutti::hlo {

/// The function as text; Program::text() says what it takes and gives. times > 1.
std::string repeated(const Program& program, int64_t times);

}  // namespace tutti::hlo
