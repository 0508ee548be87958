// Who is in the job: each launcher's variables, and several at once.
#include <cstdlib>

#include "tutti/cluster/spec/cluster_spec.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

/// The spec as text, or what was thrown.
std::string outcome(const Variables& variables) {
  try {
    const auto spec = cluster_spec(variables);
    return spec ? to_string(*spec) : "nothing";
  } catch (const UsageError& error) {
    return std::string("UsageError: ") + error.what();
  }
}

struct Case {
  const char* name;
  Variables variables;
  std::vector<std::string> says;  ///< each is a part of the outcome
};

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const std::string got = outcome(c.variables);
    const bool refused = got.starts_with("UsageError");
    EXPECT_EQ(refused, c.says.front().starts_with("UsageError")) << c.name << ": " << got;
    for (const std::string& part : c.says) EXPECT_THAT(got, HasSubstr(part)) << c.name;
  }
}

Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"},
                             {"GROUP_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "job7"},
                             {"TORCHELASTIC_RESTART_COUNT", "0"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

const Variables kSlurm = {{"SLURM_JOB_ID", "123"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "3"},
                          {"SLURM_STEP_NUM_TASKS", "4"},
                          {"SLURM_NTASKS", "4"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_NUM_NODES", "2"},
                          {"SLURM_STEP_NODELIST", "n[07-08]"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};

const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"PMIX_NAMESPACE", "1888681985"},    {"PMIX_RANK", "1"}};

TEST(ClusterSpec, TuttiRun) {
  const Variables base = {{"TUTTI_WORKER", "2"}, {"TUTTI_NUM_WORKERS", "4"}, {"TUTTI_JOB", "ab12"}};
  check({
      {"nothing is set: a job of one", {{"HOME", "/root"}}, {"nothing"}},
      {"one host", base, {"worker 2 of 4, as tutti run says", "job         ab12"}},
      {"several hosts",
       with(base, {{"TUTTI_LOCAL_WORKER", "0"},
                   {"TUTTI_RENDEZVOUS", "[fd00::1]:4000"},
                   {"TUTTI_TOKEN_FILE", "/run/token"}}),
       {"on its host worker 0", "rendezvous  [fd00::1]:4000", "in the file /run/token"}},
      {"of two workers on each of two hosts",
       with(base, {{"TUTTI_LOCAL_WORKER", "0"}, {"TUTTI_NUM_LOCAL_WORKERS", "2"}}),
       {"on its host worker 0 of 2"}},
      {"an empty value is no value", {{"TUTTI_WORKER", ""}}, {"nothing"}},
      {"what a worker started is none", {{"TUTTI_JOB", "ab12"}}, {"nothing"}},
      {"numbers count from 0",
       with(base, {{"TUTTI_WORKER", "4"}}),
       {"UsageError: TUTTI_WORKER=4 contradicts TUTTI_NUM_WORKERS=4"}},
      {"a size without a number",
       {{"TUTTI_NUM_WORKERS", "4"}},
       {"UsageError: TUTTI_NUM_WORKERS=4 is set, but nothing says which worker this is"}},
      {"a number without a size",
       {{"TUTTI_WORKER", "4"}},
       {"UsageError: TUTTI_NUM_WORKERS is not set, but TUTTI_WORKER=4 is"}},
      {"not a number",
       with(base, {{"TUTTI_WORKER", "two"}}),
       {"UsageError: TUTTI_WORKER=\"two\": expected a whole number from 0 on"}},
      {"too large", with(base, {{"TUTTI_WORKER", "99999999999"}}), {"UsageError: TUTTI_WORKER"}},
      {"no workers", with(base, {{"TUTTI_NUM_WORKERS", "0"}}), {"UsageError: TUTTI_NUM_WORKERS"}},
      {"more here than there are",
       with(base, {{"TUTTI_LOCAL_WORKER", "3"}}),
       {"UsageError: TUTTI_LOCAL_WORKER=3 contradicts TUTTI_WORKER=2"}},
      {"a number beyond those of its host",
       with(base, {{"TUTTI_LOCAL_WORKER", "2"}, {"TUTTI_NUM_LOCAL_WORKERS", "2"}}),
       {"UsageError: TUTTI_LOCAL_WORKER=2 contradicts TUTTI_NUM_LOCAL_WORKERS=2"}},
      {"more on its host than in all",
       with(base, {{"TUTTI_NUM_LOCAL_WORKERS", "5"}}),
       {"UsageError: TUTTI_NUM_LOCAL_WORKERS=5 contradicts TUTTI_NUM_WORKERS=4"}},
      {"a rendezvous without a port",
       with(base, {{"TUTTI_RENDEZVOUS", "node1"}}),
       {"UsageError: TUTTI_RENDEZVOUS \"node1\": the port is missing"}},
  });
}

TEST(ClusterSpec, TheTokenIsNeverShown) {
  const Variables base = {{"TUTTI_WORKER", "0"},
                          {"TUTTI_NUM_WORKERS", "2"},
                          {"TUTTI_JOB", "j"},
                          {"TUTTI_TOKEN", "s3cret"}};
  EXPECT_THAT(outcome(base), AllOf(HasSubstr("in TUTTI_TOKEN"), Not(HasSubstr("s3cret"))));
}

TEST(ClusterSpec, OnOneHostNoTokenIsNeeded) {
  const auto by_hand = [](const char* address) {
    return Variables{
        {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", address}, {"MASTER_PORT", "4000"}};
  };
  const auto tasks = [](const std::string& first, const std::string& second) {
    return Variables{{"TF_CONFIG", fmt::format(R"({{"cluster": {{"worker": ["{}", "{}"]}},
                                                    "task": {{"type": "worker", "index": 1}}}})",
                                               first, second)}};
  };
  const struct {
    Variables variables;
    bool one_host;
  } cases[] = {
      {by_hand("127.0.0.1"), true},
      {by_hand("localhost"), true},
      {by_hand("::1"), true},
      {by_hand("127.0.0.2"), true},
      {by_hand("10.0.0.7"), false},
      {by_hand("node7"), false},
      {by_hand("localhost.node7"), false},
      {with(by_hand("node7"), {{"LOCAL_WORLD_SIZE", "2"}}), true},
      {with(by_hand("node7"), {{"LOCAL_WORLD_SIZE", "1"}}), false},
      {with(by_hand("127.0.0.1"), {{"LOCAL_WORLD_SIZE", "1"}}), true},
      {tasks("127.0.0.1:1", "localhost:2"), true},
      {tasks("node7:1", "node7:2"), true},
      {tasks("127.0.0.1:1", "node7:2"), false},
      {tasks("node7:1", "node8:1"), false},
      {kOpenMpi, true},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}),
       false},
      {kSlurm, false},
      {kTorchrun, false}};
  for (const auto& c : cases) {
    const std::string words = outcome(c.variables);
    EXPECT_EQ(on_one_host(cluster_spec(c.variables).value()), c.one_host) << words;
    EXPECT_EQ(words.find("token       none is needed") != words.npos, c.one_host) << words;
    const std::string given = outcome(with(c.variables, {{"TUTTI_TOKEN_FILE", "/run/token"}}));
    EXPECT_THAT(given, Not(HasSubstr("none is needed")));
  }
}

