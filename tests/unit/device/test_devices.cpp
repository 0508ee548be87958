#include <fmt/format.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "tutti/base/typed.h"
#include "tutti/device/devices.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

// Each device apart, as to_string(DeviceSpec) says it.
std::string each(const std::vector<DeviceSpec>& devices) {
  std::string text;
  for (const DeviceSpec& device : devices) text += (text.empty() ? "" : " ") + to_string(device);
  return text;
}

TEST(ParseDevices, ReadsInOrder) {
  struct Case {
    const char* text;
    int gpus;
    const char* devices;
  };
  const Case cases[] = {
      {"cpu", 0, "cpu"},
      {"cpu", 4, "cpu"},
      {"auto", 0, "cpu"},
      {"auto", 1, "cuda:0"},
      {"auto", 3, "cuda:0 cuda:1 cuda:2"},
      {"cuda", 1, "cuda:0"},
      {"cuda", 2, "cuda:0 cuda:1"},
      {"cuda:1", 2, "cuda:1"},
      {"cuda:0,1", 2, "cuda:0 cuda:1"},
      {"cuda:1,0", 2, "cuda:1 cuda:0"},
      {"cuda:1,cuda:0", 2, "cuda:1 cuda:0"},
      {"cuda:0x1", 1, "cuda:0"},
      {"cuda:0x2", 1, "cuda:0#0 cuda:0#1"},
      {"cuda:0x2,1x3", 2, "cuda:0#0 cuda:0#1 cuda:1#0 cuda:1#1 cuda:1#2"},
      {"cuda:2,0x2", 3, "cuda:2 cuda:0#0 cuda:0#1"},
      {"cpu,cuda:0", 1, "cpu cuda:0"},
      {"cuda:0x2,cpu", 1, "cuda:0#0 cuda:0#1 cpu"},
      {"cuda,cpu", 2, "cuda:0 cuda:1 cpu"},
      {"cuda:11", 12, "cuda:11"},
  };
  for (const Case& c : cases) EXPECT_EQ(each(parse_devices(c.text, c.gpus)), c.devices) << c.text;
  EXPECT_EQ(parse_devices("cuda:0x64", 1).size(), 64U);
  EXPECT_EQ(parse_devices("cuda:1x2", 2)[1], (DeviceSpec{DeviceKind::cuda, 1, 1, 2}));
}

TEST(ParseDevices, SaysWhatIsWrong) {
  struct Case {
    const char* text;
    int gpus;
    const char* message;
  };
  const Case cases[] = {
      {"cuda:0,3", 2, "--device cuda:0,3: there is no device 3; visible: 0 to 1"},
      {"cuda:1", 1, "--device cuda:1: there is no device 1; visible: 0"},
      {"cuda:0", 0, "--device cuda:0: there is no device 0; no GPU is visible"},
      {"cuda", 0, "--device cuda: no GPU is visible"},
      {"cuda:0,0", 2, "cuda:0 is named twice; cuda:0x2 is two replicas on it"},
      {"cuda:1x2,cuda:1", 2, "cuda:1 is named twice"},
      {"cuda,1", 2, "cuda:1 is named twice"},
      {"cpu,cuda:0,cpu", 1, "cpu is named twice"},
      {"cuda:0x0", 1, "device 0 in \"0\" parts; expected 1 to 64"},
      {"cuda:0x65", 1, "device 0 in \"65\" parts; expected 1 to 64"},
      {"cuda:0x", 1, "device 0 in \"\" parts; expected 1 to 64"},
      {"cuda:0x-2", 1, "device 0 in \"-2\" parts"},
      {"cuda:0x2x2", 1, "device 0 in \"2x2\" parts"},
      {"cuda:", 1, "\"\" is no number of a device; expected cuda:0"},
      {"cuda:one", 1, "\"one\" is no number of a device"},
      {"cuda:-1", 1, "\"-1\" is no number of a device"},
      {"cuda:99999999999", 1, "\"99999999999\" is no number of a device"},
      {"cuda:0, 1", 2, "unknown device \" 1\""},
      {"0", 1, "0 of what? Write cuda:0"},
      {"cpu,0x2", 1, "0x2 of what? Write cuda:0x2"},
      {"cpu:0", 1, "there is one CPU, and it has no number: write cpu"},
      {"auto,cpu", 1, "auto stands alone"},
      {"mps", 0, "tutti does not compute on GPUs of Apple (mps)"},
      {"mps:0", 1, "tutti does not compute on GPUs of Apple (mps)"},
      {"rocm", 0, "tutti does not compute on GPUs of AMD (rocm)"},
      {"cuda:0,hip:0", 1, "tutti does not compute on GPUs of AMD (rocm)"},
      {"cudda", 1, "unknown device \"cudda\"; did you mean \"cuda\"?"},
      {"CUDA", 1, "did you mean \"cuda\"?"},
      {"", 1, "unknown device \"\""},
      {"cpu,", 1, "unknown device \"\""},
  };
  for (const Case& c : cases) {
    const std::string message = message_of<UsageError>([&] { parse_devices(c.text, c.gpus); });
    EXPECT_THAT(message, HasSubstr(c.message)) << c.text;
    EXPECT_THAT(message, StartsWith(fmt::format("--device {}: ", c.text)));
  }
}

