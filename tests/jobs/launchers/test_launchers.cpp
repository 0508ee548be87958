// The same program under other launchers, real ones where this machine has them: it finds its place
// in the variables that they set, meets the others at the rendezvous and sums with them.
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include "tutti/base/host.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/net/address.h"
#include "tutti/net/connect.h"
#include "tutti/net/credentials.h"
#include "tutti/net/listener.h"

#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/free_port.h"
#include "tests/support/mpirun.h"
#include "tests/support/run_ranks.h"
#include "tests/support/run_workers.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

using Variables = std::vector<std::string>;

const std::string kToken = "TUTTI_TOKEN=" + std::string(64, '7');
const std::string kNoToken = "TUTTI_TOKEN=";
const std::string kProgram = "TUTTI_TEST_PROGRAM=sum_under_a_launcher";

/// What a user's main() does: errors of use end it with code 2.
RANK_PROGRAM(sum_under_a_launcher) {
  try {
    Group world = join(20s);
    std::vector<int64_t> values = {1, world.rank()};
    world.all_reduce_now(span_of(std::span(values)), ReduceOp::sum);
    if (values[0] != world.size() || values[1] != world.size() * (world.size() - 1) / 2)
      throw Error(fmt::format("sums {} and {}", values[0], values[1]));
    rank.mark(fmt::format("rank {} of {}: sums right, {}", world.rank(), world.size(),
                          job_of_this_process().value().source));
  } catch (const UsageError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    std::fflush(nullptr);
    std::_Exit(2);
  }
}

/// Bound to the core that TUTTI_TEST_CORE names.
RANK_PROGRAM(join_when_bound) {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(std::stoul(std::getenv("TUTTI_TEST_CORE")), &core);
  if (sched_setaffinity(0, sizeof core, &core) != 0) throw Error(errno_words(errno));
  const Group world = join(20s);
  rank.mark(
      fmt::format("worker {} is rank {}", job_of_this_process().value().worker, world.rank()));
}

/// Worker 1 gives up first. On a thread that catches nothing, nothing is unwound.
RANK_PROGRAM(wait_for_one_that_never_comes) {
  std::thread([] { join(job_of_this_process().value().worker == 1 ? 3s : 60s); }).join();
}

/// A process for each set of variables, all at once.
std::vector<RankOutcome> start_each(const std::vector<Variables>& all,
                                    const std::string& program = "sum_under_a_launcher") {
  std::vector<std::future<RankOutcome>> running;
  for (const Variables& variables : all)
    running.push_back(std::async(std::launch::async, [variables, program] {
      return run_ranks(1, program, {.environment = variables})[0];
    }));
  std::vector<RankOutcome> outcomes;
  for (auto& one : running) outcomes.push_back(one.get());
  return outcomes;
}

/// Both sum under `make(worker)`, with a token and, on this host, with one that they draw.
void expect_two_that_sum(const std::function<Variables(int)>& make, const std::string& source) {
  for (const std::string& token : {kToken, kNoToken}) {
    std::vector<Variables> both = {make(0), make(1)};
    for (Variables& variables : both) variables.insert(variables.end(), {token, "TUTTI_LOG=info"});
    const auto outcomes = start_each(both);
    for (int worker : {0, 1}) {
      const RankOutcome& outcome = outcomes[static_cast<size_t>(worker)];
      EXPECT_EQ(outcome.exit_code, 0) << outcome.log;
      EXPECT_THAT(outcome.log,
                  HasSubstr(fmt::format("rank {} of 2: sums right, {}", worker, source)));
      const auto drawn = HasSubstr("no token was given: that of /tmp/tutti-tokens-");
      if (token == kNoToken)
        EXPECT_THAT(outcome.log, drawn);
      else
        EXPECT_THAT(outcome.log, Not(drawn));
    }
  }
}

TEST(Launchers, OverSeveralHostsATokenIsGiven) {
  const Variables by_hand = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=node7", "MASTER_PORT=29500",
                             kNoToken};
  const Variables tasks = {R"(TF_CONFIG={"cluster": {"worker": ["h1:2222", "h2:2222"]},)"
                           R"( "task": {"type": "worker", "index": 1}})",
                           kNoToken};
  for (const RankOutcome& outcome : start_each({by_hand, tasks})) {
    EXPECT_EQ(outcome.exit_code, 2) << outcome.log;
    EXPECT_THAT(outcome.log, AllOf(HasSubstr("no token"), HasSubstr("export TUTTI_TOKEN=")));
  }
}

