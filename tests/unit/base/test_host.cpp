// Host facts: the parsers on recorded files, as tables, and the live reading against other sources.
#include <sched.h>
#include <unistd.h>

#include <map>
#include <string>
#include <thread>

#include "tutti/base/detail/host_parse.h"
#include "tutti/base/host.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using namespace tutti::detail;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

TEST(HostParse, CoreLists) {
  const struct {
    const char* text;
    std::vector<int> cores;
  } cases[] = {{"0", {0}},
               {"0-3\n", {0, 1, 2, 3}},
               {"0-1,8,10-11", {0, 1, 8, 10, 11}},
               {"3,1,1-2", {1, 2, 3}},
               {"", {}},
               {"words", {}},
               {"5-", {}},
               {"4-2", {}}};
  for (const auto& c : cases) EXPECT_EQ(parse_core_list(c.text), c.cores) << c.text;
}

TEST(HostParse, Meminfo) {
  const auto recent = parse_meminfo("MemTotal:  8000 kB\nMemFree: 100 kB\nMemAvailable: 5000 kB\n");
  EXPECT_EQ(recent.total_bytes, 8000 * 1024);
  EXPECT_EQ(recent.available_bytes, 5000 * 1024);
  const auto old =
      parse_meminfo("MemTotal: 8000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 3 kB\n");
  EXPECT_EQ(old.available_bytes, 123 * 1024);
  EXPECT_EQ(parse_meminfo("").total_bytes, 0);
}

TEST(HostParse, Cpuinfo) {
  const auto x86 = parse_cpuinfo(
      "processor\t: 0\nmodel name\t: A Chip 9000\nflags\t\t: fpu avx avx2 fma avx512f\n"
      "processor\t: 1\nmodel name\t: other\nflags\t\t: sse4_2\n");
  EXPECT_EQ(x86.model, "A Chip 9000");
  EXPECT_THAT(x86.instruction_sets, ElementsAre("avx", "fma", "avx2", "avx512f"));
  const auto arm = parse_cpuinfo("processor : 0\nFeatures : fp asimd sve\n");
  EXPECT_EQ(arm.model, "");
  EXPECT_THAT(arm.instruction_sets, ElementsAre("asimd", "sve"));
}

TEST(HostParse, CpuQuotas) {
  EXPECT_EQ(parse_cpu_max("150000 100000\n"), 1.5);
  EXPECT_EQ(parse_cpu_max("max 100000\n"), std::nullopt);
  EXPECT_EQ(parse_cpu_max(""), std::nullopt);
  EXPECT_EQ(parse_cpu_quota("50000\n", "100000\n"), 0.5);
  EXPECT_EQ(parse_cpu_quota("-1\n", "100000\n"), std::nullopt);
  EXPECT_EQ(parse_cpu_quota("100", "0"), std::nullopt);
}

TEST(HostParse, MemoryLimits) {
  EXPECT_EQ(parse_memory_limit("1073741824\n"), kGiB);
  EXPECT_EQ(parse_memory_limit("0\n"), 0);
  EXPECT_EQ(parse_memory_limit("max\n"), std::nullopt);
  EXPECT_EQ(parse_memory_limit("9223372036854771712\n"), std::nullopt) << "v1: no limit";
  EXPECT_EQ(parse_memory_limit(""), std::nullopt);
  EXPECT_EQ(parse_stat("cache 5\ninactive_file 42\n", "inactive_file"), 42);
  EXPECT_EQ(parse_stat("total_inactive_file 42\n", "inactive_file"), 0);
}

TEST(HostParse, UsableCores) {
  EXPECT_EQ(usable_core_count(8, std::nullopt), 8);
  EXPECT_EQ(usable_core_count(8, 2.5), 2);
  EXPECT_EQ(usable_core_count(8, 1.999), 2);
  EXPECT_EQ(usable_core_count(2, 16.0), 2);
  EXPECT_EQ(usable_core_count(8, 0.3), 1);
}

constexpr char kMountV2[] = "30 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";

TEST(CgroupFolders, EveryLevelUpToTheMount) {
  EXPECT_THAT(
      cgroup_folders("0::/user/job/7\n", kMountV2, "memory"),
      ElementsAre(CgroupFolder{"/sys/fs/cgroup/user/job/7", true},
                  CgroupFolder{"/sys/fs/cgroup/user/job", true},
                  CgroupFolder{"/sys/fs/cgroup/user", true}, CgroupFolder{"/sys/fs/cgroup", true}));
}

