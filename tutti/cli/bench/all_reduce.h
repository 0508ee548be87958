/// What `tutti bench all-reduce` measures: a collective beside its floor, alternating, in one run.
///
/// Data is produced and checked by its owner outside the timed part, so that transfers between
/// cores are inside it. A sample is the slowest rank's time; below 8 KiB it is the mean of a row of
/// operations. Floors: floor.h. Thread rule: each member calls measure() from its own thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cli/bench/floor.h"
#include "tutti/comm/group/group.h"
#include "tutti/comm/schedule/schedule_choice.h"

namespace tutti::cli {

struct AllReduceBench {
  std::string engine = "shm";
  Collective collective = Collective::all_reduce;
  std::vector<int64_t> bytes = {8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  int rounds = 5;   ///< turns of all sizes, operation and floor alternating in each
  bool pin = true;  ///< give each rank a core of its own when there are enough
  /// shm: each rank's own vector, which the others do not see, instead of memory of the engine,
  /// which all see and none has to copy.
  bool own_memory = false;
  Order order = Order::fixed;
  int streams = 1;                          ///< tcp, hier
  AlgorithmTable table = built_in_table();  ///< tcp, hier
};

struct AllReduceRow {
  std::string engine;
  std::string collective;
  int ranks = 1;
  int64_t bytes = 0;  ///< of the vector, or of all parts together
  double p50_us = 0;
  double p99_us = 0;
  double bus_gb_s = 0;        ///< what a rank has to send / p50, in 1e9 bytes a second
  double floor_fraction = 0;  ///< p50 of the floor / p50
  bool correct = false;       ///< every element of every operation on every rank
  double floor_p50_us = 0;
  std::string floor;  ///< its name
  std::string order;
  std::string members;            ///< "threads", "processes", "hosts"
  std::string memory;             ///< of the vectors: "engine", which all see, or "own"
  double flag_round_trip_ns = 0;  ///< of a meeting by bare flags: shows the placement of cores

  /// One JSON object on one line, with "bench": "all-reduce".
  std::string to_json() const;
};

/// One rank of a measurement.
struct BenchMember {
  Group measured;
  Group side;                  ///< the same ranks; for meetings and figures
  std::optional<Mesh> wires;   ///< for a raw stream
  std::optional<Group> other;  ///< flat tcp, where `measured` spans hosts
  std::string members;         ///< as in AllReduceRow
  bool pin = false;
};

/// Collective over the members; one row for each of `bench.bytes` on every rank. Throws UsageError
/// for sizes that are no multiple of 4.
std::vector<AllReduceRow> measure(BenchMember member, const AllReduceBench& bench);

/// The rank of `side` in a group of the engine that is asked for (solo, shm, tcp); `side` is on one
/// host. Collective.
BenchMember make_bench_member(const Group& side, const AllReduceBench& bench);

/// Calls `body` in `ranks` threads of this process, each with its member. Throws the first error;
/// the other members are freed.
void on_threads(int ranks, const AllReduceBench& bench,
                const std::function<void(BenchMember)>& body);

/// Measures over `ranks` threads of this process.
std::vector<AllReduceRow> measure_threads(int ranks, const AllReduceBench& bench);

/// Measures as one worker of a job that a launcher started, on one host (shm, tcp) or several
/// (hier); rows on every rank. `speaks`: this is rank 0.
std::vector<AllReduceRow> measure_as_worker(const AllReduceBench& bench, bool& speaks);

/// Measures as one process of mpirun, all of them on one host.
std::vector<AllReduceRow> measure_under_mpi(const AllReduceBench& bench, bool& speaks);

}  // namespace tutti::cli