TEST(ParseDevices, AsksForTheGpusWhereOneIsNamed) {
  for (const char* text : {"cuda", "cuda:0", "cpu,cuda:1", "auto", "cuda:x"})
    EXPECT_TRUE(needs_gpus(text)) << text;
  for (const char* text : {"cpu", "mps", "rocm", "", "cudda", "cpu,cpu"})
    EXPECT_FALSE(needs_gpus(text)) << text;
}

// A text that names some of `gpus` devices, and perhaps the CPU, in any order.
std::string some_text(std::mt19937& random, int gpus) {
  std::vector<int> order(static_cast<size_t>(gpus));
  for (int i = 0; i < gpus; ++i) order[static_cast<size_t>(i)] = i;
  std::shuffle(order.begin(), order.end(), random);
  order.resize(1 + random() % order.size());
  std::string text;
  for (const int index : order) {
    const unsigned parts = 1 + random() % 3;
    text += fmt::format("{}cuda:{}", text.empty() ? "" : ",", index);
    if (parts > 1) text += fmt::format("x{}", parts);
  }
  if (random() % 3 == 0) text = random() % 2 == 0 ? "cpu," + text : text + ",cpu";
  return text;
}

TEST(ToString, IsReadBackAsTheSameDevices) {
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    const std::string text = some_text(random, 5);
    const auto devices = parse_devices(text, 5);
    EXPECT_EQ(parse_devices(to_string(devices), 5), devices) << text << " " << to_string(devices);
  }
}

TEST(ToString, IsShort) {
  const auto again = [](const char* text) { return to_string(parse_devices(text, 4)); };
  EXPECT_EQ(again("cuda:0,cuda:1"), "cuda:0,1");
  EXPECT_EQ(again("cuda:0x2,cuda:1"), "cuda:0x2,1");
  EXPECT_EQ(again("cuda:0,cpu,cuda:1x2,3"), "cuda:0,cpu,cuda:1x2,3");
  EXPECT_EQ(to_string(std::vector<DeviceSpec>(3)), "cpu");
  const auto parts = parse_devices("cuda:0x3", 1);
  EXPECT_EQ(to_string(std::span(parts).subspan(1)), "cuda:0#1,0#2");
  EXPECT_EQ(to_string(std::vector<DeviceSpec>{}), "");
}

std::string placed(const char* text, int replicas, int worker = 0, int workers = 1) {
  return each(place_replicas(parse_devices(text, 8), replicas, worker, workers));
}

