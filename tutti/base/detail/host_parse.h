/// Readers of the kernel's text files, apart from the reading: text in, values out, no I/O.
///
/// host.h uses them on the live files; tests use them on recorded ones. Text that is not understood
/// gives an empty value, never an error: /proc differs between kernels and containers.
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::detail {

/// Reads a whole file; empty optional when it is not there.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

/// "0-3,8,10-11" to {0, 1, 2, 3, 8, 10, 11}, sorted, without repeats.
std::vector<int> parse_core_list(std::string_view text);

struct Meminfo {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
};
/// /proc/meminfo: MemTotal and MemAvailable (MemFree + Buffers + Cached on kernels without it).
Meminfo parse_meminfo(std::string_view text);

struct Cpuinfo {
  std::string model;                          ///< "model name", or "" (ARM has none)
  std::vector<std::string> instruction_sets;  ///< those that matter here: "sse4_2", "avx2", ...
};
/// /proc/cpuinfo, first processor.
Cpuinfo parse_cpuinfo(std::string_view text);

/// cgroup v2 cpu.max, "150000 100000" to 1.5 cores; empty for "max ...".
std::optional<double> parse_cpu_max(std::string_view text);
/// cgroup v1 cpu.cfs_quota_us and cpu.cfs_period_us; empty for a quota of -1.
std::optional<double> parse_cpu_quota(std::string_view quota_us, std::string_view period_us);
/// memory.max or memory.limit_in_bytes; empty for "max" and for v1's "no limit" (near 2^63).
std::optional<int64_t> parse_memory_limit(std::string_view text);
/// A line "KEY number" of memory.stat or memory.events; 0 when it is not there.
int64_t parse_stat(std::string_view text, std::string_view key);

/// The first number of a line "KEY:  number ..." of /proc/PID/status; -1 when it is not there.
int64_t parse_status(std::string_view text, std::string_view key);

/// A folder in which limits of this process may stand.
struct CgroupFolder {
  std::string path;
  bool v2 = false;
  bool operator==(const CgroupFolder&) const = default;
};
/// Folders of one controller ("cpu", "memory"), from this process's own group up to the mount
/// point, since every level's limit holds. `cgroup` is /proc/self/cgroup, `mountinfo` is
/// /proc/self/mountinfo. Also right inside a container, where the mount shows a part of the tree.
std::vector<CgroupFolder> cgroup_folders(std::string_view cgroup, std::string_view mountinfo,
                                         std::string_view controller);

struct CgroupLimits {
  std::optional<double> cpu_quota;            ///< cores, the smallest of all levels
  std::optional<int64_t> memory_limit_bytes;  ///< of the level with least memory left
  int64_t memory_used_bytes = 0;              ///< of that level, without page cache that can go
  int64_t oom_kills = 0;                      ///< in this process's own group, since it exists
  std::optional<int64_t> threads_limit;       ///< of the level where fewest more can start
  int64_t threads = 0;                        ///< of that level
};
/// The limits that hold for this process, through `read`.
CgroupLimits read_cgroup_limits(const ReadFile& read);

/// Whole cores that work can really use: affinity, cut by the quota (rounded down), at least 1.
int usable_core_count(int cores_in_affinity, std::optional<double> cpu_quota);

}  // namespace tutti::detail
