/// A job of the launcher on several hosts of a test.
#pragma once

#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "tests/jobs/program.h"
#include "tests/support/hosts.h"

namespace tutti::test {

class OverHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  }
};

/// Each host starts `workers` of its program; `shell` is what starts the launcher there.
inline std::vector<CommandResult> run_over(const TestHosts& hosts, int workers,
                                           const std::vector<Words>& programs,
                                           const Words& shell = {}) {
  std::vector<std::future<CommandResult>> nodes;
  for (int h = 0; h < hosts.count(); ++h) {
    const std::string host = std::filesystem::path(hosts.path(h)).filename();
    const Words words = Words{"ip", "netns", "exec", host} + shell +
                        Words{TUTTI_PROGRAM,  "run",
                              "-n",           std::to_string(workers),
                              "--nodes",      std::to_string(hosts.count()),
                              "--node-rank",  std::to_string(h),
                              "--rendezvous", hosts.address(0) + ":29500"} +
                        programs.at(static_cast<size_t>(h));
    nodes.push_back(std::async(std::launch::async, [words] {
      return run_command(words, {"TUTTI_TOKEN=" + std::string(64, '5')}, Millis{300'000});
    }));
  }
  std::vector<CommandResult> results;
  for (auto& node : nodes) results.push_back(node.get());
  return results;
}

}  // namespace tutti::test