TEST(CgroupFolders, Version1FindsItsController) {
  const char* mounts =
      "31 30 0:28 / /cg/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
      "32 30 0:29 / /cg/memory rw - cgroup cgroup rw,memory\n";
  const char* cgroup = "4:memory:/job\n2:cpu,cpuacct:/\n0::/\n";
  EXPECT_THAT(
      cgroup_folders(cgroup, mounts, "memory"),
      ElementsAre(CgroupFolder{"/cg/memory/job", false}, CgroupFolder{"/cg/memory", false}));
  EXPECT_THAT(cgroup_folders(cgroup, mounts, "cpu"),
              ElementsAre(CgroupFolder{"/cg/cpu,cpuacct", false}));
}

TEST(CgroupFolders, AContainerSeesAPartOfTheTree) {
  const char* mounts = "30 24 0:27 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
  const CgroupFolder top{"/sys/fs/cgroup", true};
  EXPECT_THAT(cgroup_folders("0::/docker/abc\n", mounts, "cpu"), ElementsAre(top));
  EXPECT_THAT(cgroup_folders("0::/docker/abc/sub\n", mounts, "cpu"),
              ElementsAre(CgroupFolder{"/sys/fs/cgroup/sub", true}, top));
  EXPECT_THAT(cgroup_folders("0::/../../elsewhere\n", mounts, "cpu"), ElementsAre(top));
  EXPECT_THAT(cgroup_folders("", "", "cpu"), IsEmpty());
}

ReadFile reader(std::map<std::string, std::string> files) {
  return [files = std::move(files)](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    if (found == files.end()) return std::nullopt;
    return found->second;
  };
}

TEST(CgroupLimits, TheTightestLevelHolds) {
  const auto limits = read_cgroup_limits(reader({
      {"/proc/self/cgroup", "0::/outer/inner\n"},
      {"/proc/self/mountinfo", kMountV2},
      {"/sys/fs/cgroup/outer/inner/cpu.max", "max 100000"},
      {"/sys/fs/cgroup/outer/cpu.max", "200000 100000"},
      {"/sys/fs/cgroup/outer/inner/memory.max", "1073741824"},
      {"/sys/fs/cgroup/outer/inner/memory.current", "104857600"},
      {"/sys/fs/cgroup/outer/memory.max", "2147483648"},
      {"/sys/fs/cgroup/outer/memory.current", "2147483648"},
      {"/sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 10485760\n"},
      {"/sys/fs/cgroup/outer/inner/memory.events", "low 0\noom 3\noom_kill 2\n"},
      {"/sys/fs/cgroup/outer/memory.events", "oom 9\noom_kill 8\n"},
  }));
  EXPECT_EQ(limits.cpu_quota, 2.0);
  EXPECT_EQ(limits.memory_limit_bytes, 2 * kGiB) << "the outer group has only 10 MiB left";
  EXPECT_EQ(limits.memory_used_bytes, 2 * kGiB - 10 * kMiB) << "cache that can go is not used";
  EXPECT_EQ(limits.oom_kills, 2) << "those of its own group";
}

TEST(CgroupLimits, Version1) {
  const auto limits = read_cgroup_limits(reader({
      {"/proc/self/cgroup", "4:memory:/job\n1:cpu:/job\n"},
      {"/proc/self/mountinfo",
       "31 30 0:28 / /cg/cpu rw - cgroup cgroup rw,cpu\n"
       "32 30 0:29 / /cg/memory rw - cgroup cgroup rw,memory\n"},
      {"/cg/cpu/job/cpu.cfs_quota_us", "50000"},
      {"/cg/cpu/job/cpu.cfs_period_us", "100000"},
      {"/cg/memory/memory.limit_in_bytes", "9223372036854771712"},
      {"/cg/memory/job/memory.limit_in_bytes", "1073741824"},
      {"/cg/memory/job/memory.usage_in_bytes", "209715200"},
      {"/cg/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 104857600\n"},
      {"/cg/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"},
  }));
  EXPECT_EQ(limits.cpu_quota, 0.5);
  EXPECT_EQ(limits.memory_limit_bytes, kGiB);
  EXPECT_EQ(limits.memory_used_bytes, 100 * kMiB);
  EXPECT_EQ(limits.oom_kills, 1);
}

