// Which TPU it is, and which worker of it: names and variables, and what contradicts itself.
#include <cstdlib>

#include "tutti/cluster/spec/tpu_resolver.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using cluster::TpuResolver;

struct Case {
  const char* name;
  const char* tpu;
  Variables variables;
  std::vector<std::string> says;  ///< each is a part of to_string(), or of the UsageError
};

std::string outcome(const Case& c) {
  try {
    return TpuResolver(c.tpu, c.variables).to_string();
  } catch (const UsageError& error) {
    return std::string("UsageError: ") + error.what();
  }
}

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const std::string got = outcome(c);
    EXPECT_EQ(got.starts_with("UsageError"), c.says.front().starts_with("UsageError"))
        << c.name << ": " << got;
    for (const std::string& part : c.says) EXPECT_THAT(got, HasSubstr(part)) << c.name;
  }
}

Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}

const Variables kSlice = {{"TPU_NAME", "my-tpu"},
                          {"TPU_WORKER_HOSTNAMES", "t-0,t-1,t-2,t-3"},
                          {"TPU_WORKER_ID", "2"},
                          {"TPU_ACCELERATOR_TYPE", "v4-32"}};

TEST(TpuResolver, WhichPlugin) {
  const std::string tpu = "plugin tpu, worker 0 of 1", cpu = "plugin cpu, worker 0 of 1";
  check({
      {"nothing is said: this machine's", "", {{"HOME", "/root"}}, {tpu}},
      {"this machine's", "local", {}, {tpu}},
      {"TPU_NAME is asked where nothing is said", "", {{"TPU_NAME", "local"}}, {tpu}},
      {"it may be a plugin", "", {{"TPU_NAME", "cpu"}}, {cpu}},
      {"and is not asked where something is", "local", {{"TPU_NAME", "my-tpu"}}, {tpu}},
      {"empty is not set", "", {{"TPU_NAME", ""}, {"TPU_WORKER_ID", ""}}, {tpu}},
      {"a rehearsal", "cpu", {}, {cpu}},
      {"a GPU's", "cuda", {}, {"plugin cuda"}},
      {"a path", "/lib/x.so", {}, {"plugin /lib/x.so"}},
      {"what local is", "local", {{"TUTTI_PLUGIN", "cpu"}}, {cpu}},
      {"as a path", "", {{"TUTTI_PLUGIN", "./x.so"}}, {"plugin ./x.so"}},
      {"a plugin by name is that one", "tpu", {{"TUTTI_PLUGIN", "cpu"}}, {tpu}},
      {"no plugin",
       "local",
       {{"TUTTI_PLUGIN", "gpu"}},
       {"UsageError: TUTTI_PLUGIN=\"gpu\": expected cpu, tpu, cuda, or the path"}},
      {"nor is an address", "", {{"TUTTI_PLUGIN", "grpc://h:1"}}, {"UsageError: TUTTI_PLUGIN="}},
  });
}

TEST(TpuResolver, TpusThatAreElsewhere) {
  check({
      {"an address",
       "grpc://10.0.0.2:8470",
       {},
       {"UsageError: TPU \"grpc://10.0.0.2:8470\": the address of a TPU that is driven over the "
        "network",
        "with \"local\""}},
      {"of the variable, even on a worker",
       "",
       with(kSlice, {{"TPU_NAME", "grpc://10.0.0.2:8470"}}),
       {"UsageError: TPU_NAME=\"grpc://10.0.0.2:8470\": the address"}},
      {"a name",
       "my-tpu",
       {},
       {"UsageError: TPU \"my-tpu\": expected \"local\", or a plugin", "Google's API",
        "tpu-vm ssh my-tpu --worker=all"}},
      {"of the variable", "", {{"TPU_NAME", "my-tpu"}}, {"UsageError: TPU_NAME=\"my-tpu\""}},
      {"another than this worker's", "other", kSlice, {"UsageError: TPU \"other\""}},
      {"this worker's", "my-tpu", kSlice, {"v4-32 by plugin tpu, worker 2 of 4 (host t-2)"}},
      {"which the variable says", "", kSlice, {"v4-32 by plugin tpu, worker 2 of 4 (host t-2)"}},
      {"rehearsed", "cpu", kSlice, {"v4-32 by plugin cpu, worker 2 of 4 (host t-2)"}},
      {"several slices",
       "local",
       with(kSlice, {{"MEGASCALE_NUM_SLICES", "2"}}),
       {"UsageError: MEGASCALE_NUM_SLICES=2: ", "several slices", "expected 1"}},
      {"one of them", "local", with(kSlice, {{"MEGASCALE_NUM_SLICES", "1"}}), {"worker 2 of 4"}},
  });
}

