#include "tutti/plan/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/reduction_shape.h"
#include "tutti/comm/group/host_view.h"
#include "tutti/comm/tcp/tcp.h"
#include "tutti/ps/spec/placement.h"
#include "tutti/sync/replicated_options.h"

namespace tutti::plan {
namespace {

constexpr int kMostSimulated = 32;  // ranks
constexpr double kOfNormal80 =
    1.2816;  // 80 % of a normal distribution are within so many of its sd

/// One group of all replicas: a loop of one's own.
bool is_flat(const Job& job) { return job.engine == EngineKind::tcp && job.replicas_per_host > 1; }

void require_at_least_one(const char* what, int value) {
  if (value < 1) throw UsageError(fmt::format("{}: {}; expected 1 or more", what, value));
}

void check(const Machine& machine, const Job& job) {
  require_at_least_one("hosts", job.hosts);
  require_at_least_one("replicas of a host", job.replicas_per_host);
  require_at_least_one("servers", job.servers);
  if (job.staleness < kAnyStaleness)
    throw UsageError(fmt::format("staleness: {}; expected 0 or more, or any", job.staleness));
  if (job.bucket_bytes < 1)
    throw UsageError(fmt::format("bucket: {} bytes; expected 1 or more", job.bucket_bytes));
  constexpr int64_t kLeastPiece = 64;  // as StrategyOptions::piece_bytes
  if (job.piece_bytes < 0 || (job.piece_bytes > 0 && job.piece_bytes < kLeastPiece))
    throw UsageError(
        fmt::format("piece: {} bytes; expected 0, or {} or more", job.piece_bytes, kLeastPiece));
  if (job.updates_each && (job.overlap || is_flat(job) || job.exchange != Exchange::all_reduce))
    throw UsageError(
        "reduction all_reduce is of strategies' sums on CPUs; not of NCCL's buckets, engine tcp of "
        "a "
        "loop of one's own, or servers");
  const int64_t largest = machine.largest_batch(job.replicas_per_host);
  if (job.batch < 1) throw UsageError(fmt::format("batch: {}; expected 1 or more", job.batch));
  if (job.batch > largest)
    throw UsageError(fmt::format(
        "batch: {} samples a replica, {} replicas a host: {:.1f} GiB of {:.1f} GiB; {}", job.batch,
        job.replicas_per_host, job.replicas_per_host * machine.memory_of(job.batch) / (1 << 30),
        static_cast<double>(machine.memory) / (1 << 30),
        largest == 0 ? "not one sample fits"
                     : fmt::format("the largest that fits is {}", largest)));
}

/// Between hosts, of one of `flows` that share a host's link.
Link flow_of(const Machine& machine, const Link& link, int flows) {
  return {.bytes_per_second = std::min(link.bytes_per_second * machine.payload / flows,
                                       machine.tcp.bytes_per_second),
          .latency = link.latency + machine.tcp.latency};
}

/// One all-reduce of gradients. The owners of the same slice add, one a host: all at once, on one
/// link. Or all ranks add in one group, of which those of a host share its link.
double sums_seconds(const Machine& machine, const Job& job, double bytes) {
  if (job.hosts == 1) return 0;
  const Link flow = flow_of(machine, job.link, job.replicas_per_host);
  if (!is_flat(job)) return engine_seconds(job.hosts, bytes / job.replicas_per_host, flow);
  const Link of_host{flow.bytes_per_second * job.replicas_per_host, flow.latency};
  const Link inside{machine.tcp.bytes_per_second, machine.tcp.latency};
  return engine_seconds(job.replicas(), bytes, of_host, {job.replicas_per_host, inside});
}

/// A strategy says in a small one which parameters were used, and the learning rate.
double words_seconds(const Machine& machine, const Job& job) {
  constexpr double kSmall = 64;
  return is_flat(job) ? 0 : sums_seconds(machine, job, kSmall);
}

/// How many parts of the sums go while backward makes the rest; 0: all go after it. Buckets, or the
/// pieces of each slice; a loop of one's own has none.
int parts_that_hide(const Machine& machine, const Job& job) {
  if (job.hosts == 1 || is_flat(job)) return 0;
  const auto parts_of = [](double bytes, int64_t each) {
    return static_cast<int>(std::ceil(bytes / static_cast<double>(each)));
  };
  const auto bytes = static_cast<double>(machine.bytes);
  if (job.overlap) return parts_of(bytes, job.bucket_bytes);
  if (job.updates_each) return parts_of(bytes, ReplicatedOptions().bucket_bytes);
  const int pieces = parts_of(bytes / job.replicas_per_host, piece_bytes_of(job));
  return pieces < kLeastPieces ? 0 : pieces;
}

/// Of sums between hosts: where one rank of each adds.
int sums_at_a_time(const Job& job) {
  const bool by_tcp = !job.overlap && (job.replicas_per_host == 1 || !job.updates_each);
  return by_tcp ? tcp_lanes(job.hosts, 1) : 1;
}

/// When the last of as many parts has gone as there are in `ready`.
double end_of_parts(const Machine& machine, const Job& job, std::span<const double> ready) {
  const double bytes = static_cast<double>(machine.bytes) / static_cast<double>(ready.size());
  Machine at_once = machine;
  Job nowhere = job;
  at_once.tcp.latency = nowhere.link.latency = 0;
  const double wire = sums_seconds(at_once, nowhere, bytes);
  return end_of_queue(ready, std::vector<double>(ready.size(), wire),
                      sums_seconds(machine, job, bytes) - wire, sums_at_a_time(job));
}

double all_reduce_exchange(const Machine& machine, const Job& job) {
  const int parts = job.overlap ? 1 : std::max(1, parts_that_hide(machine, job));
  return end_of_parts(machine, job, std::vector<double>(static_cast<size_t>(parts), 0)) +
         words_seconds(machine, job);
}

/// How much faster `replicas` on one host move bytes than one of them.
double speedup_of(const Machine& machine, int replicas) {
  const double cores = std::min(replicas, machine.cores);
  return std::min(cores, std::max(1.0, machine.memory_rate / machine.core_memory_rate));
}

/// Of the optimizer that reads `extra` gradients more than its own.
double optimizer_seconds(const Machine& machine, double extra) {
  return machine.update * (machine.update_streams + extra) / machine.update_streams;
}

/// Replicas on one host read each other's gradients, and share the work out. That processes copy
/// theirs before is not counted: it is done while they are in cache. In a loop of one's own each
/// updates all parameters.
double update_seconds(const Machine& machine, const Job& job) {
  const int replicas = job.replicas_per_host;
  if (is_flat(job) || job.updates_each)
    return optimizer_seconds(machine, is_flat(job) ? 2 : replicas + 1) * replicas /
           speedup_of(machine, replicas);
  const double extra = replicas - 1 + (job.hosts > 1 ? 2 : 0);
  return optimizer_seconds(machine, extra) / speedup_of(machine, replicas) +
         (replicas > 1 ? 2 * machine.shm.latency : 0);
}

/// When the last of them has gone.
double overlapped_end(const Machine& machine, const Job& job, const BatchTime& time, int count) {
  std::vector<double> ready;
  for (int i = 0; i < count; ++i) ready.push_back(time.forward + time.backward * (i + 1) / count);
  return end_of_parts(machine, job, ready);
}

void add_all_reduce(const Machine& machine, const BatchTime& time, Prediction& result) {
  const Job& job = result.job;
  result.exchange = all_reduce_exchange(machine, job);
  result.update = update_seconds(machine, job);
  result.exposed = result.exchange;
  if (const int parts = parts_that_hide(machine, job); parts > 0)
    result.exposed =
        std::max(0.0, overlapped_end(machine, job, time, parts) - time.forward - time.backward) +
        (job.overlap ? 0 : words_seconds(machine, job));
  result.step = std::max(result.slowest, result.input) + result.exposed + result.update;
}

/// Of all bytes, what the fullest server has: variables are placed whole.
double fullest_share(const Machine& machine, int servers) {
  return std::max(1.0 / servers, static_cast<double>(machine.largest_parameter) /
                                     static_cast<double>(machine.bytes));
}

/// That so many bytes go in, of `least` variables or more. Of more than a thousand each is as good
/// as nothing of a step.
int pieces_of(const Job& job, double bytes, int least) {
  constexpr double kMost = 1024;
  const double pieces = std::ceil(bytes / static_cast<double>(piece_bytes_of(job)));
  return static_cast<int>(std::min(kMost, std::max<double>(least, pieces)));
}

/// Every host sends its sum to all servers, a part each, and takes parameters from all, piece by
/// piece.
void add_servers(const Machine& machine, Prediction& result) {
  const Job& job = result.job;
  const BatchTime time = machine.compute_of(static_cast<double>(job.batch));
  const Link flow = flow_of(machine, job.link, 1);
  const double bytes = static_cast<double>(machine.bytes);
  const double wire = bytes / flow.bytes_per_second;
  const double share = std::min(1.0, fullest_share(machine, job.servers));
  Job inside_job = job;
  inside_job.hosts = 1;
  const double inside =
      job.replicas_per_host > 1 ? update_seconds(machine, inside_job) - machine.update : 0;
  const bool in_step = job.staleness == 0;
  const int waits_for = in_step ? job.hosts : 1;
  const double waited =
      job.staleness == kAnyStaleness ? 0 : (result.slowest - result.compute) / (job.staleness + 1);
  const double compute = std::max(result.compute + waited, result.input);
  // The busiest port is a server's, or this host's own, which has the pieces of all servers.
  const bool at_server = waits_for * share >= 1 - 1e-9;
  const double port = (at_server ? waits_for * share : 1) * wire;
  const double passes = time.forward + time.backward;
  const double slower = passes > 0 ? compute / passes : 0;
  const double beside = std::max(0.0, inside) + (passes > 0 ? 0 : compute);
  ServedStep step{
      .forward = time.forward * slower,
      .backward = time.backward * slower,
      .latency = 2 * flow.latency,
      .pieces = at_server ? pieces_of(job, bytes * share, 1) : pieces_of(job, bytes, job.servers),
      .stations = {port, 0, port}};
  const double without_update = served_step(step);
  const double update = optimizer_seconds(machine, waits_for - 1) * share;
  step.stations[1] = update;
  const double with_update = served_step(step), alone = with_update + beside;
  // Who does not wait for the others meets them at the servers: at their ports in and out, and
  // where they update.
  const double stations[] = {share * wire, update, share * wire};
  result.exchange = 2 * (2 * flow.latency + port);
  result.step = in_step ? alone : round_of_queues(job.hosts, alone, stations);
  result.update = with_update - without_update + std::max(0.0, inside);
  if (update > port) result.update += result.step - alone;
  result.exposed = result.step - compute - result.update;
}

/// A replica that needs nobody: forward, backward, update.
double alone_seconds(const Machine& machine, const Prediction& result) {
  return std::max(result.compute, result.input / result.job.replicas_per_host) + machine.update;
}

/// The least batch with compute >= exchange: compute grows with the batch, exchange does not.
int64_t balance_of(const Machine& machine, double exchange, double mean_jitter) {
  const auto covers = [&](int64_t batch) {
    const BatchTime time = machine.compute_of(static_cast<double>(batch));
    return (time.forward + time.backward) * mean_jitter >= exchange;
  };
  int64_t high = 1;
  constexpr int64_t kMost = int64_t{1} << 40;
  while (!covers(high)) {
    if (high >= kMost) return 0;
    high *= 2;
  }
  int64_t low = high / 2;  // does not cover, or is 0
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (covers(middle) ? high : low) = middle;
  }
  return high;
}

std::string bound_of(const Prediction& result) {
  const std::pair<double, const char*> parts[] = {
      {result.compute, "compute"},
      {result.slowest - result.compute, "stragglers"},
      {result.input > result.slowest ? result.input : 0, "input"},
      {result.exposed, "exchange"},
      {result.update, "update"}};
  return std::ranges::max_element(parts)->second;
}

}  // namespace

