/// Who is in the job, seen from inside: what a worker process learns when it joins.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/join/engine_choice.h"
#include "tutti/cluster/spec/cluster_spec.h"
#include "tutti/cluster/spec/worker_environment.h"
#include "tutti/comm/group/group.h"
#include "tutti/comm/schedule/schedule_choice.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/net/key_values.h"

namespace tutti {

/// Who is in the job, as whatever started this process says (cluster_spec.h); nothing in a job of
/// one. Throws UsageError for contradictions.
std::optional<ClusterSpec> job_of_this_process();

/// The group of all workers of this job, one rank a process; a group of one outside a launcher.
/// Under `tutti run` the process ends when its launcher dies. Workers of several hosts, or started
/// by another launcher, meet at the rendezvous and hold the job's token (TUTTI_TOKEN_FILE or
/// TUTTI_TOKEN; all on one host draw one); a worker that says nothing for `limit` counts as lost.
/// Call once a process; later calls return the same group. Throws UsageError (contradicting
/// variables, no token), Timeout naming workers that did not come within `limit`, PeerLost,
/// Mismatch (wrong token).
Group join(Millis limit = kDefaultTimeLimit);

struct JoinOptions {
  Millis limit{kDefaultTimeLimit};  ///< wait for workers that have not come
  bool pinned = false;              ///< every member's thread is pinned to cores of its own: spin

  std::string engine = "auto";  ///< auto, shm, tcp, hier, mpi
  // Of tcp, and of hier between hosts.
  Order order = Order::fixed;               ///< any: tcp may add in an order of its own
  int streams = 1;                          ///< data streams between two hosts' ranks
  AlgorithmTable table = built_in_table();  ///< tcp's; `tutti bench tune` measures one
  EngineChoice* chosen = nullptr;           ///< is told which engine it is, and why
};

/// Thread members of several workers in one group: this worker's members, whose ranks follow one
/// another (from worker * replicas_per_worker on, unless a launcher spread neighbours over hosts).
/// Collective over workers, and every worker gives the same number. Each call makes a new group.
std::vector<Group> join_replicas(int replicas_per_worker, const JoinOptions& options = {});

/// Values that the workers leave for each other at the rendezvous of the job that this process has
/// joined, under keys of that name: PJRT's plugins of several hosts ask for such (ClientOptions).
/// Collective over workers where `tutti run` started all on one host, which have no rendezvous:
/// worker 0 then keeps the values, of whatever name. UsageError before join(), and in a job of one.
std::shared_ptr<KeyValues> key_values_of_job(std::string name, Millis limit = kDefaultTimeLimit);

/// Tells the launcher which error ends this process, so that it can tell the first failure from
/// those that follow from it. Call it where main() catches; after join() an exception that nobody
/// catches is reported by itself (exit_code.h). Returns whether `tutti run` prints it: it does not
/// where the error follows from another worker's. Does nothing outside a launcher. Never throws.
bool report_failure(const std::exception& error) noexcept;

/// Asks `tutti run` for so much time between SIGTERM or SIGINT to the job and SIGKILL, unless it
/// was told how much (--grace); 0: no more than by itself. fit() does so while it writes
/// checkpoints. Does nothing outside a launcher. Never throws.
void ask_for_grace(Millis grace) noexcept;

/// Says that step `step` (>= 0) of the program begins: a store to memory. `tutti run --restarts`
/// names the step in which a life of the job ended, and ends the job when one has failed twice.
/// `training` tells several of a program apart that each begin with the same steps: the first is 1.
/// fit() does so, and counts its calls. Does nothing outside a launcher. Never throws.
void report_step(int64_t step, int64_t training = 0) noexcept;

/// Whether `tutti run --restarts` has started this job again after a failure. Then fit() goes on
/// from the newest checkpoint that a life of this job has written.
bool started_again() noexcept;

/// By which the lives of a job under `tutti run --restarts` know what is theirs: the same in all of
/// them, another in every other job; "" outside. fit() writes it into its checkpoints.
std::string id_of_all_lives();

}  // namespace tutti
