#include "tutti/queues/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/base/log.h"
#include "tutti/device/cuda_driver.h"
#include "tutti/queues/runtime.h"

namespace tutti {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The driver says what a GPU is and has without taking memory of it; LibTorch, where there is
// another driver than NVIDIA's or none, only how much it has.
std::vector<PhysicalDevice> look() {
  std::vector<PhysicalDevice> all{{}};
  std::string why;
  const DeviceRuntime* const runtime = DeviceRuntime::try_load(&why);
  const int count = runtime != nullptr ? runtime->count() : 0;
  const auto driver = driver_facts().devices;
  if (count == 0) {
    log(driver.empty() ? LogLevel::info : LogLevel::warning, "devices: the CPU alone{}: {}",
        driver.empty() ? "" : ", although the driver knows GPUs",
        runtime == nullptr ? why : "LibTorch's CUDA sees no device");
    return all;
  }
  const bool same = driver.size() == static_cast<size_t>(count);
  for (int i = 0; i < count; ++i)
    all.push_back({.kind = DeviceKind::cuda,
                   .index = i,
                   .name = same ? driver[i].name : "",
                   .memory_bytes = same ? driver[i].memory_total_bytes : runtime->memory(i).total});
  return all;
}

struct OfProcess {
  DeviceConfig config{look()};
  bool in_use = false;
  bool deterministic = false;
  std::optional<double> fraction;
  std::set<int> taken;  // visible indices of GPUs whose memory does not grow
};

OfProcess& of_process() {
  static OfProcess one;
  return one;
}

std::optional<int64_t> lower(std::optional<int64_t> one, int64_t memory_limit_mib) {
  if (memory_limit_mib == 0) return one;
  return std::min(memory_limit_mib * kMiB, one.value_or(std::numeric_limits<int64_t>::max()));
}

// LibTorch takes memory in blocks, and rounds a limit; what it needs beside them is left.
void take_all(DeviceRuntime& runtime, int index, std::optional<double> fraction) {
  constexpr int64_t kBlock = 2 * kMiB;
  const DeviceMemory memory = runtime.memory(index);
  const int64_t most = fraction ? std::llround(*fraction * static_cast<double>(memory.total))
                                : memory.free - memory.free / 16;
  const int64_t bytes = (most / kBlock - 1) * kBlock;
  if (bytes > 0) runtime.take_memory(index, bytes);
}

// The limit of the first use is that of all later ones. After a first use that failed, too, in
// which LibTorch had been told another one.
void limit(DeviceRuntime& runtime, std::optional<double> fraction) {
  OfProcess& process = of_process();
  if (process.in_use) return;
  if (fraction || process.fraction) runtime.limit_memory(fraction.value_or(1));
  process.fraction = fraction;
}

void require_limit_of_before(std::string_view by, std::optional<double> fraction) {
  const auto words = [](std::optional<double> part) {
    return part ? fmt::format("{:.4f} of each GPU's memory", *part) : "no limit";
  };
  const OfProcess& process = of_process();
  if (process.in_use && !are_alike(process.fraction, fraction))
    throw UsageError(
        fmt::format("{}: memory limit: {}, but devices are in use already, with {}; LibTorch knows "
                    "one for all of a process",
                    by, words(fraction), words(process.fraction)));
}

void be_deterministic(std::string_view by) {
  OfProcess& process = of_process();
  if (process.deterministic) return;
  if (process.in_use)
    throw UsageError(
        fmt::format("{}: deterministic, but devices are in use already, without it; LibTorch and "
                    "cuBLAS know one choice for all of a process",
                    by));
  DeviceRuntime::be_deterministic();
  process.deterministic = true;
}

}  // namespace

DeviceConfig& device_config() { return of_process().config; }

std::vector<PhysicalDevice> list_physical_devices(std::optional<DeviceKind> kind) {
  return device_config().physical(kind);
}

std::vector<LogicalDevice> list_logical_devices(std::optional<DeviceKind> kind) {
  return device_config().logical(kind);
}

void set_visible_devices(const std::vector<PhysicalDevice>& devices, DeviceKind kind) {
  std::vector<int> indices;
  for (const PhysicalDevice& device : devices) {
    if (device.kind != kind)
      throw UsageError(fmt::format("set_visible_devices: {}:{} is no {}", name_of(device.kind),
                                   device.index, name_of(kind)));
    indices.push_back(device.index);
  }
  device_config().set_visible(kind, indices);
}

void set_memory_growth(const PhysicalDevice& device, bool on) {
  device_config().set_memory_growth(device, on);
}

void set_memory_limit(const PhysicalDevice& device, int64_t bytes) {
  device_config().set_memory_limit(device, bytes);
}

void set_logical_devices(const PhysicalDevice& device,
                         const std::vector<std::optional<int64_t>>& memory_limits_bytes) {
  device_config().set_logical(device, memory_limits_bytes);
}

std::vector<DeviceSpec> devices_from(std::string_view text) {
  if (!needs_gpus(text)) return parse_devices(text, 0);
  if (text != "auto") DeviceRuntime::load().require_any();
  const DeviceConfig& config = device_config();
  return config.divided(parse_devices(text, config.visible_gpus()));
}

void use_devices(std::string_view by, std::span<const DeviceSpec> devices, int64_t memory_limit_mib,
                 bool deterministic) {
  std::set<int> gpus;
  for (const DeviceSpec& device : devices)
    if (device.kind == DeviceKind::cuda) gpus.insert(device.index);
  if (gpus.empty()) {
    if (memory_limit_mib > 0)
      throw UsageError(fmt::format(
          "{}: memory limit of {} MiB: it is of GPUs, and none is used; --device cuda uses them",
          by, memory_limit_mib));
    return;
  }
  DeviceRuntime& runtime = DeviceRuntime::load();
  OfProcess& process = of_process();
  std::vector<MemoryShare> shares;
  for (const int gpu : gpus)
    shares.push_back({.device = {DeviceKind::cuda, gpu},
                      .total_bytes = runtime.memory(torch_index(gpu)).total,
                      .limit_bytes = lower(process.config.limit_of(gpu), memory_limit_mib)});
  const auto fraction = one_fraction(shares);
  require_limit_of_before(by, fraction);
  if (deterministic) be_deterministic(by);
  const bool grows = process.config.grows();
  limit(runtime, fraction);
  for (const int gpu : gpus) {
    if (grows || process.taken.contains(gpu)) continue;
    take_all(runtime, torch_index(gpu), process.fraction);
    process.taken.insert(gpu);
  }
  // Not before: what has thrown may be set otherwise and tried again.
  process.config.freeze(by);
  process.in_use = true;
}

int torch_index(int visible_index) { return device_config().physical_index(visible_index); }

}  // namespace tutti
