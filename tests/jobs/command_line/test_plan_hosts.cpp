// tutti plan measure in a job of several hosts (network namespaces): the link between them comes
// into the machine file, and tutti plan uses it; who is lost is named.
#include <filesystem>
#include <fstream>

#include "tests/jobs/command_line/over_hosts.h"

namespace tutti::test {
namespace {

/// Noise is no reason for a test to fail: a spread of 10,000 % will do.
Words measure(const std::string& out, const Words& more = {}) {
  return Words{TUTTI_PROGRAM, "plan", "measure", "mlp", "--data", kDoodles, "--out", out} +
         words_of("--batches 4,32 --seconds 0.4 --most-spread 100") + more;
}

using PlanOverHosts = OverHosts;

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
  const auto machine = json_in(file);
  EXPECT_EQ(machine["compute"].size(), 2U);
  EXPECT_EQ(machine["link"]["hosts"], 2);
  EXPECT_GT(machine["link"]["bytes_per_second"], 1e6);
  EXPECT_GE(machine["link"]["latency"], 0);

  const auto exchange_of = [&](const Words& more, const char* said) {
    EXPECT_THAT(run_command(Words{TUTTI_PROGRAM, "plan", "mlp", "--machine", file, "--hosts", "2",
                                  "--batch", "16", "--json", folder / "p.json"} +
                            more),
                Exits(0, Out(HasSubstr(said))));
    const auto rows = json_in(folder / "p.json");
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
  EXPECT_THAT(run_command(Words{TUTTI_PROGRAM, "run", "-n", "2"} + measure(file)),
              Exits(2, Err(AllOf(HasSubstr("all 2 workers of the job are on one host"),
                                 HasSubstr("tutti run --nodes")))));
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace tutti::test