TEST(TpuResolver, WhichWorker) {
  const auto hosts = [](const char* names, const char* worker) {
    return Variables{{"TPU_WORKER_HOSTNAMES", names}, {"TPU_WORKER_ID", worker}};
  };
  check({
      {"one host", "local", hosts("localhost", "0"), {"worker 0 of 1 (host localhost)"}},
      {"which needs no number", "local", hosts("localhost", ""), {"worker 0 of 1"}},
      {"no hosts", "local", {{"TPU_WORKER_ID", "0"}}, {"worker 0 of 1"}},
      {"spaces between", "local", hosts(" a , b ", "1"), {"worker 1 of 2 (host b)"}},
      {"a number without hosts",
       "local",
       {{"TPU_WORKER_ID", "1"}},
       {"UsageError: TPU_WORKER_ID=1, but TPU_WORKER_HOSTNAMES is not set: expected 0, or"}},
      {"hosts without a number",
       "local",
       hosts("a,b", ""),
       {"UsageError: TPU_WORKER_ID is not set, but TPU_WORKER_HOSTNAMES names 2 hosts", "0 to 1"}},
      {"numbers count from 0",
       "local",
       hosts("a,b", "2"),
       {"UsageError: TPU_WORKER_ID=2, but TPU_WORKER_HOSTNAMES names 2 hosts: expected 0 to 1"}},
      {"one beside the one",
       "local",
       hosts("a", "1"),
       {"UsageError: TPU_WORKER_ID=1, but TPU_WORKER_HOSTNAMES names 1 host: expected 0"}},
      {"no number",
       "local",
       hosts("a,b", "one"),
       {"UsageError: TPU_WORKER_ID=\"one\": expected a whole number from 0 on"}},
      {"below 0", "local", hosts("a,b", "-1"), {"UsageError: TPU_WORKER_ID=\"-1\""}},
      {"an empty host",
       "local",
       hosts("a,,c", "0"),
       {"UsageError: TPU_WORKER_HOSTNAMES=\"a,,c\": host 1 is empty"}},
      {"at the end", "local", hosts("a,b,", "0"), {"UsageError: ", "host 2 is empty"}},
      {"of spaces", "local", hosts("a, ", "0"), {"UsageError: ", "host 1 is empty"}},
      {"one twice",
       "local",
       hosts("a,b, a", "0"),
       {"UsageError: TPU_WORKER_HOSTNAMES=\"a,b, a\": \"a\" is host 0 and host 2"}},
  });
}

/// `hosts` of a slice of that type.
Case of_type(const char* name, const char* type, int hosts, std::vector<std::string> says,
             const Variables& more = {}) {
  std::string names;
  for (int i = 0; i < hosts; ++i) names += (i == 0 ? "h" : ",h") + std::to_string(i);
  return {name, "local",
          with({{"TPU_ACCELERATOR_TYPE", type},
                {"TPU_WORKER_HOSTNAMES", names},
                {"TPU_WORKER_ID", hosts > 1 ? "0" : ""}},
               more),
          std::move(says)};
}

