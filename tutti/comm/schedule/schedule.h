/// Schedules: who sends what to whom, in which round, so that a collective comes about.
///
/// Pure: from (algorithm, rank, size, elements) to steps; no sockets, no clock. Engines carry the
/// steps out, tests and simulations replay them. A schedule is made of *rounds*. The steps of a
/// round may be carried out at the same time; the next round begins, for this rank, when all are
/// done. Every send has its receive in the same round of the other rank, so no order of arrival can
/// block, even if a send waits for its receiver. Steps of one pair, direction and round keep their
/// order. docs/design/tcp_engine.md compares the algorithms.
/// Thread rule: const functions from any thread; a Schedule refers to the spans it was given.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tutti/comm/engine/engine.h"
#include "tutti/comm/schedule/schedule_trees.h"

namespace tutti {

enum class Algorithm : uint8_t {
  direct,            ///< everybody to everybody (or from and to the root) in one round
  pairwise,          ///< pieces straight to the rank that adds them, in chunks
  doubling,          ///< recursive doubling of whole buffers; powers of two
  halving_doubling,  ///< recursive halving, then doubling; powers of two
  tree,              ///< along the reduction shape to rank 0, then down a binomial tree
  ring,              ///< scatter-reduce and all-gather round a ring; has an order of its own
  double_tree,       ///< two trees, each for half of the data; has an order of its own
  binomial,          ///< down or up a binomial tree
  scatter_ring,      ///< broadcast: pieces to everybody, then all-gather round a ring
  dissemination,     ///< barrier: to the rank 1, 2, 4, ... further
};
constexpr int kNumAlgorithms = 10;
std::string_view name_of(Algorithm algorithm) noexcept;

/// Where elements lie: the operation's input and output (the same memory where it works in place),
/// or memory of the engine's own, of Schedule::scratch_elements().
enum class Space : uint8_t { input, output, scratch };

struct Step {
  enum class Action : uint8_t {
    send,     ///< `space` to `peer`
    receive,  ///< from `peer` into `space`
    add,      ///< from `peer`, combined on arrival with `operand` at `from` into `space`
    keep,     ///< from `peer`, kept aside as its raw input
    combine,  ///< at the end of the round: `space` with what was kept of `peer`, into `space`
    reduce,   ///< at the end: all that was kept and `input` at `from`, in the tree, into `space`
    copy,     ///< at the end: `operand` at `from` into `space`
  };
  Action action = Action::send;
  Space space = Space::output;
  Space operand = Space::output;
  bool last = false;  ///< add, combine: the sum of these elements is then complete
  int peer = 0;
  int64_t begin = 0;  ///< elements, in `space`
  int64_t count = 0;  ///< 0 only in dissemination: an empty message
  int64_t from = 0;   ///< elements, in `operand` or input
};

/// What a rank is to do. Equal on all ranks, but for `rank` (and all_to_all's offsets).
struct Problem {
  Collective collective = Collective::barrier;
  Algorithm algorithm = Algorithm::dissemination;
  int rank = 0;
  int size = 1;
  int root = 0;
  int64_t num_elements = 0;  ///< of the whole: the vector, or all parts together
  /// Where the parts begin, and where the last ends (size + 1 numbers); empty: cut evenly.
  /// all_to_all: in its input and in its output; else both the same.
  std::span<const int64_t> input_offsets{};
  std::span<const int64_t> output_offsets{};
  int64_t chunk_elements = 1 << 16;       ///< most that pairwise keeps of one peer; > 0
  const ShapeTree* shape_tree = nullptr;  ///< of `rank`; for Algorithm::tree
};

class Schedule {
 public:
  /// Throws UsageError where the algorithm does not fit the collective and the number of ranks.
  explicit Schedule(const Problem& problem);
  /// Nothing to do.
  Schedule() = default;

  int64_t num_rounds() const noexcept { return num_rounds_; }
  /// Replaces `steps` by those of a round, 0 to num_rounds() - 1; at most a few per peer.
  void round(int64_t number, std::vector<Step>& steps) const;

  int64_t scratch_elements() const noexcept { return scratch_elements_; }
  /// Most elements that are kept of one peer at a time; 0 where nothing is kept.
  int64_t kept_elements() const noexcept { return kept_elements_; }
  const Problem& problem() const noexcept { return problem_; }

 private:
  Problem problem_{};
  int64_t num_rounds_ = 0;
  int64_t rounds_per_chunk_ = 0;  ///< algorithms that go through the whole once a chunk
  int64_t scratch_elements_ = 0;
  int64_t kept_elements_ = 0;
};

/// The first element of part `part` (0 to size) when `num_elements` are cut evenly: the first
/// num_elements % size parts are one longer.
constexpr int64_t even_cut(int64_t num_elements, int size, int64_t part) noexcept {
  const int64_t whole = num_elements / size, rest = num_elements % size;
  return part * whole + (part < rest ? part : rest);
}

}  // namespace tutti
