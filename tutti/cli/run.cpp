// tutti run: starts the workers of a program on this machine.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>

#include <CLI/CLI.hpp>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/commands.h"
#include "tutti/cluster/launcher.h"
#include "tutti/comm/shm/shm.h"

namespace tutti::cli {
namespace {

struct RunFlags {
  int workers = 1;
  int nodes = 1;
  int node_rank = 0;
  std::string rendezvous;
  std::string on_failure = "end";
  double grace_seconds = 2;
};

constexpr double kMaxGraceSeconds = 24 * 3600;
constexpr int kMostNodes = 1'000'000;

void print_report(const std::string& report) {
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);) {
    std::fprintf(stderr, "%s%s\n", line.rfind("  ", 0) == 0 ? "" : "tutti run: ", line.c_str());
  }
}

int run(const CLI::App& command, const RunFlags& flags) {
  const auto words = command.remaining();
  if (words.empty()) throw UsageError("no program to start: tutti run -n N PROGRAM ARGS...");
  refuse_unknown_flag(command, words.front());
  if (flags.nodes != 1 || flags.node_rank != 0 || !flags.rendezvous.empty()) {
    throw UsageError(
        "--nodes, --node-rank, --rendezvous: several nodes need the tcp engine, which is not in "
        "this build; start all workers on this node");
  }
  if (!(flags.grace_seconds >= 0 && flags.grace_seconds <= kMaxGraceSeconds)) {
    throw UsageError(fmt::format("--grace {}: 0 to {} seconds are possible", flags.grace_seconds,
                                 kMaxGraceSeconds));
  }
  std::fflush(stdout);
  const LaunchResult result =
      launch({.num_workers = flags.workers,
              .command = words,
              .signal_grace = Millis(static_cast<int64_t>(std::lround(flags.grace_seconds * 1000))),
              .end_on_failure = flags.on_failure == "end"});
  print_report(failure_report(result));
  return result.exit_code;
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run",
                                         "Start N workers of a program on this machine:\n"
                                         "tutti run [-n N] [FLAGS] PROGRAM ARGS...");
  command->add_option("-n,--workers", flags->workers, "How many workers")
      ->check(whole_number(1, kMaxRanks))
      ->type_name("N");
  command->add_option("--nodes", flags->nodes, "How many machines take part")
      ->check(whole_number(1, kMostNodes))
      ->type_name("M");
  command->add_option("--node-rank", flags->node_rank, "Number of this machine")
      ->check(whole_number(0, kMostNodes - 1))
      ->type_name("I");
  command->add_option("--rendezvous", flags->rendezvous, "Where machines meet")
      ->type_name("HOST:PORT");
  CLI::Option* policy = command
                            ->add_option("--on-failure", flags->on_failure,
                                         "What the rest do when a worker fails: end or continue")
                            ->type_name("end|continue");
  require_one_of(*policy, "answer to --on-failure", {"end", "continue"});
  command
      ->add_option("--grace", flags->grace_seconds,
                   "Time to end in order after Ctrl-C or SIGTERM (2)")
      ->type_name("SECONDS");
  command->prefix_command();
  command->footer(
      "Everything from PROGRAM on is the program's own. Its workers read what to do with\n"
      "tutti::join(). Their output comes line by line behind [worker]; stdin is empty.\n\n"
      "Examples:\n"
      "  tutti run -n 4 ./hello\n"
      "  tutti run -n 2 --grace 30 ./train --epochs 5\n\n"
      "Exit code: 0, or that of the worker that failed first; 128+signal when it was killed.");
  command->callback([command, flags, &exit_code] { exit_code = run(*command, *flags); });
}

}  // namespace tutti::cli