TEST(TpuResolver, TypesAndTheirHosts) {
  const std::vector<std::string> malformed = {"UsageError: TPU_ACCELERATOR_TYPE=\"",
                                              "like v4-8 or v5litepod-16"};
  check({
      of_type("one host of four chips", "v4-8", 1, {"v4-8 by plugin tpu, worker 0 of 1"}),
      of_type("a part of a host", "v5p-2", 1, {"v5p-2 by"}),
      of_type("of which nobody says the hosts", "v4-8", 0, {"v4-8 by plugin tpu, worker 0 of 1"}),
      of_type("four hosts", "v4-32", 4, {"worker 0 of 4"}),
      of_type("old ones", "v2-32", 4, {"worker 0 of 4"}),
      of_type("three of four", "v4-32", 3,
              {"UsageError: TPU_ACCELERATOR_TYPE=v4-32 has 4 hosts (32 cores, 2 a chip, 4 chips a "
               "host), but TPU_WORKER_HOSTNAMES names 3",
               "TPU_PROCESS_BOUNDS"}),
      of_type("which is said to be a part", "v4-32", 3, {"worker 0 of 3"},
              {{"TPU_PROCESS_BOUNDS", "1,1,3"}}),
      of_type("by the older name", "v4-32", 1, {"worker 0 of 1"}, {{"TPU_HOST_BOUNDS", "1,1,1"}}),
      of_type("hosts that nobody names", "v4-32", 0,
              {"UsageError: TPU_ACCELERATOR_TYPE=v4-32 has 4 hosts",
               "but TPU_WORKER_HOSTNAMES is not set"}),
      of_type("one too many", "v4-8", 2,
              {"UsageError: TPU_ACCELERATOR_TYPE=v4-8 has 1 host (8 cores", "names 2"}),
      of_type("of a part, too", "v4-8", 2, {"UsageError: "}, {{"TPU_PROCESS_BOUNDS", "1,1,1"}}),
      of_type("eight chips of one host", "v5litepod-8", 1, {"worker 0 of 1"}),
      of_type("or of two", "v5litepod-8", 2, {"worker 0 of 2"}),
      of_type("sixteen of four", "v6e-16", 4, {"worker 0 of 4"}),
      of_type("not of one", "v6e-16", 1,
              {"UsageError: TPU_ACCELERATOR_TYPE=v6e-16 has 2 to 16 hosts (16 chips, at most 8 a "
               "host), but TPU_WORKER_HOSTNAMES names 1"}),
      of_type("more hosts than chips", "v5litepod-1", 2,
              {"UsageError: TPU_ACCELERATOR_TYPE=v5litepod-1 has 1 host (1 chip"}),
      of_type("of a generation that is not known", "tpu7x-16", 3, {"tpu7x-16 by", "worker 0 of 3"}),
      of_type("no number", "v5e", 1, malformed),
      of_type("none after the dash", "v4-", 1, malformed),
      of_type("no such number", "v4-eight", 1, malformed),
      of_type("none at all", "v4-0", 1, malformed),
      of_type("less", "v4--8", 1, malformed),
      of_type("no generation", "-8", 1, malformed),
      of_type("in capitals", "V4-8", 1, malformed),
  });
}

TEST(TpuResolver, GivesWhatItFound) {
  const TpuResolver resolver("", kSlice);
  EXPECT_EQ(resolver.plugin(), "tpu");
  EXPECT_EQ(resolver.accelerator_type(), "v4-32");
  EXPECT_EQ(resolver.worker(), 2);
  EXPECT_EQ(resolver.num_workers(), 4);
  EXPECT_THAT(resolver.hosts(), ElementsAre("t-0", "t-1", "t-2", "t-3"));
  const TpuResolver alone("cpu", {});
  EXPECT_EQ(alone.num_workers(), 1);
  EXPECT_THAT(alone.hosts(), IsEmpty());
  EXPECT_EQ(alone.accelerator_type(), "");
}

TEST(TpuResolver, ReadsThisProcesssVariables) {
  setenv("TUTTI_PLUGIN", "/a/plugin.so", 1);
  const TpuResolver resolver("local");
  unsetenv("TUTTI_PLUGIN");
  EXPECT_EQ(resolver.plugin(), "/a/plugin.so");
}

}  // namespace
}  // namespace tutti
