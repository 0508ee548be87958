#include "tutti/base/host.h"

#include <fmt/ranges.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tutti/base/detail/host_parse.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<int> cores_in_affinity(int present) {
  // The kernel may know more cores than a fixed cpu_set_t holds: grow until it fits.
  for (int room = std::max(1024, present); room <= (1 << 18); room *= 2) {
    cpu_set_t* set = CPU_ALLOC(room);
    const size_t bytes = CPU_ALLOC_SIZE(room);
    std::vector<int> cores;
    const bool fits = sched_getaffinity(0, bytes, set) == 0;
    for (int core = 0; fits && core < room; ++core) {
      if (CPU_ISSET_S(core, bytes, set)) cores.push_back(core);
    }
    CPU_FREE(set);
    if (fits) return cores;
  }
  return {0};
}

std::vector<std::vector<int>> numa_nodes(const std::vector<int>& cores) {
  std::vector<std::vector<int>> nodes;
  const auto online = read_text("/sys/devices/system/node/online");
  for (int node : detail::parse_core_list(online.value_or(""))) {
    const auto list =
        read_text("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
    auto in_node = detail::parse_core_list(list.value_or(""));
    if (!in_node.empty()) nodes.push_back(std::move(in_node));
  }
  if (nodes.empty()) nodes.push_back(cores);
  return nodes;
}

int64_t threads_of_user(uid_t user) {
  int64_t threads = 0;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", unreadable)) {
    if (std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0])) == 0)
      continue;
    const std::string status = read_text(entry.path() / "status").value_or("");
    if (detail::parse_status(status, "Uid") == user)
      threads += detail::parse_status(status, "Threads");
  }
  return threads;
}

}  // namespace

int64_t HostFacts::memory_left_bytes() const {
  if (!cgroup_memory_limit_bytes) return memory_available_bytes;
  const int64_t in_group =
      std::max<int64_t>(0, *cgroup_memory_limit_bytes - cgroup_memory_used_bytes);
  return std::min(memory_available_bytes, in_group);
}

HostFacts read_host_facts() {
  HostFacts facts;
  facts.present_cores = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  facts.cores = cores_in_affinity(facts.present_cores);
  facts.numa_nodes = numa_nodes(facts.cores);

  const auto limits = detail::read_cgroup_limits(read_text);
  facts.cpu_quota = limits.cpu_quota;
  facts.usable_cores =
      detail::usable_core_count(static_cast<int>(facts.cores.size()), limits.cpu_quota);
  facts.cgroup_memory_limit_bytes = limits.memory_limit_bytes;
  facts.cgroup_memory_used_bytes = limits.memory_used_bytes;
  facts.oom_kills = limits.oom_kills;

  const auto memory = detail::parse_meminfo(read_text("/proc/meminfo").value_or(""));
  facts.memory_total_bytes = memory.total_bytes;
  facts.memory_available_bytes = memory.available_bytes;

  auto cpu = detail::parse_cpuinfo(read_text("/proc/cpuinfo").value_or(""));
  facts.cpu_model = std::move(cpu.model);
  facts.instruction_sets = std::move(cpu.instruction_sets);

  struct stat entry{};
  if (stat("/proc/self/ns/pid", &entry) == 0) facts.pid_namespace = entry.st_ino;
  return facts;
}

const HostFacts& host_facts() {
  static const HostFacts facts = read_host_facts();
  return facts;
}

void check_memory_for(int64_t bytes, std::string_view what) {
  check_memory_for(bytes, what, read_host_facts());
}

void check_memory_for(int64_t bytes, std::string_view what, const HostFacts& facts) {
  const int64_t left = facts.memory_left_bytes();
  if (bytes <= left) return;
  const bool by_group = facts.cgroup_memory_limit_bytes && left < facts.memory_available_bytes;
  const std::string reason =
      by_group ? fmt::format("the cgroup allows {} and {} of it are used",
                             size_words(*facts.cgroup_memory_limit_bytes),
                             size_words(facts.cgroup_memory_used_bytes))
               : fmt::format("the machine has {}", size_words(facts.memory_total_bytes));
  throw Error(
      fmt::format("{} needs {}, but only {} of memory are left ({})\n"
                  "  use fewer replicas or a smaller model, or raise the limit; `tutti doctor` "
                  "shows all limits",
                  what, size_words(bytes), size_words(left), reason));
}

std::string thread_limit_words() {
  std::vector<std::string> words;
  rlimit own{};
  if (getrlimit(RLIMIT_NPROC, &own) == 0 && own.rlim_cur != RLIM_INFINITY && geteuid() != 0)
    words.push_back(fmt::format("ulimit -u allows {} threads of a user, and user {} has {}",
                                own.rlim_cur, getuid(), threads_of_user(getuid())));
  if (const auto group = detail::read_cgroup_limits(read_text); group.threads_limit)
    words.push_back(fmt::format("pids.max allows {} threads in the cgroup, and there are {}",
                                *group.threads_limit, group.threads));
  if (words.empty()) words.emplace_back("neither ulimit -u nor pids.max is set");
  words.push_back(
      fmt::format("of this process are {}",
                  detail::parse_status(read_text("/proc/self/status").value_or(""), "Threads")));
  return fmt::format("{}", fmt::join(words, "; "));
}

std::string size_words(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string process_words() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) return fmt::format("pid {}", getpid());
  return fmt::format("host {}, pid {}", host.data(), getpid());
}

}  // namespace tutti
