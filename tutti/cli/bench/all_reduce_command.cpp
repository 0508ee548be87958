// tutti bench all-reduce: its flags, and who starts the ranks.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>

#include <CLI/CLI.hpp>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/base/standard_streams.h"
#include "tutti/cli/bench/all_reduce.h"
#include "tutti/cli/bench/commands.h"
#include "tutti/cli/bench/compare.h"
#include "tutti/cli/bench/peers.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/train/job.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/launch/launcher.h"
#include "tutti/comm/mpi/mpi.h"
#include "tutti/net/mesh.h"

namespace tutti::cli {
namespace {

constexpr int kDefaultRanks = 2;

struct Flags {
  std::string engine = "shm";
  std::optional<int64_t> ranks;
  std::string bytes = "8,1K,64K,1M,16M,64M";
  std::string collective = "all_reduce";
  std::string order = "fixed";
  int64_t streams = 1;
  std::string table;
  bool processes = false;
  bool peers = false;
  int64_t rounds = 5;
  bool no_pin = false;
  std::string json;

  int num_ranks() const {
    return static_cast<int>(ranks.value_or(engine == "solo" ? 1 : kDefaultRanks));
  }
};

AllReduceBench bench_of(const Flags& flags) {
  AllReduceBench bench{.engine = flags.engine,
                       .collective = collective_named(flags.collective),
                       .bytes = parse_sizes("--bytes", flags.bytes),
                       .rounds = static_cast<int>(flags.rounds),
                       .pin = !flags.no_pin,
                       .order = flags.order == "any" ? Order::any : Order::fixed,
                       .streams = static_cast<int>(flags.streams)};
  if (bench.collective == Collective::barrier) bench.bytes = {0};
  for (const int64_t bytes : bench.bytes)
    if (bytes % 4 != 0)
      throw UsageError(fmt::format("--bytes: {} is no multiple of 4, the bytes of a float", bytes));
  if (!flags.table.empty()) bench.table = load_table(flags.table);
  return bench;
}

void check(const Flags& flags) {
  const bool links = flags.engine == "tcp" || flags.engine == "hier";
  if (flags.engine == "solo" && flags.num_ranks() != 1)
    throw UsageError(
        fmt::format("--engine solo is a group of one, but --ranks is {}", flags.num_ranks()));
  if (flags.order == "any" && !links && flags.engine != "mpi")
    throw UsageError(
        fmt::format("--order any: {} adds in one order alone; tcp, hier and mpi have "
                    "another",
                    flags.engine));
  if (!flags.table.empty() && !links)
    throw UsageError(
        fmt::format("--algorithm-table {}: {} has no algorithms to choose from; tcp "
                    "and hier have",
                    flags.table, flags.engine));
  if (flags.streams > 1 && !links)
    throw UsageError(
        fmt::format("--streams {}: {} has none; tcp and hier have", flags.streams, flags.engine));
  if (flags.peers && flags.engine != "shm" && flags.engine != "tcp")
    throw UsageError(fmt::format("--peers: measured beside shm and tcp, on one host, not beside {}",
                                 flags.engine));
}

int print(const std::vector<AllReduceRow>& rows, const std::string& json) {
  if (!rows.empty())
    fmt::print(
        "{:>12} {:>12} {:>12} {:>9} {:>15}   {}, engine={}, {} ranks ({}), floor: {} "
        "(flag round trip {:.0f} ns)\n",
        "bytes", "p50 us", "p99 us", "GB/s", "share of floor", rows[0].collective, rows[0].engine,
        rows[0].ranks, rows[0].members, rows[0].floor, rows[0].flag_round_trip_ns);
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
int launch_workers(const Flags& flags) {
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
[[noreturn]] void become_mpirun(const Flags& flags) {
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

int run_as_worker(const Flags& flags, const AllReduceBench& bench, const ClusterSpec& spec) {
  if (flags.ranks && *flags.ranks != spec.num_workers)
    throw UsageError(fmt::format("--ranks {}, but {} started {} workers: leave it out",
                                 *flags.ranks, spec.source, spec.num_workers));
  bool speaks = false;
  const auto rows =
      flags.engine == "mpi" ? measure_under_mpi(bench, speaks) : measure_as_worker(bench, speaks);
  if (speaks) return print(rows, flags.json);
  return std::all_of(rows.begin(), rows.end(), [](const auto& row) { return row.correct; }) ? 0 : 1;
}

int compare(const Flags& flags, const AllReduceBench& bench) {
  CollectiveComparison comparison{.engine = flags.engine,
                                  .ranks = flags.num_ranks(),
                                  .collective = bench.collective,
                                  .bytes = bench.bytes,
                                  .rounds = flags.rounds};
  auto& words = comparison.more_words;
  words = {"--order", flags.order, "--streams", std::to_string(flags.streams)};
  if (flags.processes) words.emplace_back("--processes");
  if (flags.no_pin) words.emplace_back("--no-pin");
  if (!flags.table.empty()) words.insert(words.end(), {"--algorithm-table", flags.table});
  CollectivePeers peers;
  const std::string lines = compare_collective(comparison, peers);
  if (!flags.json.empty()) write_file_atomically(flags.json, lines);
  return 0;
}

int bench_all_reduce(const Flags& flags) {
  check(flags);
  const AllReduceBench bench = bench_of(flags);
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  const auto job = job_of_this_process();
  if (job && job->num_workers > 1) return run_as_worker(flags, bench, *job);
  if (flags.engine == "hier")
    throw UsageError(
        "--engine hier is measured by workers on several hosts: start this with `tutti run -n N "
        "--nodes M ...` on each of them");
  int64_t largest = 0;
  for (const int64_t bytes : bench.bytes) largest = std::max(largest, bytes);
  const int64_t ends = bench.collective == Collective::all_reduce ? 1 : 2;
  check_memory_for(flags.num_ranks() * largest * ends,
                   fmt::format("the buffers of {} ranks", flags.num_ranks()));
  if (flags.peers) return compare(flags, bench);
  if (flags.engine == "mpi") {
    if (job) return run_as_worker(flags, bench, *job);
    become_mpirun(flags);
  }
  if (flags.processes && flags.num_ranks() > 1) return launch_workers(flags);
  return print(measure_threads(flags.num_ranks(), bench), flags.json);
}

void add_what(CLI::App& command, Flags& flags) {
  command.add_option("--engine", flags.engine, "shm, tcp, hier, mpi or solo")
      ->check(one_of("engine", {"shm", "tcp", "hier", "mpi", "solo"}, {"nccl"}))
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--collective", flags.collective,
                  fmt::format("{}", fmt::join(measured_collectives(), ", ")))
      ->check(one_of("collective", measured_collectives()))
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--ranks", flags.ranks,
                  "How many, on this machine (2); under a launcher: its workers")
      ->check(whole_number(1, 256))
      ->type_name("N");
  command
      .add_option("--bytes", flags.bytes,
                  "Sizes of the vector, or of all parts together, with K, M, G for powers of 1024")
      ->type_name("SIZE,...")
      ->capture_default_str();
  command.add_flag("--processes", flags.processes, "Ranks are processes, not threads");
}

void add_how(CLI::App& command, Flags& flags) {
  command.add_option("--order", flags.order, "Of additions: fixed, or any where the engine has it")
      ->check(one_of("order", {"fixed", "any"}))
      ->type_name("NAME")
      ->capture_default_str();
  command.add_option("--streams", flags.streams, "tcp, hier: data connections between two ranks")
      ->check(whole_number(1, kMaxStreams))
      ->type_name("K")
      ->capture_default_str();
  command
      .add_option("--algorithm-table", flags.table,
                  "tcp, hier: which algorithm for which size, as `tutti bench tune` wrote it")
      ->check(some_name())
      ->type_name("FILE");
  command.add_option("--rounds", flags.rounds, "Turns of all sizes")
      ->check(whole_number(1, 1000))
      ->type_name("R")
      ->capture_default_str();
  command.add_flag("--no-pin", flags.no_pin, "Do not pin ranks to cores of their own");
  command.add_flag(
      "--peers", flags.peers,
      "shm, tcp: beside Open MPI, Gloo, DeepSpeed and oneCCL, in turn, with the ratios");
  command.add_option("--json", flags.json, "File for the figures, a JSON object a line")
      ->check(some_name())
      ->type_name("FILE");
}

}  // namespace

void add_bench_all_reduce(CLI::App& bench, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = bench.add_subcommand(
      "all-reduce", "An engine's all-reduce, or another collective, beside its floor");
  add_what(*command, *flags);
  add_how(*command, *flags);
  command->footer(
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
      "  tutti bench all-reduce --engine tcp --ranks 4 --processes --collective all_gather\n"
      "  tutti bench all-reduce --engine tcp --ranks 2 --peers\n"
      "  tutti run -n 2 --nodes 2 --node-rank 0 --rendezvous node0:29500 tutti bench all-reduce "
      "--engine hier");
  command->callback([flags, &exit_code] { exit_code = bench_all_reduce(*flags); });
}

}  // namespace tutti::cli
