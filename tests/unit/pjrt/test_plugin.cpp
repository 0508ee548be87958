#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tutti/pjrt/client.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

/// Told to the fake plugin, of this process and of the one that tries.
class Fails {
 public:
  explicit Fails(const char* how) { setenv("FAKE_PLUGIN", how, 1); }
  Fails(const Fails&) = delete;
  Fails& operator=(const Fails&) = delete;
  ~Fails() { unsetenv("FAKE_PLUGIN"); }
};

pjrt::PluginFacts probe(Millis limit = Millis{20'000}) {
  return pjrt::probe_plugin(TUTTI_FAKE_PLUGIN, {}, limit);
}

TEST(FindPlugin, LooksWherePipPutsIt) {
  const TempFolder folder;
  const auto place = folder.path() / "xla_plugins/xla_cpu_pjrt";
  std::filesystem::create_directories(place);
  std::ofstream(place / "xla_cpu_pjrt.so") << "a library";
  EXPECT_EQ(pjrt::find_plugin("cpu", {"/nowhere", folder.path().string()}),
            (place / "xla_cpu_pjrt.so").string());
  EXPECT_EQ(pjrt::find_plugin((place / "xla_cpu_pjrt.so").string(), {}),
            (place / "xla_cpu_pjrt.so").string());
}

TEST(FindPlugin, SaysWhatFetchesOneThatIsNotThere) {
  EXPECT_THAT(message_of<UsageError>([] { pjrt::find_plugin("cpu", {"/a", "/b"}); }),
              AllOf(HasSubstr("plugin \"cpu\" is not here"), HasSubstr("tools/setup --pjrt"),
                    HasSubstr("/a, /b")));
  EXPECT_THAT(message_of<UsageError>([] { pjrt::find_plugin("tpu", {}); }),
              HasSubstr("pip install libtpu"));
  EXPECT_THAT(message_of<UsageError>([] { pjrt::find_plugin("gpu", {}); }),
              AllOf(HasSubstr("\"gpu\" is not known"), HasSubstr("cpu, tpu, cuda")));
  EXPECT_THAT(message_of<UsageError>([] { pjrt::find_plugin("/no/such.so", {}); }),
              HasSubstr("/no/such.so: there is no such file"));
}

TEST(PluginOptions, AreToldToTheOneForCpusAlone) {
  EXPECT_EQ(pjrt::options_for("cpu", 3), (pjrt::Options{{"cpu_device_count", int64_t{3}}}));
  EXPECT_EQ(pjrt::options_for("/x/xla_cpu_pjrt.so", 2).size(), 1U);
  EXPECT_EQ(pjrt::options_for("tpu", 3), pjrt::Options{});
  const pjrt::ProcessPlace second{.process = 1, .processes = 2};
  EXPECT_EQ(pjrt::options_for("cuda", 3, second),
            (pjrt::Options{{"node_id", int64_t{1}}, {"num_nodes", int64_t{2}}}));
  EXPECT_EQ(pjrt::options_for("cpu", 3, second).size(), 3U);
  EXPECT_EQ(pjrt::options_for("tpu", 3, second), pjrt::Options{}) << "it reads TPU_WORKER_ID";
}

class ProbePlugin : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!pjrt::available()) GTEST_SKIP() << "needs PJRT's header (tools/setup --pjrt)";
  }
};

TEST_F(ProbePlugin, SaysWhatItIs) {
  const pjrt::PluginFacts facts = probe();
  EXPECT_EQ(facts.platform, "fake");
  EXPECT_EQ(facts.platform_version, "v \"1\"");
  ASSERT_EQ(facts.devices.size(), 2U);
  EXPECT_EQ(facts.devices[1].id, 1);
  EXPECT_EQ(facts.devices[1].kind, "made up");
  EXPECT_EQ(facts.devices[1].words, "FAKE_1");
  EXPECT_THAT(pjrt::words_of(facts), AllOf(HasSubstr("API 0."), HasSubstr(": fake, 2 devices")));
}

TEST_F(ProbePlugin, OneThatHangsIsATimeoutThatNamesWhere) {
  const Fails fails("hang");
  EXPECT_THAT(message_of<Timeout>([] { probe(Millis{300}); }),
              AllOf(HasSubstr(TUTTI_FAKE_PLUGIN), HasSubstr("within 0.3 s"),
                    HasSubstr("at PJRT_Client_Create")));
}

