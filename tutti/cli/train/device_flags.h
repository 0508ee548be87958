/// --device, --plugin, --memory-limit and --deterministic, of `train`, `evaluate` and `bench step`.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/strategy/choice/options.h"

namespace tutti::cli {

struct Command;

struct DeviceFlags {
  std::string device = "cpu";    ///< as parse_devices() reads it
  std::string plugin{};          ///< as StrategyOptions has it
  int64_t memory_limit_mib = 0;  ///< of each GPU; 0: none
  bool deterministic = false;    ///< as StrategyOptions has it
};

/// Describes the flags on `command`.
void add_device_flags(Command& command, DeviceFlags& flags);

/// Sets them, and loads LibTorch's CUDA where a GPU is named: call it before anything else of
/// LibTorch. UsageError for a device that is not there.
void take_devices(const DeviceFlags& flags, StrategyOptions& options);

/// Replicas on this host where nobody said how many: one a device, or of the CPU the usable cores.
int replicas_of_host(const DeviceFlags& flags);

/// Whether they name several devices, or parts of one.
bool several_devices(const DeviceFlags& flags);

/// UsageError when the devices of this host are too few for its workers (of one replica each; one
/// worker: of so many).
void check_placement_on(const DeviceFlags& flags, int replicas, int workers);

}  // namespace tutti::cli
