/// ClusterSpec: who is in the job, as the variables of whatever started it say.
///
/// Read from `tutti run`, torchrun, TF_CONFIG, Open MPI, PMI, Slurm, PMIx or Kubernetes indexed
/// jobs; docs/guide/launching.md lists the variables of each and what is made of them.
///
/// When several are there, the first in this order is taken: tutti run, torchrun, TF_CONFIG,
/// Open MPI, PMI, Slurm, Kubernetes, PMIx. Each other one has to agree with it (same number, same
/// size) or to stand around it: `tutti run`, torchrun (started by its agent), Open MPI and PMI
/// number their workers themselves, so whatever stands in Slurm's, Kubernetes' or PMIx's variables
/// around them is another matter, and so are fewer processes of another launcher around them.
/// Anything else is a contradiction, and a UsageError.
///
/// Thread rule: pure functions, except environment_variables().
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/net/address.h"

namespace tutti {

/// Environment variables by name. One with an empty value counts as not set.
using Variables = std::map<std::string, std::string>;

/// Every variable of this process, now.
Variables environment_variables();

enum class TaskKind : uint8_t { worker, server, evaluator };
std::string_view name_of(TaskKind kind) noexcept;

/// A process of the job at a known address.
struct ClusterTask {
  int index = 0;
  HostPort address;
  bool operator==(const ClusterTask&) const = default;
};

struct ClusterSpec {
  std::string source;  ///< "tutti run", "torchrun", "TF_CONFIG", "Slurm", ...
  std::string job;     ///< the same on every worker, another one for another job; "" unknown

  TaskKind kind = TaskKind::worker;  ///< what this process is
  int task = 0;                      ///< its number among its kind
  int worker = 0;                    ///< number of this worker; -1 when it is not a worker
  int num_workers = 1;

  std::optional<int> local_worker;       ///< number among the workers of this host
  std::optional<int> num_local_workers;  ///< workers of this host

  bool mpi = false;  ///< an MPI launcher's: worker and num_workers are those of MPI_COMM_WORLD

  std::optional<HostPort> rendezvous;   ///< where the workers meet; worker 0 listens there
  std::vector<ClusterTask> workers;     ///< where they are known (TF_CONFIG), in worker order
  std::vector<ClusterTask> servers;     ///< parameter servers
  std::vector<ClusterTask> evaluators;  ///< at most one

  std::string token_file;             ///< file with the job's token; "" none
  bool token_in_environment = false;  ///< the token itself is in TUTTI_TOKEN
  std::vector<std::string> notes;     ///< what was ignored, derived or taken over, and why
};

/// Who is in the job; nothing when no launcher's variables are set: a job of one. Throws UsageError
/// with the values and the variables when one is no number, is missing, or contradicts another.
std::optional<ClusterSpec> cluster_spec(const Variables& variables);

/// Whether all workers are certainly on this host: its launcher says so, or they meet at a loopback
/// address, or TF_CONFIG names one host alone. False where that is not known.
bool on_one_host(const ClusterSpec& spec);

/// As understood, for people: several lines, no secret in them.
std::string to_string(const ClusterSpec& spec);

/// A port for a job whose launcher names none: the same for the same id, 20000 to 29999, below the
/// ports that the system gives out by itself. Two jobs of one host share one with probability
/// 1 : 10000; the rendezvous then tells them apart by their ids.
uint16_t derived_port(std::string_view job) noexcept;

}  // namespace tutti
