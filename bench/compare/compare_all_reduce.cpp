// Collectives of shm and tcp beside those of others, in turn, in one run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/cli/bench/child.h"
#include "tutti/cli/bench/exercise.h"
#include "tutti/cli/bench/runs.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/cli/checks.h"

#include "bench/compare/checkout.h"
#include "bench/compare/compare.h"

namespace tutti::bench {
using namespace cli;
namespace {

// Whom a row compares with.
const std::string kFloor = "floor";     // floor.h
const std::string kLimit = "limit";     // a time that is claimed for itself
const std::string kBest = "best peer";  // of each round, whoever it was
constexpr int64_t kKilo = 1 << 10, kMega = 1 << 20;

// Whose memory vectors are in: the engine's, which all ranks see and shm adds in, or the ranks'
// own. Peers have theirs in their own.
const std::string kEngineMemory = "engine", kOwnMemory = "own";

// Of the design's table, how many times as fast as that peer; 0 where nothing is claimed. The row
// of shm is for two ranks.
double all_reduce_bound(const CollectiveComparison& what, const std::string& memory,
                        const std::string& peer, int64_t bytes) {
  if (what.engine == "tcp") {
    if (bytes != 64 * kMega) return 0;
    return peer == kFloor ? 0.7 : peer == kGloo && what.ranks == 2 ? 1.8 : 0;
  }
  if (memory == kOwnMemory) return peer == kBest ? 2.5 : 0;
  if (peer == kFloor) return bytes >= 16 * kMega ? 0.8 : 0;
  if (peer == kBest) return bytes <= 16 * kMega ? 4 : 3.5;
  if (peer == kDeepSpeed || peer == kOneCcl || bytes < kMega) return 0;
  if (bytes > 64 * kMega) return 1;
  if (bytes <= 16 * kMega) return peer == kGloo ? 15 : 5;
  return peer == kGloo ? 8 : 4;
}

double bound_of(const CollectiveComparison& what, const std::string& memory,
                const std::string& peer, int64_t bytes) {
  if (peer == kLimit) return 1;
  if (what.collective == Collective::all_reduce && (what.engine == "tcp" || what.ranks == 2))
    return all_reduce_bound(what, memory, peer, bytes);
  if (peer == kFloor) return 0;
  if (bytes >= 64 * kKilo) return 1;
  return peer == kMpi ? 0.5 : 2;
}

// Where something is claimed against the best of all.
bool counts_the_best(const CollectiveComparison& what, int64_t bytes) {
  return what.engine == "shm" && what.ranks == 2 && what.collective == Collective::all_reduce &&
         bytes >= 64 * kKilo && bytes <= 64 * kMega;
}

// Microseconds that one operation may take; nothing where nothing is claimed.
std::optional<double> limit_us(const CollectiveComparison& what, int64_t bytes) {
  if (what.collective == Collective::barrier && what.engine == "shm" && what.ranks == 4) return 30;
  if (what.collective != Collective::all_reduce || what.ranks > host_facts().usable_cores)
    return std::nullopt;
  if (what.engine == "tcp" && bytes == 8) return 15;
  if (what.engine == "shm" && what.ranks == 2 && bytes == kKilo) return 0.3;
  return std::nullopt;
}

// The lines of our own measurement, which has the floor's times too.
std::string run_ours(const CollectiveComparison& what, const std::string& memory,
                     const std::vector<int64_t>& sizes) {
  const ScratchFile json;
  std::vector<std::string> command = {tutti_program().string(),
                                      "bench",
                                      "all-reduce",
                                      "--engine",
                                      what.engine,
                                      "--collective",
                                      std::string(name_of(what.collective)),
                                      "--ranks",
                                      std::to_string(what.ranks),
                                      "--bytes",
                                      fmt::format("{}", fmt::join(sizes, ",")),
                                      "--rounds",
                                      std::to_string(what.quick ? 1 : 2),
                                      "--json",
                                      json.path()};
  command.insert(command.end(), what.more_words.begin(), what.more_words.end());
  if (what.engine == "shm" && memory == kOwnMemory)
    command.insert(command.end(), {"--memory", "own", "--processes"});
  Child(command).finish(kProgramLimit);
  const MappedFile file = map_file(json.path());
  return {reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()};
}

class Rows {
 public:
  Rows(const CollectiveComparison& what, OrderedJson around)
      : what_(what), around_(std::move(around)) {
    fmt::print("{}, {}, {} ranks\n{:>10} {:<6} {:>12} {:<9} {:>12} {:>8} {:>7}\n",
               name_of(what_.collective), what_.engine, what_.ranks, "bytes", "memory", "p50 us",
               "peer", "p50 us", "ratio", "bound");
  }

