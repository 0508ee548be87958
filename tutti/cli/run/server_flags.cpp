#include "tutti/cli/run/server_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "tutti/base/error.h"
#include "tutti/cli/checks.h"

namespace tutti::cli {
void add_server_flags(CLI::App& app, ServerFlags& flags) {
  app.option_defaults()->group("Parameter servers");
  app.add_option("--servers", flags.servers, "parameter_server: how many servers (1)")
      ->check(whole_number(1, 1024))
      ->type_name("S");
  app.add_option("--staleness", flags.staleness,
                 "parameter_server: 0 synchronous; how many steps the fastest worker may be ahead; "
                 "inf nobody waits")
      ->type_name("0|s|inf")
      ->capture_default_str();
  app.add_option("--drop-slowest", flags.drop_slowest,
                 "parameter_server, synchronous: a step waits for all workers but so many")
      ->check(whole_number(0, 1 << 20))
      ->type_name("K");
  app.add_option("--on-lost-worker", flags.on_lost_worker,
                 "parameter_server, synchronous: when a worker is lost the job ends, the others "
                 "continue without it, or wait until it comes again")
      ->check(one_of("answer to --on-lost-worker", {"end", "continue", "wait"}))
      ->type_name("end|continue|wait")
      ->capture_default_str();
  app.add_option("--restarts", flags.restarts,
                 "parameter_server, --on-lost-worker continue or wait: failed workers are started "
                 "again, so often in all")
      ->check(whole_number(0, 1'000'000))
      ->type_name("K");
  app.add_flag("--scale-by-staleness", flags.scale_by_staleness,
               "parameter_server, not synchronous: a gradient of staleness t counts 1/t");
  app.add_option("--delay-compensation", flags.delay_compensation,
                 "parameter_server, not synchronous: lambda of DC-ASGD (0: off)")
      ->check(number_between(0, 1e6))
      ->type_name("LAMBDA");
  app.add_option("--host-sums", flags.host_sums,
                 "parameter_server, synchronous: workers of one host add their gradients in shared "
                 "memory and send one sum; off: each sends its own")
      ->check(one_of("host-sums", {"on", "off"}))
      ->type_name("on|off")
      ->capture_default_str();
  app.add_flag("!--no-backups", flags.backups,
               "parameter_server: nobody has a copy; the loss of a server ends the job");
  app.add_option("--placement", flags.placement,
                 "parameter_server: of parameters on servers: greedy (by bytes) or round_robin")
      ->check(one_of("placement", {"greedy", "round_robin"}))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--partition", flags.partition,
                 "parameter_server: cuts large parameters by rows: whole, fixed:4, min:256K:8, "
                 "max:4M")
      ->type_name("HOW")
      ->capture_default_str();
  add_snapshot_flags(app, flags.snapshots, "parameter_server: ");
}

void add_snapshot_flags(CLI::App& app, SnapshotFlags& flags, const std::string& whose) {
  app.add_option("--snapshots", flags.folder,
                 whose +
                     "folder for snapshots of the servers, at the end at least; all servers "
                     "and worker 0 must see it")
      ->check(some_name())
      ->type_name("DIR");
  app.add_option("--snapshot-every", flags.every_s,
                 whose + "one so often, while training goes on (default: at the end)")
      ->check(number_between(0.1, kMostSeconds))
      ->type_name("SECONDS");
  app.add_option("--snapshots-kept", flags.kept, whose + "the newest so many")
      ->check(whole_number(1, 1'000'000))
      ->type_name("K")
      ->capture_default_str();
  app.add_option("--restore", flags.restore,
                 whose +
                     "go on from this snapshot, or the newest in this folder, with any number "
                     "of servers")
      ->check(some_name())
      ->type_name("DIR");
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
