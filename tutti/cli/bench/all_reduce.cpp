#include "tutti/cli/bench/all_reduce.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "tutti/base/error.h"
#include "tutti/base/host.h"
#include "tutti/cli/bench/timing.h"

namespace tutti::cli {
namespace {

constexpr int64_t kRowBytes = 8 << 10;  // below, one operation is too short for a clock
constexpr int kRowOfFlags = 100;        // operations that take a fraction of a microsecond
constexpr int kRowOfMessages = 20;

double now_us() {
  return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count();
}

int samples_per_round(int64_t bytes) {
  return bytes <= (1 << 20) ? 40 : bytes <= (16 << 20) ? 8 : 3;
}

void pin_to_core(int index) {
  const auto& cores = host_facts().cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cores[static_cast<size_t>(index)]), &set);
  sched_setaffinity(0, sizeof set, &set);
}

// Largest input and output of all sizes.
std::pair<int64_t, int64_t> largest(const std::vector<Exercise>& exercises) {
  int64_t input = 0, output = 0;
  for (const Exercise& exercise : exercises) {
    input = std::max(input, exercise.input_elements());
    output = std::max(output, exercise.output_elements());
  }
  return {input, output};
}

// The memory of all ranks where they have it in common, else of this one alone; with `own` both.
class BenchMemory {
 public:
  BenchMemory(Group& side, bool common, bool own, int64_t input, int64_t output) {
    constexpr int64_t kLine = 1024;  // elements: parts begin on a page
    const int64_t gap = (input + kLine - 1) / kLine * kLine;
    const auto cut = [gap](void* start) {
      auto* const data = static_cast<float*>(start);
      return Buffers{data, data + gap};
    };
    if (common) {
      shared_ = side.allocate((gap + output) * 4, kMeasureLimit);
      for (const MemorySpan& part : shared_.parts) all.push_back(cut(part.data));
      of_floor = all[static_cast<size_t>(side.rank())];
    }
    if (!common || own) own_.resize(static_cast<size_t>(gap + output));
    measured = own_.empty() ? of_floor : cut(own_.data());
    if (!common) of_floor = measured;
  }

  Buffers measured, of_floor;
  std::vector<Buffers> all;

 private:
  SharedParts shared_;
  std::vector<float> own_;
};

struct Samples {
  std::vector<double> operation, floor;
  bool right = true;
};

class Measurement {
 public:
  Measurement(BenchMember member, const AllReduceBench& bench)
      : member_(std::move(member)),
        exercises_(exercises_of(bench, member_.measured)),
        meeting_(member_.side),
        memory_(member_.side, has_common_memory(), bench.own_memory, largest(exercises_).first,
                largest(exercises_).second),
        floor_(make_floor()),
        row_length_(has_common_memory() ? kRowOfFlags : kRowOfMessages) {}

  std::vector<AllReduceRow> run(const AllReduceBench& bench) {
    try {
      std::vector<Samples> samples(exercises_.size());
      std::vector<double> flags;
      for (int round = 0; round < bench.rounds; ++round) {
        flags.push_back(flag_round_trip_ns());
        for (size_t s = 0; s < exercises_.size(); ++s) measure_round(exercises_[s], samples[s]);
      }
      std::vector<AllReduceRow> rows;
      for (size_t s = 0; s < exercises_.size(); ++s)
        rows.push_back(row_of(exercises_[s], samples[s], bench, median(flags)));
      return rows;
    } catch (const std::exception& error) {
      member_.side.abort(error.what());
      member_.measured.abort(error.what());
      meeting_.give_up();
      throw;
    }
  }

 private:
  static std::vector<Exercise> exercises_of(const AllReduceBench& bench, const Group& group) {
    std::vector<Exercise> exercises;
    for (const int64_t bytes : bench.bytes) {
      if (bytes < 0 || bytes % 4 != 0)
        throw UsageError(
            fmt::format("bench all-reduce: {} bytes; expected a multiple of 4, 0 or more", bytes));
      exercises.push_back(Exercise::of(bench.collective, bytes, group.size()));
    }
    return exercises;
  }

  // Of a plain loop, and of engines that work in it.
  bool has_common_memory() const {
    return !member_.wires && !member_.other && meeting_.has_flags();
  }

  std::unique_ptr<Floor> make_floor() {
    const int rank = member_.measured.rank();
    const bool spin = member_.measured.size() <= host_facts().usable_cores;
    if (member_.wires) return make_raw_stream(std::move(*member_.wires), memory_.of_floor, spin);
    if (member_.other) return make_other_group(*member_.other, memory_.of_floor, kMeasureLimit);
    return make_plain_loop(meeting_, rank, memory_.all);
  }

