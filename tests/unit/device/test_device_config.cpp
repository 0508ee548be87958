#include <fmt/format.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tutti/device/device_config.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
const PhysicalDevice kCpu{};

PhysicalDevice gpu(int index) {
  return {.kind = DeviceKind::cuda, .index = index, .name = "Made Up", .memory_bytes = 8 * kGiB};
}

DeviceConfig with_gpus(int count) {
  std::vector<PhysicalDevice> devices{kCpu};
  for (int i = 0; i < count; ++i) devices.push_back(gpu(i));
  return DeviceConfig(devices);
}

// "cuda:0 1.0 GiB": each with its limit.
std::vector<std::string> words(const std::vector<LogicalDevice>& devices) {
  std::vector<std::string> all;
  for (const LogicalDevice& device : devices)
    all.push_back(
        to_string(device.spec) +
        (device.memory_limit_bytes ? fmt::format(" {}", *device.memory_limit_bytes / kGiB) : ""));
  return all;
}

std::vector<std::string> gpus_of(const DeviceConfig& config) {
  return words(config.logical(DeviceKind::cuda));
}

TEST(DeviceConfig, ListsWhatThereIs) {
  const DeviceConfig two = with_gpus(2);
  EXPECT_EQ(two.physical().size(), 3U);
  EXPECT_EQ(two.physical(DeviceKind::cpu).size(), 1U);
  ASSERT_EQ(two.physical(DeviceKind::cuda).size(), 2U);
  EXPECT_EQ(two.physical(DeviceKind::cuda)[1].index, 1);
  EXPECT_EQ(two.physical(DeviceKind::cuda)[1].name, "Made Up");
  EXPECT_THAT(words(two.logical()), ElementsAre("cpu", "cuda:0", "cuda:1"));
  const DeviceConfig none = with_gpus(0);
  EXPECT_THAT(none.physical(DeviceKind::cuda), IsEmpty());
  EXPECT_THAT(words(none.logical()), ElementsAre("cpu"));
  EXPECT_EQ(none.visible_gpus(), 0);
}

TEST(DeviceConfig, VisibleGpusAreNumberedInTheOrderGiven) {
  DeviceConfig config = with_gpus(4);
  config.set_visible(DeviceKind::cuda, {3, 1});
  EXPECT_EQ(config.visible_gpus(), 2);
  EXPECT_EQ(config.physical_index(0), 3);
  EXPECT_EQ(config.physical_index(1), 1);
  EXPECT_THROW(config.physical_index(2), UsageError);
  EXPECT_EQ(config.physical(DeviceKind::cuda).size(), 4U) << "visible or not";
  config.set_memory_limit(gpu(3), 2 * kGiB);
  EXPECT_THAT(words(config.logical()), ElementsAre("cpu", "cuda:0 2", "cuda:1"));
  EXPECT_EQ(config.limit_of(0), 2 * kGiB);
  EXPECT_EQ(config.limit_of(1), std::nullopt);
  config.set_visible(DeviceKind::cuda, {});
  EXPECT_THAT(words(config.logical()), ElementsAre("cpu"));
  config.set_visible(DeviceKind::cuda, {0, 1, 2, 3});
  EXPECT_THAT(gpus_of(config), ElementsAre("cuda:0", "cuda:1", "cuda:2", "cuda:3 2"));
}

TEST(DeviceConfig, ALimitIsThatOfTheSumOfTheParts) {
  DeviceConfig config = with_gpus(2);
  config.set_logical(gpu(0), {kGiB, 3 * kGiB});
  EXPECT_THAT(gpus_of(config), ElementsAre("cuda:0#0 1", "cuda:0#1 3", "cuda:1"));
  EXPECT_EQ(config.limit_of(0), 4 * kGiB);
  config.set_logical(gpu(0), {kGiB, std::nullopt});
  EXPECT_EQ(config.limit_of(0), std::nullopt);
  config.set_logical(gpu(0), {5 * kGiB});
  EXPECT_THAT(gpus_of(config), ElementsAre("cuda:0 5", "cuda:1")) << "one part: all of it";
  config.set_memory_limit(gpu(0), 8 * kGiB);
  EXPECT_EQ(config.limit_of(0), 8 * kGiB);
  config.set_logical(gpu(0), {4 * kGiB, 4 * kGiB});
  EXPECT_EQ(config.limit_of(0), 8 * kGiB) << "all that it has";
}

