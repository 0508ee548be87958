/// What the commands that train ask about parameter servers.
/// Thread rule: the main thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/cli/run/servers.h"
#include "tutti/ps/snapshot/snapshot_series.h"
#include "tutti/sync/served_options.h"

namespace tutti::cli {

struct Command;

/// Snapshots of the servers, as `train` and `run` take them.
struct SnapshotFlags {
  std::string folder;
  double every_s = 0;
  int kept = 2;
  std::string restore;
};

/// The order of updates, as `train` and `run` take it.
struct OrderFlags {
  std::string record, replay;
};
void add_order_flags(Command& command, OrderFlags& flags, const std::string& whose);
/// UsageError for both at once, and beside snapshots.
OrderOptions order_options(const OrderFlags& flags, const SnapshotFlags& snapshots);

/// `whose`: what the flags belong to, for their help: "parameter_server: ".
void add_snapshot_flags(Command& command, SnapshotFlags& flags, const std::string& whose);

/// UsageError for a time or number of snapshots without a folder for them.
ps::SnapshotOptions snapshot_options(const SnapshotFlags& flags);

/// What was typed; unset is empty.
struct ServerFlags {
  std::optional<int64_t> servers;
  std::string staleness = "0";
  int64_t drop_slowest = 0;
  std::string on_lost_worker = "end";
  int64_t restarts = 0;
  bool scale_by_staleness = false;
  double delay_compensation = 0;
  std::string host_sums = "on";
  bool backups = true;
  std::string placement = "greedy";
  std::string partition = "whole";
  SnapshotFlags snapshots;
  OrderFlags order;

  int num_servers() const { return static_cast<int>(servers.value_or(1)); }
};

void add_server_flags(Command& command, ServerFlags& flags);

/// UsageError for a staleness or partition that cannot be read.
ServedOptions served_options(const ServerFlags& flags);

}  // namespace tutti::cli
