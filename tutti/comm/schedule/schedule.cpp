#include "tutti/comm/schedule/schedule.h"

#include "tutti/base/detail/check.h"
#include "tutti/comm/schedule/schedule_writer.h"

namespace tutti {
namespace detail::schedules {
namespace {

bool is_power_of_two(int size) { return std::has_single_bit(static_cast<unsigned>(size)); }

struct Shape {
  int64_t rounds_per_chunk = 1;
  bool by_chunks = false;  ///< all rounds once a chunk of the whole
  int64_t rounds = -1;     ///< -1: rounds_per_chunk, times the chunks
  int64_t scratch = 0;
  int64_t kept = 0;
};

int64_t longest_part(const Problem& p, std::span<const int64_t> offsets) {
  if (offsets.empty()) return ceil_div(p.num_elements, p.size);
  int64_t longest = 0;
  for (int r = 0; r < p.size; ++r)
    longest =
        std::max(longest, offsets[static_cast<size_t>(r) + 1] - offsets[static_cast<size_t>(r)]);
  return longest;
}

[[noreturn]] void refuse(const Problem& p) {
  throw UsageError(fmt::format("schedule: {} by {} is not possible with {} ranks",
                               name_of(p.collective), name_of(p.algorithm), p.size));
}

Shape shape_of_all_reduce(const Problem& p, int64_t chunks_of_slice, int64_t kept) {
  const int levels = doublings(p.size);
  switch (p.algorithm) {
    case Algorithm::direct: return {.by_chunks = true, .kept = kept};
    case Algorithm::pairwise: return {.rounds = chunks_of_slice + 1, .kept = kept};
    case Algorithm::doubling:
      if (!is_power_of_two(p.size)) refuse(p);
      return {.rounds_per_chunk = levels, .by_chunks = true, .kept = kept};
    case Algorithm::halving_doubling:
      if (!is_power_of_two(p.size)) refuse(p);
      return {.rounds = 2 * levels};
    case Algorithm::tree:
      TUTTI_CHECK(p.shape_tree != nullptr, "{} ranks", p.size);
      return {.rounds_per_chunk = p.shape_tree->rounds + levels, .by_chunks = true};
    case Algorithm::ring: return {.rounds = 2 * (int64_t{p.size} - 1)};
    case Algorithm::double_tree: {
      const int64_t units = ceil_div(ceil_div(p.num_elements, 2), p.chunk_elements) +
                            2 * double_tree_height(p.size) - 1;
      return {.rounds = 2 * units};
    }
    default: refuse(p);
  }
}

Shape shape_of_reduce(const Problem& p, int64_t chunks_of_slice, int64_t kept) {
  switch (p.algorithm) {
    case Algorithm::direct: return {.by_chunks = true, .kept = p.rank == p.root ? kept : 0};
    case Algorithm::pairwise:
      return {.rounds = chunks_of_slice + 1, .scratch = p.chunk_elements, .kept = kept};
    case Algorithm::tree:
      TUTTI_CHECK(p.shape_tree != nullptr, "{} ranks", p.size);
      return {.rounds_per_chunk = p.shape_tree->rounds + (p.root == 0 ? 0 : 1),
              .by_chunks = true,
              .scratch = std::min(p.num_elements, p.chunk_elements)};
    default: refuse(p);
  }
}

// What an inner rank of a binomial gather or scatter holds for others.
int64_t subtree_elements(const Problem& p) {
  return (p.rank - p.root + p.size) % p.size % 2 == 0 && p.rank != p.root ? p.num_elements : 0;
}

Shape shape_of_moves(const Problem& p) {
  const int levels = doublings(p.size);
  const bool has_root = p.collective == Collective::scatter || p.collective == Collective::gather;
  switch (p.algorithm) {
    case Algorithm::direct:
      if (p.collective == Collective::broadcast) refuse(p);
      return {.rounds = 1};
    case Algorithm::binomial:
      if (!has_root && p.collective != Collective::broadcast) refuse(p);
      return {.rounds = levels, .scratch = has_root ? subtree_elements(p) : 0};
    case Algorithm::scatter_ring:
      if (p.collective != Collective::broadcast) refuse(p);
      return {.rounds = p.size};
    case Algorithm::ring:
      if (p.collective != Collective::all_gather) refuse(p);
      return {.rounds = int64_t{p.size} - 1};
    case Algorithm::doubling:
      if (p.collective != Collective::all_gather || !is_power_of_two(p.size)) refuse(p);
      return {.rounds = levels};
    case Algorithm::pairwise:
      if (p.collective != Collective::all_to_all) refuse(p);
      return {.rounds = int64_t{p.size} - 1};
    default: refuse(p);
  }
}

Shape shape_of(const Problem& p) {
  const int64_t longest = longest_part(p, p.input_offsets);
  const int64_t chunks_of_slice = ceil_div(longest, p.chunk_elements);
  const int64_t kept = std::min(p.num_elements, p.chunk_elements);
  if (p.algorithm == Algorithm::dissemination) return {.rounds = doublings(p.size)};
  switch (p.collective) {
    case Collective::all_reduce: return shape_of_all_reduce(p, chunks_of_slice, kept);
    case Collective::reduce: return shape_of_reduce(p, chunks_of_slice, kept);
    case Collective::reduce_scatter:
      if (p.algorithm != Algorithm::pairwise) refuse(p);
      return {.rounds = chunks_of_slice, .kept = kept};
    case Collective::send:
    case Collective::recv:
    case Collective::barrier: refuse(p);
    default: return shape_of_moves(p);
  }
}

void round_of_all_reduce(Writer& w, const Problem& p, Range chunk, int64_t in_chunk,
                         int64_t number) {
  switch (p.algorithm) {
    case Algorithm::direct: return direct_all_reduce(w, chunk);
    case Algorithm::doubling: return doubling_all_reduce(w, chunk, in_chunk);
    case Algorithm::halving_doubling: return halving_doubling_all_reduce(w, number);
    case Algorithm::pairwise: return pairwise_all_reduce(w, number);
    case Algorithm::tree: return tree_all_reduce(w, *p.shape_tree, chunk, in_chunk);
    case Algorithm::ring: return ring_all_reduce(w, number);
    default: return double_tree_all_reduce(w, number);
  }
}

void round_of_reduce(Writer& w, const Problem& p, Range chunk, int64_t in_chunk, int64_t number) {
  if (p.algorithm == Algorithm::direct) return direct_reduce(w, p.root, chunk);
  if (p.algorithm == Algorithm::pairwise) return pairwise_reduce(w, p.root, number);
  tree_reduce(w, *p.shape_tree, p.root, chunk, in_chunk);
}

void round_of_moves(Writer& w, const Problem& p, int64_t number) {
  const bool direct = p.algorithm == Algorithm::direct;
  switch (p.collective) {
    case Collective::all_gather:
      if (direct) return direct_all_gather(w);
      if (p.algorithm == Algorithm::ring) return ring_all_gather(w, number);
      return doubling_all_gather(w, number);
    case Collective::broadcast:
      if (p.algorithm == Algorithm::scatter_ring) return scatter_ring_broadcast(w, p.root, number);
      return binomial_broadcast(w, p.root, {0, p.num_elements}, number);
    case Collective::scatter:
      return direct ? direct_scatter(w, p.root) : binomial_scatter(w, p.root, number);
    case Collective::gather:
      return direct ? direct_gather(w, p.root) : binomial_gather(w, p.root, number);
    default: return direct ? direct_all_to_all(w) : pairwise_all_to_all(w, number);
  }
}

}  // namespace
}  // namespace detail::schedules

std::string_view name_of(Algorithm algorithm) noexcept {
  constexpr std::string_view kNames[kNumAlgorithms] = {
      "direct", "pairwise",    "doubling", "halving_doubling", "tree",
      "ring",   "double_tree", "binomial", "scatter_ring",     "dissemination"};
  return kNames[static_cast<size_t>(algorithm)];
}

Schedule::Schedule(const Problem& problem) : problem_(problem) {
  TUTTI_CHECK(problem.chunk_elements > 0, "{} elements a chunk", problem.chunk_elements);
  if (problem.size < 2) detail::schedules::refuse(problem);
  const detail::schedules::Shape shape = detail::schedules::shape_of(problem);
  const int64_t chunks =
      shape.by_chunks ? detail::schedules::ceil_div(problem.num_elements, problem.chunk_elements)
                      : 1;
  rounds_per_chunk_ = shape.rounds_per_chunk;
  num_rounds_ = shape.rounds >= 0 ? shape.rounds : shape.rounds_per_chunk * chunks;
  scratch_elements_ = shape.scratch;
  kept_elements_ = shape.kept;
}

void Schedule::round(int64_t number, std::vector<Step>& steps) const {
  TUTTI_CHECK(number >= 0 && number < num_rounds_, "round {} of {}", number, num_rounds_);
  steps.clear();
  detail::schedules::Writer w(problem_, steps);
  const Problem& p = problem_;
  if (p.algorithm == Algorithm::dissemination)
    return detail::schedules::dissemination_barrier(w, number);
  const detail::schedules::Range chunk = w.chunk({0, p.num_elements}, number / rounds_per_chunk_);
  const int64_t in_chunk = number % rounds_per_chunk_;
  switch (p.collective) {
    case Collective::all_reduce:
      return detail::schedules::round_of_all_reduce(w, p, chunk, in_chunk, number);
    case Collective::reduce:
      return detail::schedules::round_of_reduce(w, p, chunk, in_chunk, number);
    case Collective::reduce_scatter: return detail::schedules::pairwise_reduce_scatter(w, number);
    default: return detail::schedules::round_of_moves(w, p, number);
  }
}

}  // namespace tutti
