// Every schedule, replayed without sockets for all ranks at once: results complete, sums in the
// order of the tree, each send met by its receive in the same round, each byte counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <numeric>

#include "tutti/base/error.h"

#include "tests/support/schedule_replay.h"

namespace tutti {
namespace {

using test::Replay;
using Values = std::vector<uint64_t>;

uint64_t symbol(int rank, int64_t i) {
  uint64_t x = (uint64_t(rank) + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t(i) + 1) * 0xd1b54a32d192ed03u;
  return (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
}

Values symbols(int rank, int64_t n) {
  Values all(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) all[i] = symbol(rank, i);
  return all;
}

uint64_t plain_sum(uint64_t a, uint64_t b) { return a + b; }

/// Sums [begin, end) of the leaves: the largest power of two below the count first, then the rest.
uint64_t tree_of(const Values& leaves, size_t begin, size_t end) {
  if (end - begin == 1) return leaves[begin];
  const size_t left = std::bit_floor(end - begin - 1);
  return test::symbolic_sum(tree_of(leaves, begin, begin + left),
                            tree_of(leaves, begin + left, end));
}

uint64_t total_of(const ReductionShape& shape, Replay::Sum sum, int64_t i) {
  Values leaves;
  for (int r = 0; r < shape.replicas(); ++r) leaves.push_back(symbol(r, i));
  if (sum == plain_sum) return std::accumulate(leaves.begin(), leaves.end(), uint64_t{0});
  Values hosts;
  size_t begin = 0;
  for (int count : shape.replicas_per_host()) {
    hosts.push_back(tree_of(leaves, begin, begin + static_cast<size_t>(count)));
    begin += static_cast<size_t>(count);
  }
  return tree_of(hosts, 0, hosts.size());
}

struct Setting {
  ReductionShape shape = ReductionShape::flat(1);
  Problem problem{};
  std::vector<int64_t> offsets{};
  std::vector<ShapeTree> trees{};
};

Setting setting(const ReductionShape& shape, Collective collective, Algorithm algorithm, int64_t n,
                int64_t chunk, int root = 0) {
  Setting s{.shape = shape};
  s.problem = {.collective = collective,
               .algorithm = algorithm,
               .size = shape.replicas(),
               .root = root,
               .num_elements = n,
               .chunk_elements = chunk};
  if (algorithm == Algorithm::tree)
    for (int r = 0; r < shape.replicas(); ++r) s.trees.emplace_back(shape, r);
  return s;
}

Replay replay_of(const Setting& s) {
  Replay replay;
  replay.shape = &s.shape;
  for (int r = 0; r < s.problem.size; ++r) {
    Problem problem = s.problem;
    problem.rank = r;
    problem.input_offsets = problem.output_offsets = s.offsets;
    if (!s.trees.empty()) problem.shape_tree = &s.trees[r];
    replay.schedules.emplace_back(problem);
  }
  return replay;
}

std::string words(const Setting& s) {
  return fmt::format("{} by {}, {} ranks, {} elements, chunk {}, root {}",
                     name_of(s.problem.collective), name_of(s.problem.algorithm),
                     s.shape.to_string(), s.problem.num_elements, s.problem.chunk_elements,
                     s.problem.root);
}

// ---- all_reduce -------------------------------------------------------------------------------

int64_t slice(const Problem& p, int rank) {
  return even_cut(p.num_elements, p.size, rank + 1) - even_cut(p.num_elements, p.size, rank);
}

/// What a rank must send in an all-reduce, by formula; -1: only the sum over ranks is known.
int64_t all_reduce_volume(const Problem& p, int rank) {
  const int64_t n = p.size, all = p.num_elements;
  switch (p.algorithm) {
    case Algorithm::direct: return (n - 1) * all;
    case Algorithm::doubling: return std::countr_zero(static_cast<unsigned>(n)) * all;
    // All but the own slice out raw, and the own slice to all others.
    case Algorithm::pairwise: return all - slice(p, rank) + (n - 1) * slice(p, rank);
    // All but the slice that is gone on with; then all but that of the last partner, of whom it
    // has all there is in the end.
    case Algorithm::halving_doubling: return n == 2 ? all : -1;
    case Algorithm::ring:
      return 2 * all - slice(p, (rank + 1) % p.size) - slice(p, (rank + 2) % p.size);
    default: return -1;
  }
}

int64_t all_reduce_volume_of_all(const Problem& p) {
  const int64_t n = p.size, all = p.num_elements;
  switch (p.algorithm) {
    case Algorithm::direct: return n * (n - 1) * all;
    case Algorithm::doubling: return n * std::countr_zero(static_cast<unsigned>(n)) * all;
    default: return 2 * (n - 1) * all;  // of every scheme that sends partial sums once, and back
  }
}

void check_all_reduce(const Setting& s, Replay::Sum sum) {
  SCOPED_TRACE(words(s));
  Replay replay = replay_of(s);
  replay.sum = sum;
  replay.in_place = true;
  for (int r = 0; r < s.problem.size; ++r)
    replay.output.push_back(symbols(r, s.problem.num_elements));
  ASSERT_TRUE(replay.run());
  Values expected;
  for (int64_t i = 0; i < s.problem.num_elements; ++i)
    expected.push_back(total_of(s.shape, sum, i));
  for (int r = 0; r < s.problem.size; ++r) {
    ASSERT_TRUE(replay.output[r] == expected) << "rank " << r;
    if (const int64_t volume = all_reduce_volume(s.problem, r); volume >= 0) {
      ASSERT_EQ(replay.sent[r], volume) << "rank " << r;
    }
  }
  ASSERT_EQ(std::accumulate(replay.sent.begin(), replay.sent.end(), int64_t{0}),
            all_reduce_volume_of_all(s.problem));
}

bool needs_power(Algorithm algorithm) {
  return algorithm == Algorithm::doubling || algorithm == Algorithm::halving_doubling;
}

constexpr Algorithm kOrdered[] = {Algorithm::direct, Algorithm::pairwise, Algorithm::doubling,
                                  Algorithm::halving_doubling, Algorithm::tree};
constexpr Algorithm kFree[] = {Algorithm::ring, Algorithm::double_tree};

TEST(Schedules, AllReduceFollowsTheTreeForEveryRankCount) {
  for (int n = 2; n <= 130; ++n)
    for (Algorithm algorithm : kOrdered) {
      if (needs_power(algorithm) && !std::has_single_bit(static_cast<unsigned>(n))) continue;
      const auto shape = ReductionShape::flat(n);
      const bool large = n > 20;
      for (int64_t length : {1, n - 1, n + 1, 5 * n + 3}) {
        if (large && length != n + 1) continue;
        check_all_reduce(setting(shape, Collective::all_reduce, algorithm, length, large ? 64 : 3),
                         test::symbolic_sum);
      }
      if (HasFatalFailure()) return;
    }
}

TEST(Schedules, AllReduceInAnOrderOfItsOwnAddsEveryRankOnce) {
  for (int n = 2; n <= 130; ++n)
    for (Algorithm algorithm : kFree) {
      for (int64_t length : {1, 2, n - 1, n + 1, 3 * n + 1})
        check_all_reduce(
            setting(ReductionShape::flat(n), Collective::all_reduce, algorithm, length, 7),
            plain_sum);
      if (HasFatalFailure()) return;
    }
}

TEST(Schedules, AllReduceFollowsShapesOfUnequalHosts) {
  for (const char* text : {"2x3", "3+1", "3x2", "1+3", "5+7", "4x4", "1+1+1+1+1", "8+3+2", "3x7"})
    for (Algorithm algorithm : {Algorithm::direct, Algorithm::pairwise, Algorithm::tree})
      check_all_reduce(
          setting(ReductionShape::parse(text), Collective::all_reduce, algorithm, 53, 4),
          test::symbolic_sum);
}

TEST(Schedules, AllReduceOfManyRanks) {
  for (int n : {255, 256, 500, 1024, 2047, 4096}) {
    const auto shape = ReductionShape::flat(n);
    for (Algorithm algorithm : {Algorithm::halving_doubling, Algorithm::doubling, Algorithm::tree})
      if (!needs_power(algorithm) || std::has_single_bit(static_cast<unsigned>(n)))
        check_all_reduce(setting(shape, Collective::all_reduce, algorithm, 37, 50),
                         test::symbolic_sum);
    check_all_reduce(setting(shape, Collective::all_reduce, Algorithm::double_tree, 37, 5),
                     plain_sum);
    check_all_reduce(setting(shape, Collective::all_reduce, Algorithm::pairwise, 11, 50),
                     test::symbolic_sum);
    if (n <= 500)
      check_all_reduce(setting(shape, Collective::all_reduce, Algorithm::ring, n + 1, 50),
                       plain_sum);
    if (HasFatalFailure()) return;
  }
}

TEST(Schedules, RoundsAreAsManyAsTheAlgorithmPromises) {
  const auto rounds = [](Algorithm algorithm, int n, int64_t length, int64_t chunk) {
    Setting s = setting(ReductionShape::flat(n), Collective::all_reduce, algorithm, length, chunk);
    Replay replay = replay_of(s);
    return replay.schedules[0].num_rounds();
  };
  EXPECT_EQ(rounds(Algorithm::direct, 5, 100, 100), 1);
  EXPECT_EQ(rounds(Algorithm::doubling, 64, 100, 100), 6);
  EXPECT_EQ(rounds(Algorithm::halving_doubling, 64, 100, 100), 12);
  EXPECT_EQ(rounds(Algorithm::tree, 64, 100, 100), 12);
  EXPECT_EQ(rounds(Algorithm::tree, 65, 100, 100), 14);
  EXPECT_EQ(rounds(Algorithm::pairwise, 5, 100, 20), 2);  // one chunk: raw, then back
  EXPECT_EQ(rounds(Algorithm::ring, 9, 100, 100), 16);
  EXPECT_EQ(rounds(Algorithm::double_tree, 8, 100, 10), 2 * (5 + 2 * 3 - 1));
}

TEST(Schedules, RefuseWhatIsNotPossible) {
  Problem p{.collective = Collective::all_reduce, .algorithm = Algorithm::doubling, .size = 6};
  EXPECT_THROW(Schedule{p}, UsageError);
  p.algorithm = Algorithm::binomial;
  EXPECT_THROW(Schedule{p}, UsageError);
  p = {.collective = Collective::broadcast, .algorithm = Algorithm::direct, .size = 2};
  EXPECT_THROW(Schedule{p}, UsageError);
}

// ---- reduce, reduce_scatter -------------------------------------------------------------------

void check_reduce(const Setting& s) {
  SCOPED_TRACE(words(s));
  Replay replay = replay_of(s);
  replay.in_place = true;
  for (int r = 0; r < s.problem.size; ++r)
    replay.output.push_back(symbols(r, s.problem.num_elements));
  ASSERT_TRUE(replay.run());
  for (int r = 0; r < s.problem.size; ++r)
    for (int64_t i = 0; i < s.problem.num_elements; ++i)
      ASSERT_EQ(replay.output[r][i],
                r == s.problem.root ? total_of(s.shape, test::symbolic_sum, i) : symbol(r, i))
          << "rank " << r << ", element " << i;
}

TEST(Schedules, ReduceLeavesTheOthersAsTheyWere) {
  for (int n = 2; n <= 130; ++n)
    for (Algorithm algorithm : {Algorithm::direct, Algorithm::pairwise, Algorithm::tree})
      for (int root : {0, n / 2, n - 1}) {
        check_reduce(setting(ReductionShape::flat(n), Collective::reduce, algorithm, n + 7,
                             n < 20 ? 3 : 100, root));
        if (HasFatalFailure()) return;
      }
  for (const char* text : {"2x3", "3+1", "3x7"})
    for (Algorithm algorithm : {Algorithm::direct, Algorithm::pairwise, Algorithm::tree})
      check_reduce(setting(ReductionShape::parse(text), Collective::reduce, algorithm, 41, 3, 1));
}

std::vector<int64_t> unequal_offsets(int n, uint64_t seed) {
  std::vector<int64_t> offsets{0};
  for (int r = 0; r < n; ++r)
    offsets.push_back(offsets.back() + static_cast<int64_t>(symbol(r, int64_t(seed)) % 5));
  return offsets;
}

TEST(Schedules, ReduceScatterOfUnequalPartsFollowsTheTree) {
  for (int n = 2; n <= 130; ++n)
    for (int64_t chunk : {2, 100}) {
      Setting s = setting(
          n % 3 == 0 ? ReductionShape::hosts(std::vector<int>(n / 3, 3)) : ReductionShape::flat(n),
          Collective::reduce_scatter, Algorithm::pairwise, 0, chunk);
      s.offsets = unequal_offsets(n, 1);
      s.problem.num_elements = s.offsets.back();
      SCOPED_TRACE(words(s));
      Replay replay = replay_of(s);
      for (int r = 0; r < n; ++r) {
        replay.input.push_back(symbols(r, s.problem.num_elements));
        replay.output.emplace_back(s.offsets[r + 1] - s.offsets[r]);
      }
      ASSERT_TRUE(replay.run());
      for (int r = 0; r < n; ++r) {
        ASSERT_EQ(replay.sent[r], s.problem.num_elements - (s.offsets[r + 1] - s.offsets[r]));
        for (int64_t i = s.offsets[r]; i < s.offsets[r + 1]; ++i)
          ASSERT_EQ(replay.output[r][i - s.offsets[r]], total_of(s.shape, test::symbolic_sum, i));
      }
    }
}

// ---- moving data ------------------------------------------------------------------------------

/// All parts, one behind the other; part r consists of rank r's symbols.
Values all_parts(const std::vector<int64_t>& offsets) {
  Values all;
  for (size_t r = 0; r + 1 < offsets.size(); ++r)
    for (int64_t i = 0; i < offsets[r + 1] - offsets[r]; ++i)
      all.push_back(symbol(static_cast<int>(r), i));
  return all;
}

Setting moving(int n, Collective collective, Algorithm algorithm, int root, uint64_t seed) {
  Setting s = setting(ReductionShape::flat(n), collective, algorithm, 0, 100, root);
  s.offsets = unequal_offsets(n, seed);
  s.problem.num_elements = s.offsets.back();
  return s;
}

std::vector<int> rank_counts() {
  std::vector<int> all(129);
  std::iota(all.begin(), all.end(), 2);
  all.insert(all.end(), {200, 256, 511});
  return all;
}

TEST(Schedules, AllGatherOfUnequalParts) {
  for (int n : rank_counts())
    for (Algorithm algorithm : {Algorithm::direct, Algorithm::ring, Algorithm::doubling}) {
      if (needs_power(algorithm) && !std::has_single_bit(static_cast<unsigned>(n))) continue;
      const Setting s = moving(n, Collective::all_gather, algorithm, 0, 2);
      SCOPED_TRACE(words(s));
      Replay replay = replay_of(s);
      for (int r = 0; r < n; ++r) {
        replay.input.push_back(symbols(r, s.offsets[r + 1] - s.offsets[r]));
        replay.output.emplace_back(s.problem.num_elements);
      }
      ASSERT_TRUE(replay.run());
      for (int r = 0; r < n; ++r) ASSERT_TRUE(replay.output[r] == all_parts(s.offsets)) << r;
      ASSERT_EQ(std::accumulate(replay.sent.begin(), replay.sent.end(), int64_t{0}),
                (n - 1) * s.problem.num_elements);
    }
}

TEST(Schedules, BroadcastFromAnyRoot) {
  for (int n : rank_counts())
    for (Algorithm algorithm : {Algorithm::binomial, Algorithm::scatter_ring})
      for (int root : {0, 1, n - 1}) {
        const Setting s =
            setting(ReductionShape::flat(n), Collective::broadcast, algorithm, n + 3, 100, root);
        SCOPED_TRACE(words(s));
        Replay replay = replay_of(s);
        replay.in_place = true;
        for (int r = 0; r < n; ++r) replay.output.push_back(symbols(r, n + 3));
        ASSERT_TRUE(replay.run());
        for (int r = 0; r < n; ++r) ASSERT_TRUE(replay.output[r] == symbols(root, n + 3)) << r;
        const int64_t total = std::accumulate(replay.sent.begin(), replay.sent.end(), int64_t{0});
        // Round the ring each passes on what it has, but to the root; the pieces before are extra.
        const int64_t pieces = n + 3 - slice(s.problem, root);
        const int64_t ring =
            (n - 1) * (n + 3) - (n + 3 - slice(s.problem, root == 0 ? n - 1 : root - 1));
        if (algorithm == Algorithm::binomial) {
          ASSERT_EQ(total, (n - 1) * (n + 3));
        } else {
          ASSERT_LE(total, pieces + ring + (n + 3));
        }
      }
}

TEST(Schedules, ScatterAndGatherOfUnequalParts) {
  for (int n : rank_counts())
    for (Algorithm algorithm : {Algorithm::direct, Algorithm::binomial})
      for (int root : {0, n / 3, n - 1})
        for (Collective collective : {Collective::scatter, Collective::gather}) {
          const Setting s = moving(n, collective, algorithm, root, 3);
          SCOPED_TRACE(words(s));
          const bool scatters = collective == Collective::scatter;
          Replay replay = replay_of(s);
          for (int r = 0; r < n; ++r) {
            const int64_t part = s.offsets[r + 1] - s.offsets[r];
            const int64_t whole = r == root ? s.problem.num_elements : 0;
            replay.input.push_back(!scatters   ? symbols(r, part)
                                   : r == root ? all_parts(s.offsets)
                                               : Values{});
            replay.output.emplace_back(scatters ? part : whole);
          }
          ASSERT_TRUE(replay.run());
          for (int r = 0; r < n; ++r) {
            if (scatters) {
              ASSERT_TRUE(replay.output[r] == symbols(r, s.offsets[r + 1] - s.offsets[r])) << r;
            } else if (r == root) {
              ASSERT_TRUE(replay.output[r] == all_parts(s.offsets));
            }
            ASSERT_LE(replay.schedules[r].scratch_elements(), s.problem.num_elements);
          }
        }
}

TEST(Schedules, AllToAllOfUnequalParts) {
  for (int n : rank_counts())
    for (Algorithm algorithm : {Algorithm::direct, Algorithm::pairwise}) {
      const auto count = [](int from, int to) {
        return static_cast<int64_t>(symbol(from, to) % 3);
      };
      std::vector<std::vector<int64_t>> in(n, {0}), out(n, {0});
      Replay replay;
      for (int r = 0; r < n; ++r) {
        replay.input.emplace_back();
        for (int p = 0; p < n; ++p) {
          in[r].push_back(in[r].back() + count(r, p));
          out[r].push_back(out[r].back() + count(p, r));
          for (int64_t i = 0; i < count(r, p); ++i)
            replay.input[r].push_back(symbol(r * 1000 + p, i));
        }
        replay.output.emplace_back(out[r].back());
      }
      for (int r = 0; r < n; ++r)
        replay.schedules.emplace_back(Problem{.collective = Collective::all_to_all,
                                              .algorithm = algorithm,
                                              .rank = r,
                                              .size = n,
                                              .num_elements = in[r].back(),
                                              .input_offsets = in[r],
                                              .output_offsets = out[r]});
      ASSERT_TRUE(replay.run()) << n;
      for (int r = 0; r < n; ++r) {
        Values expected;
        for (int p = 0; p < n; ++p)
          for (int64_t i = 0; i < count(p, r); ++i) expected.push_back(symbol(p * 1000 + r, i));
        ASSERT_TRUE(replay.output[r] == expected) << "rank " << r << " of " << n;
      }
    }
}

// Knowledge spreads in log2 n rounds: nobody leaves before everybody has come.
TEST(Schedules, BarrierTellsEverybodyOfEverybody) {
  std::vector<int> counts = rank_counts();
  counts.insert(counts.end(), {1000, 4096});
  for (int n : counts) {
    std::vector<std::vector<bool>> knows(n, std::vector<bool>(n));
    std::vector<std::vector<bool>> before;
    std::vector<Schedule> schedules;
    for (int r = 0; r < n; ++r) {
      knows[r][r] = true;
      schedules.emplace_back(Problem{.rank = r, .size = n});
    }
    ASSERT_EQ(schedules[0].num_rounds(), std::bit_width(static_cast<unsigned>(n - 1)));
    std::vector<Step> steps;
    std::vector<std::pair<int, int>> sends, receives;
    for (int64_t round = 0; round < schedules[0].num_rounds(); ++round) {
      before = knows;
      sends.clear();
      receives.clear();
      for (int r = 0; r < n; ++r) {
        schedules[r].round(round, steps);
        for (const Step& step : steps) {
          if (step.action == Step::Action::send) {
            sends.emplace_back(r, step.peer);
            continue;
          }
          receives.emplace_back(step.peer, r);
          for (int k = 0; k < n; ++k)
            if (before[step.peer][k]) knows[r][k] = true;
        }
      }
      std::sort(sends.begin(), sends.end());
      std::sort(receives.begin(), receives.end());
      ASSERT_EQ(sends, receives) << n;
    }
    for (const auto& row : knows)
      ASSERT_TRUE(std::find(row.begin(), row.end(), false) == row.end()) << n;
  }
}

TEST(ShapeTrees, SameTreeSaysWhenTopologiesAddAlike) {
  const auto same = [](const char* a, const char* b) {
    return same_tree(ReductionShape::parse(a), ReductionShape::parse(b));
  };
  EXPECT_TRUE(same("4", "2x2"));
  EXPECT_TRUE(same("8", "2x4"));
  EXPECT_TRUE(same("4", "1+1+1+1"));
  EXPECT_FALSE(same("6", "2x3"));
  EXPECT_FALSE(same("4", "3+1"));
  EXPECT_FALSE(same("4", "5"));
}

TEST(ShapeTrees, NobodyIsInnerInBothTreesOfADoubleTree) {
  for (int n = 2; n <= 300; ++n)
    for (int r = 0; r < n; ++r) {
      int inner = 0;
      for (int tree : {0, 1}) inner += double_tree_place(tree, r, n).level > 0 ? 1 : 0;
      EXPECT_LE(inner, 1) << r << " of " << n;
    }
}

}  // namespace
}  // namespace tutti