TEST_F(ProbePlugin, OneThatLeavesAProcessBehindHasAnswered) {
  const Fails fails("fork");
  EXPECT_EQ(probe(Millis{5'000}).platform, "fake");
}

TEST_F(ProbePlugin, OneThatCrashesEndsItsOwnProcess) {
  {
    const Fails fails("crash");
    EXPECT_THAT(message_of<Error>([] { probe(); }),
                AllOf(HasSubstr("SIGABRT"), HasSubstr("PJRT_Client_Create")));
  }
  const Fails fails("exit");
  EXPECT_THAT(message_of<Error>([] { probe(); }),
              AllOf(HasSubstr("ended with code 3 in PJRT_Plugin_Initialize"),
                    EndsWith("it said: no TPU was found")));
}

TEST_F(ProbePlugin, OneThatRefusesIsQuoted) {
  const Fails fails("refuse");
  EXPECT_THAT(message_of<Error>([] { probe(); }),
              AllOf(HasSubstr("PJRT_Client_Create"), HasSubstr("in use by another process")));
}

TEST_F(ProbePlugin, OneOfAnotherVersionIsNamedWithTheRange) {
  for (const char* how : {"old", "other"}) {
    const Fails fails(how);
    EXPECT_THAT(message_of<UsageError>([] { probe(); }),
                AllOf(HasSubstr(how == std::string("old") ? "version 0.12" : "version 1."),
                      HasSubstr("0.40 and newer")));
  }
  const Fails fails("short");
  EXPECT_THAT(message_of<UsageError>([] { probe(); }), HasSubstr("no table"));
}

TEST_F(ProbePlugin, WhatIsNoPluginIsNamed) {
  EXPECT_THAT(message_of<UsageError>([] { pjrt::probe_plugin("libm.so.6", {}, Millis{20'000}); }),
              HasSubstr("libm.so.6 is no PJRT plugin: it has no function GetPjrtApi"));
  EXPECT_THAT(message_of<UsageError>([] { pjrt::probe_plugin("/no.so", {}, Millis{20'000}); }),
              HasSubstr("cannot be loaded"));
}

TEST_F(ProbePlugin, OpenRefusesWhatTheProbeDoes) {
  const Fails fails("crash");
  EXPECT_THAT(message_of<Error>([] { pjrt::Client::open(TUTTI_FAKE_PLUGIN); }),
              HasSubstr("SIGABRT"));
}

TEST_F(ProbePlugin, NoLimitIsTooLong) {
  EXPECT_EQ(pjrt::Client::open(TUTTI_FAKE_PLUGIN,
                               {.options = {{"wanted", int64_t{1}}}, .limit = Millis::max()})
                .num_devices(),
            2);
}

TEST_F(ProbePlugin, ACompilerThatHangsIsATimeout) {
  const Fails fails("compile");
  const auto client = pjrt::Client::open(TUTTI_FAKE_PLUGIN);
  EXPECT_THAT(message_of<Timeout>([&] { client.compile("echo", {.limit = Millis{100}}); }),
              HasSubstr("PJRT_Client_Compile: not done within 0.1 s"));
}

TEST_F(ProbePlugin, AProgramOfOtherReplicasIsNamed) {
  const auto client = pjrt::Client::open(TUTTI_FAKE_PLUGIN);
  EXPECT_THAT(message_of<UsageError>([&] { client.compile("mhlo.num_replicas = 2 : i32", {}); }),
              HasSubstr("a program for 2 replicas, to be compiled for 1"));
}

TEST_F(ProbePlugin, ADeviceThatIsStuckIsNamed) {
  const Fails fails("stuck");
  const auto client = pjrt::Client::open(TUTTI_FAKE_PLUGIN);
  const auto program = client.compile("echo", {.replicas = 2});
  float number = 3;
  const Array array = Array::view(&number, DType::float32, {}, nullptr);
  const pjrt::Buffer a = client.to_device(array, 0), b = client.to_device(array, 1);
  const pjrt::Results results = program.run({{&a}, {&b}});  // lists go in the plugin's order
  EXPECT_THAT(message_of<Timeout>([&] { results.wait(Deadline(Millis{100})); }),
              AllOf(HasSubstr("not done within 0.1 s"), EndsWith("device 1")));
  EXPECT_EQ(results.outputs[0][0].to_host(Deadline(Millis{1000})).as<float>()[0], 3.F);
  EXPECT_THAT(message_of<Error>([&] { client.compile("nonsense"); }),
              AllOf(HasSubstr("PJRT_Client_Compile"), HasSubstr("what is that?")));
}

}  // namespace
}  // namespace tutti
