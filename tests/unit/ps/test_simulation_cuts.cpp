// Cuts under thousands of schedules: what a complete cut has is exactly what its workers had pushed
// before their marks, in all partitions, bit for bit, and making it changes nothing else.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/ps/simulation.h"

namespace tutti::ps::testing::cuts {
namespace {

constexpr int kWorkers = 3;
constexpr int64_t kSteps = 12;
constexpr int64_t kElements = kWorkers * kSteps;

// Each push adds 1 to the element of its worker and step: the parameters say what was applied.
Spec make_spec(Staleness staleness, const optim::Rule& rule, bool host_sums = false) {
  Spec spec{.rule = rule};
  spec.variables = {{"a", {4, kElements}, DType::float32}, {"b", {kElements}, DType::float32}};
  PlacementOptions options{.num_servers = 2, .how = PlacementOptions::How::round_robin};
  options.partitioner = Partitioner::fixed(2);
  options.rules = {{"b", 0}};
  spec.pieces = pieces_of(spec.variables, place(spec.variables, options), 4096);
  spec.num_partitions = 2;
  spec.staleness = staleness;
  spec.num_workers = kWorkers;
  spec.shape = host_sums ? ReductionShape::parse("2+1") : ReductionShape::flat(kWorkers);
  spec.host_sums = host_sums;
  return spec;
}

std::vector<std::byte> gradient(const Spec& spec, int worker, int piece, int64_t step) {
  std::vector<std::byte> bytes(spec.pieces[piece].num_bytes);
  const float one = -1;
  std::memcpy(bytes.data() + (worker * kSteps + step) * sizeof one, &one, sizeof one);
  return bytes;
}

Program counting(const Spec& spec) {
  return {.gradients =
              [&spec](int worker, int piece, int64_t step, const std::vector<Bytes>&) {
                return gradient(spec, worker, piece, step);
              },
          .initial =
              [&spec](int piece) {
                return Bytes::copy_of(std::vector<std::byte>(spec.pieces[piece].num_bytes));
              }};
}

float applied(const PartitionState& state, int piece, int worker, int64_t step) {
  float value = 0;
  const Bytes values = state.piece(piece).parameters();
  std::memcpy(&value, values.span.data() + (worker * kSteps + step) * sizeof value, sizeof value);
  return value;
}

std::vector<Faults> faults() {
  return {{.snapshots = 3},
          {.breaks = 8, .questions = 5, .snapshots = 3},
          {.server_crashes = 1, .breaks = 2, .newcomers = 2, .snapshots = 5},
          {.zombies = 1, .newcomers = 2, .snapshots = 5},
          {.server_crashes = 1, .worker_crashes = 1, .newcomers = 2, .snapshots = 5}};
}

// Of each worker the first steps, as many in all pieces of all partitions: those before its mark.
// What a worker that was killed had on its way is lost, in any partition.
void expect_marked_steps(const Simulation& simulation, const Spec& spec, int64_t number,
                         const std::map<int, std::shared_ptr<PartitionCut>>& partitions) {
  int64_t least = kSteps;  // synchronous: steps of the worker that marked first
  for (const auto& [worker, step] : simulation.marks().at(number)) least = std::min(least, step);
  for (int worker = 0; worker < kWorkers; ++worker) {
    const auto mark = simulation.marks().at(number).find(worker);
    const bool marked = mark != simulation.marks().at(number).end();
    if (!marked && simulation.alive(worker) && !spec.staleness.synchronous())
      ADD_FAILURE() << "cut " << number << " is complete without worker " << worker;
    for (int64_t step = 0; step < kSteps; ++step)
      for (int piece = 0; piece < std::ssize(spec.pieces); ++piece) {
        const auto& cut = partitions.at(spec.pieces[piece].partition);
        const float times = applied(cut->state(), piece, worker, step);
        if (spec.staleness.synchronous()) {
          EXPECT_EQ(times, step < least ? 1 : 0) << worker << " " << step << " cut " << number;
        } else if (marked && simulation.alive(worker)) {
          EXPECT_EQ(times, step < mark->second ? 1 : 0)
              << "worker " << worker << " step " << step << " of " << mark->second << " piece "
              << piece << " cut " << number;
        } else {
          EXPECT_TRUE(times == 0 || times == 1) << times;
        }
      }
  }
}

class Cuts : public ::testing::TestWithParam<const char*> {};

TEST_P(Cuts, HaveExactlyTheStepsBeforeTheMarks) {
  const bool hosts = std::string(GetParam()) == "hosts";
  const Spec spec = make_spec(Staleness::parse(hosts ? "0" : GetParam(), "staleness"),
                              optim::sgd({.learning_rate = 1}), hosts);
  const Carriers carriers(spec);
  int complete = 0;
  for (const Faults& fault : faults()) {
    for (int seed = 0; seed < seeds(60); ++seed) {
      Simulation simulation(spec, 2, kSteps, counting(spec), seed);
      // Whom a lost worker of its host leaves waiting is ended by the group of the host.
      const bool ended = simulation.run(fault);
      ASSERT_TRUE(ended || (hosts && fault.worker_crashes > 0))
          << "seed " << seed << simulation.words();
      for (const auto& [number, partitions] : simulation.cuts()) {
        if (partitions.size() < 2) continue;  // a server was lost meanwhile
        ++complete;
        SCOPED_TRACE(fmt::format("seed {}, {} breaks, {} server crashes, {} zombies", seed,
                                 fault.breaks, fault.server_crashes, fault.zombies));
        expect_marked_steps(simulation, spec, number, partitions);
      }
      // And the job itself has counted every push once. What a worker handed in last is lost with
      // the one of its host that was to carry it.
      for (int piece = 0; piece < std::ssize(spec.pieces); ++piece)
        for (int worker = 0; worker < kWorkers; ++worker) {
          if (!ended || !simulation.alive(carriers.carrier(carriers.host_of(worker), piece)) ||
              !simulation.alive(worker))
            continue;
          for (int64_t step = 0; step < kSteps; ++step)
            ASSERT_EQ(
                applied(simulation.partition(spec.pieces[piece].partition), piece, worker, step), 1)
                << "seed " << seed << ", piece " << piece << ", worker " << worker << ", step "
                << step;
        }
    }
  }
  EXPECT_GT(complete, seeds(200));
}

INSTANTIATE_TEST_SUITE_P(PsSimulation, Cuts, ::testing::Values("0", "2", "inf", "hosts"),
                         [](const auto& info) { return std::string("staleness_") + info.param; });

// Adam's bits depend on every step before: a cut of synchronous training is the training so far.
TEST(PsSimulation, ACutIsAShorterTraining) {
  const Spec spec = make_spec(Staleness(0), optim::adam());
  std::map<int64_t, std::vector<std::string>> of_steps;
  for (int64_t steps = 1; steps <= kSteps; ++steps) {
    Simulation shorter(spec, 2, steps, counting(spec), 1);
    ASSERT_TRUE(shorter.run());
    for (int piece = 0; piece < std::ssize(spec.pieces); ++piece)
      for (const Bytes& block :
           shorter.partition(spec.pieces[piece].partition).piece(piece).memory())
        of_steps[steps].emplace_back(reinterpret_cast<const char*>(block.span.data()),
                                     block.span.size());
  }
  int compared = 0;
  for (int seed = 0; seed < seeds(40); ++seed) {
    Simulation simulation(spec, 2, kSteps, counting(spec), seed);
    ASSERT_TRUE(simulation.run({.breaks = 4, .snapshots = 3}));
    for (const auto& [number, partitions] : simulation.cuts()) {
      const int64_t steps = partitions.begin()->second->step();
      if (partitions.size() < 2 || steps == 0) continue;
      ++compared;
      std::vector<std::string> got;
      for (int piece = 0; piece < std::ssize(spec.pieces); ++piece)
        for (const Bytes& block :
             partitions.at(spec.pieces[piece].partition)->state().piece(piece).memory())
          got.emplace_back(reinterpret_cast<const char*>(block.span.data()), block.span.size());
      EXPECT_EQ(got, of_steps.at(steps)) << "cut " << number << " at step " << steps;
    }
  }
  EXPECT_GT(compared, seeds(20));
}

}  // namespace
}  // namespace tutti::ps::testing::cuts
