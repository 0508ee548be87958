// tutti bench compare --all-reduce: shm beside Open MPI and Gloo, two ranks, in turn.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <map>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/host.h"
#include "tutti/cli/bench_compare.h"
#include "tutti/cli/bench_runs.h"
#include "tutti/cli/child.h"
#include "tutti/cli/timing.h"

namespace tutti::cli {
namespace {

constexpr int kRanks = 2;
const std::string kFloor = "floor";  // a plain loop with the same working set and sharing
const std::string kGloo = "Gloo";
const std::string kMpi = "Open MPI";
constexpr Millis kLimit{10 * 60'000};

// Median microseconds by bytes.
using Times = std::map<int64_t, double>;

Times times_in(const std::string& output, const char* field = "p50_us") {
  Times times;
  for (size_t at = 0; at < output.size();) {
    const size_t end = std::min(output.find('\n', at), output.size());
    const size_t brace = output.find('{', at);
    if (brace < end) {
      const auto line = nlohmann::json::parse(output.substr(brace, end - brace));
      if (!line.at("correct").get<bool>()) throw Error("a wrong sum: " + line.dump());
      times[line.at("bytes").get<int64_t>()] = line.at(field).get<double>();
    }
    at = end + 1;
  }
  return times;
}

// The JSON lines of our own measurement, which has the floor kernel's times too.
std::string run_shm(const std::vector<int64_t>& sizes) {
  const ScratchFile json;
  Child({own_program().string(), "bench", "all-reduce", "--engine", "shm", "--ranks",
         std::to_string(kRanks), "--bytes", fmt::format("{}", fmt::join(sizes, ",")), "--json",
         json.path()})
      .finish(kLimit);
  const MappedFile file = map_file(json.path());
  return {reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()};
}

Times run_gloo(const std::vector<int64_t>& sizes, int iterations) {
  const ScratchFile store;
  std::vector<Child> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& cores = host_facts().cores;
    const int core = kRanks <= static_cast<int>(cores.size()) ? cores[rank] : -1;
    ranks.emplace_back(std::vector<std::string>{
        python_with_torch(), (checkout() / "bench/peer/gloo_all_reduce.py").string(), "--rank",
        std::to_string(rank), "--ranks", std::to_string(kRanks), "--core", std::to_string(core),
        "--store", store.path(), "--bytes", fmt::format("{}", fmt::join(sizes, ",")),
        "--iterations", std::to_string(iterations)});
  }
  const std::string output = ranks[0].finish(kLimit);
  ranks[1].finish(kLimit);
  return times_in(output);
}

// Compiles the peer; nothing when there is no MPI here.
std::optional<std::string> make_mpi_program(const ScratchFile& program) {
  try {
    Child({"mpirun", "--version"}).finish(kLimit);
    Child({"mpicc", "-O2", "-o", program.path(),
           (checkout() / "bench/peer/mpi_all_reduce.c").string()})
        .finish(kLimit);
    return program.path();
  } catch (const Error& error) {
    fmt::print("Open MPI is left out: {}\n", plain_words(error.what()).substr(0, 200));
    return std::nullopt;
  }
}

Times run_mpi(const std::string& program, const std::vector<int64_t>& sizes, int iterations) {
  std::vector<std::string> command = {"mpirun", "-n",    std::to_string(kRanks),    "--bind-to",
                                      "core",   program, std::to_string(iterations)};
  for (const int64_t size : sizes) command.push_back(std::to_string(size));
  return times_in(Child(command, {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"})
                      .finish(kLimit));
}

// How many times faster shm has to be; 0 where nothing is claimed.
double bound_of(const std::string& peer, int64_t bytes) {
  constexpr int64_t kMega = 1 << 20;
  if (peer == kFloor) return bytes >= 16 * kMega ? 0.8 : 0;
  if (bytes < kMega) return 0;
  if (bytes <= 16 * kMega) return peer == kGloo ? 15 : 5;
  return peer == kGloo ? 8 : 4;
}

class Rows {
 public:
  void add(const std::string& peer, int64_t bytes, const std::vector<Times>& ours,
           const std::vector<Times>& theirs, const nlohmann::ordered_json& around) {
    std::vector<double> our_us, their_us, ratios;
    for (size_t round = 0; round < ours.size(); ++round) {
      our_us.push_back(ours[round].at(bytes));
      their_us.push_back(theirs[round].at(bytes));
      ratios.push_back(their_us.back() / our_us.back());
    }
    const double bound = bound_of(peer, bytes), ratio = median(ratios);
    fmt::print("{:>10} {:>12.2f} {:<9} {:>12.2f} {:>8.2f} {:>7}  {}\n", bytes, median(our_us), peer,
               median(their_us), ratio, bound == 0 ? "-" : fmt::format("{}", bound),
               bound == 0       ? ""
               : ratio >= bound ? "holds"
                                : "BELOW BOUND");
    nlohmann::ordered_json line = {{"bench", "compare all-reduce"},
                                   {"ranks", kRanks},
                                   {"bytes", bytes},
                                   {"theirs", peer},
                                   {"ours_p50_us", median(our_us)},
                                   {"theirs_p50_us", median(their_us)},
                                   {"ratio", ratio},
                                   {"bound", bound},
                                   {"holds", ratio >= bound},
                                   {"rounds", ours.size()}};
    line.update(around);
    lines += line.dump() + "\n";
  }

  std::string lines;
};

}  // namespace

int compare_all_reduce(const CompareFlags& flags) {
  python_with_torch();
  const std::vector<int64_t> sizes =
      flags.quick ? std::vector<int64_t>{1 << 10, 1 << 20}
                  : std::vector<int64_t>{1 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  const int iterations = flags.quick ? 3 : 15;
  const ScratchFile program;
  const auto mpi = make_mpi_program(program);

  std::vector<Times> shm, floor, gloo, open_mpi;
  for (int64_t round = 0; round < (flags.quick ? 1 : flags.rounds); ++round) {
    const std::string ours = run_shm(sizes);
    shm.push_back(times_in(ours));
    floor.push_back(times_in(ours, "floor_p50_us"));
    gloo.push_back(run_gloo(sizes, iterations));
    if (mpi) open_mpi.push_back(run_mpi(*mpi, sizes, iterations));
  }
  fmt::print("{:>10} {:>12} {:<9} {:>12} {:>8} {:>7}\n", "bytes", "shm p50 us", "peer", "p50 us",
             "ratio", "bound");
  Rows rows;
  const auto around = surroundings();
  for (const int64_t size : sizes) {
    rows.add(kFloor, size, shm, floor, around);
    if (mpi) rows.add(kMpi, size, shm, open_mpi, around);
    rows.add(kGloo, size, shm, gloo, around);
  }
  fmt::print("{}", rows.lines);
  if (!flags.json.empty()) write_file_atomically(flags.json, rows.lines);
  return 0;
}

}  // namespace tutti::cli
