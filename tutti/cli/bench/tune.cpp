// tutti bench tune: measures every algorithm of tcp at every size, and writes the table of the
// fastest.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/bench/all_reduce.h"
#include "tutti/cli/bench/commands.h"
#include "tutti/cli/bench/timing.h"
#include "tutti/cli/checks.h"
#include "tutti/comm/schedule/schedule_choice.h"
#include "tutti/comm/shm/shm.h"

namespace tutti::cli {
namespace {

constexpr double kWorthIt = 0.95;  // another algorithm has to be so much faster than the built-in
constexpr int kMostRanks = 64;
constexpr Collective kTuned[] = {
    Collective::all_reduce, Collective::reduce, Collective::all_gather, Collective::broadcast,
    Collective::scatter,    Collective::gather, Collective::all_to_all};

struct TuneFlags {
  std::string ranks = "2";
  std::string bytes = "1K,4K,16K,64K,256K,1M,4M";
  int64_t rounds = 5;
  std::string out;
  bool no_pin = false;
};

// One algorithm for one size. All of them are measured in one group: an engine chooses by size, so
// each candidate gets a size of its own, an element a rank more than the last one.
struct Entry {
  Exercise exercise;
  int64_t nominal_bytes = 0;
  Algorithm algorithm = Algorithm::direct;
  double p50_us = 0;
};

Question question_of(Collective collective, int64_t bytes, int ranks, Order order) {
  return {.collective = collective, .num_bytes = bytes, .ranks = ranks, .order = order};
}

std::vector<Entry> entries_for(const std::vector<int64_t>& sizes, int ranks) {
  std::vector<Entry> entries;
  for (const Collective collective : kTuned)
    for (const int64_t size : sizes) {
      int64_t bytes = size;
      for (const Algorithm algorithm :
           candidates(question_of(collective, size, ranks, Order::any))) {
        Exercise exercise = Exercise::of(collective, bytes, ranks);
        exercise.repeats = true;
        entries.push_back({exercise, size, algorithm});
        bytes = exercise.bytes() + int64_t{4} * ranks;
      }
    }
  return entries;
}

AlgorithmTable table_of_entries(const std::vector<Entry>& entries) {
  AlgorithmTable table;
  for (const Entry& entry : entries)
    table.rows.push_back({.collective = entry.exercise.collective,
                          .order = Order::any,
                          .max_bytes = entry.exercise.bytes(),
                          .algorithm = entry.algorithm});
  return table;
}

double now_us() {
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

// Medians over rounds of the slowest rank's mean of a row; all algorithms in turn in every round.
std::vector<double> measure_entries(BenchMember& member, const std::vector<Entry>& entries,
                                    int64_t rounds) {
  int64_t input = 0, output = 0;
  for (const Entry& entry : entries) {
    input = std::max(input, entry.exercise.input_elements());
    output = std::max(output, entry.exercise.output_elements());
  }
  std::vector<float> in(static_cast<size_t>(input)), out(static_cast<size_t>(output));
  const Buffers buffers{in.data(), out.data()};
  Meeting meeting(member.side);
  const int rank = member.measured.rank();
  std::vector<std::vector<double>> times(entries.size());
  for (int64_t round = 0; round <= rounds; ++round)  // the first warms up
    for (size_t e = 0; e < entries.size(); ++e) {
      const Exercise& exercise = entries[e].exercise;
      const int row = exercise.bytes() < (64 << 10) ? 20 : 3;
      exercise.fill(rank, buffers);
      meeting.meet();
      const double start = now_us();
      for (int i = 0; i < row; ++i) exercise.in_row(i).run(member.measured, buffers, kMeasureLimit);
      double taken = (now_us() - start) / row;
      if (!exercise.is_right(rank, buffers))
        throw Error(fmt::format("bench tune, rank {} of {}: {} by {} gave a wrong result", rank,
                                exercise.ranks, name_of(exercise.collective),
                                name_of(entries[e].algorithm)));
      member.side.all_reduce_now({&taken, 1, DType::float64}, ReduceOp::max, kMeasureLimit);
      if (round > 0) times[e].push_back(taken);
    }
  std::vector<double> medians;
  for (const auto& samples : times) medians.push_back(median(samples));
  return medians;
}

std::vector<Entry> measured(const TuneFlags& flags, const std::vector<int64_t>& sizes, int ranks) {
  std::vector<Entry> entries = entries_for(sizes, ranks);
  const AllReduceBench bench{.engine = "tcp",
                             .pin = !flags.no_pin,
                             .order = Order::any,
                             .table = table_of_entries(entries)};
  std::vector<double> medians;
  on_threads(ranks, bench, [&](BenchMember member) {
    const bool first = member.measured.rank() == 0;
    auto mine = measure_entries(member, entries, flags.rounds);
    if (first) medians = std::move(mine);
  });
  for (size_t e = 0; e < entries.size(); ++e) entries[e].p50_us = medians[e];
  return entries;
}

// The fastest of those that are possible in that order; the built-in one unless another is clearly
// faster.
Algorithm fastest(const std::vector<Entry>& entries, const Question& question) {
  std::map<Algorithm, double> times;
  for (const Entry& entry : entries)
    if (entry.exercise.collective == question.collective &&
        entry.nominal_bytes == question.num_bytes && is_possible(question, entry.algorithm))
      times[entry.algorithm] = entry.p50_us;
  const Algorithm built_in = choose(question, built_in_table());
  const auto best = std::min_element(
      times.begin(), times.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return best->second < kWorthIt * times.at(built_in) ? best->first : built_in;
}

// Rows of one number of ranks: a size stands for all up to the middle between it and the next.
void add_rows(AlgorithmTable& table, const std::vector<Entry>& entries,
              const std::vector<int64_t>& sizes, int ranks) {
  for (const Collective collective : kTuned)
    for (const Order order : {Order::any, Order::fixed})
      for (size_t s = 0; s < sizes.size(); ++s) {
        const int64_t end =
            s + 1 < sizes.size() ? sizes[s] + (sizes[s + 1] - sizes[s]) / 2 : int64_t{0};
        const TableRow row{collective, order, ranks, end,
                           fastest(entries, question_of(collective, sizes[s], ranks, order))};
        TableRow* const last = s == 0 ? nullptr : &table.rows.back();
        if (last != nullptr && last->algorithm == row.algorithm)
          last->max_bytes = row.max_bytes;
        else
          table.rows.push_back(row);
      }
}

void print(const std::vector<Entry>& entries, int ranks) {
  fmt::print("{} ranks, tcp over 127.0.0.1\n{:<12} {:>9}  p50 us\n", ranks, "collective", "bytes");
  const Entry* last = nullptr;
  for (const Entry& entry : entries) {
    const bool same = last != nullptr && last->nominal_bytes == entry.nominal_bytes &&
                      last->exercise.collective == entry.exercise.collective;
    if (!same)
      fmt::print("{}{:<12} {:>9} ", last == nullptr ? "" : "\n", name_of(entry.exercise.collective),
                 entry.nominal_bytes);
    fmt::print(" {} {:.1f}", name_of(entry.algorithm), entry.p50_us);
    last = &entry;
  }
  fmt::print("\n");
}

int bench_tune(const TuneFlags& flags) {
  std::vector<int64_t> all_ranks = parse_numbers("--ranks", flags.ranks, 2, kMostRanks);
  std::vector<int64_t> sizes = parse_sizes("--bytes", flags.bytes);
  std::sort(all_ranks.begin(), all_ranks.end());
  std::sort(sizes.begin(), sizes.end());
  for (const int64_t size : sizes)
    if (size == 0 || size % 4 != 0)
      throw UsageError(fmt::format("--bytes: {}; expected multiples of 4 above 0", size));
  if (std::adjacent_find(sizes.begin(), sizes.end()) != sizes.end() ||
      std::adjacent_find(all_ranks.begin(), all_ranks.end()) != all_ranks.end())
    throw UsageError("--ranks and --bytes: each number once");
  if (!flags.out.empty()) require_writable(flags.out, "--out");
  AlgorithmTable table;
  for (const int64_t ranks : all_ranks) {
    const auto entries = measured(flags, sizes, static_cast<int>(ranks));
    print(entries, static_cast<int>(ranks));
    add_rows(table, entries, sizes, static_cast<int>(ranks));
  }
  // What was not measured stays as it was.
  const auto& rest = built_in_table().rows;
  table.rows.insert(table.rows.end(), rest.begin(), rest.end());
  if (flags.out.empty())
    fmt::print("{}", to_json(table));
  else
    save_table(table, flags.out);
  return 0;
}

}  // namespace

void add_bench_tune(Command& bench) {
  auto flags = std::make_shared<TuneFlags>();
  Command& command =
      bench.command("tune", "Which algorithm of tcp is the fastest for which size, here");
  command.add("--ranks", "N,N,...", &flags->ranks,
              "Numbers of ranks, 2 to 64; threads over 127.0.0.1");
  command.add("--bytes", "SIZE,...", &flags->bytes, "Sizes, with K, M, G for powers of 1024");
  command.add("--rounds", "R", &flags->rounds, whole_number(1, 1000), "Medians of so many rounds");
  command.add("--out", "FILE", &flags->out, some_name(), "File for the table (else it is printed)");
  command.flag("--no-pin", &flags->no_pin, "Do not pin ranks to cores of their own");
  command.footer =
      "The table is read by `tutti bench all-reduce --algorithm-table FILE`, and by programs:\n"
      "JoinOptions::table and ConnectOptions::table, with tutti::load_table(FILE). All ranks of a\n"
      "group need the same one. Numbers of ranks above the measured ones keep the built-in "
      "choice.\n"
      "\n"
      "Examples:\n"
      "  tutti bench tune --ranks 2,4 --out table.json\n"
      "  tutti bench all-reduce --engine tcp --ranks 4 --algorithm-table table.json";
  command.action = [flags] { return bench_tune(*flags); };
}

}  // namespace tutti::cli
