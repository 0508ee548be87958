/// DeviceConfig: which devices a program sees and how much of their memory it may take, with the
/// meaning of tf.config.
///
/// Set before the first use of a device, and then fixed. queues/config.h has the functions
/// that set those of this process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/device/devices.h"

namespace tutti {

struct PhysicalDevice {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;             ///< among those of its kind
  std::string name;          ///< "NVIDIA H200"; empty where nobody says it
  int64_t memory_bytes = 0;  ///< in all; 0: not known
};

/// One part of a physical device, as set_logical() cuts it; or all of it.
struct LogicalDevice {
  DeviceSpec spec;
  std::optional<int64_t> memory_limit_bytes;
};

/// What of a GPU's memory this process may take.
struct MemoryShare {
  DeviceSpec device;
  int64_t total_bytes = 0;
  std::optional<int64_t> limit_bytes;
};

/// The part of each GPU's memory that its limit is, in (0, 1]; none: no limit. LibTorch has one
/// number for all GPUs of a process: UsageError where they would have unlike ones.
std::optional<double> one_fraction(const std::vector<MemoryShare>& shares);

/// Whether two such parts count as one: both none, or as near as those of GPUs of one kind.
bool are_alike(std::optional<double> one, std::optional<double> other);

/// Errors name the functions of queues/config.h, by which a program comes here.
/// Thread rule: one thread at a time.
class DeviceConfig {
 public:
  explicit DeviceConfig(std::vector<PhysicalDevice> devices);

  /// Those of `kind`, or all; visible or not.
  std::vector<PhysicalDevice> physical(std::optional<DeviceKind> kind = {}) const;
  /// The visible ones, each once, or once a part.
  std::vector<LogicalDevice> logical(std::optional<DeviceKind> kind = {}) const;

  /// From now on the program sees these of their kind alone, numbered from 0 in this order; none:
  /// no device of that kind. UsageError for a device that is not there, one named twice, the CPU
  /// (which cannot be hidden), and once devices are in use.
  void set_visible(DeviceKind kind, const std::vector<int>& indices);

  /// On (as LibTorch does by itself): memory is taken as it is needed. Off: the limit of each
  /// device, or what is free of its memory, is taken at its first use. UsageError for the CPU, a
  /// device that is not there, and unlike values on the visible GPUs (found by grows()).
  void set_memory_growth(const PhysicalDevice& device, bool on);

  /// The most that this process takes of that device, in bytes. UsageError for more than it has,
  /// none or less, and with logical devices, which have limits of their own.
  void set_memory_limit(const PhysicalDevice& device, int64_t bytes);

  /// Cuts a device into 1 to 64 parts, each with a limit or none. LibTorch has one allocator a
  /// device: the limits hold for their sum, and where a part has none, there is none. Takes the
  /// place of what was set for that device before. UsageError as set_memory_limit().
  void set_logical(const PhysicalDevice& device,
                   std::vector<std::optional<int64_t>> memory_limits_bytes);

  /// Nothing changes any more: a device is used by whom `by` names ("strategy mirrored"; the first
  /// one counts). UsageError where what was set contradicts itself; then nothing is frozen.
  void freeze(std::string_view by);

  int visible_gpus() const;
  /// The visible GPU among all; UsageError for one that is not there.
  int physical_index(int visible_index) const;

  /// `devices` with each GPU that set_logical() has cut as its parts. UsageError for one that is
  /// cut otherwise ("cuda:0x3" of two parts).
  std::vector<DeviceSpec> divided(const std::vector<DeviceSpec>& devices) const;

  /// The most that may be taken of a visible GPU in all; none: all that it has.
  std::optional<int64_t> limit_of(int visible_index) const;
  /// What set_memory_growth() says of the visible GPUs. UsageError where it is not the same of all.
  bool grows() const;

 private:
  struct Entry {
    PhysicalDevice device;
    int place = 0;  // among the visible ones; kHidden
    bool grows = true;
    std::vector<std::optional<int64_t>> parts{std::nullopt};  // with their limits
  };
  static constexpr int kHidden = -1;

  Entry& gpu_to_set(const PhysicalDevice& device, std::string_view operation);
  const Entry& visible_gpu(int visible_index) const;
  std::vector<const Entry*> visible(std::optional<DeviceKind> kind) const;
  std::string those_of(DeviceKind kind) const;
  void require_open(std::string_view operation) const;

  std::vector<Entry> entries_;
  std::string frozen_by_;
};

}  // namespace tutti
