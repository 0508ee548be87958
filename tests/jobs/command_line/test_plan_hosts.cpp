// tutti plan measure in a job of several hosts (network namespaces): the link between them comes
// into the machine file, and tutti plan uses it; who is lost is named.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <future>

#include <nlohmann/json.hpp>

#include "tests/support/command.h"
#include "tests/support/hosts.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Noise is no reason for a test to fail: a spread of 10,000 % will do.
Words measure(const std::string& out, const Words& more = {}) {
  return Words{TUTTI_PROGRAM, "plan", "measure",   "mlp", "--data",        kDoodles, "--out", out,
               "--batches",   "4,32", "--seconds", "0.4", "--most-spread", "100"} +
         more;
}

/// Each host starts `workers` of its program.
std::vector<CommandResult> run_over(const TestHosts& hosts, int workers,
                                    const std::vector<Words>& programs) {
  std::vector<std::future<CommandResult>> nodes;
  for (int h = 0; h < hosts.count(); ++h) {
    const std::string host = std::filesystem::path(hosts.path(h)).filename();
    const Words words = Words{"ip",           "netns",
                              "exec",         host,
                              TUTTI_PROGRAM,  "run",
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

class PlanOverHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = TestHosts::why_not(); !why.empty()) GTEST_SKIP() << why;
  }
};

// Two workers a host: one of them measures, one takes part, two wait.
TEST_F(PlanOverHosts, TheLinkThatWasMeasuredIsUsed) {
  const TempFolder folder;
  const std::string file = folder / "here.json", other = folder / "other.json";
  const Words quick{"--link-seconds", "2"};  // medians of many, whatever else runs here
  const auto results = run_over(TestHosts(2), 2, {measure(file, quick), measure(other, quick)});
  for (const CommandResult& one : results) ASSERT_EQ(one.exit_code, 0) << one.out << one.err;
  EXPECT_THAT(results[0].out, AllOf(HasSubstr("all-reduce ms"), HasSubstr("262144"),
                                    HasSubstr("link between 2 hosts: "), Not(HasSubstr("--link"))));
  EXPECT_FALSE(std::filesystem::exists(other)) << "rank 0 alone writes";
  const auto machine = nlohmann::json::parse(std::ifstream(file));
  EXPECT_EQ(machine["compute"].size(), 2U);
  EXPECT_EQ(machine["link"]["hosts"], 2);
  EXPECT_GT(machine["link"]["bytes_per_second"], 1e6);
  EXPECT_GE(machine["link"]["latency"], 0);

  const auto exchange_of = [&](const Words& more, const char* said) {
    const auto planned =
        run_command(Words{TUTTI_PROGRAM, "plan", "mlp", "--machine", file, "--hosts", "2",
                          "--batch", "16", "--json", folder / "p.json"} +
                    more);
    EXPECT_EQ(planned.exit_code, 0) << planned.err;
    EXPECT_THAT(planned.out, HasSubstr(said));
    const auto rows = nlohmann::json::parse(std::ifstream(folder / "p.json"));
    return rows.at(0).at("exchange_seconds").get<double>();
  };
  const double measured = exchange_of({}, ", measured between 2 hosts");
  EXPECT_GT(exchange_of({"--link", "1Mbit,1ms"}, "hosts"), measured) << "--link wins";
  // What predictions make of the file's figures is what they make of the same figures by hand.
  const auto by_hand =
      fmt::format("{}MB,{}s", machine["link"]["bytes_per_second"].get<double>() / 1e6,
                  machine["link"]["latency"].get<double>());
  EXPECT_NEAR(exchange_of({"--link", by_hand}, "hosts") / measured, 1, 1e-9);
}

// Killed once the all-reduces have begun, of which there would be minutes.
TEST_F(PlanOverHosts, AWorkerThatDiesIsNamed) {
  const TempFolder folder;
  const std::string file = folder / "here.json", said = folder / "said";
  std::ofstream{said};
  const Words longer = measure(file, {"--link-seconds", "600"});
  const Words tells = Words{"sh", "-c", "exec \"$@\" 2> \"$0\"", said} + longer;
  const Words dies = Words{"sh", "-c",
                           "\"$@\" & until grep -q 'link between' \"$0\"; do sleep 0.05; done; "
                           "kill -KILL $!; wait $!",
                           said} +
                     longer;
  const auto results = run_over(TestHosts(2), 1, {tells, dies});
  for (const CommandResult& one : results) {
    EXPECT_FALSE(one.timed_out);
    EXPECT_NE(one.exit_code, 0) << one.out << one.err;
  }
  EXPECT_THAT(get_bytes(said) + results[0].err, HasSubstr("rank 1"));
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(PlanOverHosts, WrongInputOfRankZeroIsToldToAll) {
  const TempFolder folder;
  const auto results = run_over(
      TestHosts(2), 1, {measure(folder / "none/here.json"), measure(folder / "none/other.json")});
  EXPECT_EQ(results[0].exit_code, 2) << results[0].out << results[0].err;
  for (const CommandResult& one : results) {
    EXPECT_NE(one.exit_code, 0);
    EXPECT_THAT(one.err, HasSubstr("none/here.json: cannot be written"));
    EXPECT_THAT(one.err, HasSubstr("rank 0"));
  }
}

TEST(PlanMeasure, OfWorkersOnOneHostIsRefused) {
  const TempFolder folder;
  const std::string file = folder / "here.json";
  const auto refused = run_command(Words{TUTTI_PROGRAM, "run", "-n", "2"} + measure(file));
  EXPECT_EQ(refused.exit_code, 2) << refused.out << refused.err;
  EXPECT_THAT(refused.err, AllOf(HasSubstr("all 2 workers of the job are on one host"),
                                 HasSubstr("tutti run --nodes")));
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace tutti::test
