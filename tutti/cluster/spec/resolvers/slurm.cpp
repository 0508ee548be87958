// Slurm: tasks of a step (srun). A batch script and an interactive shell carry the same variables
// with task 0 in them, although they are no task of anything: without a step there is no claim.
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

namespace tutti::detail {
namespace {

constexpr const char* kNumber = "SLURM_PROCID";

// Steps that Slurm makes for itself, by the numbers in slurm.h: interactive, batch script, extern.
bool is_a_step_of_tasks(const Variables& variables) {
  const std::string name = first_set(variables, {"SLURM_STEP_ID", "SLURM_STEPID"});
  if (name.empty()) return value_of(variables, "SLURM_STEP_NUM_TASKS") != nullptr;
  const std::string& id = *value_of(variables, name);
  for (const char* own : {"4294967290", "4294967291", "4294967292"}) {
    if (id == own) return false;
  }
  return true;
}

std::string id_of(const Variables& variables) {
  const std::string job = first_set(variables, {"SLURM_JOB_ID", "SLURM_JOBID"});
  const std::string step = first_set(variables, {"SLURM_STEP_ID", "SLURM_STEPID"});
  if (job.empty()) return "";
  std::string id = fmt::format("slurm-{}", *value_of(variables, job));
  if (!step.empty()) id += "." + *value_of(variables, step);
  const auto restarts = number_in(variables, "SLURM_RESTART_COUNT");
  if (restarts && *restarts > 0) id += fmt::format("-restart{}", *restarts);
  return id;
}

// How many tasks run on each node, checked against all else that says something of it.
void read_local(const Variables& variables, const Claim& claim, size_t nodes, ClusterSpec& spec) {
  spec.local_worker = number_in(variables, "SLURM_LOCALID");
  const std::string name =
      first_set(variables, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  // The allocation's own counts describe another number of tasks than the step's.
  if (name.empty() || (name == "SLURM_TASKS_PER_NODE" && claim.size_variable != "SLURM_NTASKS")) {
    return;
  }
  const std::string& text = *value_of(variables, name);
  const auto counts = expand_task_counts(text, name);
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (sum != spec.num_workers) {
    throw UsageError(fmt::format("{}=\"{}\" are {} tasks and contradict {}={}", name, text, sum,
                                 claim.size_variable, spec.num_workers));
  }
  if (nodes != 0 && counts.size() != nodes) {
    throw UsageError(fmt::format("{}=\"{}\" is about {} nodes, and the list of nodes has {}", name,
                                 text, counts.size(), nodes));
  }
  const auto node = number_in(variables, "SLURM_NODEID");
  if (!node) return;
  require_below({"SLURM_NODEID", *node}, {name, static_cast<int>(counts.size())});
  spec.num_local_workers = counts[static_cast<size_t>(*node)];
  if (spec.local_worker) {
    require_below({"SLURM_LOCALID", *spec.local_worker}, {name, *spec.num_local_workers});
  }
}

// Worker 0 runs on the first node; the port is one that was reserved for the step, or made up.
void read_rendezvous(const Variables& variables, const std::vector<std::string>& nodes,
                     ClusterSpec& spec) {
  if (nodes.empty() || spec.job.empty()) {
    spec.notes.emplace_back("no list of nodes: give TUTTI_RENDEZVOUS=HOST:PORT");
    return;
  }
  const std::string* reserved = value_of(variables, "SLURM_STEP_RESV_PORTS");
  if (reserved != nullptr) {
    const std::string first = reserved->substr(0, reserved->find_first_of(",-"));
    spec.rendezvous = parse_host_port(nodes[0] + ":" + first, "SLURM_STEP_RESV_PORTS");
    return;
  }
  spec.rendezvous = HostPort{nodes[0], derived_port(spec.job)};
  spec.notes.push_back(fmt::format("port {} is made from the job's id", spec.rendezvous->port));
}

}  // namespace

std::optional<Claim> slurm_claim(const Variables& variables) {
  if (value_of(variables, kNumber) == nullptr || !is_a_step_of_tasks(variables)) {
    return std::nullopt;
  }
  Claim claim{.kind = Claim::Kind::scheduler, .number_variable = kNumber};
  ClusterSpec& spec = claim.spec;
  spec.source = "Slurm";
  spec.worker = spec.task = *number_in(variables, kNumber);
  claim.size_variable =
      first_set(variables, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  if (claim.size_variable.empty()) claim.size_variable = "SLURM_NTASKS";
  spec.num_workers = needed_number(variables, claim.size_variable, kNumber, 1);
  require_below({kNumber, spec.worker}, {claim.size_variable, spec.num_workers});

  const std::string list =
      first_set(variables, {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  std::vector<std::string> nodes;
  if (!list.empty()) nodes = expand_node_list(*value_of(variables, list), list);
  const auto num_nodes = number_in(variables, "SLURM_STEP_NUM_NODES", 1);
  if (list == "SLURM_STEP_NODELIST" && num_nodes && *num_nodes != static_cast<int>(nodes.size())) {
    throw UsageError(fmt::format("{}=\"{}\" are {} nodes and contradict SLURM_STEP_NUM_NODES={}",
                                 list, *value_of(variables, list), nodes.size(), *num_nodes));
  }
  spec.job = job_name(variables, id_of(variables));
  read_local(variables, claim, list == "SLURM_STEP_NODELIST" ? nodes.size() : 0, spec);
  read_rendezvous(variables, nodes, spec);
  return claim;
}

}  // namespace tutti::detail
