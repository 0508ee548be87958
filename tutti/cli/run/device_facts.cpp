#include "tutti/cli/run/device_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/comm/nccl/nccl.h"
#include "tutti/device/cuda_driver.h"
#include "tutti/queues/runtime.h"

namespace tutti::cli {
namespace {

// The driver's words of each GPU where it sees those of LibTorch; else LibTorch's, which are few.
std::vector<GpuFacts> gpus_of(const DeviceRuntime& runtime, const DriverFacts& driver) {
  const auto count = static_cast<size_t>(runtime.count());
  std::vector<GpuFacts> gpus(count);
  for (size_t i = 0; i < count; ++i) {
    if (driver.devices.size() == count) {
      const DriverDevice& device = driver.devices[i];
      gpus[i] = {.name = device.name,
                 .memory_total_bytes = device.memory_total_bytes,
                 .memory_free_bytes = device.memory_free_bytes,
                 .capability = device.capability,
                 .peers = device.peers};
    } else {
      const DeviceMemory memory = runtime.memory(static_cast<int>(i));
      gpus[i].memory_total_bytes = memory.total;
      gpus[i].memory_free_bytes = memory.free;
    }
  }
  return gpus;
}

// Why there is no GPU where LibTorch could use one.
std::string cure_of(const DeviceRuntime& runtime, const DriverFacts& driver) {
  try {
    runtime.require_any();
    return "";
  } catch (const UsageError& error) {
    return driver.why.empty() ? error.what() : fmt::format("{}\n{}", driver.why, error.what());
  }
}

std::string words_of(const GpuFacts& gpu) {
  std::string text = gpu.name.empty() ? "a GPU" : gpu.name;
  text += gpu.memory_free_bytes > 0
              ? fmt::format(", {} free of {}", size_words(gpu.memory_free_bytes),
                            size_words(gpu.memory_total_bytes))
              : fmt::format(", {}", size_words(gpu.memory_total_bytes));
  if (!gpu.capability.empty()) text += ", compute capability " + gpu.capability;
  if (!gpu.peers.empty())
    text += fmt::format(", reads the memory of cuda:{}", fmt::join(gpu.peers, ","));
  return text;
}

std::string or_none(const std::string& text) { return text.empty() ? "none" : text; }

}  // namespace

DeviceFacts device_facts() {
  DeviceFacts facts;
  const DeviceRuntime* const runtime = DeviceRuntime::try_load(&facts.cure);
  const DriverFacts driver = driver_facts();
  facts.driver = driver.version;
  facts.driver_cuda = driver.cuda_version;
  facts.nccl = nccl_version();
  if (runtime == nullptr) return facts;
  facts.library = runtime->library();
  facts.gpus = gpus_of(*runtime, driver);
  facts.cure = cure_of(*runtime, driver);
  return facts;
}

std::vector<std::pair<std::string, std::string>> rows_of(const DeviceFacts& facts) {
  std::string driver = or_none(facts.driver);
  if (!facts.driver_cuda.empty())
    driver = fmt::format("{}, for CUDA up to {}", facts.driver.empty() ? "there" : facts.driver,
                         facts.driver_cuda);
  std::vector<std::pair<std::string, std::string>> rows = {
      {"CUDA", facts.library.empty() ? "none in LibTorch" : facts.library},
      {"driver", std::move(driver)},
      {"NCCL", or_none(facts.nccl)},
      {"devices", facts.gpus.empty() ? fmt::format("0: {}", facts.cure)
                                     : fmt::format("{}", facts.gpus.size())}};
  for (size_t i = 0; i < facts.gpus.size(); ++i)
    rows.emplace_back(fmt::format("cuda:{}", i), words_of(facts.gpus[i]));
  return rows;
}

Json json_of(const DeviceFacts& facts) {
  Json gpus = Json::array();
  for (const GpuFacts& gpu : facts.gpus)
    gpus.push_back({{"name", gpu.name},
                    {"memory_total_bytes", gpu.memory_total_bytes},
                    {"memory_free_bytes", gpu.memory_free_bytes},
                    {"compute_capability", gpu.capability},
                    {"peers", gpu.peers}});
  return {{"library", facts.library}, {"driver", facts.driver}, {"driver_cuda", facts.driver_cuda},
          {"nccl", facts.nccl},       {"devices", gpus},        {"cure", facts.cure}};
}

}  // namespace tutti::cli
