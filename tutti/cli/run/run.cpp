// tutti run: starts the workers of a program on this machine.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "tutti/base/error.h"
#include "tutti/base/idle.h"
#include "tutti/base/standard_streams.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cli/run/server_flags.h"
#include "tutti/cli/run/servers.h"
#include "tutti/cluster/launch/launcher.h"
#include "tutti/cluster/launch/restarts.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/comm/shm/shm.h"

namespace tutti::cli {
namespace {

struct RunFlags {
  int workers = 1;
  int nodes = 1;
  int node_rank = 0;
  std::string rendezvous;
  std::string job;
  std::string on_lost_worker;  // "": end, unless failed workers are started again alone
  int restarts = 0;
  std::optional<double> grace_seconds;  // unset: 2, or what workers ask for
  int servers = 0;
  int elsewhere = 0;
  std::string view_service;
  bool backups = true;
  double silence_seconds = 15;
  SnapshotFlags snapshots;
  OrderFlags order;
  bool coordinator = false;
};

constexpr double kMaxGraceSeconds = 24 * 3600;
constexpr int kMostNodes = 1'000'000;

void print_report(const std::string& report) {
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);) {
    std::fprintf(stderr, "%s%s\n", line.rfind("  ", 0) == 0 ? "" : "tutti run: ", line.c_str());
  }
}

void check_nodes(const RunFlags& flags) {
  if (flags.node_rank >= flags.nodes) {
    throw UsageError(fmt::format("--node-rank {} of --nodes {}: nodes count from 0",
                                 flags.node_rank, flags.nodes));
  }
  if (flags.nodes == 1 && !flags.rendezvous.empty()) {
    throw UsageError("--rendezvous without --nodes: workers of one node meet without an address");
  }
  if (flags.nodes > 1 && flags.rendezvous.empty()) {
    throw UsageError(
        fmt::format("--nodes {} without --rendezvous HOST:PORT: where is node 0?", flags.nodes));
  }
}

bool has_servers(const RunFlags& flags) { return flags.servers + flags.elsewhere > 0; }

// Or as a whole, with all others.
bool restarts_workers_alone(const RunFlags& flags) {
  return flags.restarts > 0 && (has_servers(flags) || flags.on_lost_worker == "continue");
}

void check_restarts(const RunFlags& flags) {
  if (flags.restarts == 0) return;
  if (has_servers(flags) && flags.on_lost_worker == "end")
    throw UsageError(fmt::format(
        "--restarts {} and --on-lost-worker end with servers: while a worker of theirs is started "
        "again the rest go on; leave one of the two out",
        flags.restarts));
}

void check_servers(const RunFlags& flags) {
  if (has_servers(flags)) return;
  if (!flags.view_service.empty())
    throw UsageError(
        fmt::format("--view-service {} without servers: give --servers or --servers-elsewhere, too",
                    flags.view_service));
  if (!flags.backups)
    throw UsageError("--no-backups without servers: give --servers or --servers-elsewhere, too");
}

// Process 0 of the job is then the coordinator.
void check_coordinator(const RunFlags& flags) {
  if (!flags.coordinator) return;
  if (!has_servers(flags))
    throw UsageError("--coordinator without --servers: its workers train on parameter servers");
  if (flags.nodes > 1)
    throw UsageError(
        fmt::format("--coordinator with --nodes {}: a coordinator and its workers are "
                    "started on one node",
                    flags.nodes));
}

// With a coordinator the job is what that makes of it, whatever its workers come to; but for a
// signal to the job.
int exit_code_of(const RunFlags& flags, const LaunchResult& result) {
  if (!flags.coordinator || result.root_worker < 0) return result.exit_code;
  const WorkerResult& coordinator = result.workers.at(0);
  return coordinator.signal != 0 ? 128 + coordinator.signal : coordinator.exit_code;
}

// What all nodes must be given alike.
std::string words_for_all_nodes(const RunFlags& flags) {
  std::string words;
  if (flags.restarts > 0) words += fmt::format("--restarts {} ", flags.restarts);
  if (!flags.on_lost_worker.empty())
    words += fmt::format("--on-lost-worker {} ", flags.on_lost_worker);
  return words;
}