TEST(PlaceReplicas, GivesEachADevice) {
  struct Case {
    const char* text;
    int replicas, worker, workers;
    const char* devices;
  };
  const Case cases[] = {
      {"cpu", 0, 0, 1, "cpu"},
      {"cpu", 3, 0, 1, "cpu cpu cpu"},
      {"cpu", 2, 1, 4, "cpu cpu"},
      {"cuda:2", 0, 0, 1, "cuda:2"},
      {"cuda:3,1", 0, 0, 1, "cuda:3 cuda:1"},
      {"cuda:3,1", 1, 0, 1, "cuda:3"},
      {"cuda", 1, 0, 8, "cuda:0"},
      {"cuda", 1, 7, 8, "cuda:7"},
      {"cuda", 2, 1, 4, "cuda:2 cuda:3"},
      {"cuda", 0, 1, 4, "cuda:2 cuda:3"},
      {"cuda", 0, 5, 8, "cuda:5"},
      {"cuda:0x2,1", 0, 0, 1, "cuda:0#0 cuda:0#1 cuda:1"},
      {"cuda:0x2,1x2", 1, 2, 4, "cuda:1#0"},
      {"cpu,cuda:0", 0, 0, 1, "cpu cuda:0"},
      {"cpu,cuda:0", 1, 1, 2, "cuda:0"},
  };
  for (const Case& c : cases)
    EXPECT_EQ(placed(c.text, c.replicas, c.worker, c.workers), c.devices)
        << c.text << " " << c.replicas << " " << c.worker;
}

TEST(PlaceReplicas, SaysHowToShareADevice) {
  struct Case {
    const char* text;
    int replicas, workers;
    const char* message;
  };
  const Case cases[] = {
      {"cuda:0,1", 4, 1,
       "4 replicas on 2 devices: write cuda:0x2,1x2 to let replicas share a device"},
      {"cuda:0,1", 3, 1, "3 replicas on 2 devices: write cuda:0x2,1 to let"},
      {"cuda:1", 2, 1, "2 replicas on 1 device: write cuda:1x2 to let"},
      {"cpu,cuda:0", 4, 1, "4 replicas on 2 devices: write cpu,cuda:0x3 to let"},
      {"cuda:0x2,1", 5, 1, "5 replicas on 3 devices: write cuda:0x3,1x2 to let"},
      {"cuda:0,1", 1, 4,
       "4 replicas of 4 workers of this host on 2 devices: write cuda:0x2,1x2 to let replicas "
       "share a device, or start fewer workers"},
      {"cuda:0,1", 0, 4, "4 replicas of 4 workers of this host on 2 devices"},
      {"cuda:0", 65, 1, "that is too many; a device is shared by 64 at most"},
      {"cuda:0,1,2", 0, 2, "3 devices for 2 workers of this host: some would be left over"},
  };
  for (const Case& c : cases)
    EXPECT_THAT(message_of<UsageError>([&] { placed(c.text, c.replicas, 0, c.workers); }),
                HasSubstr(c.message))
        << c.text << " " << c.replicas;
}

// The advice is read, and places exactly as many as were asked for on the devices of before.
TEST(PlaceReplicas, WhatItAdvisesWorks) {
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) {
    const auto devices = parse_devices(some_text(random, 4), 4);
    const int replicas = static_cast<int>(devices.size() + 1 + random() % 9);
    if (devices.size() == 1 && devices[0].kind == DeviceKind::cpu) continue;
    const std::string message = message_of<UsageError>([&] { place_replicas(devices, replicas); });
    const size_t from = message.find("write ") + 6;
    const auto advised = parse_devices(message.substr(from, message.find(" to let") - from), 4);
    EXPECT_EQ(place_replicas(advised, replicas).size(), advised.size()) << message;
    std::set<std::string> before, after;
    for (DeviceSpec device : devices) before.insert(to_string({device.kind, device.index}));
    for (DeviceSpec device : advised) after.insert(to_string({device.kind, device.index}));
    EXPECT_EQ(before, after) << message;
  }
}

// Whatever the numbers, no two workers of a host have one device, and the order is that of the
// list.
TEST(PlaceReplicas, WorkersTakeTheDevicesInTurn) {
  for (const char* text : {"cuda", "cuda:0x4,1x4", "cuda:5x2,cpu,cuda:0,1x3,2"})
    for (int workers = 1; workers <= 8; ++workers)
      for (int replicas = 1; replicas * workers <= 8; ++replicas) {
        const auto devices = parse_devices(text, 8);
        std::vector<DeviceSpec> all;
        for (int worker = 0; worker < workers; ++worker)
          for (const DeviceSpec& device : place_replicas(devices, replicas, worker, workers))
            all.push_back(device);
        ASSERT_EQ(all.size(), static_cast<size_t>(replicas * workers));
        for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], devices[i]);
      }
}

}  // namespace
}  // namespace tutti
