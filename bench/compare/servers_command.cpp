// tutti_bench servers: its flags, and who starts servers and workers. Every row is a job of its
// own.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/base/idle.h"
#include "tutti/base/json.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/checks.h"
#include "tutti/cli/run/servers.h"
#include "tutti/cluster/join/join.h"
#include "tutti/cluster/launch/launcher.h"
#include "tutti/cluster/spec/detail/environment.h"
#include "tutti/strategy/membership/detail/worlds.h"

#include "bench/compare/checkout.h"
#include "bench/compare/commands.h"
#include "bench/compare/servers.h"
#include "bench/compare/servers_sparse.h"

namespace tutti::bench {
using namespace cli;
namespace {

struct Flags {
  int64_t servers = 1;
  int64_t workers = 2;
  std::string bytes = "1M,16M,64M";
  std::string engine = "shm";
  std::string staleness = "inf,0";
  bool no_backups = false;
  int64_t rounds = 5;
  int64_t rows = 0;  // of an embedding table; 0: a variable of `bytes`
  int64_t width = 64;
  int64_t keys = 4096;
  std::string json;
};

std::vector<ps::Staleness> parse_staleness(const std::string& text) {
  std::vector<ps::Staleness> all;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');)
    all.push_back(ps::Staleness::parse(word, "--staleness"));
  if (all.empty()) throw UsageError("--staleness: expected 0, s or inf");
  return all;
}

std::vector<PsBench> benches_of(const Flags& flags) {
  std::vector<PsBench> benches;
  for (const int64_t bytes : parse_sizes("--bytes", flags.bytes)) {
    if (bytes == 0 || bytes % 4 != 0)
      throw UsageError(
          fmt::format("--bytes: {} is no multiple of 4, the bytes of a float, above 0", bytes));
    for (const ps::Staleness& staleness : parse_staleness(flags.staleness))
      benches.push_back({.engine = flags.engine,
                         .backups = !flags.no_backups,
                         .staleness = staleness,
                         .bytes = bytes,
                         .rounds = static_cast<int>(flags.rounds)});
  }
  return benches;
}

std::vector<SparseBench> sparse_benches_of(const Flags& flags) {
  if (flags.keys * flags.workers > flags.rows)
    throw UsageError(fmt::format("--keys: {} of each of {} workers; the table has --rows {}",
                                 flags.keys, flags.workers, flags.rows));
  std::vector<SparseBench> benches;
  for (const ps::Staleness& staleness : parse_staleness(flags.staleness))
    benches.push_back({.engine = flags.engine,
                       .backups = !flags.no_backups,
                       .staleness = staleness,
                       .rows = flags.rows,
                       .width = flags.width,
                       .keys = flags.keys,
                       .rounds = static_cast<int>(flags.rounds)});
  return benches;
}

// What a worker of launch_row() does: the row goes to --json.
int run_as_worker(const Flags& flags) {
  Group side = join();
  const ServedPlace place = detail::served_place();
  std::string row;
  if (flags.rows > 0) {
    const SparseBench bench = sparse_benches_of(flags).at(0);
    row = measure_sparse(side, place, bench).to_json(bench, place);
  } else {
    row = measure_ps(side, place, benches_of(flags).at(0)).to_json();
  }
  if (side.rank() == 0) write_file_atomically(flags.json, row + "\n");
  return 0;
}

std::vector<std::string> words_of(const PsBench& bench) {
  return {"--bytes", std::to_string(bench.bytes)};
}

std::vector<std::string> words_of(const SparseBench& bench) {
  return {"--rows", std::to_string(bench.rows), "--width", std::to_string(bench.width),
          "--keys", std::to_string(bench.keys)};
}

// Servers, and this program as their workers; the row that these measured.
template <class Bench>
OrderedJson launch_row(const Flags& flags, const Bench& bench) {
  const ScratchFile row;
  LaunchOptions options{.num_workers = static_cast<int>(flags.workers),
                        .command = {own_program().string(), "servers", "--engine", bench.engine,
                                    "--staleness", bench.staleness.text(), "--rounds",
                                    std::to_string(bench.rounds), "--json", row.path()},
                        .announce = false,
                        .prefix_output = false};
  const auto words = words_of(bench);
  options.command.insert(options.command.end(), words.begin(), words.end());
  if (flags.no_backups) options.command.emplace_back("--no-backups");
  const ServerFleet fleet({.program = tutti_program(),
                           .num_servers = static_cast<int>(flags.servers),
                           .num_workers = static_cast<int>(flags.workers),
                           .backups = bench.backups,
                           .share_memory = bench.engine == "shm",
                           .announce = false},
                          options);
  const LaunchResult result = launch(options);
  if (result.exit_code != 0) throw Error(failure_report(result));
  return parse_json<OrderedJson>(read_file(row.path()));
}

void print_head(const Flags& flags) {
  fmt::print("{} server{} (backups: {}), {} worker{}, engine={}, medians of {} rounds\n",
             flags.servers, flags.servers == 1 ? "" : "s",
             flags.no_backups || flags.servers == 1 ? "no" : "yes", flags.workers,
             flags.workers == 1 ? "" : "s", flags.engine, flags.rounds);
  if (flags.rows > 0)
    return fmt::print("{:>9} {:>10} {:>6} {:>6} {:>13} {:>14} {:>6}\n", "staleness", "rows",
                      "width", "keys", "push_pull us", "two copies us", "ratio");
  fmt::print("{:>12} {:>9} {:>10} {:>10} {:>15} {:>11} {:>14}\n", "bytes", "staleness", "pull GB/s",
             "push GB/s", "push_pull GB/s", "limit GB/s", "share of limit");
}

void print_row(const OrderedJson& row) {
  const auto figure = [&](const char* name) { return row.at(name).get<double>(); };
  const char* const verdict = row.at("correct").get<bool>() ? "" : "   WRONG";
  if (row.contains("rows"))
    return fmt::print("{:>9} {:>10} {:>6} {:>6} {:>13.0f} {:>14.0f} {:>6.2f}{}\n",
                      row.at("staleness").get<std::string>(), row.at("rows").get<int64_t>(),
                      row.at("width").get<int64_t>(), row.at("keys").get<int64_t>(),
                      figure("push_pull_us"), figure("copy_us"), figure("ratio"), verdict);
  fmt::print("{:>12} {:>9} {:>10.2f} {:>10.2f} {:>15.2f} {:>11.2f} {:>14.2f}{}\n",
             row.at("bytes").get<int64_t>(), row.at("staleness").get<std::string>(),
             figure("pull_gb_s"), figure("push_gb_s"), figure("push_pull_gb_s"),
             figure("limit_gb_s"), figure("fraction"), verdict);
}

template <class Bench>
int measure(const Flags& flags, const std::vector<Bench>& benches) {
  print_head(flags);
  std::string lines;
  bool correct = true;
  for (const Bench& bench : benches) {
    const OrderedJson row = launch_row(flags, bench);
    print_row(row);
    std::fflush(stdout);
    lines += row.dump() + "\n";
    correct &= row.at("correct").get<bool>();
  }
  fmt::print("{}", lines);
  if (!flags.json.empty()) write_file_atomically(flags.json, lines);
  return correct ? 0 : 1;
}

const std::vector<NeededBy<Flags>>& needs_of_benches() {
  constexpr std::string_view kOfTables = "it is of an embedding table, and there is none (--rows)";
  static const auto has_table = [](const Flags& flags) { return flags.rows > 0; };
  static const std::vector<NeededBy<Flags>> rows = {
      {"--width", has_table, kOfTables},
      {"--keys", has_table, kOfTables},
      {"--bytes", [](const Flags& flags) { return flags.rows == 0; },
       "the table of --rows has a size of its own"}};
  return rows;
}

int servers(const Flags& flags) {
  const std::vector<PsBench> benches = benches_of(flags);
  if (!flags.json.empty()) require_writable(flags.json, "--json");
  if (std::getenv(detail::kViewServiceVariable) != nullptr) return run_as_worker(flags);
  if (flags.rows > 0) {
    // The table with its index, on one server or two, and an array as large in each worker.
    check_memory_for((flags.workers + 3) * flags.rows * (flags.width * 4 + 64),
                     "an embedding table and what it is held against");
    return measure(flags, sparse_benches_of(flags));
  }
  for (const PsBench& bench : benches)
    // Gradients, what was pulled and where to, of each worker; as much on servers.
    check_memory_for((4 * flags.workers + 2) * bench.bytes,
                     fmt::format("what {} workers and their servers move", flags.workers));
  return measure(flags, benches);
}

}  // namespace

void add_servers(Command& program) {
  auto flags = std::make_shared<Flags>();
  Command& command =
      program.command("servers", "Pull and push of parameter servers, beside their limit");
  command.add("--servers", "S", &flags->servers, whole_number(1, 64), "How many, on this machine");
  command.add("--workers", "N", &flags->workers, whole_number(1, 64), "How many, on this machine");
  command.add("--bytes", "SIZE,...", &flags->bytes,
              "Sizes of the variable, with K, M, G for powers of 1024");
  command.add("--engine", "NAME", &flags->engine, one_of("engine", {"shm", "tcp"}),
              "shm: shared memory; tcp: over 127.0.0.1");
  command.add("--staleness", "S,...", &flags->staleness, "0, s or inf, a row each");
  command.flag("--no-backups", &flags->no_backups, "Of servers; one has none anyway");
  command.add("--rounds", "R", &flags->rounds, whole_number(1, 1000),
              "Turns of all operations, and of the limit");
  command.add("--rows", "N", &flags->rows, whole_number(1, int64_t{1} << 26),
              "An embedding table of so many, in place of --bytes");
  command.add("--width", "N", &flags->width, whole_number(1, 4096), "float32 elements of its rows");
  command.add("--keys", "N", &flags->keys, whole_number(1, int64_t{1} << 20),
              "Of a worker's batch");
  command.add("--json", "FILE", &flags->json, some_name(),
              "File for the figures, a JSON object a line");
  command.footer =
      "GB/s are 1e9 bytes of the variable a second and worker. The limit is max(S/B, nS/(kB)) for "
      "n\n"
      "workers and k servers that do nothing else, with B measured beside: of tcp a raw stream's "
      "rate,\n"
      "both directions at once, of shm that of memcpy. With --rows, push_pull of some rows stands "
      "beside\n"
      "copying as many rows of an array of that size, twice.\n\n"
      "Examples:\n"
      "  tutti_bench servers\n"
      "  tutti_bench servers --engine tcp --servers 1 --workers 2 --bytes 64M --no-backups --json "
      "ps.json\n"
      "  tutti_bench servers --servers 1 --workers 1 --rows 1000000";
  command.action = [&command, flags] {
    refuse_idle(command.typed(), *flags, needs_of_benches());
    return servers(*flags);
  };
}

}  // namespace tutti::bench