  double flag_round_trip_ns() {
    if (!meeting_.has_flags()) return 0;
    const bool cores = member_.measured.size() <= host_facts().usable_cores;
    const int rounds = cores ? 2'000 : 100;  // without, each takes as long as a turn of the others
    meeting_.meet();
    const double start = now_us();
    for (int i = 0; i < rounds; ++i) meeting_.meet();
    return (now_us() - start) * 1e3 / rounds;
  }

  template <class Body>
  double sample_us(const Exercise& exercise, const Buffers& memory, int row, const Body& body) {
    exercise.fill(member_.measured.rank(), memory);
    meeting_.meet();
    const double start = now_us();
    for (int i = 0; i < row; ++i) body(exercise.in_row(i));
    return (now_us() - start) / row;
  }

  void measure_round(Exercise exercise, Samples& samples) {
    const int rank = member_.measured.rank();
    const int row = exercise.bytes() < kRowBytes ? row_length_ : 1;
    std::vector<double> operation, floor;
    int32_t right = check_sum(exercise);
    exercise.repeats = row > 1;
    for (int i = 0; i < samples_per_round(exercise.bytes()); ++i) {
      operation.push_back(sample_us(exercise, memory_.measured, row, [&](const Exercise& one) {
        one.run(member_.measured, memory_.measured, kMeasureLimit);
      }));
      right &= static_cast<int32_t>(exercise.is_right(rank, memory_.measured));
      floor.push_back(sample_us(exercise, memory_.of_floor, row,
                                [&](const Exercise& one) { floor_->run(one); }));
    }
    meeting_.meet();
    const auto over_ranks = [&](MemorySpan data, ReduceOp op) {
      member_.side.all_reduce_now(data, op, kMeasureLimit);
    };
    over_ranks(span_of(std::span(operation)), ReduceOp::max);
    over_ranks(span_of(std::span(floor)), ReduceOp::max);
    over_ranks(span_of(std::span(&right, 1)), ReduceOp::min);
    samples.operation.insert(samples.operation.end(), operation.begin(), operation.end());
    samples.floor.insert(samples.floor.end(), floor.begin(), floor.end());
    samples.right &= right == 1;
  }

  // Rows of short operations take maxima: here is the sum of the same size.
  int32_t check_sum(const Exercise& exercise) {
    exercise.fill(member_.measured.rank(), memory_.measured);
    meeting_.meet();
    exercise.run(member_.measured, memory_.measured, kMeasureLimit);
    return static_cast<int32_t>(exercise.is_right(member_.measured.rank(), memory_.measured));
  }

  AllReduceRow row_of(const Exercise& exercise, const Samples& samples, const AllReduceBench& bench,
                      double flags_ns) const {
    AllReduceRow row{.engine = std::string(member_.measured.engine().name()),
                     .collective = std::string(name_of(exercise.collective)),
                     .ranks = member_.measured.size(),
                     .bytes = exercise.bytes(),
                     .p50_us = median(samples.operation),
                     .p99_us = quantile(samples.operation, 0.99),
                     .correct = samples.right,
                     .floor_p50_us = median(samples.floor),
                     .floor = std::string(floor_->name()),
                     .order = std::string(name_of(bench.order)),
                     .members = member_.members,
                     .memory = has_common_memory() && !bench.own_memory ? "engine" : "own",
                     .flag_round_trip_ns = flags_ns};
    row.bus_gb_s = exercise.traffic() * static_cast<double>(row.bytes) / row.p50_us / 1e3;
    row.floor_fraction = row.floor_p50_us / row.p50_us;
    return row;
  }

  BenchMember member_;
  const std::vector<Exercise> exercises_;
  Meeting meeting_;
  BenchMemory memory_;
  std::unique_ptr<Floor> floor_;
  const int row_length_;
};

}  // namespace

std::string AllReduceRow::to_json() const {
  return fmt::format(
      R"({{"bench": "all-reduce", "engine": "{}", "ranks": {}, "bytes": {}, "p50_us": {:.3f}, )"
      R"("p99_us": {:.3f}, "bus_gb_s": {:.3f}, "floor_fraction": {:.3f}, "correct": {}, )"
      R"("collective": "{}", "order": "{}", "members": "{}", "memory": "{}", "floor": "{}", )"
      R"("floor_p50_us": {:.3f}, "flag_round_trip_ns": {:.1f}}})",
      engine, ranks, bytes, p50_us, p99_us, bus_gb_s, floor_fraction, correct, collective, order,
      members, memory, floor, floor_p50_us, flag_round_trip_ns);
}

std::vector<AllReduceRow> measure(BenchMember member, const AllReduceBench& bench) {
  if (bench.bytes.empty() || bench.rounds < 1) return {};
  if (member.pin) pin_to_core(member.measured.rank());
  Measurement measurement(std::move(member), bench);
  return measurement.run(bench);
}

}  // namespace tutti::cli
