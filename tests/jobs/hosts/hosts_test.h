/// What the tests of jobs over several hosts share.
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tutti/comm/group/group.h"

#include "tests/support/hosts.h"
#include "tests/support/reduce_oracle.h"
#include "tests/support/run_workers.h"

namespace tutti::test {

class Hosts : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  }
};

inline std::string logs_of(const std::vector<RankOutcome>& nodes) {
  std::string all;
  for (const RankOutcome& node : nodes) all += node.log + "\n--\n";
  return all;
}

/// Sums what ordinary_values() gives each rank, and compares with the oracle.
inline bool sum_is_right(Group& world, int64_t num_elements) {
  std::vector<Bytes> given;
  for (int r = 0; r < world.size(); ++r)
    given.push_back(ordinary_values(DType::float32, num_elements, 3, r));
  Bytes mine = given[static_cast<size_t>(world.rank())];
  world.all_reduce({mine.data(), num_elements, DType::float32}, ReduceOp::sum).wait();
  return mine == oracle(DType::float32, ReduceOp::sum, world.reduction_shape(), given);
}

/// The last line that a launcher printed: the root cause.
inline std::string last_line(const RankOutcome& node) {
  const size_t end = node.log.find_last_not_of('\n');
  if (end == node.log.npos) return "";
  const size_t begin = node.log.rfind('\n', end);
  return node.log.substr(begin == node.log.npos ? 0 : begin + 1,
                         end - (begin == node.log.npos ? 0 : begin + 1) + 1);
}

}  // namespace tutti::test
