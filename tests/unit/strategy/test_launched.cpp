// What a launcher has started that would have no use, and what workers compare.
#include <gmock/gmock.h>

#include <cstdlib>
#include <map>
#include <string>

#include "tutti/base/error.h"
#include "tutti/strategy/choice/launched.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using Job = std::map<std::string, std::string>;

// Variables of a launcher, for as long as it lives.
class Launched {
 public:
  explicit Launched(Job variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Launched() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }
  Launched(const Launched&) = delete;

 private:
  Job variables_;
};

// Worker 1 of two.
const std::map<std::string, Job>& launchers() {
  static const std::map<std::string, Job> all = {
      {"tutti run", {{"TUTTI_WORKER", "1"}, {"TUTTI_NUM_WORKERS", "2"}}},
      {"torchrun",
       {{"TORCHELASTIC_RUN_ID", "x"},
        {"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "4000"}}},
      {"RANK and WORLD_SIZE", {{"RANK", "1"}, {"WORLD_SIZE", "2"}}},
      {"Open MPI", {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}},
      {"PMI", {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}},
      {"Slurm",
       {{"SLURM_PROCID", "1"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_STEP_NUM_TASKS", "2"},
        {"SLURM_JOB_ID", "7"}}},
      {"TF_CONFIG",
       {{"TF_CONFIG",
         R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})"}}},
  };
  return all;
}

TEST(StrategyLaunched, SeveralWorkersOfAStrategyOfOneProcessAreRefused) {
  for (const auto& [launcher, variables] : launchers()) {
    const Launched job(variables);
    for (const char* kind : {"one_device", "mirrored", "central_storage"}) {
      EXPECT_THAT(message_of<UsageError>([&] { check_launched({.kind = kind}); }),
                  AllOf(StartsWith(std::string("--strategy ") + kind + " is for one process, "),
                        HasSubstr("started 2 workers (" + launcher + ")"),
                        HasSubstr("--strategy multi_worker")))
          << launcher;
      EXPECT_NO_THROW(check_launched({.kind = kind, .alone = true})) << launcher;
    }
    EXPECT_NO_THROW(check_launched({.kind = "multi_worker"})) << launcher;
    EXPECT_NO_THROW(check_launched({.kind = "parameter_server"})) << launcher;
  }
}

TEST(StrategyLaunched, OneWorkerAndAnEvaluatorMayBeAlone) {
  EXPECT_NO_THROW(check_launched({}));
  {
    const Launched job(Job{{"TUTTI_WORKER", "0"}, {"TUTTI_NUM_WORKERS", "1"}});
    EXPECT_NO_THROW(check_launched({.kind = "mirrored"}));
  }
  const Launched job(Job{{"TF_CONFIG",
                          R"({"cluster": {"worker": ["a:1", "b:1"], "evaluator": ["c:1"]},
                           "task": {"type": "evaluator", "index": 0}})"}});
  EXPECT_NO_THROW(check_launched({}));
}

TEST(StrategyLaunched, ServersWithoutUseAreRefused) {
  const Launched job(Job{{"TUTTI_WORKER", "0"},
                         {"TUTTI_NUM_WORKERS", "1"},
                         {"TUTTI_NUM_SERVERS", "2"},
                         {"TUTTI_VIEW_SERVICE", "127.0.0.1:4000"}});
  for (const char* kind : {"one_device", "mirrored", "central_storage", "multi_worker"})
    EXPECT_THAT(message_of<UsageError>([&] { check_launched({.kind = kind}); }),
                AllOf(StartsWith(std::string("--strategy ") + kind + " has no part for the 2 par"),
                      HasSubstr("--strategy parameter_server")));
  EXPECT_NO_THROW(check_launched({.kind = "parameter_server"}));
  EXPECT_NO_THROW(check_launched({.alone = true}));
}

TEST(StrategyLaunched, TheOptionsOfAStrategyMakeAnother) {
  for (const char* kind : {"one_device", "mirrored", "central_storage"}) {
    StrategyOptions options = Strategy({.kind = kind, .replicas = 2}).options();
    options.replicas = 3;
    EXPECT_EQ(Strategy(options).num_replicas_in_sync(), 3) << kind;
  }
}

// Hosts with other numbers of cores have other numbers of threads, where nobody asks for some.
TEST(StrategyLaunched, WorkersCompareWhatTheyWereAskedFor) {
  const Strategy strategy({.kind = "mirrored", .replicas = 2});
  EXPECT_GT(strategy.options().threads_per_replica, 0);
  EXPECT_THAT(strategy.world().asked, HasSubstr("threads a replica: as many as fit\n"));
}

}  // namespace
}  // namespace tutti
