// Which engines the conformance suite runs on: one line each. make_engines() of
// tests/support/comm.h makes them.
#include "tests/ranks/comm/conformance.h"
#include "tests/support/hier.h"

namespace tutti::test {
namespace {

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = fmt::format("{}_{}", info.param.engine, info.param.ranks);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

std::vector<Case> on(const char* engine, std::initializer_list<int> sizes) {
  std::vector<Case> cases;
  for (int ranks : sizes) cases.push_back({engine, ranks});
  return cases;
}

// Two hosts, the first with one rank more when their number is odd; small chunks.
const bool hier_is_known =
    more_engines()
        .emplace("hier",
                 [](int size) { return make_hier_threads({(size + 1) / 2, size / 2}, 4096); })
        .second;

INSTANTIATE_TEST_SUITE_P(Solo, Conformance, testing::ValuesIn(on("solo", {1})), case_name);
INSTANTIATE_TEST_SUITE_P(Shm, Conformance, testing::ValuesIn(on("shm", {1, 2, 3, 4, 7, 18})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(ShmStaged, Conformance, testing::ValuesIn(on("shm staged", {2, 3, 5, 18})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Tcp, Conformance, testing::ValuesIn(on("tcp", {1, 2, 3, 4, 7, 12})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(TcpLoopback, Conformance, testing::ValuesIn(on("tcp loopback", {2, 3, 8})),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Hier, Conformance, testing::ValuesIn(on("hier", {2, 3, 4, 7})), case_name);

INSTANTIATE_TEST_SUITE_P(Solo, SharedMemoryConformance, testing::ValuesIn(on("solo", {1})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Shm, SharedMemoryConformance,
                         testing::ValuesIn(on("shm", {1, 2, 3, 4, 7, 18})), case_name);
INSTANTIATE_TEST_SUITE_P(ShmStaged, SharedMemoryConformance,
                         testing::ValuesIn(on("shm staged", {2, 3, 5, 18})), case_name);

}  // namespace
}  // namespace tutti::test
