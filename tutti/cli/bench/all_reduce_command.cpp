// tutti bench all-reduce: who starts the ranks.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/standard_streams.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/bench/all_reduce_flags.h"
#include "tutti/cli/bench/commands.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/train/job.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/launch/launcher.h"
#include "tutti/comm/mpi/mpi.h"
#include "tutti/net/mesh.h"

namespace tutti::cli {
namespace {

int print(const std::vector<AllReduceRow>& rows, const std::string& json) {
  if (!rows.empty())
    fmt::print(
        "{:>12} {:>12} {:>12} {:>9} {:>15}   {}, engine={}, {} ranks ({}), memory: {}, floor: {} "
        "(flag round trip {:.0f} ns)\n",
        "bytes", "p50 us", "p99 us", "GB/s", "share of floor", rows[0].collective, rows[0].engine,
        rows[0].ranks, rows[0].members, rows[0].memory, rows[0].floor, rows[0].flag_round_trip_ns);
  std::string lines;
  bool correct = true;
  for (const AllReduceRow& row : rows) {
    fmt::print("{:>12} {:>12.2f} {:>12.2f} {:>9.2f} {:>15.2f}{}\n", row.bytes, row.p50_us,
               row.p99_us, row.bus_gb_s, row.floor_fraction, row.correct ? "" : "   WRONG");
    lines += row.to_json() + "\n";
    correct &= row.correct;
  }
  fmt::print("{}", lines);
  if (!json.empty()) write_file_atomically(json, lines);
  return correct ? 0 : 1;
}

// This very command again, as workers of a launcher of our own.
int launch_workers(const AllReduceFlags& flags) {
  LaunchOptions options{.num_workers = flags.num_ranks(), .command = own_command()};
  options.command.at(0) = own_program().string();
  options.announce = false;
  options.prefix_output = false;
  std::fflush(stdout);
  const LaunchResult result = launch(options);
  std::istringstream report(failure_report(result));
  for (std::string line; std::getline(report, line);)
    say_to(stderr, "{}{}\n", line.starts_with("  ") ? "" : "tutti bench: ", line);
  return result.exit_code;
}

// This very command again, started by mpirun. Returns only by throwing.
[[noreturn]] void become_mpirun(const AllReduceFlags& flags) {
  if (!mpi_available())
    throw UsageError(
        "--engine mpi: this build has no MPI library; tools/setup --bench installs "
        "Open MPI, then build again");
  std::vector<std::string> words = {"mpirun", "-n", std::to_string(flags.num_ranks()), "--bind-to",
                                    "none"};
  std::vector<std::string> own = own_command();
  own.at(0) = own_program().string();
  words.insert(words.end(), own.begin(), own.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  for (const std::string setting : kOpenMpiSettings) {
    const size_t equals = setting.find('=');
    setenv(setting.substr(0, equals).c_str(), setting.substr(equals + 1).c_str(), 0);
  }
  std::fflush(stdout);
  execvp(pointers[0], pointers.data());
  throw UsageError(
      fmt::format("--engine mpi: mpirun cannot be started: {}; tools/setup --bench "
                  "installs Open MPI, or start it with the launcher of your MPI: "
                  "mpirun -n {} tutti bench all-reduce --engine mpi",
                  errno_words(errno), flags.num_ranks()));
}

int run_as_worker(const AllReduceFlags& flags, const AllReduceBench& bench,
                  const ClusterSpec& spec) {
  if (flags.ranks && *flags.ranks != spec.num_workers)
    throw UsageError(fmt::format("--ranks {}, but {} started {} workers: leave it out",
                                 *flags.ranks, spec.source, spec.num_workers));
  bool speaks = false;
  const auto rows =
      flags.engine == "mpi" ? measure_under_mpi(bench, speaks) : measure_as_worker(bench, speaks);
  if (speaks) return print(rows, flags.json);
  return std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row.correct; }) ? 0 : 1;
}

int bench_all_reduce(const AllReduceFlags& flags) {
  const AllReduceBench bench = bench_of(flags);
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  const auto job = job_of_this_process();
  if (job && job->num_workers > 1) return run_as_worker(flags, bench, *job);
  if (flags.engine == "hier")
    throw UsageError(
        "--engine hier is measured by workers on several hosts: start this with `tutti run -n N "
        "--nodes M ...` on each of them");
  if (bench.own_memory && !flags.processes)
    throw UsageError(
        "--memory own: threads see each other's memory; give --processes, or start this with tutti "
        "run");
  require_memory(flags, bench);
  if (flags.engine == "mpi") {
    if (job) return run_as_worker(flags, bench, *job);
    become_mpirun(flags);
  }
  if (flags.processes && flags.num_ranks() > 1) return launch_workers(flags);
  return print(measure_threads(flags.num_ranks(), bench), flags.json);
}

}  // namespace

void add_bench_all_reduce(Command& bench) {
  auto flags = std::make_shared<AllReduceFlags>();
  auto moved_peers = std::make_shared<bool>(false);
  Command& command = bench.command(
      "all-reduce", "An engine's all-reduce, or another collective, beside its floor");
  add_all_reduce_flags(command, *flags);
  command.flag("--peers", moved_peers.get(), "Moved to tutti_bench").group = "";
  command.footer =
      "The floor of shm and mpi is a plain loop over the same memory; of tcp (over 127.0.0.1) a "
      "raw\n"
      "stream of as many bytes. `mpi` starts itself again under mpirun, or is started by it.\n"
      "`hier` needs workers on several hosts (`tutti run --nodes`): then the engine is the one "
      "that\n"
      "fits, and stands beside a flat tcp group of the same ranks. On one machine the hosts can "
      "be\n"
      "network namespaces.\n\n"
      "Examples:\n"
      "  tutti bench all-reduce\n"
      "  tutti bench all-reduce --engine shm --ranks 2 --bytes 8,1K,64M --json shm.json\n"
      "  tutti bench all-reduce --processes --memory own\n"
      "  tutti bench all-reduce --engine tcp --ranks 4 --processes --collective all_gather\n"
      "  tutti run -n 2 --nodes 2 --node-rank 0 --rendezvous node0:29500 tutti bench all-reduce "
      "--engine hier";
  command.action = [flags, moved_peers] {
    if (*moved_peers) throw UsageError(moved("all-reduce --peers", "all-reduce"));
    return bench_all_reduce(*flags);
  };
}

}  // namespace tutti::cli
