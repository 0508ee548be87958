// main() of tests whose loaders start processes: this program again, which has to know all
// registered datasets, and all else that stands before main(), when it serves.
#include <gmock/gmock.h>

#include "tutti/data/loader/registered.h"

#include "tests/support/run_ranks.h"

int main(int argc, char** argv) {
  tutti::data::serve_if_loader();
  if (const int code = tutti::test::run_named_rank_program(); code >= 0) return code;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
