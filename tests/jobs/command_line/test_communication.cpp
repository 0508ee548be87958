// `--communication`: what ran is what was said, as the engines themselves have counted; the bits
// are the same where the order of summation is fixed.
#include <algorithm>

#include "tests/jobs/command_line/over_hosts.h"
#include "tests/support/mpirun.h"

namespace tutti::test {
namespace {

constexpr int kSteps = 5;

Words training(const Words& more) {
  return Words{TUTTI_PROGRAM, "train", "mlp", "--data", kDoodles, "--strategy", "multi_worker"} +
         words_of("--batch-size 64 --threads 1 --seed 3") +
         Words{"--max-steps", std::to_string(kSteps)} + more;
}

Words by(const std::string& name) { return {"--communication", name}; }

// Of all-reduces by that engine and algorithm, as the chief counted them.
int64_t bytes_summed(const json& figures, const std::string& engine,
                     const std::string& algorithm = "") {
  int64_t bytes = 0;
  for (const json& one : figures.at("communication").at("ran"))
    if (one.at("engine") == engine && one.at("collective") == "all_reduce" &&
        (algorithm.empty() || one.at("algorithm") == algorithm))
      bytes += one.at("bytes").get<int64_t>();
  return bytes;
}

// All gradients of all steps went that way, and what else the engine added up is little.
void expect_ran(const json& figures, const std::string& asked, const std::string& engine,
                const std::string& algorithm = "") {
  SCOPED_TRACE(asked + ": " + figures.at("communication").dump());
  const json& said = figures.at("communication");
  EXPECT_EQ(said.at("asked"), asked);
  EXPECT_EQ(said.at("engine"), engine);
  EXPECT_EQ(said.at("algorithm"), algorithm);
  EXPECT_EQ(said.at("order"), asked == "ring" ? "any" : "fixed");
  const int64_t gradients = kSteps * 4 * figures.at("parameters").get<int64_t>();
  for (const std::string& other : Words{"tcp", "mpi"}) {
    if (other == engine) {
      EXPECT_GE(bytes_summed(figures, other, algorithm), gradients);
      if (!algorithm.empty()) {
        EXPECT_EQ(bytes_summed(figures, other), bytes_summed(figures, other, algorithm));
      }
    } else {
      EXPECT_LT(bytes_summed(figures, other), gradients / 10) << other;
    }
  }
}

TEST(Communication, OfOneHostIsWhatWasAskedFor) {
  const auto train = [](const std::string& name) {
    return figures_of(training(Words{"--replicas", "2"} + by(name)));
  };
  const json usual = train("auto");
  expect_ran(usual, "auto", "shm");
  EXPECT_EQ(usual.at("communication").at("why"), "all 2 ranks are on one host");
  for (const std::string& name : Words{"shm", "tcp", "ring", "tree"}) {
    const json figures = train(name);
    const bool of_links = name == "ring" || name == "tree";
    expect_ran(figures, name, of_links ? "tcp" : name, of_links ? name : "");
    EXPECT_EQ(figures.at("communication").at("why"), "it was asked for");
    EXPECT_EQ(sha_of(figures), sha_of(usual)) << name << ": a sum of two is the same either way";
  }
  const json threads = figures_of(words_of(TUTTI_PROGRAM " train mlp --strategy mirrored") +
                                  Words{"--data", kDoodles} +
                                  words_of("--replicas 2 --batch-size 64 --threads 1 --seed 3 "
                                           "--max-steps 5 --communication shm"));
  expect_ran(threads, "shm", "shm");
  EXPECT_EQ(sha_of(threads), sha_of(usual));
}

TEST(Communication, OfOneHostHasAnOrderOfItsOwnRoundARing) {
  const auto train = [](const Words& more) {
    return sha_of(figures_of(training(Words{"--replicas", "3"} + more)));
  };
  const std::string usual = train({}), ring = train(by("ring"));
  EXPECT_EQ(train(by("ring")), ring) << "from run to run";
  EXPECT_NE(ring, usual) << "a ring of three adds otherwise";
  EXPECT_EQ(train(by("tree")), usual);
  EXPECT_EQ(train(by("tcp")), usual);
}

void expect_refused(const CommandResult& result, const std::string& why) {
  EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
  EXPECT_THAT(result.err, HasSubstr(why));
  EXPECT_THAT(result.out, Not(HasSubstr("epoch"))) << "before work starts";
}

TEST(Communication, ThatCannotServeIsRefused) {
  const auto run = [](const Words& more, const Words& launcher = {}) {
    return run_command(launcher + training(more), {}, kProgramLimit);
  };
  const Words two = {"--replicas", "2"};
  expect_refused(run(two + by("hier")),
                 "engine \"hier\": all 2 ranks are on one host; use shm or auto");
  expect_refused(run(two + by("mpi")), "engine \"mpi\": ");
  const Words launcher = {TUTTI_PROGRAM, "run", "-n", "2"};
  for (const std::string& name : Words{"ring", "tcp"})
    expect_refused(run(words_of("--replicas 4") + by(name), launcher),
                   "each worker has 2 replicas, which share its memory; expected one a worker");
}

// There is nobody to send to, which is said; what could not serve others cannot serve one.
TEST(Communication, OfOneReplicaIsJudgedAsThatOfMany) {
  const Words one = words_of(TUTTI_PROGRAM " run -n 1") + training(words_of("--replicas 1"));
  expect_refused(run_command(one + by("hier"), {}, kProgramLimit),
                 "engine \"hier\": there is one rank");
  expect_refused(run_command(one + by("mpi"), {}, kProgramLimit), "engine \"mpi\": ");
  const json ring = figures_of(one + by("ring"));
  EXPECT_EQ(ring.at("communication").at("engine"), "solo");
  EXPECT_EQ(ring.at("communication").at("why"),
            "there is one replica, which sends nothing (tcp was asked for)");
}

using CommunicationOverHosts = OverHosts;

std::vector<CommandResult> run_over(const TestHosts& hosts, int workers, const Words& more) {
  std::vector<Words> programs(static_cast<size_t>(hosts.count()), training(more));
  return test::run_over(hosts, workers, programs);
}

json train_over(const TestHosts& hosts, int workers, const Words& more) {
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  for (const CommandResult& result : run_over(hosts, workers, more + Words{"--json", file}))
    if (result.exit_code != 0) throw std::runtime_error(result.err + result.out);
  return json_in(file);
}

TEST_F(CommunicationOverHosts, IsWhatWasAskedFor) {
  const TestHosts hosts(2);
  const json usual = train_over(hosts, 2, by("auto"));
  EXPECT_EQ(usual.at("communication").at("engine"), "hier");
  EXPECT_EQ(usual.at("communication").at("why"), "4 ranks are on 2 hosts (2+2)");
  for (const std::string& name : Words{"tcp", "tree", "ring"}) {
    const json figures = train_over(hosts, 2, by(name));
    expect_ran(figures, name, "tcp", name == "tcp" ? "" : name);
    if (name == "ring") {
      EXPECT_NE(sha_of(figures), sha_of(usual));
      EXPECT_EQ(sha_of(figures), sha_of(train_over(hosts, 2, by("ring")))) << "from run to run";
    } else {
      EXPECT_EQ(sha_of(figures), sha_of(usual)) << name;
    }
  }
  const json named = train_over(hosts, 2, by("hier"));
  EXPECT_EQ(named.at("communication").at("engine"), "hier");
  EXPECT_EQ(named.at("communication").at("why"), "it was asked for");
  EXPECT_EQ(sha_of(named), sha_of(usual));
  // Each of two ranks of a host sends its half of the sums, and tcp carries nothing else of them.
  const int64_t half = kSteps * 4 * named.at("parameters").get<int64_t>() / 2;
  EXPECT_GT(bytes_summed(named, "tcp"), half * 7 / 10);
  EXPECT_LT(bytes_summed(named, "tcp"), half * 13 / 10);
  const json alone = train_over(hosts, 1, by("auto"));
  expect_ran(alone, "auto", "tcp");
}

// Each host's launcher ends with 1, since it hears of the other's worker first.
TEST_F(CommunicationOverHosts, ThatCannotServeIsRefused) {
  const TestHosts hosts(2);
  const auto expect_words = [&](const Words& more, const char* why) {
    for (const CommandResult& result : run_over(hosts, 1, more)) {
      EXPECT_NE(result.exit_code, 0) << result.out;
      EXPECT_THAT(result.err, HasSubstr(why));
      EXPECT_THAT(result.out, Not(HasSubstr("epoch"))) << "before work starts";
    }
  };
  expect_words(
      by("shm"),
      "engine \"shm\": each of the 2 ranks is on a host of its own; use hier, tcp or auto");
  expect_words(by("mpi"), "engine \"mpi\": ");
}

TEST(CommunicationByMpi, IsWhatWasAskedFor) {
  const std::string mpirun = TUTTI_TEST_MPIRUN;
  if (mpirun.empty()) GTEST_SKIP() << "no mpirun on this machine";
  const TempFolder folder;
  const std::string file = folder / "figures.json";
  const auto result =
      run_command(Words{mpirun, "-n", "2"} + training(by("mpi") + Words{"--json", file}),
                  launcher_settings(), kProgramLimit);
  if (result.err.find("not in this build") != std::string::npos)
    GTEST_SKIP() << "no MPI library in this build";
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  expect_ran(json_in(file), "mpi", "mpi");
  EXPECT_EQ(sha_of(json_in(file)), sha_of(figures_of(training({"--replicas", "2"}))));
}

}  // namespace
}  // namespace tutti::test
