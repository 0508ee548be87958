// Every rule of TF_CONFIG, and what contradicts itself in one.
#include "tutti/cluster/spec/cluster_spec.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

ClusterSpec spec_of(const std::string& config) {
  return cluster_spec({{"TF_CONFIG", config}}).value();
}

std::string error_of(const std::string& config) {
  try {
    const auto spec = cluster_spec({{"TF_CONFIG", config}});
    return spec ? to_string(*spec) : "nothing";
  } catch (const UsageError& error) {
    return error.what();
  }
}

constexpr const char* kAll =
    R"("cluster": {"chief": ["h0:1"], "worker": ["h1:1", "h2:1"], "ps": ["h3:1"],
                   "evaluator": ["h4:1"]})";

std::string whole(const std::string& task) {
  return fmt::format(R"({{{}, "task": {}, "rpc_layer": "grpc", "environment": "cloud"}})", kAll,
                     task);
}

TEST(TfConfig, TasksGetTheirNumbers) {
  const struct {
    const char* why;
    std::string config;
    TaskKind kind;
    int task;
    int worker;
    int num_workers;
    const char* rendezvous;
  } cases[] = {
      {"the chief is worker 0", whole(R"({"type": "chief", "index": 0})"), TaskKind::worker, 0, 0,
       3, "h0:1"},
      {"workers come after it", whole(R"({"type": "worker", "index": 1})"), TaskKind::worker, 2, 2,
       3, "h0:1"},
      {"an index may be a string", whole(R"({"type": "worker", "index": "0"})"), TaskKind::worker,
       1, 1, 3, "h0:1"},
      {"a server is no worker", whole(R"({"type": "ps", "index": 0})"), TaskKind::server, 0, -1, 3,
       "h0:1"},
      {"nor is an evaluator", whole(R"({"type": "evaluator", "index": 0})"), TaskKind::evaluator, 0,
       -1, 3, "h0:1"},
      {"without a chief worker 0 is it",
       R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})",
       TaskKind::worker, 1, 1, 2, "a:1"},
      {"an evaluator need not be in the cluster",
       R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}})",
       TaskKind::evaluator, 0, -1, 1, "a:1"},
      {"a job as an object, in any order",
       R"({"cluster": {"worker": {"10": "k:1", "0": "a:1", "1": "b:1", "2": "c:1", "3": "d:1",
           "4": "e:1", "5": "f:1", "6": "g:1", "7": "h:1", "8": "i:1", "9": "j:1"}},
           "task": {"type": "worker", "index": 10}})",
       TaskKind::worker, 10, 10, 11, "a:1"},
      {"no cluster: one worker", R"({"cluster": {}, "task": {"type": "worker", "index": 0}})",
       TaskKind::worker, 0, 0, 1, ""},
  };
  for (const auto& c : cases) {
    const ClusterSpec spec = spec_of(c.config);
    EXPECT_EQ(spec.kind, c.kind) << c.why;
    EXPECT_EQ(spec.task, c.task) << c.why;
    EXPECT_EQ(spec.worker, c.worker) << c.why;
    EXPECT_EQ(spec.num_workers, c.num_workers) << c.why;
    EXPECT_EQ(spec.rendezvous ? spec.rendezvous->text() : "", c.rendezvous) << c.why;
  }
}

TEST(TfConfig, IsPrintedAsUnderstood) {
  EXPECT_THAT(error_of(whole(R"({"type": "worker", "index": 0})")),
              AllOf(HasSubstr("worker 1 of 3, as TF_CONFIG says"),
                    HasSubstr("worker      0 at h0:1"), HasSubstr("worker      2 at h2:1"),
                    HasSubstr("server      0 at h3:1"), HasSubstr("evaluator   0 at h4:1"),
                    HasSubstr("rpc_layer=grpc in TF_CONFIG has no meaning here"),
                    HasSubstr("environment=cloud in TF_CONFIG has no meaning here")));
  EXPECT_THAT(error_of(whole(R"({"type": "ps", "index": 0})")),
              HasSubstr("server 0 beside 3 workers, as TF_CONFIG says"));
}

TEST(TfConfig, TheJobHasOneIdOnAllItsTasks) {
  const auto id = spec_of(whole(R"({"type": "chief", "index": 0})")).job;
  EXPECT_EQ(id, spec_of(whole(R"({"type": "ps", "index": 0})")).job);
  EXPECT_NE(id, spec_of(R"({"cluster": {"worker": ["a:1"]},
                            "task": {"type": "worker", "index": 0}})")
                    .job);
}