TEST(ClusterSpec, Torchrun) {
  const std::string port = std::to_string(derived_port("torchrun-job7-29500"));
  check({
      {"as torchrun sets it",
       kTorchrun,
       {"worker 5 of 8, as torchrun says", "job         torchrun-job7-29500", "worker 1 of 4",
        "rendezvous  node1:" + port, "torchrun itself uses 29500"}},
      {"a restart is another job",
       with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "2"}}),
       {"job         torchrun-job7-29500-restart2"}},
      {"without an agent the port is free",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "::1"}, {"MASTER_PORT", "1234"}},
       {"as RANK and WORLD_SIZE says", "rendezvous  [::1]:1234"}},
      {"no address", {{"RANK", "1"}, {"WORLD_SIZE", "2"}}, {"give TUTTI_RENDEZVOUS=HOST:PORT"}},
      {"RANK alone may be anybody's", {{"RANK", "1"}}, {"nothing"}},
      {"so may WORLD_SIZE", {{"WORLD_SIZE", "x"}}, {"nothing"}},
      {"but not beside an address",
       {{"RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}},
       {"UsageError: WORLD_SIZE is not set, but RANK=1 is"}},
      {"no port",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}},
       {"UsageError: MASTER_PORT is not set, but MASTER_ADDR=a is"}},
      {"no such port",
       with(kTorchrun, {{"MASTER_PORT", "65536"}}),
       {"UsageError: MASTER_PORT=65536 contradicts the highest port=65535"}},
      {"numbers count from 0",
       with(kTorchrun, {{"RANK", "8"}}),
       {"UsageError: RANK=8 contradicts WORLD_SIZE=8"}},
      {"the same on a host",
       with(kTorchrun, {{"LOCAL_RANK", "4"}}),
       {"UsageError: LOCAL_RANK=4 contradicts LOCAL_WORLD_SIZE=4"}},
      {"more here than there are",
       with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}),
       {"UsageError: LOCAL_WORLD_SIZE=9 contradicts WORLD_SIZE=8"}},
      {"more groups than there are",
       with(kTorchrun, {{"GROUP_RANK", "2"}}),
       {"UsageError: GROUP_RANK=2 contradicts GROUP_WORLD_SIZE=2"}},
  });
}

