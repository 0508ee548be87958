/// Which devices this process sees and how much of their memory it takes: tf.config, for LibTorch.
///
/// Call the set_ functions before a Strategy with GPUs is made; once that is, they throw
/// UsageError. What the CUDA_VISIBLE_DEVICES of the environment hides is not there at all. Thread
/// rule: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/device/device_config.h"

namespace tutti {

/// The CPU and the GPUs of this machine, or those of one kind; visible or not. Without a LibTorch
/// with CUDA, or a driver, the CPU alone; the log (info) says why. Takes no memory of a GPU.
std::vector<PhysicalDevice> list_physical_devices(std::optional<DeviceKind> kind = {});

/// What replicas can be placed on: visible devices, or the parts of those that
/// set_logical_devices() has cut. Unlike tf.config's it fixes nothing.
std::vector<LogicalDevice> list_logical_devices(std::optional<DeviceKind> kind = {});

/// From now on this process sees these GPUs alone, numbered from 0 in this order; {}: none.
/// UsageError as DeviceConfig::set_visible().
void set_visible_devices(const std::vector<PhysicalDevice>& devices,
                         DeviceKind kind = DeviceKind::cuda);

/// Whether memory of a GPU is taken as it is needed, as LibTorch does by itself; otherwise its
/// limit, or 15/16 of what is free, is taken when a Strategy is first placed on it. One value for
/// all visible GPUs. UsageError as DeviceConfig::set_memory_growth().
void set_memory_growth(const PhysicalDevice& device, bool on);

/// The most that tensors of this process take of a GPU. LibTorch knows one part for all GPUs of a
/// process, so that a Strategy on several wants the same part of each. The context and the
/// libraries that CUDA loads, some 0.5 GiB a process, come on top. UsageError as
/// DeviceConfig::set_memory_limit().
void set_memory_limit(const PhysicalDevice& device, int64_t bytes);

/// Cuts a GPU into logical devices, each with a limit in bytes, or none. Each can have a replica,
/// with a queue of its own; memory is one: limits hold for their sum. "cuda" and "cuda:0" then name
/// all of its parts. UsageError as DeviceConfig::set_logical().
void set_logical_devices(const PhysicalDevice& device,
                         const std::vector<std::optional<int64_t>>& memory_limits_bytes);

/// What those functions set.
DeviceConfig& device_config();

/// What --device takes, as parse_devices() reads it, among the devices that this process sees.
/// Loads LibTorch's CUDA where a GPU is named; "auto" is the CPU where that cannot be (the log says
/// why). Throws UsageError as parse_devices(), DeviceRuntime::load() and require_any().
std::vector<DeviceSpec> devices_from(std::string_view text);

/// For who places replicas on `devices`, before its first tensor on them: from now on nothing is
/// set any more, and limits and growth are in force.
///
/// by                in words: "strategy mirrored"
/// memory_limit_mib  of each GPU, beside what was set: the lower counts; 0: none
/// deterministic     as DeviceRuntime::be_deterministic(); where it is on already, it stays on
/// Throws UsageError where that contradicts itself or a GPU's memory, where a limit is given and no
/// GPU, for limits other than those of an earlier call, and for `deterministic` after one without.
/// Without a GPU, nothing else happens.
void use_devices(std::string_view by, std::span<const DeviceSpec> devices,
                 int64_t memory_limit_mib = 0, bool deterministic = false);

/// LibTorch's number of a visible GPU.
int torch_index(int visible_index);

}  // namespace tutti