TEST(TfConfig, ServersMayHaveGaps) {
  const ClusterSpec spec = spec_of(R"({"cluster": {"worker": ["a:1"], "ps": {"2": "b:1"}},
                                       "task": {"type": "ps", "index": 2}})");
  EXPECT_EQ(spec.servers, (std::vector<ClusterTask>{{2, {"b", 1}}}));
  EXPECT_EQ(spec.task, 2);
}

TEST(TfConfig, AnEmptyOneSaysNothing) {
  for (const char* config : {"", "{}", R"({"cluster": {}})", R"({"environment": "cloud"})"}) {
    EXPECT_FALSE(cluster_spec({{"TF_CONFIG", config}})) << config;
  }
}

TEST(TfConfig, ContradictionsAreNamed) {
  const struct {
    const char* why;
    std::string config;
    const char* says;
  } cases[] = {
      {"not JSON", "{", "TF_CONFIG: not JSON at character 2"},
      {"no end of arrays", std::string(100'000, '[') + std::string(100'000, ']'),
       "TF_CONFIG: line 1, column 257: arrays and objects are nested deeper than 256"},
      {"not an object", "[1]", "TF_CONFIG: expected an object, got [1]"},
      {"an unknown key", R"({"clutser": {}})",
       "unknown key \"clutser\"; did you mean \"cluster\"?"},
      {"an unknown job",
       R"({"cluster": {"workers": ["a:1"]}, "task": {"type": "worker", "index": 0}})",
       "unknown job in its cluster \"workers\"; did you mean \"worker\"?"},
      {"an unknown task type", whole(R"({"type": "cheif", "index": 0})"),
       "unknown task type \"cheif\"; did you mean \"chief\"?"},
      {"an unknown key in the task", whole(R"({"type": "chief", "idx": 0})"),
       "unknown key in its task \"idx\""},
      {"no task", fmt::format("{{{}}}", kAll), "the task has no \"type\""},
      {"no index", whole(R"({"type": "chief"})"), "the task has no \"index\""},
      {"a negative index", whole(R"({"type": "worker", "index": -1})"),
       "task index is -1, expected a whole number from 0 on"},
      {"an index that is none", whole(R"({"type": "worker", "index": "first"})"),
       "task index is \"first\", expected a whole number"},
      {"past the end", whole(R"({"type": "worker", "index": 2})"),
       "task worker 2 contradicts the cluster, which has 2 tasks \"worker\""},
      {"a job that is not there",
       R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}})",
       "task chief 0 contradicts the cluster, which has 0 tasks \"chief\""},
      {"a server of no cluster", R"({"task": {"type": "ps", "index": 0}})",
       "task ps 0 contradicts the cluster, which has 0 tasks \"ps\""},
      {"a second worker of no cluster", R"({"task": {"type": "worker", "index": 1}})",
       "task worker 1 contradicts the cluster, which has 1 tasks \"worker\""},
      {"two chiefs",
       R"({"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}})",
       "the cluster has 2 tasks \"chief\", at most 1 is allowed"},
      {"two evaluators",
       R"({"cluster": {"worker": ["a:1"], "evaluator": ["b:1", "c:1"]},
           "task": {"type": "worker", "index": 0}})",
       "the cluster has 2 tasks \"evaluator\", at most 1"},
      {"two tasks at one address",
       R"({"cluster": {"worker": ["a:1", "b:1"], "ps": ["b:1"]},
           "task": {"type": "worker", "index": 0}})",
       "worker 1 and ps 0 have the same address b:1"},
      {"no port", R"({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}})",
       "TF_CONFIG: worker 0 \"a\": the port is missing"},
      {"an address that is no text",
       R"({"cluster": {"worker": [7]}, "task": {"type": "worker", "index": 0}})",
       "worker 0 is 7, expected \"host:port\""},
      {"a job that is no list",
       R"({"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}})",
       "worker is \"a:1\", expected a list of addresses"},
      {"a cluster that is no object", R"({"cluster": ["a:1"]})",
       "cluster is [\"a:1\"], expected an"},
      {"workers with gaps cannot be counted",
       R"({"cluster": {"worker": {"1": "b:1"}}, "task": {"type": "worker", "index": 1}})",
       "names worker 1 and not worker 0: list every worker"},
      {"one index written twice",
       R"({"cluster": {"worker": {"0": "a:1", "00": "b:1"}},
           "task": {"type": "worker", "index": 0}})",
       "names worker 0 and not worker 1"},
      {"a key that is no index",
       R"({"cluster": {"worker": {"x": "b:1"}}, "task": {"type": "worker", "index": 1}})",
       "an index of worker is \"x\""},
  };
  for (const auto& c : cases) EXPECT_THAT(error_of(c.config), HasSubstr(c.says)) << c.why;
}

}  // namespace
}  // namespace tutti
