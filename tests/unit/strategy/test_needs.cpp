// Options that do nothing where they stand, and what a launcher has started that would have no use.
#include <gmock/gmock.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/strategy/choice/needs.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using test::message_of;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using Flags = std::vector<std::string>;

StrategyOptions typed_as(Flags words) {
  words.insert(words.begin(), "program");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(words.size());
  return take_strategy_flags(argc, argv.data());
}

Flags joined(Flags words, const Flags& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A flag with the value that it has anyway, where it does nothing and where it does something.
struct Example {
  std::string value;
  Flags useless;
  Flags useful;
};

std::map<std::string, Example> examples(const std::string& table) {
  const Flags gpus = {"--strategy", "multi_worker", "--device", "cuda"};
  const Flags one_gpu = {"--device", "cuda:0"};
  const Flags servers = {"--strategy", "parameter_server"};
  const Flags out_of_step = joined(servers, {"--staleness", "inf"});
  const Flags mirrored = {"--strategy", "mirrored"};
  return {
      {"--engine", {"nccl", {"--strategy", "multi_worker"}, gpus}},
      {"--sum-order", {"any", joined(mirrored, {"--device", "cuda"}), gpus}},
      {"--deterministic", {"", mirrored, one_gpu}},
      {"--memory-limit", {"100", {}, one_gpu}},
      {"--step-graph", {"", {}, one_gpu}},
      {"--compression-start", {"0", mirrored, joined(mirrored, {"--compression", "bf16"})}},
      {"--reduction-shape", {"2", mirrored, {}}},
      {"--algorithm-table", {table, mirrored, {"--strategy", "multi_worker"}}},
      {"--reduction", {"fused", servers, mirrored}},
      {"--staleness", {"0", {}, servers}},
      {"--drop-slowest", {"0", mirrored, servers}},
      {"--on-lost-worker", {"end", {"--strategy", "central_storage"}, servers}},
      {"--scale-by-staleness", {"", {}, out_of_step}},
      {"--delay-compensation", {"0", {"--strategy", "multi_worker"}, servers}},
      {"--placement", {"greedy", {}, servers}},
      {"--partition", {"whole", {}, servers}},
      {"--host-sums", {"on", out_of_step, servers}},
  };
}

TEST(StrategyNeeds, AFlagThatDoesNothingIsRefusedWithTheValueThatItHasAnyway) {
  const test::TempFolder folder;
  save_table(built_in_table(), folder / "table.json");
  const auto all = examples(folder / "table.json");
  for (const auto& row : needs_of_options()) {
    if (!row.flag.starts_with("--")) continue;
    ASSERT_TRUE(all.contains(std::string(row.flag))) << row.flag << " has no example";
    const auto& [value, useless, useful] = all.at(std::string(row.flag));
    Flags flag = {std::string(row.flag)};
    if (!value.empty()) flag.push_back(value);
    const std::string words = flag[0] + (value.empty() ? "" : " " + value);
    const StrategyOptions idle = typed_as(joined(flag, useless));
    EXPECT_THAT(message_of<UsageError>([&] { check_options(idle, 2); }),
                AllOf(StartsWith(words + " under " + idle.kind + ": " + std::string(row.why)),
                      EndsWith("; leave " + flag[0] + " out")));
    EXPECT_NO_THROW(check_options(typed_as(joined(flag, useful)), 2)) << words;
  }
}

TEST(StrategyNeeds, AnOptionThatDoesNothingIsRefusedByItsValue) {
  const struct {
    StrategyOptions options;
    const char* answer;
  } cases[] = {
      {{.deterministic = true}, "--deterministic under one_device"},
      {{.memory_limit_mib = 8}, "--memory-limit under one_device"},
      {{.step_graph = true}, "--step-graph under one_device"},
      {{.kind = "mirrored", .device = "cuda", .sum_order = Order::fixed}, "--sum-order under"},
      {{.kind = "multi_worker", .engine = "hier"}, "--engine under multi_worker"},
      {{.kind = "mirrored", .compression = {.start_step = 3}}, "--compression-start under"},
      {{.kind = "mirrored", .served = {.staleness = ps::Staleness(2)}}, "--staleness under"},
      {{.kind = "mirrored", .served = {.drop_slowest = 1}}, "--drop-slowest under mirrored"},
      {{.kind = "mirrored", .served = {.scale_by_staleness = true}}, "--scale-by-staleness under"},
      {{.served = {.stop_if_not_finite = false}}, "stop_if_not_finite under one_device"},
      {{.served = {.piece_bytes = 64}}, "piece_bytes under one_device"},
      {{.kind = "mirrored", .shard_bucket_bytes = 64}, "shard_bucket_bytes under mirrored"},
      {{.kind = "multi_worker", .alone = true}, "alone under multi_worker"},
  };
  for (const auto& [options, answer] : cases)
    EXPECT_THAT(message_of<UsageError>([&] { check_options(options, 1); }), StartsWith(answer));
}

TEST(StrategyNeeds, OptionsOfNcclAreRefusedOnceItIsKnownThatNobodyHasIt) {
  const StrategyOptions nowhere =
      typed_as({"--strategy", "multi_worker", "--device", "auto", "--engine", "nccl"});
  EXPECT_NO_THROW(check_options(nowhere, 2));  // there may be GPUs
  EXPECT_THAT(message_of<UsageError>([&] { refuse_nccl_options(nowhere); }),
              HasSubstr("--engine nccl under multi_worker: "));
}

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

TEST(StrategyNeeds, TheOptionsOfAStrategyMakeAnother) {
  for (const char* kind : {"one_device", "mirrored", "central_storage"}) {
    StrategyOptions options = Strategy({.kind = kind, .replicas = 2}).options();
    options.replicas = 3;
    EXPECT_EQ(Strategy(options).num_replicas_in_sync(), 3) << kind;
  }
}

// Hosts with other numbers of cores have other numbers of threads, where nobody asks for some.
TEST(StrategyNeeds, WorkersCompareWhatTheyWereAskedFor) {
  const Strategy strategy({.kind = "mirrored", .replicas = 2});
  EXPECT_GT(strategy.options().threads_per_replica, 0);
  EXPECT_THAT(strategy.world().asked, HasSubstr("threads a replica: as many as fit\n"));
}

}  // namespace
}  // namespace tutti