TEST(DeviceConfig, WhatIsCutStandsForItsParts) {
  DeviceConfig config = with_gpus(3);
  config.set_logical(gpu(1), {std::nullopt, std::nullopt});
  const auto divided = [&](const char* text) {
    return to_string(config.divided(parse_devices(text, config.visible_gpus())));
  };
  EXPECT_EQ(divided("cpu"), "cpu");
  EXPECT_EQ(divided("cuda"), "cuda:0,1x2,2");
  EXPECT_EQ(divided("cuda:1"), "cuda:1x2");
  EXPECT_EQ(divided("cuda:1x2,0x3"), "cuda:1x2,0x3");
  EXPECT_EQ(message_of<UsageError>([&] { divided("cuda:1x3"); }),
            "device cuda:1x3: set_logical_devices made 2 logical devices of it; name it cuda:1");
  config.set_visible(DeviceKind::cuda, {1, 2});
  EXPECT_EQ(divided("cuda"), "cuda:0x2,1");
}

TEST(DeviceConfig, GrowthIsOneForAllVisibleGpus) {
  DeviceConfig config = with_gpus(2);
  EXPECT_TRUE(config.grows());
  config.set_memory_growth(gpu(0), false);
  EXPECT_THAT(message_of<UsageError>([&] { config.freeze("a test"); }),
              HasSubstr("set_memory_growth: off on cuda:0, on on cuda:1; LibTorch knows one"));
  EXPECT_THROW(static_cast<void>(config.grows()), UsageError);
  config.set_memory_growth(gpu(1), false);  // not frozen yet
  config.freeze("a test");
  EXPECT_FALSE(config.grows());

  DeviceConfig hidden = with_gpus(2);
  hidden.set_memory_growth(gpu(0), false);
  hidden.set_visible(DeviceKind::cuda, {1});
  hidden.freeze("a test");
  EXPECT_TRUE(hidden.grows()) << "of those that are seen";
}

TEST(DeviceConfig, NothingChangesOnceDevicesAreInUse) {
  const std::function<void(DeviceConfig&)> changes[] = {
      [](DeviceConfig& c) { c.set_visible(DeviceKind::cuda, {0}); },
      [](DeviceConfig& c) { c.set_memory_growth(gpu(0), true); },
      [](DeviceConfig& c) { c.set_memory_limit(gpu(0), kGiB); },
      [](DeviceConfig& c) { c.set_logical(gpu(0), {kGiB}); },
  };
  for (const auto& change : changes) {
    DeviceConfig config = with_gpus(2);
    change(config);
    config.freeze("strategy mirrored");
    config.freeze("another");  // is no change
    const auto before = gpus_of(config);
    EXPECT_THAT(message_of<UsageError>([&] { change(config); }),
                HasSubstr("devices are in use already, by strategy mirrored; call it before"));
    EXPECT_EQ(gpus_of(config), before);
  }
}

TEST(DeviceConfig, SaysWhatIsWrong) {
  struct Case {
    std::function<void(DeviceConfig&)> change;
    const char* message;
  };
  const Case cases[] = {
      {[](DeviceConfig& c) { c.set_visible(DeviceKind::cuda, {2}); },
       "set_visible_devices: cuda:2 is not there: there are cuda:0 to 1"},
      {[](DeviceConfig& c) { c.set_visible(DeviceKind::cuda, {-1}); }, "cuda:-1 is not there"},
      {[](DeviceConfig& c) { c.set_visible(DeviceKind::cuda, {1, 1}); }, "cuda:1 is named twice"},
      {[](DeviceConfig& c) { c.set_visible(DeviceKind::cpu, {}); }, "the CPU is always there"},
      {[](DeviceConfig& c) { c.set_memory_growth(kCpu, true); },
       "set_memory_growth: cpu: it is for GPUs"},
      {[](DeviceConfig& c) { c.set_memory_limit(kCpu, 1); }, "set_memory_limit: cpu: it is for"},
      {[](DeviceConfig& c) { c.set_logical(kCpu, {1}); }, "set_logical_devices: cpu: it is for"},
      {[](DeviceConfig& c) { c.set_memory_growth(gpu(2), true); }, "cuda:2 is not there"},
      {[](DeviceConfig& c) { c.set_memory_limit(gpu(0), 0); },
       "set_memory_limit: a limit of 0 bytes for cuda:0; expected 1 or more"},
      {[](DeviceConfig& c) { c.set_memory_limit(gpu(0), 8 * kGiB + kGiB); },
       "set_memory_limit: 9.0 GiB of cuda:0, which has 8.0 GiB"},
      {[](DeviceConfig& c) { c.set_logical(gpu(0), {}); }, "0 logical devices of cuda:0; expected"},
      {[](DeviceConfig& c) { c.set_logical(gpu(0), std::vector<std::optional<int64_t>>(65)); },
       "65 logical devices of cuda:0; expected 1 to 64"},
      {[](DeviceConfig& c) { c.set_logical(gpu(0), {kGiB, -kGiB}); }, "a limit of -1073741824"},
      {[](DeviceConfig& c) { c.set_logical(gpu(0), {5 * kGiB, std::nullopt, 4 * kGiB}); },
       "4.0 GiB of cuda:0, which has 8.0 GiB, of which 3.0 GiB are left"},
      {[](DeviceConfig& c) {
         c.set_logical(gpu(0), {kGiB, kGiB});
         c.set_memory_limit(gpu(0), kGiB);
       },
       "cuda:0 is 2 logical devices, which have limits of their own: set_logical_devices"},
  };
  for (const Case& c : cases) {
    DeviceConfig config = with_gpus(2);
    EXPECT_THAT(message_of<UsageError>([&] { c.change(config); }), HasSubstr(c.message));
    EXPECT_EQ(config.visible_gpus(), 2) << c.message;
  }
  DeviceConfig none = with_gpus(0);
  EXPECT_THAT(message_of<UsageError>([&] { none.set_visible(DeviceKind::cuda, {0}); }),
              HasSubstr("cuda:0 is not there: there is no cuda here"));
}