TEST(ClusterSpec, Slurm) {
  const std::string port = std::to_string(derived_port("slurm-123.0"));
  check({
      {"a task of a step",
       kSlurm,
       {"worker 3 of 4, as Slurm says", "job         slurm-123.0", "worker 1 of 2",
        "rendezvous  n07:" + port, "made from the job's id"}},
      {"a port was reserved",
       with(kSlurm, {{"SLURM_STEP_RESV_PORTS", "12000-12003"}}),
       {"rendezvous  n07:12000"}},
      {"a requeued job is another job",
       with(kSlurm, {{"SLURM_RESTART_COUNT", "1"}}),
       {"slurm-123.0-restart1"}},
      {"a batch script is no task",
       {{"SLURM_JOB_ID", "123"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
       {"nothing"}},
      {"nor is an interactive shell", with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}}), {"nothing"}},
      {"the step's size counts, not the allocation's",
       with(kSlurm, {{"SLURM_NTASKS", "64"}, {"SLURM_TASKS_PER_NODE", "32(x2)"}}),
       {"worker 3 of 4"}},
      {"numbers count from 0",
       with(kSlurm, {{"SLURM_PROCID", "4"}}),
       {"UsageError: SLURM_PROCID=4 contradicts SLURM_STEP_NUM_TASKS=4"}},
      {"tasks do not add up",
       with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2,1"}}),
       {"UsageError: SLURM_STEP_TASKS_PER_NODE=\"2,1\" are 3 tasks and contradict "
        "SLURM_STEP_NUM_TASKS=4"}},
      {"nodes do not add up",
       with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4"}}),
       {"UsageError: SLURM_STEP_TASKS_PER_NODE=\"4\" is about 1 nodes, and the list of nodes "
        "has 2"}},
      {"the list of nodes does not",
       with(kSlurm, {{"SLURM_STEP_NODELIST", "n7"}}),
       {"UsageError: SLURM_STEP_NODELIST=\"n7\" are 1 nodes and contradict "
        "SLURM_STEP_NUM_NODES=2"}},
      {"too many on this node",
       with(kSlurm, {{"SLURM_LOCALID", "2"}}),
       {"UsageError: SLURM_LOCALID=2 contradicts SLURM_STEP_TASKS_PER_NODE=2"}},
      {"no such node", with(kSlurm, {{"SLURM_NODEID", "2"}}), {"UsageError: SLURM_NODEID=2"}},
      {"a damaged list",
       with(kSlurm, {{"SLURM_STEP_NODELIST", "n[1-"}}),
       {"UsageError: SLURM_STEP_NODELIST=\"n[1-\": expected a number at character 5"}},
  });
}

TEST(ClusterSpec, MpiLaunchers) {
  const std::string port = std::to_string(derived_port("mpi-1888681985"));
  check({
      {"Open MPI on one host",
       kOpenMpi,
       {"worker 1 of 2, as Open MPI says", "job         mpi-1888681985",
        "rendezvous  127.0.0.1:" + port, "PMIX_RANK=1 (PMIx) agrees"}},
      {"on several it does not say where rank 0 is",
       with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}),
       {"give mpirun -x TUTTI_RENDEZVOUS=HOST:PORT"}},
      {"numbers count from 0",
       with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}),
       {"UsageError: OMPI_COMM_WORLD_RANK=2 contradicts OMPI_COMM_WORLD_SIZE=2"}},
      {"no size", {{"OMPI_COMM_WORLD_RANK", "0"}}, {"UsageError: OMPI_COMM_WORLD_SIZE is not set"}},
      {"more here than there are",
       with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}),
       {"UsageError: OMPI_COMM_WORLD_LOCAL_SIZE=3 contradicts OMPI_COMM_WORLD_SIZE=2"}},
      {"MPICH's mpiexec",
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
       {"worker 1 of 2, as PMI says", "without an id", "worker 1 of 2", "set TUTTI_RENDEZVOUS"}},
      {"with an id, all on one host",
       {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_JOBID", "7.0"}},
       {"rendezvous  127.0.0.1:" + std::to_string(derived_port("pmi-7.0"))}},
      {"no size", {{"PMI_RANK", "1"}}, {"UsageError: PMI_SIZE is not set, but PMI_RANK=1"}},
      {"PMIx says no size",
       {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "x"}},
       {"UsageError: PMIX_RANK=1 is set, but nothing says how many"}},
      {"so it is given",
       {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "x"}, {"TUTTI_NUM_WORKERS", "2"}},
       {"worker 1 of 2, as PMIx says", "pmix-x"}},
  });
}

