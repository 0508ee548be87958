#include "tutti/cli/bench/between_hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/cli/bench/exercise.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/cluster/join/join.h"

namespace tutti::cli {
namespace {

// The smallest say the latency, the others the rate: what a step sends is large.
constexpr int64_t kSizes[] = {8, 256, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
constexpr size_t kLeastSizes = 3;
constexpr double kSlowEnough = 0.5;  // seconds of one all-reduce
constexpr int kBlock = 5;            // times between two looks at whether that is enough
constexpr double kRow = 20e-3;       // seconds: what wakes a thread late is little of it
constexpr int kLongestRow = 500;

/// All-reduces of one size by one member.
class TimedSize {
 public:
  TimedSize(Group& group, int64_t bytes)
      : group_(group),
        exercise_(Exercise::of(Collective::all_reduce, bytes, group.size())),
        memory_(static_cast<size_t>(exercise_.output_elements())) {}

  /// For `share` seconds, and once at least.
  plan::AllReduceTimes run(double share) {
    require_sums();
    exercise_.repeats = true;
    exercise_.fill(group_.rank(), buffers());
    const double one = block(1, 1).front();
    const int row = std::clamp(static_cast<int>(std::ceil(kRow / one)), 1, kLongestRow);
    plan::AllReduceTimes times{.bytes = static_cast<double>(exercise_.bytes()), .seconds = {}};
    double spent = 0;
    do {
      for (double seconds : block(kBlock, row)) {
        times.seconds.push_back(seconds);
        spent += row * seconds;
      }
    } while (spent < share);
    return times;
  }

 private:
  Buffers buffers() { return {.output = memory_.data()}; }

  void require_sums() {
    exercise_.fill(group_.rank(), buffers());
    exercise_.run(group_, buffers(), kMeasureLimit);
    auto right = static_cast<int32_t>(exercise_.is_right(group_.rank(), buffers()));
    group_.all_reduce_now(span_of(std::span(&right, 1)), ReduceOp::min, kMeasureLimit);
    if (right == 0)
      throw Error(fmt::format("{} bytes were added wrongly between hosts", exercise_.bytes()));
  }

  /// Seconds of an operation, `count` times the mean of a row: the slowest member's.
  std::vector<double> block(int count, int row) {
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      const TimePoint begin = Clock::now();
      for (int k = 0; k < row; ++k) exercise_.run(group_, buffers(), kMeasureLimit);
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / row);
    }
    group_.all_reduce_now(span_of(std::span(seconds)), ReduceOp::max, kMeasureLimit);
    return seconds;
  }

  Group& group_;
  Exercise exercise_;
  std::vector<float> memory_;
};

}  // namespace

HostsOfJob join_hosts(int worker) {
  HostsOfJob job{.workers = join_replicas(1, {.engine = "tcp"}).front(), .one_a_host = {}};
  const std::vector<int> per_host = job.workers.reduction_shape().replicas_per_host();
  job.hosts = static_cast<int>(per_host.size());
  if (job.hosts == 1)
    throw UsageError(fmt::format(
        "all {} workers of the job are on one host, and nothing lies between hosts that could be "
        "measured; start this alone, or on several hosts with `tutti run --nodes`",
        job.workers.size()));
  std::vector<int32_t> workers(static_cast<size_t>(job.workers.size()));
  job.workers.all_gather(span_of(std::span(&worker, 1)), span_of(std::span(workers))).wait();
  bool lowest = false;
  auto here = workers.begin();
  for (int count : per_host) {
    lowest = lowest || *std::min_element(here, here + count) == worker;
    here += count;
  }
  job.one_a_host = job.workers.split(lowest ? 0 : -1);
  return job;
}

std::vector<plan::AllReduceTimes> time_all_reduces(Group& group, double seconds) {
  std::vector<plan::AllReduceTimes> all;
  for (int64_t bytes : kSizes) {
    all.push_back(TimedSize(group, bytes).run(seconds / std::size(kSizes)));
    if (all.size() >= kLeastSizes && std::ranges::min(all.back().seconds) > kSlowEnough) break;
  }
  return all;
}

}  // namespace tutti::cli
