// main() of every test binary: runs the tests, or the rank program that the environment names.
#include <gmock/gmock.h>

#include "tests/support/run_ranks.h"

int main(int argc, char** argv) {
  if (const int code = tutti::test::run_named_rank_program(); code >= 0) return code;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
