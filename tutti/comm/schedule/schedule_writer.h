/// What writes the steps of a round, and the rounds of each algorithm: the inside of schedule.cpp.
///
/// Each function below appends the steps of one round of one rank. Steps that would move nothing
/// are left out, by the same rule on both sides. Thread rule: pure but for the steps appended.
#pragma once

#include <algorithm>
#include <bit>

#include "tutti/comm/schedule/schedule.h"

namespace tutti::detail::schedules {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/// The rounds in which 1, 2, 4, ... ranks become `size`.
inline int doublings(int size) { return std::bit_width(static_cast<unsigned>(size - 1)); }

/// Elements [begin, end) of a buffer.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

/// Writes the steps of one round; knows where the parts of all ranks lie.
class Writer {
 public:
  Writer(const Problem& problem, std::vector<Step>& steps) : p_(problem), steps_(steps) {}

  int rank() const { return p_.rank; }
  int size() const { return p_.size; }
  int64_t elements() const { return p_.num_elements; }

  /// Where a part begins, in the input and in the output; part size() is the end.
  int64_t in_offset(int64_t part) const { return offset(p_.input_offsets, part); }
  int64_t out_offset(int64_t part) const { return offset(p_.output_offsets, part); }
  /// The elements of one part.
  Range in_part(int part) const { return {in_offset(part), in_offset(part + 1)}; }
  Range out_part(int part) const { return {out_offset(part), out_offset(part + 1)}; }
  /// Parts [first, end), which lie one behind the other.
  Range out_parts(int first, int end) const { return {out_offset(first), out_offset(end)}; }
  /// The rank that `rank` counts to, round and round.
  int around(int64_t rank) const { return static_cast<int>((rank % p_.size + p_.size) % p_.size); }
  /// Chunk `number` of a range; empty behind its end.
  Range chunk(Range whole, int64_t number) const {
    const int64_t begin = std::min(whole.begin + number * p_.chunk_elements, whole.end);
    return {begin, std::min(begin + p_.chunk_elements, whole.end)};
  }

  /// How many chunks that are.
  int64_t chunks(Range whole) const { return ceil_div(whole.count(), p_.chunk_elements); }

  /// Messages; what is received is put, kept aside, or combined on arrival.
  void send(int to, Space space, Range range) { put({Step::Action::send, space}, to, range); }
  void receive(int from, Space space, Range range) {
    put({Step::Action::receive, space}, from, range);
  }
  void keep(int from, int64_t count) { put({Step::Action::keep}, from, {0, count}); }
  void add(int from, Space into, Range range, Space operand, int64_t operand_at, bool last) {
    put({.action = Step::Action::add,
         .space = into,
         .operand = operand,
         .last = last,
         .from = operand_at},
        from, range);
  }
  void add_in_place(int from, Range range, bool last) {
    add(from, Space::output, range, Space::output, range.begin, last);
  }
  /// Work of the rank itself when all messages of the round are through.
  void combine(int with, Range range, bool last) {
    put({.action = Step::Action::combine, .last = last}, with, range);
  }
  void reduce(Space into, int64_t begin, Range of_input) {
    put({.action = Step::Action::reduce, .space = into, .from = of_input.begin}, p_.rank,
        {begin, begin + of_input.count()});
  }
  /// From one buffer of the rank to another.
  void copy(Space into, int64_t begin, Space operand, Range range) {
    put({.action = Step::Action::copy, .space = into, .operand = operand, .from = range.begin},
        p_.rank, {begin, begin + range.count()});
  }
  /// Empty messages: somebody has come.
  void send_nothing(int to) { steps_.push_back({.action = Step::Action::send, .peer = to}); }
  void receive_nothing(int from) {
    steps_.push_back({.action = Step::Action::receive, .peer = from});
  }

 private:
  // Where a part begins.
  int64_t offset(std::span<const int64_t> offsets, int64_t part) const {
    return offsets.empty() ? even_cut(p_.num_elements, p_.size, part)
                           : offsets[static_cast<size_t>(part)];
  }

  // Appends a step unless it would move nothing.
  // `range` is in the step's space.
  void put(Step step, int peer, Range range) {
    if (range.count() == 0) return;
    step.peer = peer;
    step.begin = range.begin;
    step.count = range.count();
    steps_.push_back(step);
  }

  const Problem& p_;
  std::vector<Step>& steps_;
};

// Sums. `chunk`: what a round works on where all rounds are done once a chunk of the whole, and
// `round` then counts within the chunk. Who adds what when is told in schedule_sums.cpp.
void direct_all_reduce(Writer& w, Range chunk);
void doubling_all_reduce(Writer& w, Range chunk, int64_t round);
void halving_doubling_all_reduce(Writer& w, int64_t round);
void pairwise_all_reduce(Writer& w, int64_t round);
/// Up the tree of the reduction shape to rank 0, then down a binomial tree.
void tree_all_reduce(Writer& w, const ShapeTree& tree, Range chunk, int64_t round);
void ring_all_reduce(Writer& w, int64_t round);
void double_tree_all_reduce(Writer& w, int64_t round);

// To one rank; the buffers of the others stay as they are, so partial sums lie in scratch.
void direct_reduce(Writer& w, int root, Range chunk);
void pairwise_reduce(Writer& w, int root, int64_t round);
void tree_reduce(Writer& w, const ShapeTree& tree, int root, Range chunk, int64_t round);
/// Each rank adds up its own part.
void pairwise_reduce_scatter(Writer& w, int64_t round);

// Moves. The own part is copied at the end of the first round.
void direct_all_gather(Writer& w);
void ring_all_gather(Writer& w, int64_t round);
void doubling_all_gather(Writer& w, int64_t round);
/// After round k, 2^(k+1) ranks have it.
void binomial_broadcast(Writer& w, int root, Range range, int64_t round);
/// Round 0 gives every rank its piece; the rest is a ring.
void scatter_ring_broadcast(Writer& w, int root, int64_t round);
// Inner ranks of the binomial forms hold their subtree's parts in scratch, counted from the root.
void direct_scatter(Writer& w, int root);
void binomial_scatter(Writer& w, int root, int64_t round);
void direct_gather(Writer& w, int root);
void binomial_gather(Writer& w, int root, int64_t round);
/// All at once, or (pairwise) to the rank `round` + 1 further.
void direct_all_to_all(Writer& w);
void pairwise_all_to_all(Writer& w, int64_t round);
/// Empty messages to the rank 2^round further: after the last round all know of all.
void dissemination_barrier(Writer& w, int64_t round);

}  // namespace tutti::detail::schedules
