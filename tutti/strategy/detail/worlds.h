/// Worlds: where the replicas of each kind of strategy are.
#pragma once

#include "tutti/device/devices.h"
#include "tutti/strategy/options.h"
#include "tutti/sync/served_options.h"
#include "tutti/sync/world.h"

namespace tutti::detail {

/// The world of checked options, which are resolved on the way: nothing is unset afterwards.
/// Collective over workers where replicas of several are in sync. Throws as Strategy does.
World make_world(StrategyOptions& options);

/// Gives each local replica of `world` its device and a queue there; none where all compute on the
/// CPU. Throws UsageError where there are too few devices.
void place_on_devices(World& world, const StrategyOptions& options,
                      const std::vector<DeviceSpec>& devices);

/// Where the servers of this worker are; of parameter_server alone.
ServedPlace served_place();

/// Threads of LibTorch in each of so many replicas of a host.
int threads_for(const StrategyOptions& options, int replicas_on_host);

/// Whether the replicas of a host, with so many threads each, get cores of their own.
bool can_pin(const StrategyOptions& options, int replicas_on_host, int threads);

}  // namespace tutti::detail