TEST(ClusterSpec, Kubernetes) {
  const Variables pod = {{"JOB_COMPLETION_INDEX", "2"},
                         {"HOSTNAME", "train-2"},
                         {"TUTTI_NUM_WORKERS", "3"},
                         {"TUTTI_RENDEZVOUS", "train-0.train:29400"}};
  check({
      {"a pod of an indexed job",
       pod,
       {"worker 2 of 3, as Kubernetes says", "job         k8s-train",
        "rendezvous  train-0.train:29400"}},
      {"an id of its own", with(pod, {{"TUTTI_JOB", "uid9"}}), {"job         uid9"}},
      {"another host name", with(pod, {{"HOSTNAME", "train-1"}}), {"without an id"}},
      {"no size",
       with(pod, {{"TUTTI_NUM_WORKERS", ""}}),
       {"UsageError: JOB_COMPLETION_INDEX=2 is set, but nothing says how many",
        "set TUTTI_NUM_WORKERS (1 for a process that works alone)"}},
      {"too small a size",
       with(pod, {{"TUTTI_NUM_WORKERS", "2"}}),
       {"UsageError: JOB_COMPLETION_INDEX=2 contradicts TUTTI_NUM_WORKERS=2"}},
      {"pods that have nothing to do with each other",
       with(pod, {{"TUTTI_NUM_WORKERS", "1"}}),
       {"worker 0 of 1, as Kubernetes says",
        "TUTTI_NUM_WORKERS=1: works alone, whatever JOB_COMPLETION_INDEX=2 counts"}},
      {"no rendezvous", with(pod, {{"TUTTI_RENDEZVOUS", ""}}), {"JOB-0.SERVICE:PORT"}},
  });
}

