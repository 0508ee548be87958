// What the benchmarks call right: results of every engine and of the floor, and nothing else.
#include <gmock/gmock.h>

#include <thread>

#include "tutti/base/error.h"
#include "tutti/cli/bench/all_reduce.h"
#include "tutti/cli/bench/exercise.h"
#include "tutti/cli/bench/floor.h"
#include "tutti/comm/shm/shm.h"

namespace tutti::cli {
namespace {

constexpr Millis kLimit{60'000};
constexpr Collective kAll[] = {Collective::all_reduce,     Collective::reduce,
                               Collective::reduce_scatter, Collective::all_gather,
                               Collective::broadcast,      Collective::scatter,
                               Collective::gather,         Collective::all_to_all};

struct Memory {
  explicit Memory(const Exercise& exercise)
      : input(static_cast<size_t>(exercise.input_elements())),
        output(static_cast<size_t>(exercise.output_elements())) {}
  Buffers buffers() { return {input.data(), output.data()}; }
  std::vector<float> input, output;
};

template <class Body>
void with_ranks(int ranks, const Body& body) {
  const auto engines = make_shm_threads(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { body(Group(engines[r])); });
  for (auto& thread : threads) thread.join();
}

TEST(BenchExercise, AcceptsResultsAndNothingElse) {
  for (const int ranks : {2, 3})
    for (const Collective collective : kAll)
      for (const bool repeats : {false, true}) {
        SCOPED_TRACE(std::string(name_of(collective)) + " of " + std::to_string(ranks));
        Exercise exercise = Exercise::of(collective, 20'000, ranks);
        exercise.repeats = repeats;
        with_ranks(ranks, [&](Group group) {
          const int rank = group.rank();
          Memory memory(exercise);
          exercise.fill(rank, memory.buffers());
          // Only what a rank keeps as it was is right before.
          const bool keeps = (collective == Collective::broadcast && rank == 0) ||
                             (collective == Collective::reduce && rank != 0) ||
                             (collective == Collective::gather && rank != 0) ||
                             (collective == Collective::all_reduce && repeats && rank == ranks - 1);
          EXPECT_EQ(exercise.is_right(rank, memory.buffers()), keeps) << "rank " << rank;
          for (int i = 0; i < (repeats ? 3 : 1); ++i) exercise.run(group, memory.buffers(), kLimit);
          EXPECT_TRUE(exercise.is_right(rank, memory.buffers())) << "rank " << rank;
          if (collective == Collective::gather && rank != 0) return;
          memory.output.back() += 1;
          EXPECT_FALSE(exercise.is_right(rank, memory.buffers())) << "rank " << rank;
        });
      }
}

TEST(BenchExercise, EveryRankHasAWholePart) {
  EXPECT_EQ(Exercise::of(Collective::all_reduce, 8, 3).bytes(), 8);
  EXPECT_EQ(Exercise::of(Collective::all_gather, 8, 3).bytes(), 12);
  EXPECT_EQ(Exercise::of(Collective::all_gather, 0, 3).bytes(), 0);
  EXPECT_DOUBLE_EQ(Exercise::of(Collective::all_reduce, 8, 4).traffic(), 1.5);
  EXPECT_DOUBLE_EQ(Exercise::of(Collective::all_gather, 8, 4).traffic(), 0.75);
  EXPECT_DOUBLE_EQ(Exercise::of(Collective::broadcast, 8, 4).traffic(), 1);
}

TEST(BenchFloor, PlainLoopDoesTheSameWork) {
  for (const int ranks : {2, 3})
    for (const std::string& name : measured_collectives()) {
      SCOPED_TRACE(name + " of " + std::to_string(ranks));
      const Exercise exercise = Exercise::of(collective_named(name), 20'000, ranks);
      std::vector<Memory> memory(static_cast<size_t>(ranks), Memory(exercise));
      std::vector<Buffers> all;
      for (Memory& one : memory) all.push_back(one.buffers());
      with_ranks(ranks, [&](Group group) {
        Meeting meeting(group);
        const int rank = group.rank();
        exercise.fill(rank, all[static_cast<size_t>(rank)]);
        make_plain_loop(meeting, rank, all)->run(exercise);
        EXPECT_TRUE(exercise.is_right(rank, all[static_cast<size_t>(rank)])) << "rank " << rank;
      });
    }
}

TEST(BenchFloor, RawStreamMovesAsManyBytesForEveryCollective) {
  for (const std::string& name : measured_collectives()) {
    const auto rows = measure_threads(3, {.engine = "tcp",
                                          .collective = collective_named(name),
                                          .bytes = {40'000},
                                          .rounds = 1,
                                          .pin = false});
    ASSERT_EQ(rows.size(), 1u);
    for (const AllReduceRow& row : rows) {
      EXPECT_EQ(row.floor, "raw stream");
      EXPECT_TRUE(row.correct) << name;
    }
  }
}

TEST(BenchMembers, AFailureEndsAllOfThem) {
  const AllReduceBench bench{.engine = "tcp", .pin = false};
  EXPECT_THROW(on_threads(3, bench,
                          [](BenchMember member) {
                            if (member.measured.rank() == 1) throw DataError("rank 1 has enough");
                            member.side.barrier(kLimit);
                          }),
               DataError);
}

}  // namespace
}  // namespace tutti::cli