bool has_nodes(const RunFlags& flags) { return flags.nodes > 1; }
bool writes_snapshots(const RunFlags& flags) {
  return has_servers(flags) && !flags.snapshots.folder.empty();
}

const std::vector<NeededBy<RunFlags>>& needs_of_runs() {
  constexpr std::string_view kOfNodes =
      "it is of jobs on several machines, and this has one (--nodes)";
  constexpr std::string_view kOfSnapshots = "no snapshots are written (--servers, --snapshots DIR)";
  static const std::vector<NeededBy<RunFlags>> rows = {
      {"--node-rank", has_nodes, kOfNodes},
      {"--job", has_nodes, kOfNodes},
      {"--silence", has_servers,
       "it is of servers and their workers, and there are none (--servers)"},
      {"--snapshot-every", writes_snapshots, kOfSnapshots},
      {"--snapshots-kept", writes_snapshots, kOfSnapshots}};
  return rows;
}

int run(const Command& command, const RunFlags& flags) {
  if (command.rest.empty()) throw UsageError("no program to start: tutti run -n N PROGRAM ARGS...");
  refuse_unknown_flag(command, command.rest.front());
  check_nodes(flags);
  check_servers(flags);
  refuse_idle(command.typed(), flags, needs_of_runs());
  check_restarts(flags);
  check_coordinator(flags);
  const double grace = flags.grace_seconds.value_or(kGraceSeconds);
  if (!(grace >= 0 && grace <= kMaxGraceSeconds))
    throw UsageError(
        fmt::format("--grace {}: 0 to {} seconds are possible", grace, kMaxGraceSeconds));
  const ps::SnapshotOptions snapshots = snapshot_options(flags.snapshots);
  if (!has_servers(flags) && !(snapshots.folder.empty() && snapshots.goes_on_from.empty()))
    throw UsageError("--snapshots and --restore without --servers: they are the servers'");
  const OrderOptions order = order_options(flags.order, flags.snapshots);
  if (!has_servers(flags) && !(order.record.empty() && order.replay.empty()))
    throw UsageError("--record-order and --replay-order without --servers: they are the servers'");
  std::fflush(stdout);
  const int processes = flags.workers + (flags.coordinator ? 1 : 0);
  const bool alone = restarts_workers_alone(flags);
  LaunchOptions options{
      .num_workers = processes,
      .nodes = {.node = flags.node_rank,
                .num_nodes = flags.nodes,
                .rendezvous = flags.rendezvous,
                .job = flags.job,
                .same = words_for_all_nodes(flags)},
      .command = command.rest,
      .environment = {std::string(detail::kOwnCommandVariable) + "="},
      .signal_grace = millis_of(grace),
      .asked_grace = !flags.grace_seconds,
      .end_on_failure = flags.on_lost_worker != "continue" && !alone && !flags.coordinator,
      .restarts = alone ? flags.restarts : 0,
      .first_leads = flags.coordinator};
  if (flags.coordinator)
    options.environment.push_back(std::string(detail::kCoordinatorVariable) + "=1");
  std::optional<ServerFleet> fleet;
  if (has_servers(flags))
    fleet.emplace(FleetOptions{.num_servers = flags.servers,
                               .elsewhere = flags.elsewhere,
                               .num_workers = processes,
                               .view_service = flags.view_service,
                               .backups = flags.backups,
                               .silence = millis_of(flags.silence_seconds),
                               .snapshots = snapshots,
                               .order = order},
                  options);
  const LaunchResult result =
      launch_with_restarts(std::move(options), alone ? 0 : flags.restarts, print_report);
  if (fleet) fleet->end(result.exit_code != 0);
  return exit_code_of(flags, result);
}

// Of its name until the next release.
Check answer_to_on_failure() {
  Check check = one_of("answer to --on-failure", {"end", "continue"});
  check.answer = [ask = std::move(check.answer)](std::string& text) {
    const std::string wrong = ask(text);
    if (wrong.empty())
      say_to(stderr,
             "tutti run: --on-failure is --on-lost-worker now, and goes with the next release\n");
    return wrong;
  };
  return check;
}

}  // namespace

