#include "tutti/cli/bench/exercise.h"

#include <algorithm>

#include "tutti/base/detail/check.h"
#include "tutti/base/error.h"
#include "tutti/base/suggest.h"

namespace tutti::cli {
namespace {

constexpr float kSpoilt = -1;

float number_of(int rank, int64_t place) { return static_cast<float>((place & 1023) + rank); }

void write_numbers(int rank, int64_t first, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = number_of(rank, first + i);
}

bool holds_numbers(int rank, int64_t first, int64_t count, const float* at) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) wrong += at[i] != number_of(rank, first + i);
  return wrong == 0;
}

// The sum over all ranks, or the largest.
bool holds_reduced(const Exercise& exercise, int64_t first, int64_t count, const float* at) {
  const int64_t n = exercise.ranks;
  const int64_t factor = exercise.repeats ? 1 : n;
  const int64_t more = exercise.repeats ? n - 1 : n * (n - 1) / 2;
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i)
    wrong += at[i] != static_cast<float>(((first + i) & 1023) * factor + more);
  return wrong == 0;
}

constexpr Collective kAll[] = {Collective::all_reduce,     Collective::all_gather,
                               Collective::reduce_scatter, Collective::broadcast,
                               Collective::all_to_all,     Collective::barrier};

}  // namespace

Exercise Exercise::of(Collective collective, int64_t bytes, int ranks) {
  Exercise exercise{.collective = collective, .ranks = ranks};
  const int64_t elements = collective == Collective::barrier ? 0 : bytes / 4;
  exercise.part = (elements + ranks - 1) / ranks;
  exercise.whole = exercise.in_place() ? elements : exercise.part * ranks;
  return exercise;
}

bool Exercise::in_place() const {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::broadcast;
}

int64_t Exercise::input_elements() const {
  if (in_place()) return 0;
  return collective == Collective::all_gather || collective == Collective::gather ? part : whole;
}

int64_t Exercise::output_elements() const {
  if (in_place()) return whole;
  return collective == Collective::reduce_scatter || collective == Collective::scatter ? part
                                                                                       : whole;
}

double Exercise::traffic() const {
  const double n = ranks;
  if (collective == Collective::broadcast) return ranks > 1 ? 1 : 0;
  return (collective == Collective::all_reduce ? 2 : 1) * (n - 1) / n;
}

void Exercise::fill(int rank, const Buffers& buffers) const {
  if (in_place()) {
    write_numbers(rank, 0, whole, buffers.output);
    return;
  }
  const bool own_part = input_elements() == part && ranks > 1;
  write_numbers(rank, own_part ? rank * part : 0, input_elements(), buffers.input);
  std::fill_n(buffers.output, output_elements(), kSpoilt);
}

Exercise Exercise::in_row(int number) const {
  Exercise exercise = *this;
  if (collective == Collective::broadcast) exercise.root = number % ranks;
  return exercise;
}

void Exercise::run(Group& group, const Buffers& buffers, Millis limit) const {
  const ReduceOp op = repeats ? ReduceOp::max : ReduceOp::sum;
  const MemorySpan in{buffers.input, input_elements(), DType::float32};
  const MemorySpan out{buffers.output, output_elements(), DType::float32};
  switch (collective) {
    case Collective::all_reduce: return group.all_reduce_now(out, op, limit);
    case Collective::reduce: return group.reduce(out, op, root, limit).wait(limit);
    case Collective::reduce_scatter: return group.reduce_scatter(in, out, op, limit).wait(limit);
    case Collective::all_gather: return group.all_gather(in, out, limit).wait(limit);
    case Collective::broadcast: return group.broadcast(out, root, limit).wait(limit);
    case Collective::scatter: return group.scatter(in, out, root, {}, limit).wait(limit);
    case Collective::gather: return group.gather(in, out, root, {}, limit).wait(limit);
    case Collective::all_to_all: return group.all_to_all(in, out, {}, {}, limit).wait(limit);
    case Collective::barrier: return group.barrier(limit);
    default: throw UsageError(fmt::format("{} has no data to measure", name_of(collective)));
  }
}

bool Exercise::is_right(int rank, const Buffers& buffers) const {
  const float* out = buffers.output;
  bool right = true;
  switch (collective) {
    case Collective::all_reduce: return holds_reduced(*this, 0, whole, out);
    case Collective::reduce:
      return rank == 0 ? holds_reduced(*this, 0, whole, out) : holds_numbers(rank, 0, whole, out);
    case Collective::reduce_scatter: return holds_reduced(*this, rank * part, part, out);
    case Collective::broadcast: return holds_numbers(0, 0, whole, out);
    case Collective::barrier: return true;
    case Collective::scatter: return holds_numbers(0, rank * part, part, out);
    case Collective::gather:
      if (rank != 0) return true;
      [[fallthrough]];
    case Collective::all_gather:
      for (int r = 0; r < ranks; ++r) right &= holds_numbers(r, r * part, part, out + r * part);
      return right;
    default:  // all_to_all
      for (int r = 0; r < ranks; ++r) right &= holds_numbers(r, rank * part, part, out + r * part);
      return right;
  }
}

Collective collective_named(const std::string& name) {
  for (const Collective one : kAll)
    if (name_of(one) == name) return one;
  throw UsageError("--collective: " + unknown_message("collective", name, measured_collectives()));
}

const std::vector<std::string>& measured_collectives() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Collective one : kAll) all.emplace_back(name_of(one));
    return all;
  }();
  return names;
}

}  // namespace tutti::cli
