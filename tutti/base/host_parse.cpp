#include "tutti/base/detail/host_parse.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

namespace tutti::detail {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

template <class T>
std::optional<T> number(std::string_view text) {
  text = trimmed(text);
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

struct Mount {
  std::string root;   // which folder of the hierarchy is shown
  std::string point;  // where
  bool v2 = false;
  std::vector<std::string> options;  // v1: the controllers
};

// "36 25 0:30 / /sys/fs/cgroup/memory rw,nosuid shared:16 - cgroup cgroup rw,memory"
std::vector<Mount> cgroup_mounts(std::string_view mountinfo) {
  std::vector<Mount> mounts;
  for (const std::string& line : split(mountinfo, '\n')) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const auto left = split(line.substr(0, dash), ' ');
    const auto right = split(line.substr(dash + 3), ' ');
    if (left.size() < 5 || right.empty()) continue;
    if (right[0] != "cgroup" && right[0] != "cgroup2") continue;
    mounts.push_back({left[3], left[4], right[0] == "cgroup2",
                      split(right.size() > 2 ? right[2] : std::string(), ',')});
  }
  return mounts;
}

// The group's path below the mount point. Inside a cgroup namespace or a bind mount the root of the
// mount is a prefix of the path, or unrelated to it; then the mount point itself is the group.
std::string below_root(const std::string& path, const std::string& root) {
  if (path.find("/..") != std::string::npos) return "";
  if (root == "/") return path == "/" ? "" : path;
  if (path == root) return "";
  if (path.rfind(root + "/", 0) == 0) return path.substr(root.size());
  return "";
}

}  // namespace

std::vector<int> parse_core_list(std::string_view text) {
  std::set<int> cores;
  for (const std::string& part : split(trimmed(text), ',')) {
    const size_t dash = part.find('-');
    const auto first = number<int>(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : number<int>(part.substr(dash + 1));
    if (!first || !last) continue;
    for (int core = *first; core <= *last; ++core) cores.insert(core);
  }
  return {cores.begin(), cores.end()};
}

Meminfo parse_meminfo(std::string_view text) {
  const auto kib = [&](std::string_view key) -> std::optional<int64_t> {
    for (const std::string& line : split(text, '\n')) {
      if (line.rfind(std::string(key) + ":", 0) == 0) {
        return number<int64_t>(std::string_view(line).substr(key.size() + 1));
      }
    }
    return std::nullopt;
  };
  const int64_t total = kib("MemTotal").value_or(0);
  const int64_t estimate =
      kib("MemFree").value_or(0) + kib("Buffers").value_or(0) + kib("Cached").value_or(0);
  return {total * 1024, kib("MemAvailable").value_or(estimate) * 1024};
}

Cpuinfo parse_cpuinfo(std::string_view text) {
  constexpr std::array<std::string_view, 13> kSets = {
      "sse4_2",      "avx",         "f16c",        "fma",      "avx2",  "avx512f", "avx512bw",
      "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_bf16", "asimd", "sve"};
  Cpuinfo facts;
  bool have_flags = false;
  for (const std::string& line : split(text, '\n')) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view key = trimmed(std::string_view(line).substr(0, colon));
    const std::string_view value = trimmed(std::string_view(line).substr(colon + 1));
    if (key == "model name" && facts.model.empty()) facts.model = value;
    if ((key == "flags" || key == "Features") && !have_flags) {
      have_flags = true;
      const auto flags = split(value, ' ');
      for (std::string_view set : kSets) {
        if (contains(flags, set)) facts.instruction_sets.emplace_back(set);
      }
    }
  }
  return facts;
}

std::optional<double> parse_cpu_max(std::string_view text) {
  const auto parts = split(trimmed(text), ' ');
  if (parts.size() != 2) return std::nullopt;
  return parse_cpu_quota(parts[0], parts[1]);
}

