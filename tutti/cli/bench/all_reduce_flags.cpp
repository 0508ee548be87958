#include "tutti/cli/bench/all_reduce_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"

namespace tutti::cli {
namespace {

constexpr int kDefaultRanks = 2;

void check(const AllReduceFlags& flags) {
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
  if (flags.memory == "own" && flags.engine != "shm")
    throw UsageError(
        fmt::format("--memory own: of shm alone there is other memory than the ranks' own, not of "
                    "{}",
                    flags.engine));
  if (flags.streams > 1 && !links)
    throw UsageError(
        fmt::format("--streams {}: {} has none; tcp and hier have", flags.streams, flags.engine));
}

void add_what(Command& command, AllReduceFlags& flags) {
  command.add("--engine", "NAME", &flags.engine,
              one_of("engine", {"shm", "tcp", "hier", "mpi", "solo"}, {"nccl"}),
              "shm, tcp, hier, mpi or solo");
  command.add("--collective", "NAME", &flags.collective,
              one_of("collective", measured_collectives()),
              fmt::format("{}", fmt::join(measured_collectives(), ", ")));
  command.add("--ranks", "N", &flags.ranks, whole_number(1, 256),
              "How many, on this machine (2); under a launcher: its workers");
  command.add("--bytes", "SIZE,...", &flags.bytes,
              "Sizes of the vector, or of all parts together, with K, M, G for powers of 1024");
  command.flag("--processes", &flags.processes, "Ranks are processes, not threads");
  command.add(
      "--memory", "KIND", &flags.memory, one_of("memory", {"engine", "own"}),
      "shm: vectors in memory of the engine, which all ranks see, or, of processes, in their "
      "own, as a program's are that knows nothing of engines");
}

void add_how(Command& command, AllReduceFlags& flags) {
  command.add("--order", "NAME", &flags.order, one_of("order", {"fixed", "any"}),
              "Of additions: fixed, or any where the engine has it");
  command.add("--streams", "K", &flags.streams, whole_number(1, kMaxStreams),
              "tcp, hier: data connections between two ranks");
  command.add("--algorithm-table", "FILE", &flags.table, some_name(),
              "tcp, hier: which algorithm for which size, as `tutti bench tune` wrote it");
  command.add("--rounds", "R", &flags.rounds, whole_number(1, 1000), "Turns of all sizes");
  command.flag("--no-pin", &flags.no_pin, "Do not pin ranks to cores of their own");
  command.add("--json", "FILE", &flags.json, some_name(),
              "File for the figures, a JSON object a line");
}

}  // namespace

int AllReduceFlags::num_ranks() const {
  return static_cast<int>(ranks.value_or(engine == "solo" ? 1 : kDefaultRanks));
}

void add_all_reduce_flags(Command& command, AllReduceFlags& flags) {
  add_what(command, flags);
  add_how(command, flags);
}

AllReduceBench bench_of(const AllReduceFlags& flags) {
  check(flags);
  AllReduceBench bench{.engine = flags.engine,
                       .collective = collective_named(flags.collective),
                       .bytes = parse_sizes("--bytes", flags.bytes),
                       .rounds = static_cast<int>(flags.rounds),
                       .pin = !flags.no_pin,
                       .own_memory = flags.memory == "own",
                       .order = flags.order == "any" ? Order::any : Order::fixed,
                       .streams = static_cast<int>(flags.streams)};
  if (bench.collective == Collective::barrier) bench.bytes = {0};
  for (const int64_t bytes : bench.bytes)
    if (bytes % 4 != 0)
      throw UsageError(fmt::format("--bytes: {} is no multiple of 4, the bytes of a float", bytes));
  if (!flags.table.empty()) bench.table = load_table(flags.table);
  return bench;
}

void require_memory(const AllReduceFlags& flags, const AllReduceBench& bench) {
  int64_t largest = 0;
  for (const int64_t bytes : bench.bytes) largest = std::max(largest, bytes);
  const int64_t ends = bench.collective == Collective::all_reduce ? 1 : 2;
  check_memory_for(flags.num_ranks() * largest * ends,
                   fmt::format("the buffers of {} ranks", flags.num_ranks()));
}

}  // namespace tutti::cli