// As in two containers of a pod: they share the loopback device, not /tmp.
TEST(Launchers, AWorkerWithAnotherTokenHearsWhereItsOwnIsFrom) {
  const JobLinks zero({.worker = 0,
                       .num_workers = 2,
                       .rendezvous = {"127.0.0.1", 0},
                       .hosts_rendezvous = true,
                       .name = "rank 0"},
                      {.token = Token::random(), .job = "a job"}, Deadline(20s));
  const Variables one = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                         fmt::format("MASTER_PORT={}", zero.listener()->address().port()),
                         kNoToken};
  const RankOutcome outcome = start_each({one}).at(0);
  EXPECT_EQ(outcome.error_class, "Mismatch") << outcome.log;
  EXPECT_THAT(outcome.error, AllOf(HasSubstr("another token"),
                                   HasSubstr("that of this host, in /tmp/tutti-tokens-")));
}

TEST(Launchers, VariablesOfTorchrunByHand) {
  const std::string port = std::to_string(free_port());
  expect_two_that_sum(
      [&](int worker) {
        const std::string number = std::to_string(worker);
        return Variables{"RANK=" + number,     "WORLD_SIZE=2",          "LOCAL_RANK=" + number,
                         "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port};
      },
      "RANK");
}

TEST(Launchers, AnErrorOfJoinThatNobodyCatchesEndsTheProcess) {
  const std::string port = std::to_string(free_port());
  std::vector<Variables> all;
  for (const int worker : {0, 1})
    all.push_back({fmt::format("RANK={}", worker), "WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1",
                   "MASTER_PORT=" + port, kToken});
  const auto outcomes = start_each(all, "wait_for_one_that_never_comes");
  EXPECT_THAT(outcomes[1].log, HasSubstr("had not come"));
  EXPECT_THAT(outcomes[0].log, AllOf(HasSubstr("error: rendezvous"), HasSubstr("rank 1")));
  for (const RankOutcome& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 1) << outcome.log;
}

TEST(Launchers, RanksOfAHostFollowTheCoresThatTheyAreBoundTo) {
  const std::vector<int>& cores = host_facts().cores;
  if (cores.size() < 2) GTEST_SKIP() << "needs two cores";
  const std::string port = std::to_string(free_port());
  std::vector<Variables> all;
  for (const int worker : {0, 1})
    all.push_back({fmt::format("RANK={}", worker), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                   "MASTER_PORT=" + port, kToken,
                   fmt::format("TUTTI_TEST_CORE={}", cores[worker == 0 ? 1 : 0])});
  const auto outcomes = start_each(all, "join_when_bound");
  EXPECT_THAT(outcomes[0].log, HasSubstr("worker 0 is rank 1"));
  EXPECT_THAT(outcomes[1].log, HasSubstr("worker 1 is rank 0"));
}

TEST(Launchers, TfConfig) {
  const std::string cluster = fmt::format(
      R"("cluster": {{"worker": ["127.0.0.1:{}", "127.0.0.1:{}"]}})", free_port(), free_port());
  expect_two_that_sum(
      [&](int worker) {
        return Variables{fmt::format(
            R"(TF_CONFIG={{{}, "task": {{"type": "worker", "index": {}}}}})", cluster, worker)};
      },
      "TF_CONFIG");
}

TEST(Launchers, VariablesOfSlurm) {
  const std::string port = std::to_string(free_port());
  expect_two_that_sum(
      [&](int worker) {
        const std::string number = std::to_string(worker);
        return Variables{"SLURM_JOB_ID=17",
                         "SLURM_STEP_ID=0",
                         "SLURM_PROCID=" + number,
                         "SLURM_LOCALID=" + number,
                         "SLURM_NODEID=0",
                         "SLURM_NTASKS=2",
                         "SLURM_STEP_NUM_TASKS=2",
                         "SLURM_STEP_NUM_NODES=1",
                         "SLURM_STEP_TASKS_PER_NODE=2",
                         "SLURM_STEP_NODELIST=127.0.0.1",
                         "SLURM_STEP_RESV_PORTS=" + port};
      },
      "Slurm");
}

/// A launcher's whole command, with a token and without: both ranks sum and it ends with 0.
void expect_command_sums(const std::vector<std::string>& command, Variables variables) {
  variables.push_back(kProgram);
  for (const std::string& token : {kNoToken, kToken}) {
    Variables all = variables;
    all.push_back(token);
    const CommandResult result = run_command(command, all, 120s);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(lines_after(result.out, "of 2: sums right"), SizeIs(2)) << result.out << result.err;
  }
}

TEST(Launchers, RealMpirun) {
  const std::string mpirun = TUTTI_TEST_MPIRUN;
  if (mpirun.empty()) GTEST_SKIP() << "no mpirun on this machine";
  expect_command_sums({mpirun, "-n", "2", own_path()}, launcher_settings());
}

TEST(Launchers, RealTorchrun) {
  const std::string torchrun = TUTTI_TEST_TORCHRUN;
  if (torchrun.empty()) GTEST_SKIP() << "no torchrun on this machine";
  expect_command_sums({torchrun, "--no-python", "--nproc-per-node", "2", "--master-addr",
                       "127.0.0.1", "--master-port", std::to_string(free_port()), own_path()},
                      {});
}

}  // namespace
}  // namespace tutti::test
