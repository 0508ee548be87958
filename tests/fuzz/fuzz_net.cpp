// The coverage-guided fuzzer of the network's parsers (TUTTI_FUZZ, clang):
//   build/fuzz/bin/fuzz_net -max_total_time=60 NEW_CORPUS tests/fuzz/corpus
#include "tests/fuzz/net_parsers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  tutti::test::parse_as_from_network({bytes, count});
  return 0;
}
