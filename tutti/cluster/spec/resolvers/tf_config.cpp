// TF_CONFIG: the addresses of all tasks, and which of them this process is, as one JSON object.
//
//   {"cluster": {"chief": ["h0:1"], "worker": ["h1:1", "h2:1"], "ps": {"0": "h3:1"}},
//    "task": {"type": "worker", "index": 1}}
//
// Workers are the chief, if there is one, then the tasks "worker" in order; without a chief, worker
// 0 is it. An evaluator is a cluster of its own. A job may be an object from index to address: with
// gaps for "ps" alone, since the number of workers has to be known.
#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

namespace tutti::detail {
namespace {

constexpr int kMostTasks = 1'000'000;

const std::vector<std::string> kJobs = {"chief", "worker", "ps", "evaluator"};

[[noreturn]] void refuse(const std::string& why) { throw UsageError("TF_CONFIG: " + why); }

void require_known_keys(const Json& object, const std::string& what,
                        const std::vector<std::string>& known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse(unknown_message(what, key, known));
    }
  }
}

const Json& object_at(const Json& parent, const char* key) {
  static const Json kEmpty = Json::object();
  const auto found = parent.find(key);
  if (found == parent.end() || found->is_null()) return kEmpty;
  if (!found->is_object()) refuse(fmt::format("{} is {}, expected an object", key, found->dump()));
  return *found;
}

// An index is a number, or a string of digits (as keys of objects are).
int index_of(const Json& value, const std::string& what) {
  if (value.is_number_integer()) {
    const int64_t number = value.get<int64_t>();
    if (number >= 0 && number < kMostTasks) return static_cast<int>(number);
  } else if (value.is_string()) {
    const auto number = tutti::number_in<int>(value.text());
    if (number && *number >= 0 && *number < kMostTasks) return *number;
  }
  refuse(fmt::format("{} is {}, expected a whole number from 0 on", what, dump_json(value)));
}

ClusterTask task_at(const std::string& job, int index, const Json& address) {
  const std::string where = fmt::format("{} {}", job, index);
  if (!address.is_string()) {
    refuse(fmt::format("{} is {}, expected \"host:port\"", where, dump_json(address)));
  }
  return {index, parse_host_port(address.text(), "TF_CONFIG: " + where)};
}

// The tasks of one job, by index.
std::vector<ClusterTask> tasks_of(const Json& cluster, const std::string& job) {
  const auto found = cluster.find(job);
  std::vector<ClusterTask> tasks;
  if (found == cluster.end() || found->is_null()) return tasks;
  if (found->is_array()) {
    for (const Json& address : *found) {
      tasks.push_back(task_at(job, static_cast<int>(tasks.size()), address));
    }
    return tasks;
  }
  if (!found->is_object()) {
    refuse(fmt::format("{} is {}, expected a list of addresses, or an object from index to address",
                       job, found->dump()));
  }
  for (const auto& [key, address] : found->items()) {
    const int index = index_of(Json(key), "an index of " + job);
    tasks.push_back(task_at(job, index, address));
  }
  std::sort(tasks.begin(), tasks.end(),
            [](const ClusterTask& a, const ClusterTask& b) { return a.index < b.index; });
  return tasks;
}

// In a job whose members count each other, every index from 0 on has to be there.
void require_whole(const std::string& job, const std::vector<ClusterTask>& tasks) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].index == static_cast<int>(i)) continue;
    refuse(
        fmt::format("the cluster names {} {} and not {} {}: list every {}, since their number "
                    "has to be known",
                    job, tasks[i].index, job, i, job));
  }
}

struct Cluster {
  std::vector<ClusterTask> chiefs, workers, servers, evaluators;

  const std::vector<ClusterTask>& of(const std::string& job) const {
    if (job == "chief") return chiefs;
    if (job == "ps") return servers;
    return job == "evaluator" ? evaluators : workers;
  }
  bool empty() const {
    return chiefs.empty() && workers.empty() && servers.empty() && evaluators.empty();
  }
};

void require_different_addresses(const Cluster& cluster) {
  std::map<std::string, std::string> seen;
  for (const std::string& job : kJobs) {
    for (const ClusterTask& task : cluster.of(job)) {
      const std::string who = fmt::format("{} {}", job, task.index);
      const auto [other, is_new] = seen.emplace(task.address.text(), who);
      if (!is_new)
        refuse(fmt::format("{} and {} have the same address {}", other->second, who, other->first));
    }
  }
}

Cluster read_cluster(const Json& config) {
  const Json& object = object_at(config, "cluster");
  require_known_keys(object, "job in its cluster", kJobs);
  Cluster cluster{tasks_of(object, "chief"), tasks_of(object, "worker"), tasks_of(object, "ps"),
                  tasks_of(object, "evaluator")};
  for (const char* single : {"chief", "evaluator"}) {
    if (cluster.of(single).size() <= 1) continue;
    refuse(fmt::format("the cluster has {} tasks \"{}\", at most 1 is allowed",
                       cluster.of(single).size(), single));
  }
  for (const char* counted : {"chief", "worker", "evaluator"}) {
    require_whole(counted, cluster.of(counted));
  }
  require_different_addresses(cluster);
  return cluster;
}

