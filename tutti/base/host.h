/// What this machine really gives: cores, memory and their limits, as affinity and cgroups have it.
///
/// The number of processors that are present says little inside a container or under a scheduler;
/// everything that sizes threads, decides on spinning or allocates segments asks here.
/// Thread rule: every function may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

struct HostFacts {
  int present_cores = 1;            ///< online on this machine
  std::vector<int> cores;           ///< numbers of the cores that affinity allows, ascending
  std::optional<double> cpu_quota;  ///< cores' worth of time that the cgroup allows, if limited
  int usable_cores = 1;             ///< cores.size() cut by the quota (rounded down); >= 1
  std::vector<std::vector<int>> numa_nodes;  ///< cores of each NUMA node; one node when unknown

  int64_t memory_total_bytes = 0;
  int64_t memory_available_bytes = 0;                ///< without swapping
  std::optional<int64_t> cgroup_memory_limit_bytes;  ///< of the tightest level, if limited
  int64_t cgroup_memory_used_bytes = 0;              ///< of that level, without reclaimable cache
  int64_t oom_kills = 0;  ///< processes of this cgroup that the kernel killed for lack of memory

  std::string cpu_model;                      ///< "" when the kernel does not say
  std::vector<std::string> instruction_sets;  ///< "avx2", "avx512f", ...
  uint64_t pid_namespace = 0;  ///< processes with the same number see each other's pids; 0 unknown

  /// Bytes that can be used now: the smaller of what the machine and the cgroup leave.
  int64_t memory_left_bytes() const;
};

/// The facts at the first call in this process; core counts are taken before any pinning.
const HostFacts& host_facts();

/// Reads them anew (memory changes; so does the calling thread's affinity).
HostFacts read_host_facts();

/// Throws Error with both sizes, and which limit it was, when `bytes` are not there now.
/// `what` names the thing wanted: "the segment of 3 ranks". A check, not a reservation.
void check_memory_for(int64_t bytes, std::string_view what);

/// The same decision on given facts.
void check_memory_for(int64_t bytes, std::string_view what, const HostFacts& facts);

/// Of this process, for messages: "host node7, pid 4711".
std::string process_words();

/// What limits threads, and how many count against each limit, for messages: "ulimit -u allows 40,
/// user 1000 has 40; pids.max of the cgroup allows 64, and there are 12; 9 are of this process".
std::string thread_limit_words();

/// "512 B", "1.5 KiB", "64.0 MiB", "2.0 GiB".
std::string size_words(int64_t bytes);

}  // namespace tutti