TEST(CgroupLimits, FewestThreadsMoreHold) {
  const auto limits = read_cgroup_limits(reader({
      {"/proc/self/cgroup", "0::/outer/inner\n"},
      {"/proc/self/mountinfo", kMountV2},
      {"/sys/fs/cgroup/outer/inner/pids.max", "64\n"},
      {"/sys/fs/cgroup/outer/inner/pids.current", "12\n"},
      {"/sys/fs/cgroup/outer/pids.max", "100\n"},
      {"/sys/fs/cgroup/outer/pids.current", "90\n"},
      {"/sys/fs/cgroup/pids.max", "max\n"},
  }));
  EXPECT_EQ(limits.threads_limit, 100);
  EXPECT_EQ(limits.threads, 90);
}

TEST(ProcStatus, FirstNumberOfALine) {
  const char* text = "Name:\tprogram\nUid:\t1000\t1001\t1000\t1000\nThreads:\t9\n";
  EXPECT_EQ(parse_status(text, "Uid"), 1000);
  EXPECT_EQ(parse_status(text, "Threads"), 9);
  EXPECT_EQ(parse_status(text, "Gid"), -1);
}

TEST(CgroupLimits, NothingToReadMeansNoLimit) {
  const auto limits = read_cgroup_limits(reader({}));
  EXPECT_EQ(limits.cpu_quota, std::nullopt);
  EXPECT_EQ(limits.memory_limit_bytes, std::nullopt);
  EXPECT_EQ(limits.oom_kills, 0);
}

TEST(HostFacts, AgreesWithTheSystem) {
  const HostFacts facts = read_host_facts();
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_EQ(static_cast<int>(facts.cores.size()), CPU_COUNT(&set));
  EXPECT_GE(facts.usable_cores, 1);
  EXPECT_LE(facts.usable_cores, static_cast<int>(facts.cores.size()));
  EXPECT_EQ(facts.memory_total_bytes, sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
  EXPECT_GT(facts.memory_left_bytes(), 0);
  EXPECT_FALSE(facts.numa_nodes.empty());
  EXPECT_NE(facts.pid_namespace, 0U);
}

TEST(HostFacts, AffinityCounts) {
  std::thread([] {
    const int core = read_host_facts().cores.back();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    const HostFacts facts = read_host_facts();
    EXPECT_THAT(facts.cores, ElementsAre(core));
    EXPECT_EQ(facts.usable_cores, 1);
  }).join();
}

TEST(CheckMemory, NamesBothSizesAndTheLimit) {
  HostFacts facts;
  facts.memory_total_bytes = 16 * kGiB;
  facts.memory_available_bytes = 8 * kGiB;
  EXPECT_NO_THROW(check_memory_for(8 * kGiB, "the segment", facts));
  EXPECT_THAT([&] { check_memory_for(9 * kGiB, "the segment", facts); },
              ThrowsMessage<Error>(AllOf(HasSubstr("the segment needs 9.0 GiB"),
                                         HasSubstr("only 8.0 GiB"), HasSubstr("16.0 GiB"))));
  facts.cgroup_memory_limit_bytes = 2 * kGiB;
  facts.cgroup_memory_used_bytes = 1 * kGiB;
  EXPECT_NO_THROW(check_memory_for(kGiB, "the segment", facts));
  EXPECT_THAT([&] { check_memory_for(kGiB + 1, "the segment", facts); },
              ThrowsMessage<Error>(HasSubstr("the cgroup allows 2.0 GiB and 1.0 GiB")));
  facts.cgroup_memory_used_bytes = 3 * kGiB;
  EXPECT_EQ(facts.memory_left_bytes(), 0);
}

TEST(CheckMemory, AsksTheLiveMachine) {
  EXPECT_NO_THROW(check_memory_for(1, "a byte"));
  EXPECT_THROW(check_memory_for(int64_t{1} << 60, "an exbibyte"), Error);
}

TEST(SizeWords, PickTheirUnit) {
  EXPECT_EQ(size_words(0), "0 B");
  EXPECT_EQ(size_words(1023), "1023 B");
  EXPECT_EQ(size_words(1536), "1.5 KiB");
  EXPECT_EQ(size_words(64 * kMiB), "64.0 MiB");
  EXPECT_EQ(size_words(3 * kGiB), "3.0 GiB");
}

}  // namespace
}  // namespace tutti
