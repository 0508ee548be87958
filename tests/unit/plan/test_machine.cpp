// Machine files: what comes back, and what each wrong one gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include <nlohmann/json.hpp>

#include "tutti/base/error.h"
#include "tutti/plan/counted_machine.h"
#include "tutti/plan/machine.h"

#include "tests/support/message_of.h"
#include "tests/unit/plan/some_machine.h"

namespace tutti::plan {
namespace {

using test::message_of;
using test::some_machine;
using ::testing::HasSubstr;
using ::testing::Not;
using PlainJson = nlohmann::ordered_json;

TEST(MachineFile, ComesBackAsItWas) {
  Machine machine = some_machine();
  machine.payload = 0.1 + 0.2;
  EXPECT_EQ(parse_machine(to_json(machine), "here.json"), machine);
  EXPECT_THAT(to_json(machine), Not(HasSubstr("link")));
  machine.link = {.wire = {1.25e8 / 3, 0}, .hosts = 5};
  EXPECT_EQ(parse_machine(to_json(machine), "here.json"), machine);
}

TEST(MachineFile, AWrongOneIsNamedByField) {
  struct Case {
    std::function<void(PlainJson&)> spoil;
    const char* message;
  };
  const Case cases[] = {
      {[](PlainJson& m) { m["tutti_machine"] = 2; },
       "tutti_machine is 2; expected 1: measure again"},
      {[](PlainJson& m) { m.erase("tutti_machine"); }, "not a machine file"},
      {[](PlainJson& m) { m.erase("update"); }, "here.json: update is missing"},
      {[](PlainJson& m) { m["updat"] = 1; }, "unknown field \"updat\"; did you mean \"update\"?"},
      {[](PlainJson& m) { m["update"] = -1; }, "here.json: update is -1; expected a number from 0"},
      {[](PlainJson& m) { m["update"] = 1e300; },
       "update is 1e+300; expected a number from 0 to 1e18"},
      {[](PlainJson& m) { m["tcp"]["bytes_per_second"] = 1e300; },
       "tcp.bytes_per_second is 1e+300"},
      {[](PlainJson& m) { m["update"] = "1"; }, "update is \"1\"; expected a number"},
      {[](PlainJson& m) { m["parameters"] = 0; },
       "parameters is 0; expected a whole number above 0"},
      {[](PlainJson& m) { m["parameters"] = 1.5; }, "parameters is 1.5; expected a whole number"},
      {[](PlainJson& m) { m["name"] = 7; }, "name is 7; expected a text"},
      {[](PlainJson& m) { m["compute"] = 7; }, "compute is 7; expected a list"},
      {[](PlainJson& m) { m["compute"] = PlainJson::array(); }, "compute is empty"},
      {[](PlainJson& m) { m["compute"][1]["batch"] = 1; },
       "compute[1].batch is 1; expected more than"},
      {[](PlainJson& m) { m["compute"][1].erase("forward"); }, "compute[1]: forward is missing"},
      {[](PlainJson& m) { m["compute"][0]["backward"] = -2; }, "compute[0].backward is -2"},
      {[](PlainJson& m) { m["jitter"] = {1}; }, "jitter is 1 numbers; expected 2 or more"},
      {[](PlainJson& m) { m["jitter"] = {1, 0.5}; }, "jitter[1] is 0.5; expected no less"},
      {[](PlainJson& m) { m["tcp"]["bytes_per_second"] = 0; }, "tcp.bytes_per_second is 0"},
      {[](PlainJson& m) { m["tcp"].erase("latency"); }, "tcp: latency is missing"},
      {[](PlainJson& m) { m["payload"] = 1.1; }, "payload is 1.1; expected a share"},
      {[](PlainJson& m) { m["link"] = nullptr; }, "here.json: link: expected a JSON object"},
      {[](PlainJson& m) { m["link"].erase("hosts"); }, "here.json: link: hosts is missing"},
      {[](PlainJson& m) { m["link"]["rate"] = 1; }, "here.json: link: unknown field \"rate\""},
      {[](PlainJson& m) { m["link"]["latency"] = "50us"; },
       "link: latency is \"50us\"; expected a num"},
      {[](PlainJson& m) { m["link"]["latency"] = -1; },
       "link.latency is -1; expected a number from 0"},
      {[](PlainJson& m) { m["link"]["bytes_per_second"] = 0; },
       "link.bytes_per_second is 0; expected"},
      {[](PlainJson& m) { m["link"]["hosts"] = 1; }, "link.hosts is 1; expected 2 or more"},
      {[](PlainJson& m) { m["compute_error"] = 1; },
       "compute_error is 1; expected from 0 to below 1"},
  };
  for (const Case& one : cases) {
    Machine machine = some_machine();
    machine.link.emplace();
    PlainJson json = PlainJson::parse(to_json(machine));
    one.spoil(json);
    EXPECT_THAT(message_of<DataError>([&] { parse_machine(json.dump(), "here.json"); }),
                HasSubstr(one.message));
  }
  const std::string deep = "{\"tutti_machine\": " + std::string(100'000, '[');
  const std::string closed = deep + std::string(100'000, ']') + "}";
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{"), std::string("7"), deep, closed})
    EXPECT_THAT(message_of<DataError>([&] { parse_machine(text, "here.json"); }),
                HasSubstr("not a machine file"));
}

TEST(MachineCompute, IsStraightBetweenBatchesAndGoesOnBeyond) {
  Machine machine = some_machine();
  machine.compute = {{10, 1, 2}, {20, 2, 5}, {40, 4, 9}};
  EXPECT_DOUBLE_EQ(machine.compute_of(20).backward, 5);
  EXPECT_DOUBLE_EQ(machine.compute_of(15).backward, 3.5);
  EXPECT_DOUBLE_EQ(machine.compute_of(30).backward, 7);
  EXPECT_DOUBLE_EQ(machine.compute_of(80).forward, 8);
  EXPECT_DOUBLE_EQ(machine.compute_of(80).backward, 17);
  EXPECT_DOUBLE_EQ(machine.compute_of(1).backward, 0);  // not below 0
  machine.compute = {{10, 1, 2}};
  EXPECT_DOUBLE_EQ(machine.compute_of(5).backward, 1);
}

TEST(MachineMemory, SaysTheLargestBatch) {
  Machine machine = some_machine();
  machine.memory = 1000;
  machine.fixed_memory = 100;
  machine.sample_memory = 7;
  for (int replicas : {1, 2, 3}) {
    const int64_t largest = machine.largest_batch(replicas);
    EXPECT_LE(replicas * machine.memory_of(static_cast<double>(largest)), 1000);
    EXPECT_GT(replicas * machine.memory_of(static_cast<double>(largest + 1)), 1000);
  }
  EXPECT_EQ(machine.largest_batch(10), 0);
}

TEST(CountedMachine, ComputesWhatWasCounted) {
  const Machine machine = counted_machine(
      "net",
      {.multiply_adds = 1'000'000, .parameters = 500, .largest_parameter = 300, .values = 10},
      6e12);
  EXPECT_NO_THROW(check(machine));
  const BatchTime time = machine.compute_of(32);
  EXPECT_NEAR(time.forward + time.backward, 32e-6, 1e-15);
  EXPECT_NEAR(time.backward, 2 * time.forward, 1e-15);
  EXPECT_EQ(machine.bytes, 2000);
  EXPECT_EQ(machine.largest_parameter, 1200);
  EXPECT_THAT(message_of<UsageError>([] { counted_machine("net", {}, 0); }),
              HasSubstr("0 operations a second"));
}

}  // namespace
}  // namespace tutti::plan