TEST(ClusterSpec, SeveralLaunchersAgreeNestOrContradict) {
  const Variables run = {{"TUTTI_WORKER", "5"}, {"TUTTI_NUM_WORKERS", "8"}, {"TUTTI_JOB", "j"}};
  const Variables by_hand = {
      {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n07"}, {"MASTER_PORT", "4000"}};
  check({
      {"tutti run inside a Slurm task",
       with(kSlurm, run),
       {"worker 5 of 8, as tutti run says",
        "started inside SLURM_PROCID=3, SLURM_STEP_NUM_TASKS=4 (Slurm)"}},
      {"a job of its own in every Slurm task",
       with(kSlurm, {{"TUTTI_WORKER", "0"}, {"TUTTI_NUM_WORKERS", "2"}, {"TUTTI_JOB", "j"}}),
       {"worker 0 of 2, as tutti run says"}},
      {"torchrun numbers its nodes as it likes", with(kSlurm, kTorchrun), {"worker 5 of 8"}},
      {"mpirun inside Slurm", with(kSlurm, kOpenMpi), {"worker 1 of 2, as Open MPI says"}},
      {"tutti run inside mpirun, one a host", with(kOpenMpi, run), {"worker 5 of 8"}},
      {"torchrun inside tutti run would give workers the same number",
       with(kTorchrun, {{"TUTTI_WORKER", "1"}, {"TUTTI_NUM_WORKERS", "2"}}),
       {"UsageError: TUTTI_WORKER=1, TUTTI_NUM_WORKERS=2 (tutti run) contradicts RANK=5, "
        "WORLD_SIZE=8 (torchrun)"}},
      {"RANK by hand, as Slurm has it",
       with(kSlurm, by_hand),
       {"worker 3 of 4", "rendezvous  n07:4000", "(Slurm) agrees", "worker 1 of 2"}},
      {"RANK set once for all tasks",
       with(kSlurm, with(by_hand, {{"RANK", "0"}})),
       {"UsageError: RANK=0, WORLD_SIZE=4 (RANK and WORLD_SIZE) contradicts SLURM_PROCID=3, "
        "SLURM_STEP_NUM_TASKS=4 (Slurm)"}},
      {"srun --mpi=pmi2",
       with(kSlurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}),
       {"worker 3 of 4, as PMI says", "rendezvous  n07:", "job         slurm-123.0"}},
      {"srun --mpi=pmix", with(kSlurm, {{"PMIX_RANK", "3"}}), {"PMIX_RANK=3 (PMIx) agrees"}},
      {"srun --mpi=pmix with another number",
       with(kSlurm, {{"PMIX_RANK", "2"}}),
       {"UsageError: SLURM_PROCID=3, SLURM_STEP_NUM_TASKS=4 (Slurm) contradicts PMIX_RANK=2"}},
      {"RANK by hand in a pod",
       {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"JOB_COMPLETION_INDEX", "1"}},
       {"UsageError: RANK=0", "contradicts JOB_COMPLETION_INDEX=1 (Kubernetes)"}},
      {"a size that the launcher does not have",
       with(kSlurm, {{"TUTTI_NUM_WORKERS", "5"}}),
       {"UsageError: TUTTI_NUM_WORKERS=5 contradicts SLURM_PROCID=3, SLURM_STEP_NUM_TASKS=4"}},
      {"a rendezvous by hand is taken, and said",
       with(kSlurm, {{"TUTTI_RENDEZVOUS", "login:7000"}}),
       {"rendezvous  login:7000", "TUTTI_RENDEZVOUS=login:7000 is taken instead of n07:"}},
      {"tutti run with a TF_CONFIG of other workers",
       with(run, {{"TF_CONFIG",
                   R"({"cluster":{"worker":["a:1","b:1","c:1","d:1","e:1","f:1","g:1","h:1"]},
                       "task":{"type":"worker","index":0}})"}}),
       {"UsageError: TUTTI_WORKER=5, TUTTI_NUM_WORKERS=8 (tutti run) contradicts TF_CONFIG task=0, "
        "TF_CONFIG cluster=8 (TF_CONFIG)"}},
      {"a parameter server is no worker of tutti run",
       with(run, {{"TF_CONFIG", R"({"cluster":{"worker":["a:1"],"ps":["b:1"]},
                                    "task":{"type":"ps","index":0}})"}}),
       {"UsageError: TUTTI_WORKER=5, TUTTI_NUM_WORKERS=8 (tutti run) contradicts server 0 beside 1 "
        "workers (TF_CONFIG)"}},
      {"a TF_CONFIG with servers inside Slurm",
       with(kSlurm, {{"TF_CONFIG", R"({"cluster":{"worker":["a:1","b:1"],"ps":["c:1"]},
                                       "task":{"type":"worker","index":1}})"}}),
       {"worker 1 of 2, as TF_CONFIG says", "is not compared: it counts servers too"}},
  });
}

TEST(ClusterSpec, DerivedPortsAreStableAndInTheirRange) {
  EXPECT_EQ(derived_port("slurm-123.0"), derived_port("slurm-123.0"));
  EXPECT_NE(derived_port("slurm-123.0"), derived_port("slurm-124.0"));
  // Fixed for all time: workers of one job may run different builds.
  EXPECT_EQ(derived_port(""), 20'000 + 0xcbf29ce484222325 % 10'000);
  for (int i = 0; i < 1000; ++i) {
    const int port = derived_port("job " + std::to_string(i));
    EXPECT_GE(port, 20'000);
    EXPECT_LT(port, 30'000);
  }
}

TEST(ClusterSpec, TheEnvironmentIsReadAsItIs) {
  ASSERT_EQ(setenv("TUTTI_TEST_EXTRA", "a=b", 1), 0);
  EXPECT_THAT(environment_variables(), Contains(Pair("TUTTI_TEST_EXTRA", "a=b")));
  ASSERT_EQ(unsetenv("TUTTI_TEST_EXTRA"), 0);
  EXPECT_THAT(environment_variables(), Not(Contains(testing::Key("TUTTI_TEST_EXTRA"))));
}

}  // namespace
}  // namespace tutti