std::string_view name_of(EngineKind engine) noexcept {
  constexpr std::string_view kNames[] = {"auto", "shm", "tcp", "hier", "nccl"};
  return kNames[static_cast<size_t>(engine)];
}

int64_t piece_bytes_of(const Job& job) noexcept {
  if (job.piece_bytes != 0) return job.piece_bytes;
  return job.exchange == Exchange::parameter_server ? ps::kPieceBytesOverHosts
                                                    : piece_bytes(job.hosts);
}

EngineKind engine_of(const Job& job) {
  using enum EngineKind;
  const auto refuse = [&](std::string_view why, std::string_view instead) {
    return UsageError(fmt::format("engine {}: {}; use {}", name_of(job.engine), why, instead));
  };
  if (job.exchange == Exchange::parameter_server) {
    if (job.engine != fitting) throw refuse("workers of servers have no engine to choose", "auto");
    return fitting;
  }
  if (job.overlap) {
    if (job.engine != fitting && job.engine != nccl) throw refuse("nccl overlaps", "auto");
    return nccl;
  }
  if (job.engine == nccl) throw refuse("it overlaps, and that was not asked for", "overlap");
  if (job.hosts == 1) return shm;
  if (job.engine == shm)
    throw refuse(fmt::format("it is for the ranks of one host, not of {}", job.hosts),
                 "hier, tcp or auto");
  if (job.replicas_per_host == 1) return tcp;
  return job.engine == tcp ? tcp : hier;
}

