// tutti doctor: what this machine has, what is wrong with it, and how to mend that.
#include "tutti/cli/run/doctor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/json.h"
#include "tutti/base/printable.h"
#include "tutti/base/typed.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/commands.h"
#include "tutti/cluster/join/environment_check.h"

namespace tutti::cli {
namespace {

std::vector<std::string> addresses() {
  std::vector<std::string> all;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return all;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[NI_MAXHOST];
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(entry->ifa_addr, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      all.push_back(fmt::format("{} {}", entry->ifa_name, text));
    }
  }
  freeifaddrs(list);
  return all;
}

std::string kernel_release() {
  utsname names{};
  return uname(&names) == 0 ? names.release : "unknown";
}

int64_t shm_bytes() {
  struct statvfs facts{};
  if (statvfs("/dev/shm", &facts) != 0) return 0;
  return static_cast<int64_t>(facts.f_blocks) * static_cast<int64_t>(facts.f_frsize);
}

int64_t descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, int64_t{1} << 30));
}

Json json_of(const ClusterSpec& spec) {
  Json json = {{"source", spec.source},           {"job", spec.job},
               {"kind", name_of(spec.kind)},      {"task", spec.task},
               {"num_workers", spec.num_workers}, {"notes", spec.notes}};
  if (spec.worker >= 0) json["worker"] = spec.worker;
  if (spec.local_worker) json["local_worker"] = *spec.local_worker;
  if (spec.num_local_workers) json["num_local_workers"] = *spec.num_local_workers;
  if (spec.rendezvous) json["rendezvous"] = spec.rendezvous->text();
  return json;
}

Json json_of(const Examination& facts) {
  const HostFacts& host = facts.host;
  Json json = {{"cpu", host.cpu_model},
               {"instruction_sets", host.instruction_sets},
               {"cores_present", host.present_cores},
               {"cores", host.cores},
               {"cores_usable", host.usable_cores},
               {"numa_nodes", host.numa_nodes},
               {"memory_total_bytes", host.memory_total_bytes},
               {"memory_available_bytes", host.memory_available_bytes},
               {"memory_left_bytes", host.memory_left_bytes()},
               {"dev_shm_bytes", facts.dev_shm_bytes},
               {"descriptor_limit", facts.descriptor_limit},
               {"kernel", facts.kernel},
               {"engines", facts.engines},
               {"addresses", facts.addresses},
               {"torch",
                {{"version", facts.torch.version},
                 {"tried", facts.torch.tried},
                 {"blas", facts.torch.blas},
                 {"openmp", facts.torch.openmp},
                 {"abi", facts.torch.abi},
                 {"cuda", facts.torch.cuda},
                 {"cpu_capability", facts.torch.cpu_capability},
                 {"dense_kernel", facts.torch.dense_kernel},
                 {"threads", facts.torch.threads}}}};
  json["cuda"] = json_of(facts.devices);
  json["cpu_quota"] = host.cpu_quota ? Json(*host.cpu_quota) : Json();
  json["cgroup_memory_limit_bytes"] =
      host.cgroup_memory_limit_bytes ? Json(*host.cgroup_memory_limit_bytes) : Json();
  json["cluster"] = facts.cluster ? json_of(*facts.cluster) : Json();
  json["problems"] = Json::array();
  for (const Problem& problem : problems_of(facts)) {
    json["problems"].push_back(
        {{"what", problem.what}, {"cure", problem.cure}, {"fatal", problem.fatal}});
  }
  return json;
}

void print(const Examination& facts) {
  const HostFacts& host = facts.host;
  const auto row = [](const std::string& name, std::string_view value) {
    for (const std::string_view line : parts_of(value, '\n'))
      fmt::print("{:18} {}\n", line.data() == value.data() ? name : "", line);
  };
  row("cpu", host.cpu_model.empty() ? "unknown" : host.cpu_model);
  row("instruction sets", fmt::format("{}", fmt::join(host.instruction_sets, " ")));
  row("cores", fmt::format("{} usable of {} present{}", host.usable_cores, host.present_cores,
                           host.cpu_quota ? fmt::format(" (quota {:.2f})", *host.cpu_quota) : ""));
  row("NUMA nodes", fmt::format("{}", host.numa_nodes.size()));
  row("memory", fmt::format("{} left of {}", size_words(host.memory_left_bytes()),
                            size_words(host.memory_total_bytes)));
  row("memory limit",
      host.cgroup_memory_limit_bytes
          ? fmt::format("{} (cgroup), {} used", size_words(*host.cgroup_memory_limit_bytes),
                        size_words(host.cgroup_memory_used_bytes))
          : "none");
  row("/dev/shm",
      fmt::format("{} (not used: segments are memfds)", size_words(facts.dev_shm_bytes)));
  row("descriptors", fmt::format("{} a process", facts.descriptor_limit));
  row("kernel", facts.kernel);
  row("engines", fmt::format("{}", fmt::join(facts.engines, " ")));
  row("addresses", fmt::format("{}", fmt::join(facts.addresses, ", ")));
  row("LibTorch",
      fmt::format("{}{}, BLAS {}, dense products by {}, {}, {} ABI, kernels for {}, {} threads",
                  facts.torch.version,
                  facts.torch.cuda.empty() ? "" : " with CUDA " + facts.torch.cuda,
                  facts.torch.blas, facts.torch.dense_kernel, facts.torch.openmp, facts.torch.abi,
                  facts.torch.cpu_capability, facts.torch.threads));
  for (const auto& [name, value] : rows_of(facts.devices)) row(name, value);
  if (facts.cluster) std::printf("\nThe job: %s\n", to_string(*facts.cluster).c_str());
  const auto problems = problems_of(facts);
  std::printf("\n%s\n", problems.empty() ? "Nothing is wrong." : "What is wrong:");
  for (const Problem& problem : problems) {
    std::printf("  %s\n    %s\n", printable(problem.what).c_str(), problem.cure.c_str());
  }
}

