// Thousands of schedules of the real states: exactly once, the bound of staleness, synchronous
// equals the sum of all, nothing acknowledged is lost, nobody waits for ever.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/unit/ps/simulation.h"

namespace tutti::ps::testing {
namespace {

constexpr int kWorkers = 3;
constexpr int64_t kSteps = 6;
constexpr int64_t kMarks = kWorkers * kSteps;

// Three variables, cut into four pieces on the servers. `hosts`: the workers of each push as one.
Spec make_spec(int num_servers, Staleness staleness, const optim::Rule& rule,
               const std::string& hosts = "") {
  Spec spec{.rule = rule};
  spec.variables = {{"a", {2, kMarks}, DType::float32},
                    {"b", {kMarks}, DType::float32},
                    {"c", {4, 512}, DType::float64}};
  PlacementOptions options{.num_servers = num_servers, .how = PlacementOptions::How::round_robin};
  options.partitioner = Partitioner::fixed(2);
  options.rules = {{"b", 0}};
  spec.pieces = pieces_of(spec.variables, place(spec.variables, options), 4096);
  spec.num_partitions = num_servers;
  spec.staleness = staleness;
  spec.num_workers = kWorkers;
  spec.shape = hosts.empty() ? ReductionShape::flat(kWorkers) : ReductionShape::parse(hosts);
  spec.host_sums = !hosts.empty();
  return spec;
}

std::span<float> floats(std::vector<std::byte>& bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

template <class T>
T element(const Bytes& bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.span.data() + i * sizeof(T), sizeof value);
  return value;
}

Bytes zeros(const Spec& spec, int piece) {
  return Bytes::copy_of(std::vector<std::byte>(spec.pieces[piece].num_bytes));
}

// Marks each push: gradient 1 at the element of its worker and step, so that with learning rate 1
// the parameter says how often it was applied.
Program marks(const Spec& spec) {
  return {.gradients =
              [&spec](int worker, int piece, int64_t step, const std::vector<Bytes>&) {
                std::vector<std::byte> bytes(spec.pieces[piece].num_bytes);
                const int64_t mark = worker * kSteps + step;
                if (spec.pieces[piece].dtype == DType::float32) {
                  floats(bytes)[mark] = 1;
                } else {
                  const double one = 1;
                  std::memcpy(bytes.data() + mark * sizeof one, &one, sizeof one);
                }
                return bytes;
              },
          .initial = [&spec](int piece) { return zeros(spec, piece); }};
}

double applied(const Spec& spec, int piece, const Bytes& values, int worker, int64_t step) {
  const int64_t mark = worker * kSteps + step;
  return spec.pieces[piece].dtype == DType::float32 ? -element<float>(values, mark)
                                                    : -element<double>(values, mark);
}

// What every schedule has to keep, whatever happened.
void expect_exactly_once(const Simulation& simulation, const Spec& spec) {
  for (int piece = 0; piece < static_cast<int>(spec.pieces.size()); ++piece) {
    const PartitionState& partition = simulation.partition(spec.pieces[piece].partition);
    const Bytes values = partition.piece(piece).parameters();
    for (int worker = 0; worker < kWorkers; ++worker)
      for (int64_t step = 0; step < kSteps; ++step) {
        const double times = applied(spec, piece, values, worker, step);
        if (simulation.alive(worker)) {
          EXPECT_EQ(times, 1) << "piece " << piece << " worker " << worker << " step " << step;
        } else {
          EXPECT_TRUE(times == 0 || times == 1) << times;
        }
      }
  }
}

struct Case {
  const char* name;
  int servers;
  Staleness staleness;
  Faults faults;
  const char* hosts = "";
};

std::vector<Case> cases() {
  const Staleness none(0);
  const Staleness two(2);
  const Staleness free = Staleness::unbounded();
  std::vector<Case> all;
  for (const auto& [name, staleness] :
       {std::pair{"sync", none}, std::pair{"bounded", two}, std::pair{"async", free}}) {
    (void)name;
    all.push_back({"quiet", 1, staleness, {}});
    all.push_back({"breaks", 2, staleness, {.breaks = 8}});
    all.push_back({"crash", 2, staleness, {.server_crashes = 1, .breaks = 2}});
    all.push_back({"zombie", 2, staleness, {.breaks = 2, .zombies = 1}});
    all.push_back({"cut", 3, staleness, {.breaks = 2, .cuts = 1}});
    all.push_back({"replaced", 2, staleness, {.server_crashes = 2, .breaks = 2, .newcomers = 3}});
    all.push_back({"worker", 2, staleness, {.worker_crashes = 2, .breaks = 1, .questions = 5}});
    all.push_back({"everything",
                   3,
                   staleness,
                   {.server_crashes = 2,
                    .worker_crashes = 1,
                    .breaks = 6,
                    .zombies = 1,
                    .cuts = 1,
                    .newcomers = 3,
                    .questions = 10}});
  }
  const Faults many{.server_crashes = 2, .breaks = 6, .newcomers = 3, .questions = 10};
  all.push_back({"one host", 1, none, {.breaks = 8, .questions = 5}, "3"});
  all.push_back({"one host, crashes", 2, none, many, "3"});
  all.push_back({"two hosts", 2, none, many, "2+1"});
  return all;
}

TEST(PsSimulation, EveryPushCountsOnceWhateverBreaks) {
  for (const Case& c : cases()) {
    const Spec spec = make_spec(c.servers, c.staleness, optim::sgd({.learning_rate = 1}), c.hosts);
    for (int seed = 0; seed < seeds(60); ++seed) {
      SCOPED_TRACE(fmt::format("{}, staleness {}, seed {}", c.name, c.staleness.text(), seed));
      Simulation simulation(spec, c.servers, kSteps, marks(spec), seed);
      ASSERT_TRUE(simulation.run(c.faults)) << simulation.words();
      expect_exactly_once(simulation, spec);
      if (HasFailure()) return;
    }
  }
}

// A worker that was told that its pushes are through sees them in all that it reads later, and no
// worker is further ahead than it may be.
TEST(PsSimulation, WorkersSeeTheirOwnPushesAndKeepTheBound) {
  for (const Case& c : cases()) {
    const Spec spec = make_spec(c.servers, c.staleness, optim::sgd({.learning_rate = 1}), c.hosts);
    for (int seed = 100; seed < 100 + seeds(30); ++seed) {
      SCOPED_TRACE(fmt::format("{}, staleness {}, seed {}", c.name, c.staleness.text(), seed));
      Simulation* running = nullptr;
      Program program = marks(spec);
      program.begins = [&](int worker, int64_t step, const std::vector<Bytes>& parameters) {
        for (int piece = 0; piece < static_cast<int>(spec.pieces.size()); ++piece)
          for (int64_t before = 0; before < step; ++before)
            EXPECT_EQ(applied(spec, piece, parameters[piece], worker, before), 1);
        for (int other = 0; other < kWorkers; ++other) {
          if (!running->alive(other)) continue;
          EXPECT_TRUE(spec.staleness.allows(step - running->step_of(other)));
        }
      };
      Simulation simulation(spec, c.servers, kSteps, program, seed);
      running = &simulation;
      ASSERT_TRUE(simulation.run(c.faults)) << simulation.words();
      if (HasFailure()) return;
    }
  }
}

// Gradients that depend on the parameters, so that a wrong version or order shows.
std::vector<std::byte> wild_gradients(const Spec& spec, int worker, int piece, int64_t step,
                                      const Bytes& parameters) {
  std::vector<std::byte> bytes(spec.pieces[piece].num_bytes);
  const int64_t width = size_of(spec.pieces[piece].dtype);
  for (int64_t i = 0; i < static_cast<int64_t>(bytes.size()) / width; ++i) {
    const double noise = std::sin(static_cast<double>(worker * 7919 + piece * 104729 + i)) +
                         static_cast<double>(step) / 3;
    if (width == 4)
      floats(bytes)[i] = static_cast<float>(noise) * (1 + element<float>(parameters, i));
    else
      reinterpret_cast<double*>(bytes.data())[i] = noise * (1 + element<double>(parameters, i));
  }
  return bytes;
}

Bytes start_of(const Spec& spec, int piece) {
  std::vector<std::byte> bytes(spec.pieces[piece].num_bytes);
  return Bytes::copy_of(wild_gradients(spec, 17, piece, 1, Bytes::copy_of(bytes)));
}

// The slow and obvious way: all workers in turn, sums in the one order, one update.
std::vector<Bytes> oracle(const Spec& spec) {
  std::vector<Bytes> result;
  for (int number = 0; number < static_cast<int>(spec.pieces.size()); ++number) {
    DensePiece piece(spec.pieces[number], spec.rule, Compute::plain());
    piece.assign(start_of(spec, number));
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<std::vector<std::byte>> gradients;
      for (int worker = 0; worker < spec.num_workers; ++worker)
        gradients.push_back(wild_gradients(spec, worker, number, step, piece.parameters()));
      std::vector<Part> parts;
      std::vector<const Part*> pointers;
      std::vector<const std::byte*> data;
      for (int worker = 0; worker < spec.num_workers; ++worker) {
        parts.push_back({worker, std::vector<uint8_t>(spec.pieces[number].segments.size(), 1)});
        data.push_back(gradients[worker].data());
      }
      for (const Part& part : parts) pointers.push_back(&part);
      piece.update({.parts = pointers,
                    .data = data,
                    .shape = &spec.shape,
                    .learning_rate = spec.rule.learning_rate()});
    }
    result.push_back(Bytes::copy_of(piece.parameters().span));
  }
  return result;
}

TEST(PsSimulation, SynchronousIsTheSumOfAllBitForBit) {
  for (const optim::Rule& rule :
       {optim::sgd({.momentum = 0.9}), optim::adam(), optim::adagrad(), optim::ftrl()})
    for (const Case& c : cases()) {
      if (!c.staleness.synchronous() || c.faults.worker_crashes > 0) continue;
      const Spec spec = make_spec(c.servers, c.staleness, rule, c.hosts);
      const std::vector<Bytes> expected = oracle(spec);
      const Program program{
          .gradients =
              [&](int worker, int piece, int64_t step, const std::vector<Bytes>& parameters) {
                return wild_gradients(spec, worker, piece, step, parameters[piece]);
              },
          .initial = [&](int piece) { return start_of(spec, piece); }};
      for (int seed = 0; seed < seeds(15); ++seed) {
        SCOPED_TRACE(fmt::format("{}, {}, seed {}", rule.name(), c.name, seed));
        Simulation simulation(spec, c.servers, kSteps, program, seed);
        ASSERT_TRUE(simulation.run(c.faults)) << simulation.words();
        for (int piece = 0; piece < static_cast<int>(spec.pieces.size()); ++piece) {
          const Bytes got =
              simulation.partition(spec.pieces[piece].partition).piece(piece).parameters();
          EXPECT_EQ(std::memcmp(got.span.data(), expected[piece].span.data(), got.span.size()), 0)
              << "piece " << piece;
        }
        if (HasFailure()) return;
      }
    }
}

}  // namespace
}  // namespace tutti::ps::testing
