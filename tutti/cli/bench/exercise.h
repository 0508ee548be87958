/// One collective as the benchmarks call it: which numbers go in, and what must come out.
///
/// Rank r holds the number (i mod 1024) + r at place i of the whole, in float32: sums of it are
/// exact in any order, so that every element can be checked. Thread rule: pure functions on the
/// caller's memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/comm/group/group.h"

namespace tutti::cli {

/// What a rank gives and gets. all_reduce, reduce and broadcast work in `output` alone.
struct Buffers {
  float* input = nullptr;
  float* output = nullptr;
};

struct Exercise {
  Collective collective = Collective::all_reduce;
  int ranks = 2;
  int64_t part = 0;      ///< elements of one rank, where the whole is cut
  int64_t whole = 0;     ///< elements of the vector, or of all parts together
  bool repeats = false;  ///< called several times on the same data: max instead of sum
  int root = 0;          ///< of broadcast

  /// `bytes` of the whole, made larger where every rank's part needs an element more.
  static Exercise of(Collective collective, int64_t bytes, int ranks);

  int64_t bytes() const { return whole * 4; }
  bool in_place() const;
  int64_t input_elements() const;   ///< of a rank; 0 in place
  int64_t output_elements() const;  ///< of a rank

  /// Bytes that a rank sends (and as many that it receives) when nothing is sent twice, in whole
  /// vectors: 2 (n-1)/n for all_reduce, (n-1)/n where every part goes once, 1 for broadcast.
  double traffic() const;

  /// New data of rank `rank`; what the operation has to write is spoilt.
  void fill(int rank, const Buffers& buffers) const;
  /// The same, as call `number` of a row of calls. Broadcasts go out from every rank in turn: one
  /// root could run ahead of the others, and the time of an operation would not be seen.
  Exercise in_row(int number) const;
  void run(Group& group, const Buffers& buffers, Millis limit) const;
  /// Whether every element is what it must be.
  bool is_right(int rank, const Buffers& buffers) const;
};

/// The collective of that name. UsageError names the nearest.
Collective collective_named(const std::string& name);

/// Those that `bench all-reduce` measures.
const std::vector<std::string>& measured_collectives();

}  // namespace tutti::cli