void examine_environment(Examination& facts) {
  try {
    facts.cluster = cluster_spec(environment_variables());
  } catch (const UsageError& error) {
    facts.cluster_error = error.what();
  }
  try {
    check_environment();
  } catch (const UsageError& error) {
    facts.environment_error = error.what();
  }
}

}  // namespace

Examination examine() {
  Examination facts;
  facts.host = read_host_facts();
  facts.devices = device_facts();
  facts.torch = torch_facts();
  facts.dev_shm_bytes = shm_bytes();
  facts.descriptor_limit = descriptor_limit();
  facts.kernel = kernel_release();
  facts.addresses = addresses();
  facts.engines = {"solo", "shm"};
  examine_environment(facts);
  facts.memfd_works = FileDescriptor(memfd_create("tutti-doctor", MFD_CLOEXEC)).get() >= 0;
  facts.pidfd_works =
      FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))).get() >= 0;
  return facts;
}

std::vector<Problem> problems_of(const Examination& facts) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  constexpr int64_t kFewDescriptors = 1024;
  std::vector<Problem> all;
  const HostFacts& host = facts.host;
  if (!facts.memfd_works) {
    all.push_back({"memory without a name (memfd_create) cannot be made",
                   "allow the system call in the container's seccomp profile", true});
  }
  if (!facts.pidfd_works) {
    all.push_back({"processes cannot be watched (pidfd_open)",
                   fmt::format("use Linux 5.4 or newer (this is {}), and allow the call in the "
                               "container's seccomp profile",
                               facts.kernel),
                   true});
  }
  if (facts.torch.abi == "old") {
    all.push_back(
        {"LibTorch has the old C++ ABI", "run tools/setup, which installs the right one", true});
  }
  if (!facts.cluster_error.empty()) {
    all.push_back({"the launcher's variables do not say who is in the job: " + facts.cluster_error,
                   "see docs/guide/launching.md", true});
  }
  if (!facts.environment_error.empty()) {
    all.push_back(
        {facts.environment_error, "unset the variable, or see docs/guide/environment.md", true});
  }
  if (host.memory_left_bytes() < kGiB) {
    all.push_back({fmt::format("only {} of memory are left", size_words(host.memory_left_bytes())),
                   host.cgroup_memory_limit_bytes
                       ? fmt::format("end other work, or raise the cgroup's limit of {}",
                                     size_words(*host.cgroup_memory_limit_bytes))
                       : "end other work",
                   false});
  }
  if (host.usable_cores < host.present_cores) {
    all.push_back({fmt::format("{} of {} cores can be used", host.usable_cores, host.present_cores),
                   host.cpu_quota ? "raise the CPU quota of the container or job for more replicas"
                                  : "widen the affinity (taskset, cpuset) for more replicas",
                   false});
  }
  if (facts.descriptor_limit < kFewDescriptors) {
    all.push_back({fmt::format("a process may open {} files only", facts.descriptor_limit),
                   "ulimit -n 4096", false});
  }
  if (!was_tried(facts.torch.version, facts.torch.tried)) {
    all.push_back({fmt::format("LibTorch {} is none of the versions that tutti was tried with ({})",
                               facts.torch.version, facts.torch.tried),
                   "run `make test`, or build with one of those: tools/setup installs one", false});
  }
  if (facts.torch.openmp == "none") {
    all.push_back({"LibTorch was built without OpenMP: each replica computes with one thread",
                   "use the wheel that tools/setup installs", false});
  }
  return all;
}

void add_doctor(Command& program) {
  auto as_json = std::make_shared<bool>(false);
  Command& command =
      program.command("doctor", "Show what this machine has, what is wrong, and how to mend it");
  command.flag("--json", as_json.get(), "Print one JSON object instead");
  command.footer =
      "Examples:\n  tutti doctor\n  tutti doctor --json\n  tutti doctor record FILES...\n\n"
      "Exit code: 0, or 1 when something keeps tutti from working at all.";
  add_doctor_record(command);
  command.action = [as_json] {
    const Examination facts = examine();
    if (*as_json) {
      std::printf("%s\n", dump_json(json_of(facts), 2).c_str());
    } else {
      print(facts);
    }
    return std::ranges::any_of(problems_of(facts), &Problem::fatal) ? 1 : 0;
  };
}

}  // namespace tutti::cli
