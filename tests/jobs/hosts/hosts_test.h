/// What the tests of jobs over several hosts share.
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/support/hosts.h"
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

/// The last line that a launcher printed: the root cause.
inline std::string last_line(const RankOutcome& node) {
  const size_t end = node.log.find_last_not_of('\n');
  if (end == node.log.npos) return "";
  const size_t begin = node.log.rfind('\n', end);
  return node.log.substr(begin == node.log.npos ? 0 : begin + 1,
                         end - (begin == node.log.npos ? 0 : begin + 1) + 1);
}

}  // namespace tutti::test
