// tf.config's functions on devices. What they set holds for a process: each case is one.
#include <ATen/Functions.h>
#include <gmock/gmock.h>

#include <string>

#include "tutti/base/error.h"
#include "tutti/queues/config.h"
#include "tutti/queues/runtime.h"
#include "tutti/strategy/strategy.h"

#include "tests/support/fake_cuda/fake_cuda_test.h"
#include "tests/support/message_of.h"
#include "tests/support/run_ranks.h"

namespace tutti::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

std::vector<PhysicalDevice> gpus() { return list_physical_devices(DeviceKind::cuda); }

at::Tensor take(int64_t bytes, int device) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(
                                at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device))));
}

// "cuda:1 cuda:0": LibTorch's device of each replica.
std::string devices_of(const Strategy& strategy) {
  std::string text;
  for (const DeviceQueue& queue : strategy.world().queues)
    text += (text.empty() ? "" : " ") + queue.device().str();
  return text;
}

// Of the process itself: a failed expectation must end it otherwise than 0.
void require(bool condition, const std::string& what) {
  if (!condition) throw Error("not so: " + what);
}

RANK_PROGRAM(visible_ones) {
  require(gpus().size() == 3 && gpus()[2].memory_bytes == 64 * kMiB, "three GPUs of 64 MiB");
  set_visible_devices({gpus()[2], gpus()[0]});
  require(list_logical_devices(DeviceKind::cuda).size() == 2, "two are seen");
  const std::string error = message_of<UsageError>([] { devices_from("cuda:2"); });
  require(error == "--device cuda:2: there is no device 2; visible: 0 to 1", error);
  const Strategy strategy({.kind = "mirrored", .device = "cuda"});
  require(devices_of(strategy) == "cuda:2 cuda:0", devices_of(strategy));
  const std::string late = message_of<UsageError>([] { set_visible_devices({}); });
  require(late.find("in use already, by strategy mirrored") != std::string::npos, late);
}

RANK_PROGRAM(hidden_ones) {
  set_visible_devices({});
  require(to_string(devices_from("auto")) == "cpu", "auto");
  const std::string error = message_of<UsageError>([] { Strategy({.device = "cuda"}); });
  require(error == "--device cuda: no GPU is visible", error);
}

RANK_PROGRAM(limited) {
  set_memory_limit(gpus()[0], 16 * kMiB);
  use_devices("a test", devices_from("cuda:0"));
  const auto most = take(15 * kMiB, 0);
  bool refused = false;
  try {
    take(2 * kMiB, 0);
  } catch (const c10::OutOfMemoryError&) {
    refused = true;
  }
  require(refused, "17 of 16 MiB are refused");
  const std::string late = message_of<UsageError>([] { set_memory_limit(gpus()[0], kMiB); });
  require(late.find("in use already, by a test") != std::string::npos, late);
  const std::string other =
      message_of<UsageError>([] { use_devices("another", devices_from("cuda:1")); });
  require(other.find("another: memory limit: no limit, but devices are in use already, with "
                     "0.2500 of each") == 0,
          other);
  use_devices("a third", devices_from("cuda:1"), 16);  // the same part
}

RANK_PROGRAM(limited_by_flag) {
  set_memory_limit(gpus()[0], 48 * kMiB);
  const std::string unlike =
      message_of<UsageError>([] { use_devices("a test", devices_from("cuda:0,1"), 0); });
  require(unlike.find("48.0 MiB of 64.0 MiB on cuda:0, but all of 64.0 MiB on cuda:1") !=
              std::string::npos,
          unlike);
  const Strategy strategy({.kind = "mirrored", .device = "cuda:0,1", .memory_limit_mib = 32});
  const auto most = take(31 * kMiB, 1);
  bool refused = false;
  try {
    take(2 * kMiB, 1);
  } catch (const c10::OutOfMemoryError&) {
    refused = true;
  }
  require(refused, "33 of 32 MiB are refused: the lower limit counts");
}

RANK_PROGRAM(without_growth) {
  for (const auto& gpu : gpus()) set_memory_growth(gpu, false);
  DeviceRuntime& runtime = DeviceRuntime::load();
  use_devices("a test", devices_from("cuda:1"));
  require(runtime.memory(1).peak == 58 * kMiB, "15/16 of 64 MiB, in blocks of 2");
  const Strategy strategy({.kind = "mirrored", .replicas = 1, .device = "cuda:2,0"});
  require(runtime.memory(2).peak == 58 * kMiB, "of the one with a replica");
  require(runtime.memory(0).peak == 0, "of no other");
}

RANK_PROGRAM(logical_ones) {
  set_logical_devices(gpus()[1], {8 * kMiB, 8 * kMiB});
  set_visible_devices({gpus()[1]});
  const Strategy strategy({.kind = "mirrored", .device = "cuda"});
  require(devices_of(strategy) == "cuda:1 cuda:1", devices_of(strategy));
  const auto most = take(15 * kMiB, 1);  // both limits, for whoever comes
  bool refused = false;
  try {
    take(2 * kMiB, 1);
  } catch (const c10::OutOfMemoryError&) {
    refused = true;
  }
  require(refused, "17 of 16 MiB are refused");
}

RANK_PROGRAM(unlike_by_broken_memory) {
  fake_cuda::set_memory(1, 64 * kMiB - kMiB / 4);
  use_devices("a test", devices_from("cuda:0"), 16);
  use_devices("another", devices_from("cuda:1"), 16);
  const std::string other =
      message_of<UsageError>([] { use_devices("a third", devices_from("cuda:1"), 17); });
  require(other.find("a third: memory limit: 0.26") == 0, other);
}

RANK_PROGRAM(tried_again) {
  for (const auto& gpu : gpus()) set_memory_growth(gpu, false);
  fake_cuda::fail_allocation(1, 1);
  bool failed = false;
  try {
    use_devices("a test", devices_from("cuda:0,1"), 16);
  } catch (const c10::OutOfMemoryError&) {
    failed = true;
  }
  require(failed, "no memory at the first use");
  for (const auto& gpu : gpus()) set_memory_growth(gpu, true);
  use_devices("another", devices_from("cuda:0,1"));
  const auto most = take(48 * kMiB, 1);  // the limit of before is gone
  const std::string late = message_of<UsageError>([] { set_visible_devices({}); });
  require(late.find("in use already, by another") != std::string::npos, late);
}

using DevicesOfAProcess = FakeCudaTest;

TEST_F(DevicesOfAProcess, AreThoseThatTheFunctionsSet) {
  for (const char* program :
       {"visible_ones", "hidden_ones", "limited", "limited_by_flag", "without_growth",
        "logical_ones", "unlike_by_broken_memory", "tried_again"}) {
    const auto outcome =
        run_ranks(1, program, {.environment = {"FAKE_CUDA_DEVICES=3", "FAKE_CUDA_MEMORY_MB=64"}});
    EXPECT_EQ(outcome[0].exit_code, 0) << program << ": " << outcome[0].error << outcome[0].log;
  }
}

}  // namespace
}  // namespace tutti::test
