/// How many of a test's seeds are tried.
#pragma once

#include <cstdlib>

namespace tutti::test {

/// Of `all`: all where TUTTI_TEST_ALL_SEEDS is set, as in CI, else a quarter.
inline int seeds(int all) {
  static const bool kAll = std::getenv("TUTTI_TEST_ALL_SEEDS") != nullptr;
  return kAll ? all : (all + 3) / 4;
}

}  // namespace tutti::test
