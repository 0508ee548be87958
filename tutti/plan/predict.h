/// What a training step costs on so many machines: by the rule max(compute, communication), and by
/// following what the library does: the slowest replica, the schedule of the engine between hosts,
/// the update. docs/design/cost_model.md has the formulas.
///
/// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/comm/schedule/schedule_choice.h"
#include "tutti/plan/collective_time.h"
#include "tutti/plan/link.h"
#include "tutti/plan/machine.h"

namespace tutti::plan {

/// How gradients meet.
enum class Exchange : uint8_t {
  all_reduce,        ///< sums over hosts, then every host updates: mirrored, multi_worker
  parameter_server,  ///< one sum a host goes to servers on hosts of their own, which update
};

constexpr int kAnyStaleness = -1;  ///< nobody waits for anybody

/// What carries the sums of an all_reduce (docs/design/engines.md).
enum class EngineKind : uint8_t {
  fitting,  ///< what strategies take by themselves: shm, tcp, hier; nccl with overlap
  shm,      ///< the ranks of one host
  /// One group of all ranks. With several on a host strategies do not take it, but a loop of one's
  /// own can (JoinOptions::engine): one all_reduce, then each replica updates all its parameters.
  tcp,
  hier,  ///< shm inside each host, and what the ranks of a host share out by tcp between them
  nccl,
};
std::string_view name_of(EngineKind engine) noexcept;

struct Job {
  int hosts = 1;  ///< that compute, >= 1
  int replicas_per_host = 1;
  int64_t batch = 32;  ///< samples of a replica, >= 1
  Link link{};         ///< of each host, and of each server
  Exchange exchange = Exchange::all_reduce;
  int servers = 1;    ///< of parameter_server
  int staleness = 0;  ///< of parameter_server; 0: synchronous, or kAnyStaleness
  EngineKind engine = EngineKind::fitting;  ///< of all_reduce over several hosts; else fitting
  bool overlap = false;             ///< of all_reduce: buckets go while backward goes on (NCCL)
  int64_t bucket_bytes = 25 << 20;  ///< of overlap
  /// In which sums between hosts go, or pushes and pulls (StrategyOptions::piece_bytes), >= 0; 0:
  /// as strategies have it.
  int64_t piece_bytes = 0;
  /// all_reduce: strategies' reduction all_reduce, of which every replica updates all parameters;
  /// else the fused step. Not with overlap, nor with engine tcp.
  bool updates_each = false;
  bool operator==(const Job&) const = default;

  int replicas() const { return hosts * replicas_per_host; }
};

/// In which a job's sums, pushes and pulls go, where they are cut: what it says, or what strategies
/// take.
int64_t piece_bytes_of(const Job& job) noexcept;

/// The engine that a job asks for, or for fitting the one that fits; on one host always shm, as
/// with JoinOptions. fitting for servers. Throws UsageError where it cannot be: shm over several
/// hosts, nccl without overlap, another one with it or for servers.
EngineKind engine_of(const Job& job);

/// Seconds of a step, but for the last ones.
struct Prediction {
  Job job;                   ///< its engine is engine_of(job)
  double compute = 0;        ///< t1: forward and backward of a replica, mean
  double slowest = 0;        ///< the same of the slowest of all replicas, mean
  double input = 0;          ///< of all replicas of a host; goes on beside compute
  double exchange = 0;       ///< t2: what crosses between hosts
  double exposed = 0;        ///< of it, what nothing hides
  double update = 0;         ///< sums inside a host, and the optimizer
  double step = 0;           ///< mean
  double low = 0, high = 0;  ///< 4 of 5 trainings have a mean step between them
  double rule = 0;           ///< max(t1, t2)
  int64_t balance = 0;       ///< least batch of a replica whose t1 covers t2; 0: none does
  double samples_per_second = 0;
  double efficiency = 0;  ///< of as many replicas that need nobody
  double memory = 0;      ///< bytes of a host
  std::string bound_by;   ///< compute, stragglers, input, exchange, update
};

/// Throws UsageError for a job that cannot be (hosts, replicas or servers below 1, an engine that
/// does not fit), and for a batch that does not fit into memory, with the largest that does.
Prediction predict(const Machine& machine, const Job& job);

/// The mean of the greatest of `count` draws from a distribution given by quantiles as of
/// Machine::jitter, straight between them. count >= 1.
double mean_of_greatest(std::span<const double> quantiles, double count);

/// The end of the last all-reduce, where bucket i may begin at ready[i], in this order, has the
/// wire for seconds[i], and is done a latency later. The wire has one at a time; `at_a_time` (>= 1)
/// may have begun.
double end_of_queue(std::span<const double> ready, std::span<const double> seconds,
                    double latency = 0, int at_a_time = 1);

/// Seconds of a round of one of `customers`, each of whom takes `alone` for it, and is served in it
/// by each station, one customer at a time, for so many seconds. The lower bound of Denning and
/// Buzen 1978, doi:10.1145/356733.356735: alone, or as fast as the busiest station. It is reached
/// where service always takes as long: customers spread out until nobody waits that need not.
double round_of_queues(int customers, double alone, std::span<const double> stations);

/// A worker and its servers, in seconds of a step.
struct ServedStep {
  double forward = 0;
  double backward = 0;
  double latency = 0;                ///< from a worker to a server, or back
  int pieces = 1;                    ///< that gradients and parameters go in, >= 1, alike
  std::array<double, 3> stations{};  ///< of all pieces: the way there, the update, the way back
};

/// From one forward's end to the next's. Backward makes the pieces one after the other, the one
/// that forward uses first as the last; each goes through the stations, everywhere the one that is
/// used first before others; and forward waits for each before its use.
double served_step(const ServedStep& step);

/// Seconds of the all-reduce of so many bytes of float32 by the algorithm that the tcp engine takes
/// (built_in_table(), fixed order). Up to 32 ranks by simulation, beyond by formula. `link`: of a
/// host.
double engine_seconds(int ranks, double bytes, const Link& link, const Neighbours& neighbours = {});

}  // namespace tutti::plan