TEST(OneFraction, IsThatOfAllGpusOrAnError) {
  const auto of = [](std::vector<std::pair<int64_t, std::optional<int64_t>>> totals_and_limits) {
    std::vector<MemoryShare> shares;
    for (const auto& [total, limit] : totals_and_limits)
      shares.push_back({{DeviceKind::cuda, static_cast<int>(shares.size())}, total, limit});
    return one_fraction(shares);
  };
  EXPECT_EQ(of({}), std::nullopt);
  EXPECT_EQ(of({{8 * kGiB, std::nullopt}, {16 * kGiB, std::nullopt}}), std::nullopt);
  EXPECT_EQ(of({{8 * kGiB, 2 * kGiB}}), 0.25);
  EXPECT_EQ(of({{8 * kGiB, 8 * kGiB}}), 1.0);
  EXPECT_EQ(of({{8 * kGiB, 2 * kGiB}, {16 * kGiB, 4 * kGiB}}), 0.25);
  EXPECT_EQ(of({{1000, 500}, {1004, 500}}), 500.0 / 1004) << "alike; neither takes more";
  EXPECT_THAT(
      message_of<UsageError>([&] { of({{8 * kGiB, 2 * kGiB}, {8 * kGiB, {}}}); }),
      HasSubstr("memory limit: 2.0 GiB of 8.0 GiB on cuda:0, but all of 8.0 GiB on cuda:1"));
  EXPECT_THROW(of({{8 * kGiB, {}}, {8 * kGiB, kGiB}}), UsageError);
  EXPECT_THROW(of({{8 * kGiB, kGiB}, {16 * kGiB, kGiB}}), UsageError);
  EXPECT_THAT(message_of<UsageError>([&] { of({{8 * kGiB, 9 * kGiB}}); }),
              HasSubstr("9.0 GiB of 8.0 GiB on cuda:0: more than it has"));
}

TEST(OneFraction, OfGpusOfOneKindIsAlike) {
  EXPECT_TRUE(are_alike({}, {}));
  EXPECT_TRUE(are_alike(0.5, 0.5));
  EXPECT_TRUE(are_alike(0.5, 0.504));
  EXPECT_TRUE(are_alike(0.5, 0.496));
  EXPECT_FALSE(are_alike(0.5, 0.51));
  EXPECT_FALSE(are_alike(0.5, {}));
  EXPECT_FALSE(are_alike({}, 0.5));
}

TEST(DeviceConfig, MemoryThatNobodyKnowsLimitsNothing) {
  DeviceConfig config({{.kind = DeviceKind::cuda, .index = 0, .name = ""}});
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  config.set_memory_limit({.kind = DeviceKind::cuda, .index = 0, .name = ""}, kMost);
  EXPECT_EQ(config.limit_of(0), kMost);
  EXPECT_THROW(config.set_logical({.kind = DeviceKind::cuda, .index = 0, .name = ""}, {kMost, 1}),
               UsageError);
}

}  // namespace
}  // namespace tutti
