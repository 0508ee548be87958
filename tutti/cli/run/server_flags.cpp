#include "tutti/cli/run/server_flags.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"

namespace tutti::cli {
void add_server_flags(Command& command, ServerFlags& flags) {
  command.group = "Parameter servers";
  command.add("--servers", "S", &flags.servers, whole_number(1, 1024),
              "parameter_server: how many servers (1)");
  command.add("--staleness", "0|s|inf", &flags.staleness,
              "parameter_server: 0 synchronous; how many steps the fastest worker may be ahead; "
              "inf nobody waits");
  command.add("--drop-slowest", "K", &flags.drop_slowest, whole_number(0, 1 << 20),
              "parameter_server, synchronous: a step waits for all workers but so many");
  command.add("--on-lost-worker", "end|continue|wait", &flags.on_lost_worker,
              one_of("answer to --on-lost-worker", {"end", "continue", "wait"}),
              "parameter_server, synchronous: when a worker is lost the job ends, the others "
              "continue without it, or wait until it comes again");
  command.add("--restarts", "K", &flags.restarts, whole_number(0, 1'000'000),
              "parameter_server, --on-lost-worker continue or wait: failed workers are started "
              "again, so often in all");
  command.flag("--scale-by-staleness", &flags.scale_by_staleness,
               "parameter_server, not synchronous: a gradient of staleness t counts 1/t");
  command.add("--delay-compensation", "LAMBDA", &flags.delay_compensation, number_between(0, 1e6),
              "parameter_server, not synchronous: lambda of DC-ASGD (0: off)");
  command.add("--host-sums", "on|off", &flags.host_sums, one_of("host-sums", {"on", "off"}),
              "parameter_server, synchronous: workers of one host add their gradients in shared "
              "memory and send one sum; off: each sends its own");
  command
      .flag("--no-backups", &flags.backups,
            "parameter_server: nobody has a copy; the loss of a server ends the job")
      .sets = false;
  command.add("--placement", "NAME", &flags.placement,
              one_of("placement", {"greedy", "round_robin"}),
              "parameter_server: of parameters on servers: greedy (by bytes) or round_robin");
  command.add("--partition", "HOW", &flags.partition,
              "parameter_server: cuts large parameters by rows: whole, fixed:4, min:256K:8, "
              "max:4M");
  add_snapshot_flags(command, flags.snapshots, "parameter_server: ");
  add_order_flags(command, flags.order, "parameter_server, not synchronous: ");
}

void add_order_flags(Command& command, OrderFlags& flags, const std::string& whose) {
  command.add("--record-order", "FILE", &flags.record, some_name(),
              whose +
                  "writes the order in which servers take gradients, at the end; all servers must "
                  "see its folder");
  command.add("--replay-order", "FILE", &flags.replay, some_name(),
              whose +
                  "takes gradients in that order again: the bits of the job that recorded it; "
                  "all must see the file");
}

OrderOptions order_options(const OrderFlags& flags, const SnapshotFlags& snapshots) {
  if (!flags.record.empty() && !flags.replay.empty())
    throw UsageError(
        "--record-order and --replay-order: a job that is replayed has the order of the file "
        "already; give one of them");
  const std::string order = !flags.record.empty() ? "--record-order" : "--replay-order";
  if ((!flags.record.empty() || !flags.replay.empty()) &&
      !(snapshots.folder.empty() && snapshots.restore.empty()))
    throw UsageError(
        fmt::format("{} with {}: an order of updates begins where a job begins, and is of no use "
                    "in its middle; "
                    "give one of them",
                    order, snapshots.folder.empty() ? "--restore" : "--snapshots"));
  return {.record = flags.record, .replay = flags.replay};
}

void add_snapshot_flags(Command& command, SnapshotFlags& flags, const std::string& whose) {
  command.add("--snapshots", "DIR", &flags.folder, some_name(),
              whose +
                  "folder for snapshots of the servers, at the end at least; all servers "
                  "and worker 0 must see it");
  command.add("--snapshot-every", "SECONDS", &flags.every_s, number_between(0.1, kMostSeconds),
              whose + "one so often, while training goes on (default: at the end)");
  command.add("--snapshots-kept", "K", &flags.kept, whole_number(1, 1'000'000),
              whose + "the newest so many");
  command.add("--restore", "DIR", &flags.restore, some_name(),
              whose +
                  "go on from this snapshot, or the newest in this folder, with any number "
                  "of servers");
}

ps::SnapshotOptions snapshot_options(const SnapshotFlags& flags) {
  if (flags.folder.empty() && (flags.every_s > 0 || flags.kept != SnapshotFlags{}.kept))
    throw UsageError(
        "--snapshot-every and --snapshots-kept without --snapshots DIR: where to write them?");
  return {.folder = flags.folder,
          .every = Millis(static_cast<int64_t>(flags.every_s * 1000)),
          .kept = flags.kept,
          .goes_on_from = flags.restore};
}

ServedOptions served_options(const ServerFlags& flags) {
  ServedOptions options;
  options.staleness = ps::Staleness::parse(flags.staleness, "--staleness");
  options.drop_slowest = static_cast<int>(flags.drop_slowest);
  options.on_lost_worker = ps::on_lost_worker_from(flags.on_lost_worker, "--on-lost-worker");
  options.scale_by_staleness = flags.scale_by_staleness;
  options.delay_compensation = flags.delay_compensation;
  options.host_sums = flags.host_sums == "on";
  options.placement.how = ps::PlacementOptions::how_from(flags.placement, "--placement");
  options.placement.partitioner = ps::Partitioner::parse(flags.partition, "--partition");
  return options;
}

}  // namespace tutti::cli