Prediction predict(const Machine& machine, const Job& asked) {
  plan::check(machine);
  check(machine, asked);
  Job job = asked;
  job.engine = engine_of(asked);
  const BatchTime time = machine.compute_of(static_cast<double>(job.batch));
  const double median = time.forward + time.backward;
  Prediction result{.job = job};
  const double mean_jitter = mean_of_greatest(machine.jitter, 1);
  result.compute = median * mean_jitter;
  result.slowest = median * mean_of_greatest(machine.jitter, job.replicas());
  result.input = machine.input * static_cast<double>(job.batch * job.replicas_per_host);
  result.memory = job.replicas_per_host * machine.memory_of(static_cast<double>(job.batch));
  if (job.exchange == Exchange::all_reduce)
    add_all_reduce(machine, time, result);
  else
    add_servers(machine, result);
  const double rest = result.exposed + result.update;
  const double error = kOfNormal80 * std::hypot(machine.compute_error * (result.step - rest),
                                                machine.communication_error * rest);
  result.low = std::max(0.0, result.step - error);
  result.high = result.step + error;
  result.rule = std::max(result.compute, result.exchange);
  result.balance = balance_of(machine, result.exchange, mean_jitter);
  const double samples = static_cast<double>(job.batch) * job.replicas();
  result.samples_per_second = samples / result.step;
  result.efficiency = alone_seconds(machine, result) / result.step;
  result.bound_by = bound_of(result);
  return result;
}