void add_run(Command& program) {
  auto flags = std::make_shared<RunFlags>();
  Command& command = program.command("run",
                                     "Start N workers of a program on this machine, or on each "
                                     "of several:\n"
                                     "tutti run [-n N] [FLAGS] PROGRAM ARGS...");
  Argument& workers = command.add("--workers", "N", &flags->workers, whole_number(1, kMaxRanks),
                                  "How many workers");
  workers.short_name = "-n";
  workers.preset = "";
  workers.also = {"--np", "-np", "--gpus", "--nproc-per-node", "--nproc_per_node"};
  command.add("--servers", "S", &flags->servers, whole_number(1, 1024),
              "Parameter servers beside them, on each machine");
  command.add("--servers-elsewhere", "K", &flags->elsewhere, whole_number(1, 1024),
              "More servers, in all, that somebody starts: `tutti ps` on hosts of their own");
  command.add("--view-service", "ADDRESS[:PORT]", &flags->view_service,
              "Where servers and workers find each other: an address of node 0 (default: that "
              "of the rendezvous, or this machine alone)");
  command.flag("--coordinator", &flags->coordinator,
               "One process more, number 0, that hands out steps to workers 1 to N");
  command.flag("--no-backups", &flags->backups, "The loss of a parameter server ends the job")
      .sets = false;
  command.add("--silence", "SECONDS", &flags->silence_seconds, number_between(1, kMaxGraceSeconds),
              "A server, or a worker of theirs, that says nothing for so long is lost");
  add_snapshot_flags(command, flags->snapshots, "--servers: ");
  add_order_flags(command, flags->order, "--servers, not synchronous: ");
  command
      .add("--nodes", "M", &flags->nodes, whole_number(1, kMostNodes),
           "How many machines take part")
      .preset = "";
  command.add("--node-rank", "I", &flags->node_rank, whole_number(0, kMostNodes - 1),
              "Number of this machine");
  command.add("--rendezvous", "HOST:PORT", &flags->rendezvous,
              "An address of node 0, and a free port");
  command.add("--job", "NAME", &flags->job,
              "Name of this job, to tell it from another at the same port (default: made from "
              "the token)");
  command
      .add("--on-lost-worker", "end|continue", &flags->on_lost_worker,
           one_of("answer to --on-lost-worker", {"end", "continue"}),
           "What the rest do when a worker fails: end (the default, but with servers and "
           "--restarts) or continue")
      .excludes = {"--coordinator"};
  command
      .add("--on-failure", "end|continue", &flags->on_lost_worker, answer_to_on_failure(),
           "The name of --on-lost-worker until the next release")
      .excludes = {"--coordinator", "--on-lost-worker"};
  command.add("--restarts", "K", &flags->restarts, whole_number(0, 1'000'000),
              "A job of which a worker failed is started again as a whole, so often, and goes "
              "on from its newest checkpoint; a step that fails twice ends it. With servers, "
              "or --on-lost-worker continue: that worker alone, while the rest go on");
  command.add("--grace", "SECONDS", &flags->grace_seconds,
              "Time to end in order after Ctrl-C or SIGTERM (2, or as long as a program asks "
              "for that has checkpoints to write)");
  command.starts_program = true;
  command.footer =
      "Everything from PROGRAM on is the program's own. Its workers read what to do with\n"
      "tutti::join(). Their output comes line by line behind [worker]; stdin is empty.\n\n"
      "Examples:\n"
      "  tutti run -n 4 ./hello\n"
      "  tutti run -n 2 --restarts 3 ./train --epochs 5\n"
      "  tutti run --servers 2 -n 3 ./train --strategy parameter_server\n"
      "  tutti run --servers 2 -n 3 --coordinator ./coordinate\n"
      "  On two machines, with the same TUTTI_TOKEN (or TUTTI_TOKEN_FILE) on both:\n"
      "    tutti run -n 4 --nodes 2 --node-rank 0 --rendezvous node0:29500 ./train\n"
      "    tutti run -n 4 --nodes 2 --node-rank 1 --rendezvous node0:29500 ./train\n"
      "  Two servers on hosts of their own, which it says how to start:\n"
      "    tutti run -n 4 --servers-elsewhere 2 --view-service node0 ./train\n\n"
      "Exit code: 0, or that of the worker that failed first; 128+signal when it was killed.";
  command.action = [&command, flags] { return run(command, *flags); };
}

}  // namespace tutti::cli