std::optional<double> parse_cpu_quota(std::string_view quota_us, std::string_view period_us) {
  const auto quota = number<int64_t>(quota_us);
  const auto period = number<int64_t>(period_us);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::optional<int64_t> parse_memory_limit(std::string_view text) {
  // v1 writes LONG_MAX rounded down to a page for "no limit": everything above 2^60 means it.
  constexpr int64_t kNoLimit = int64_t{1} << 60;
  const auto bytes = number<int64_t>(text);
  if (!bytes || *bytes >= kNoLimit || *bytes < 0) return std::nullopt;
  return bytes;
}

int64_t parse_stat(std::string_view text, std::string_view key) {
  for (const std::string& line : split(text, '\n')) {
    const size_t space = line.find(' ');
    if (space != std::string::npos && std::string_view(line).substr(0, space) == key) {
      return number<int64_t>(std::string_view(line).substr(space + 1)).value_or(0);
    }
  }
  return 0;
}

int64_t parse_status(std::string_view text, std::string_view key) {
  for (const std::string& line : split(text, '\n'))
    if (line.rfind(std::string(key) + ":", 0) == 0)
      return number<int64_t>(std::string_view(line).substr(key.size() + 1)).value_or(-1);
  return -1;
}

std::vector<CgroupFolder> cgroup_folders(std::string_view cgroup, std::string_view mountinfo,
                                         std::string_view controller) {
  std::vector<CgroupFolder> folders;
  const auto mounts = cgroup_mounts(mountinfo);
  for (const std::string& line : split(cgroup, '\n')) {  // "4:memory:/job/7" or "0::/job/7"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = split(line.substr(first + 1, second - first - 1), ',');
    const bool v2 = line.substr(0, first) == "0" && second == first + 1;
    if (!v2 && !contains(controllers, controller)) continue;
    for (const Mount& mount : mounts) {
      if (mount.v2 != v2 || (!v2 && !contains(mount.options, controller))) continue;
      std::string below = below_root(line.substr(second + 1), mount.root);
      while (!below.empty()) {
        folders.push_back({mount.point + below, v2});
        below.resize(below.rfind('/'));
      }
      folders.push_back({mount.point, v2});
      break;
    }
  }
  return folders;
}

CgroupLimits read_cgroup_limits(const ReadFile& read) {
  const std::string cgroup = read("/proc/self/cgroup").value_or("");
  const std::string mounts = read("/proc/self/mountinfo").value_or("");
  const auto file = [&](const CgroupFolder& folder, const char* v2_name, const char* v1_name) {
    return read(folder.path + "/" + (folder.v2 ? v2_name : v1_name)).value_or("");
  };
  CgroupLimits limits;
  for (const CgroupFolder& folder : cgroup_folders(cgroup, mounts, "cpu")) {
    const auto quota = folder.v2 ? parse_cpu_max(file(folder, "cpu.max", ""))
                                 : parse_cpu_quota(file(folder, "", "cpu.cfs_quota_us"),
                                                   file(folder, "", "cpu.cfs_period_us"));
    if (quota) limits.cpu_quota = std::min(quota.value(), limits.cpu_quota.value_or(*quota));
  }
  std::string events;
  for (const CgroupFolder& folder : cgroup_folders(cgroup, mounts, "memory")) {
    if (events.empty()) events = file(folder, "memory.events", "memory.oom_control");
    const auto limit = parse_memory_limit(file(folder, "memory.max", "memory.limit_in_bytes"));
    if (!limit) continue;
    const auto used = number<int64_t>(file(folder, "memory.current", "memory.usage_in_bytes"));
    const int64_t cache = parse_stat(file(folder, "memory.stat", "memory.stat"),
                                     folder.v2 ? "inactive_file" : "total_inactive_file");
    const int64_t in_use = std::max<int64_t>(0, used.value_or(0) - cache);
    const auto& best = limits.memory_limit_bytes;
    if (!best || *limit - in_use < *best - limits.memory_used_bytes) {
      limits.memory_limit_bytes = limit;
      limits.memory_used_bytes = in_use;
    }
  }
  limits.oom_kills = parse_stat(events, "oom_kill");
  for (const CgroupFolder& folder : cgroup_folders(cgroup, mounts, "pids")) {
    const auto limit = number<int64_t>(file(folder, "pids.max", "pids.max"));
    if (!limit) continue;
    const int64_t threads =
        number<int64_t>(file(folder, "pids.current", "pids.current")).value_or(0);
    if (limits.threads_limit && *limit - threads >= *limits.threads_limit - limits.threads)
      continue;
    limits.threads_limit = limit;
    limits.threads = threads;
  }
  return limits;
}

int usable_core_count(int cores_in_affinity, std::optional<double> cpu_quota) {
  int cores = cores_in_affinity;
  // A small tolerance: a quota of 1.999 means 2 cores.
  if (cpu_quota && *cpu_quota < cores) cores = static_cast<int>(std::floor(*cpu_quota + 0.01));
  return std::max(1, cores);
}

}  // namespace tutti::detail
