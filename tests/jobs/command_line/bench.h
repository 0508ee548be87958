/// `tutti bench` and the lines that it writes.
#pragma once

#include "tests/jobs/program.h"

namespace tutti::test {

inline CommandResult bench(const Words& words, const Words& environment = {}) {
  return run_command(Words{TUTTI_PROGRAM, "bench"} + words, environment, Millis{280'000});
}

}  // namespace tutti::test