  void add(const std::string& memory, const std::string& peer, int64_t bytes,
           const std::vector<Times>& ours, const std::vector<Times>& theirs) {
    std::vector<double> our_us, their_us, ratios;
    for (size_t round = 0; round < ours.size(); ++round) {
      our_us.push_back(ours[round].at(bytes));
      their_us.push_back(theirs[round].at(bytes));
      ratios.push_back(their_us.back() / our_us.back());
    }
    const double bound = bound_of(what_, memory, peer, bytes), ratio = median(ratios);
    fmt::print("{:>10} {:<6} {:>12.2f} {:<9} {:>12.2f} {:>8.2f} {:>7}  {}\n", bytes, memory,
               median(our_us), peer, median(their_us), ratio,
               bound == 0 ? "-" : fmt::format("{}", bound),
               bound == 0       ? ""
               : ratio >= bound ? "holds"
                                : "BELOW BOUND");
    std::fflush(stdout);
    OrderedJson line = {{"bench", "compare all-reduce"},
                        {"engine", what_.engine},
                        {"collective", name_of(what_.collective)},
                        {"ranks", what_.ranks},
                        {"bytes", bytes},
                        {"memory", memory},
                        {"theirs", peer},
                        {"ours_p50_us", median(our_us)},
                        {"theirs_p50_us", median(their_us)},
                        {"ratio", ratio},
                        {"bound", bound},
                        {"holds", ratio >= bound},
                        {"rounds", ours.size()}};
    line.update(around_);
    lines += line.dump() + "\n";
  }

  std::string lines;

 private:
  const CollectiveComparison& what_;
  const OrderedJson around_;
};

// Both of all-reduce, which programs call with vectors of their own.
std::vector<std::string> memories_of(std::string_view collective) {
  if (collective == name_of(Collective::all_reduce)) return {kEngineMemory, kOwnMemory};
  return {kEngineMemory};
}

// As the measurements make them: every rank's part is a whole number of elements.
std::vector<int64_t> sizes_of(const CollectiveComparison& what) {
  std::set<int64_t> sizes;
  for (const int64_t bytes : what.bytes)
    sizes.insert(Exercise::of(what.collective, bytes, what.ranks).bytes());
  return {sizes.begin(), sizes.end()};
}

}  // namespace

Times best_of(const std::vector<Times>& peers) {
  Times best;
  for (const Times& times : peers)
    for (const auto& [bytes, us] : times) {
      const auto [place, first] = best.emplace(bytes, us);
      if (!first) place->second = std::min(place->second, us);
    }
  return best;
}

std::string compare_collective(const CollectiveComparison& what, CollectivePeers& peers) {
  const PeerTrial trial{.collective = what.collective,
                        .ranks = what.ranks,
                        .bytes = sizes_of(what),
                        .iterations = what.quick ? 3 : 15,
                        .over_tcp = what.engine == "tcp"};
  const auto names = peers.names(trial);
  std::vector<std::string> memories = what.memories;
  if (what.engine != "shm") memories = {kOwnMemory};
  std::map<std::string, std::vector<Times>> ours, floor, theirs;  // by memory, or by name
  std::vector<Times> best;
  for (int64_t round = 0; round < what.rounds; ++round) {
    for (const std::string& memory : memories) {
      const std::string output = run_ours(what, memory, trial.bytes);
      ours[memory].push_back(times_in(output));
      floor[memory].push_back(times_in(output, "floor_p50_us"));
    }
    std::vector<Times> of_round;
    for (const std::string& name : names) {
      of_round.push_back(peers.times(name, trial));
      theirs[name].push_back(of_round.back());
    }
    best.push_back(best_of(of_round));
  }
  Rows rows(what, surroundings());
  for (const int64_t size : trial.bytes)
    for (const std::string& memory : memories) {
      const std::vector<Times>& times = ours.at(memory);
      rows.add(memory, kFloor, size, times, floor.at(memory));
      const auto limit = memory == memories.front() ? limit_us(what, size) : std::nullopt;
      if (limit)
        rows.add(memory, kLimit, size, times,
                 std::vector<Times>(times.size(), Times{{size, *limit}}));
      for (const std::string& name : names) rows.add(memory, name, size, times, theirs.at(name));
      if (counts_the_best(what, size)) rows.add(memory, kBest, size, times, best);
    }
  fmt::print("{}", rows.lines);
  return rows.lines;
}

int compare_all_reduce(const CompareFlags& flags) {
  const auto counts = parse_numbers("--ranks", flags.ranks, 2, 64);
  CollectivePeers peers;
  const std::vector<int64_t> sizes =
      flags.quick ? std::vector<int64_t>{kKilo, kMega}
                  : std::vector<int64_t>{8,         kKilo,      64 * kKilo, kMega,
                                         4 * kMega, 16 * kMega, 64 * kMega, 256 * kMega};
  std::string lines;
  for (const std::string engine : {"shm", "tcp"})
    for (const int64_t ranks : counts)
      for (const std::string& collective : measured_collectives()) {
        const bool small_run = flags.quick && ranks != counts.front();
        if (small_run) continue;
        lines += compare_collective({.engine = engine,
                                     .ranks = static_cast<int>(ranks),
                                     .collective = collective_named(collective),
                                     .bytes = sizes,
                                     .rounds = flags.quick ? 1 : flags.rounds,
                                     .memories = memories_of(collective),
                                     .quick = flags.quick},
                                    peers);
        if (!flags.json.empty()) write_file_atomically(flags.json, lines);
      }
  return 0;
}

}  // namespace tutti::bench