// The greatest of n draws is below the quantile of u with probability u^n: the integral of
// (q0 + slope (u - u0)) n u^(n - 1) over each piece.
double mean_of_greatest(std::span<const double> quantiles, double count) {
  const auto pieces = static_cast<double>(quantiles.size() - 1);
  double mean = 0;
  for (size_t i = 0; i + 1 < quantiles.size(); ++i) {
    const double u0 = static_cast<double>(i) / pieces, u1 = static_cast<double>(i + 1) / pieces;
    const double slope = (quantiles[i + 1] - quantiles[i]) * pieces;
    const auto primitive = [&](double u) {
      return (quantiles[i] - slope * u0) * std::pow(u, count) +
             slope * count / (count + 1) * std::pow(u, count + 1);
    };
    mean += primitive(u1) - primitive(u0);
  }
  return mean;
}

double end_of_queue(std::span<const double> ready, std::span<const double> seconds, double latency,
                    int at_a_time) {
  std::vector<double> done(static_cast<size_t>(at_a_time), 0);  // the last that many
  double wire = 0;
  for (size_t i = 0; i < ready.size(); ++i) {
    double& before = done[i % done.size()];
    wire = std::max({wire, ready[i], before}) + seconds[i];
    before = wire + latency;
  }
  return std::ranges::max(done);
}

double round_of_queues(int customers, double alone, std::span<const double> stations) {
  return std::max(alone, customers * std::ranges::max(stations));
}

namespace {

/// When each is done by a station that takes `seconds` for one, of those that are there the one
/// with the lowest number.
std::vector<double> done_by_need(const std::vector<double>& ready, double seconds) {
  std::vector<size_t> coming(ready.size());
  std::iota(coming.begin(), coming.end(), size_t{0});
  std::ranges::stable_sort(coming, {}, [&](size_t i) { return ready[i]; });
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> here;
  std::vector<double> done(ready.size());
  double now = 0;
  for (size_t next = 0; next < coming.size() || !here.empty();) {
    if (here.empty()) now = std::max(now, ready[coming[next]]);
    while (next < coming.size() && ready[coming[next]] <= now) here.push(coming[next++]);
    now += seconds;
    done[here.top()] = now;
    here.pop();
  }
  return done;
}

}  // namespace

double served_step(const ServedStep& step) {
  const double each = 1.0 / step.pieces;
  std::vector<double> at(static_cast<size_t>(step.pieces));
  for (size_t i = 0; i < at.size(); ++i)
    at[i] = step.backward * each * static_cast<double>(at.size() - i) + step.latency;
  for (const double seconds : step.stations) at = done_by_need(at, seconds * each);
  double now = step.backward;
  for (const double come : at) now = std::max(now, come + step.latency) + step.forward * each;
  return now;
}

double engine_seconds(int ranks, double bytes, const Link& link, const Neighbours& neighbours) {
  if (ranks == 1) return 0;
  const int here = neighbours.ranks, hosts = ranks / here;
  CollectiveWork work{.ranks = ranks, .num_elements = static_cast<int64_t>(std::ceil(bytes / 4))};
  const bool flat_shape =
      here == 1 || ReductionShape::hosts(std::vector<int>(static_cast<size_t>(hosts), here))
                       .adds_like(ReductionShape::flat(ranks));
  const Question question{
      .num_bytes = work.num_elements * 4, .ranks = ranks, .flat_shape = flat_shape};
  work.algorithm = choose(question, built_in_table());
  if (ranks <= kMostSimulated) return simulated_seconds(work, link, neighbours);
  if (work.algorithm != Algorithm::tree) return formula_seconds(work, link, neighbours);
  // Up and down, as if each level waited for the whole of the one below.
  const auto levels = [&](int of, const Link& over) {
    return std::bit_width(static_cast<unsigned>(of - 1)) *
           (over.latency + bytes / over.bytes_per_second);
  };
  return 2 * (levels(here, neighbours.inside) + levels(hosts, link));
}

}  // namespace tutti::plan
