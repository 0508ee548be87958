#include "tutti/device/device_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/base/host.h"

namespace tutti {
namespace {

constexpr std::string_view kSetVisible = "set_visible_devices";
constexpr std::string_view kSetGrowth = "set_memory_growth";
constexpr std::string_view kSetLimit = "set_memory_limit";
constexpr std::string_view kSetLogical = "set_logical_devices";

std::string words_of(const PhysicalDevice& device) {
  return to_string(DeviceSpec{device.kind, device.index});
}

// As far as it is known what there is.
int64_t most_bytes(const PhysicalDevice& device) {
  return device.memory_bytes > 0 ? device.memory_bytes : std::numeric_limits<int64_t>::max();
}

void require_limit(const PhysicalDevice& device, int64_t bytes, int64_t left,
                   std::string_view operation) {
  if (bytes < 1)
    throw UsageError(fmt::format("{}: a limit of {} bytes for {}; expected 1 or more", operation,
                                 bytes, words_of(device)));
  if (bytes > left)
    throw UsageError(fmt::format(
        "{}: {} of {}, which has {}{}", operation, size_words(bytes), words_of(device),
        size_words(most_bytes(device)),
        left < most_bytes(device) ? fmt::format(", of which {} are left", size_words(left)) : ""));
}

// None where a limit is no limit.
std::optional<double> fraction_of(const MemoryShare& share) {
  if (!share.limit_bytes) return std::nullopt;
  return static_cast<double>(*share.limit_bytes) / static_cast<double>(share.total_bytes);
}

std::string words_of(const MemoryShare& share) {
  return fmt::format("{} of {} on {}", share.limit_bytes ? size_words(*share.limit_bytes) : "all",
                     size_words(share.total_bytes), to_string(share.device));
}

}  // namespace

bool are_alike(std::optional<double> one, std::optional<double> other) {
  constexpr double kAlike = 0.01;  // GPUs of one kind differ by memory that is broken
  return one.has_value() == other.has_value() &&
         std::abs(one.value_or(0) - other.value_or(0)) <= kAlike * one.value_or(0);
}

std::optional<double> one_fraction(const std::vector<MemoryShare>& shares) {
  std::optional<double> least;
  for (const MemoryShare& share : shares) {
    if (share.limit_bytes && *share.limit_bytes > share.total_bytes)
      throw UsageError(fmt::format("memory limit: {}: more than it has", words_of(share)));
    const auto one = fraction_of(shares.front()), other = fraction_of(share);
    if (!are_alike(one, other))
      throw UsageError(fmt::format(
          "memory limit: {}, but {}; LibTorch knows one part for all GPUs of a process: "
          "give all the same, use alike GPUs, or one process a GPU",
          words_of(shares.front()), words_of(share)));
    if (other) least = std::min(*other, least.value_or(1));
  }
  return least;
}

DeviceConfig::DeviceConfig(std::vector<PhysicalDevice> devices) {
  for (PhysicalDevice& device : devices) {
    const int place = device.index;
    entries_.push_back({.device = std::move(device), .place = place});
  }
}

std::vector<PhysicalDevice> DeviceConfig::physical(std::optional<DeviceKind> kind) const {
  std::vector<PhysicalDevice> all;
  for (const Entry& entry : entries_)
    if (!kind || entry.device.kind == *kind) all.push_back(entry.device);
  return all;
}

std::vector<const DeviceConfig::Entry*> DeviceConfig::visible(
    std::optional<DeviceKind> kind) const {
  std::vector<const Entry*> all;
  for (const Entry& entry : entries_)
    if (entry.place != kHidden && (!kind || entry.device.kind == *kind)) all.push_back(&entry);
  std::ranges::sort(all, {},
                    [](const Entry* entry) { return std::pair(entry->device.kind, entry->place); });
  return all;
}

std::vector<LogicalDevice> DeviceConfig::logical(std::optional<DeviceKind> kind) const {
  std::vector<LogicalDevice> all;
  for (const Entry* const entry : visible(kind)) {
    DeviceSpec spec{entry->device.kind, entry->place, 0, static_cast<int>(entry->parts.size())};
    for (const auto& limit : entry->parts) {
      all.push_back({spec, limit});
      ++spec.part;
    }
  }
  return all;
}

void DeviceConfig::require_open(std::string_view operation) const {
  if (!frozen_by_.empty())
    throw UsageError(
        fmt::format("{}: devices are in use already, by {}; call it before that is made", operation,
                    frozen_by_));
}

std::string DeviceConfig::those_of(DeviceKind kind) const {
  const auto count = physical(kind).size();
  if (count == 0) return fmt::format("there is no {} here", name_of(kind));
  return count == 1 ? fmt::format("there is {}:0", name_of(kind))
                    : fmt::format("there are {}:0 to {}", name_of(kind), count - 1);
}

DeviceConfig::Entry& DeviceConfig::gpu_to_set(const PhysicalDevice& device,
                                              std::string_view operation) {
  require_open(operation);
  if (device.kind == DeviceKind::cpu)
    throw UsageError(
        fmt::format("{}: cpu: it is for GPUs; the CPU's memory is the host's, and any number of "
                    "replicas compute on it",
                    operation));
  for (Entry& entry : entries_)
    if (entry.device.kind == device.kind && entry.device.index == device.index) return entry;
  throw UsageError(
      fmt::format("{}: {} is not there: {}", operation, words_of(device), those_of(device.kind)));
}

void DeviceConfig::set_visible(DeviceKind kind, const std::vector<int>& indices) {
  require_open(kSetVisible);
  if (kind == DeviceKind::cpu)
    throw UsageError(fmt::format("{}: the CPU is always there; hide GPUs", kSetVisible));
  std::vector<Entry*> chosen;
  for (const int index : indices) {
    Entry& entry = gpu_to_set({.kind = kind, .index = index, .name = ""}, kSetVisible);
    if (std::ranges::find(chosen, &entry) != chosen.end())
      throw UsageError(fmt::format("{}: {} is named twice", kSetVisible, words_of(entry.device)));
    chosen.push_back(&entry);
  }
  for (Entry& entry : entries_)
    if (entry.device.kind == kind) entry.place = kHidden;
  for (size_t i = 0; i < chosen.size(); ++i) chosen[i]->place = static_cast<int>(i);
}

void DeviceConfig::set_memory_growth(const PhysicalDevice& device, bool on) {
  gpu_to_set(device, kSetGrowth).grows = on;
}

void DeviceConfig::set_memory_limit(const PhysicalDevice& device, int64_t bytes) {
  Entry& entry = gpu_to_set(device, kSetLimit);
  if (entry.parts.size() > 1)
    throw UsageError(fmt::format("{}: {} is {} logical devices, which have limits of their own: {}",
                                 kSetLimit, words_of(device), entry.parts.size(), kSetLogical));
  require_limit(entry.device, bytes, most_bytes(entry.device), kSetLimit);
  entry.parts = {bytes};
}

void DeviceConfig::set_logical(const PhysicalDevice& device,
                               std::vector<std::optional<int64_t>> memory_limits_bytes) {
  Entry& entry = gpu_to_set(device, kSetLogical);
  if (memory_limits_bytes.empty() || memory_limits_bytes.size() > size_t{kMostParts})
    throw UsageError(fmt::format("{}: {} logical devices of {}; expected 1 to {}", kSetLogical,
                                 memory_limits_bytes.size(), words_of(device), kMostParts));
  int64_t left = most_bytes(entry.device);
  for (const auto& limit : memory_limits_bytes) {
    if (!limit) continue;
    require_limit(entry.device, *limit, left, kSetLogical);
    left -= *limit;
  }
  entry.parts = std::move(memory_limits_bytes);
}

void DeviceConfig::freeze(std::string_view by) {
  if (!frozen_by_.empty()) return;
  grows();
  frozen_by_ = by;
}

bool DeviceConfig::grows() const {
  const auto gpus = visible(DeviceKind::cuda);
  for (const Entry* const gpu : gpus)
    if (gpu->grows != gpus.front()->grows)
      throw UsageError(fmt::format(
          "{}: {} on cuda:{}, {} on cuda:{}; LibTorch knows one for all: set it for each GPU, or "
          "hide some ({})",
          kSetGrowth, gpus.front()->grows ? "on" : "off", gpus.front()->device.index,
          gpu->grows ? "on" : "off", gpu->device.index, kSetVisible));
  return gpus.empty() || gpus.front()->grows;
}

int DeviceConfig::visible_gpus() const {
  return static_cast<int>(visible(DeviceKind::cuda).size());
}

const DeviceConfig::Entry& DeviceConfig::visible_gpu(int visible_index) const {
  for (const Entry& entry : entries_)
    if (entry.device.kind == DeviceKind::cuda && entry.place == visible_index &&
        entry.place != kHidden)
      return entry;
  throw UsageError(
      fmt::format("there is no device {}; {} GPUs are visible", visible_index, visible_gpus()));
}

int DeviceConfig::physical_index(int visible_index) const {
  return visible_gpu(visible_index).device.index;
}

std::vector<DeviceSpec> DeviceConfig::divided(const std::vector<DeviceSpec>& devices) const {
  std::vector<DeviceSpec> all;
  for (DeviceSpec device : devices) {
    const int cut = device.kind == DeviceKind::cpu
                        ? 1
                        : static_cast<int>(visible_gpu(device.index).parts.size());
    if (cut == 1 || cut == device.parts) {
      all.push_back(device);
      continue;
    }
    if (device.parts > 1)
      throw UsageError(
          fmt::format("device cuda:{}x{}: {} made {} logical devices of it; name it "
                      "cuda:{}",
                      device.index, device.parts, kSetLogical, cut, device.index));
    device.parts = cut;
    for (device.part = 0; device.part < cut; ++device.part) all.push_back(device);
  }
  return all;
}

std::optional<int64_t> DeviceConfig::limit_of(int visible_index) const {
  int64_t sum = 0;
  for (const auto& limit : visible_gpu(visible_index).parts) {
    if (!limit) return std::nullopt;
    sum += *limit;
  }
  return sum;
}

}  // namespace tutti