struct Self {
  std::string job;
  int index = 0;
};

Self read_task(const Json& config, const Cluster& cluster) {
  const Json& task = object_at(config, "task");
  require_known_keys(task, "key in its task", {"type", "index", "trial", "cloud"});
  const auto type = task.find("type");
  const auto index = task.find("index");
  if (type == task.end() || index == task.end()) {
    refuse(fmt::format("the task has no \"{}\": which task of the cluster is this process?",
                       type == task.end() ? "type" : "index"));
  }
  if (!type->is_string()) refuse(fmt::format("task type is {}, expected a job", type->dump()));
  Self self{type->get<std::string>(), index_of(*index, "task index")};
  if (std::find(kJobs.begin(), kJobs.end(), self.job) == kJobs.end()) {
    refuse(unknown_message("task type", self.job, kJobs));
  }
  const auto& tasks = cluster.of(self.job);
  // The evaluator need not be in the cluster; without a cluster, one worker is alone.
  const bool alone = self.job == "evaluator" ? tasks.empty() : cluster.empty() && self.job != "ps";
  const bool found =
      alone ? self.index == 0 : std::any_of(tasks.begin(), tasks.end(), [&](const ClusterTask& t) {
        return t.index == self.index;
      });
  if (!found) {
    refuse(fmt::format("task {} {} contradicts the cluster, which has {} tasks \"{}\"{}", self.job,
                       self.index, alone ? 1 : tasks.size(), self.job,
                       tasks.empty() ? "" : "; indices count from 0"));
  }
  return self;
}

void note_what_is_ignored(const Json& config, ClusterSpec& spec) {
  for (const char* key : {"rpc_layer", "session_master", "environment", "job"}) {
    const auto found = config.find(key);
    if (found != config.end() && !found->is_null()) {
      spec.notes.push_back(
          fmt::format("{}={} in TF_CONFIG has no meaning here", key,
                      found->is_string() ? found->get<std::string>() : found->dump()));
    }
  }
}

// The same for every task of a job: made from where its workers are.
std::string id_of(const std::vector<ClusterTask>& workers) {
  std::string all;
  for (const ClusterTask& worker : workers) all += worker.address.text() + ",";
  return workers.empty() ? "" : fmt::format("tf-{:016x}", stable_hash(all));
}

ClusterSpec spec_of(const Cluster& cluster, const Self& self) {
  ClusterSpec spec;
  spec.source = "TF_CONFIG";
  const int chiefs = static_cast<int>(cluster.chiefs.size());
  spec.workers = cluster.chiefs;
  for (const ClusterTask& worker : cluster.workers) {
    spec.workers.push_back({worker.index + chiefs, worker.address});
  }
  spec.servers = cluster.servers;
  spec.evaluators = cluster.evaluators;
  spec.num_workers = static_cast<int>(spec.workers.size());
  if (!spec.workers.empty()) spec.rendezvous = spec.workers[0].address;
  spec.task = self.index;
  spec.worker = -1;
  if (self.job == "ps") {
    spec.kind = TaskKind::server;
  } else if (self.job == "evaluator") {
    spec.kind = TaskKind::evaluator;
  } else {
    spec.worker = self.job == "chief" ? 0 : self.index + chiefs;
    spec.task = spec.worker;
    spec.num_workers = std::max(1, spec.num_workers);
  }
  return spec;
}

Json parse(const std::string& text) {
  try {
    Json config = parse_json(text);
    if (config.is_object()) return config;
  } catch (const JsonSyntaxError& error) {
    refuse(fmt::format("not JSON at character {}: \"{}\"", error.byte, text));
  } catch (const JsonError& error) {
    refuse(error.what());
  }
  refuse(fmt::format("expected an object, got {}", text));
}

}  // namespace

std::optional<Claim> tf_config_claim(const Variables& variables) {
  const std::string* text = value_of(variables, "TF_CONFIG");
  if (text == nullptr) return std::nullopt;
  const Json config = parse(*text);
  require_known_keys(config, "key",
                     {"cluster", "task", "rpc_layer", "session_master", "environment", "job"});
  const Cluster cluster = read_cluster(config);
  if (cluster.empty() && object_at(config, "task").empty()) return std::nullopt;

  Claim claim{.kind = Claim::Kind::given,
              .number_variable = "TF_CONFIG task",
              .size_variable = "TF_CONFIG cluster"};
  claim.spec = spec_of(cluster, read_task(config, cluster));
  claim.spec.job = job_name(variables, id_of(claim.spec.workers));
  note_what_is_ignored(config, claim.spec);
  if (cluster.chiefs.empty() && claim.spec.num_workers > 0) {
    claim.spec.notes.emplace_back("TF_CONFIG names no chief: worker 0 is it");
  }
  return claim;
}

}  // namespace tutti::detail
