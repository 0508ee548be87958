// Workers die at every message of a schedule, and cuts are made before, behind and at the end: each
// that the view service takes for complete is one moment of the job, and in step the training that
// was not disturbed, so far, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/unit/ps/simulation.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing::deaths {
namespace {

constexpr int64_t kSteps = 3;
constexpr int kServers = 2;
constexpr int kSchedules = 1'200;  // of each case, at least, where all seeds are tried
constexpr int64_t kElements = 16;  // more than workers times steps

struct Case {
  const char* name;
  const char* staleness;
  OnLostWorker on_lost_worker = OnLostWorker::end;
  int workers = 2;
  const char* hosts = "";
  bool tables = false;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

Spec make_spec(const Case& c) {
  const bool in_step = Staleness::parse(c.staleness, "staleness").synchronous();
  Spec spec{.rule = in_step ? optim::adam() : optim::sgd({.learning_rate = 1})};
  spec.variables = {{"a", {2, kElements}, DType::float32}, {"b", {kElements}, DType::float32}};
  PlacementOptions options{.num_servers = kServers, .how = PlacementOptions::How::round_robin};
  options.partitioner = Partitioner::fixed(2);
  options.rules = {{"b", 0}};
  spec.pieces = pieces_of(spec.variables, place(spec.variables, options), 64);
  spec.num_partitions = kServers;
  spec.staleness = Staleness::parse(c.staleness, "staleness");
  spec.num_workers = c.workers;
  const std::string hosts = c.hosts;
  spec.shape = hosts.empty() ? ReductionShape::flat(c.workers) : ReductionShape::parse(hosts);
  spec.host_sums = !hosts.empty();
  spec.on_lost_worker = c.on_lost_worker;
  if (c.tables) spec.tables = {{.name = "user", .width = 2, .initializer = UniformRows{-1, 1}}};
  check(spec);
  return spec;
}

std::vector<float> floats_of(const Bytes& bytes) {
  std::vector<float> values(bytes.span.size() / sizeof(float));
  std::memcpy(values.data(), bytes.span.data(), bytes.span.size());
  return values;
}

std::vector<std::byte> bytes_in(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Of all parameters: it is right only when these are of one step, and so is all that follows.
std::vector<float> mixed_gradient(int worker, int piece, int64_t step,
                                  const std::vector<Bytes>& parameters) {
  float mixed = 0;
  for (const Bytes& other : parameters) mixed += first_of(other);
  std::vector<float> values = floats_of(parameters[piece]);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = (mixed + values[i]) *
                std::sin(static_cast<float>(static_cast<int64_t>(i) + worker * 7 + step));
  return values;
}

// Says by the element of its worker and step how often a push was applied.
std::vector<float> marking_gradient(size_t elements, int worker, int64_t step) {
  std::vector<float> values(elements);
  values.at(worker * kSteps + step) = -1;
  return values;
}

Program program_of(const Spec& spec) {
  const bool in_step = spec.staleness.synchronous();
  return {.gradients =
              [&spec, in_step](int worker, int piece, int64_t step,
                               const std::vector<Bytes>& parameters) {
                return bytes_in(
                    in_step ? mixed_gradient(worker, piece, step, parameters)
                            : marking_gradient(spec.pieces[piece].num_bytes / 4, worker, step));
              },
          .initial =
              [&spec, in_step](int piece) {
                return bytes_of(spec.pieces[piece],
                                in_step ? std::vector<float>{1, 2, 3} : std::vector<float>{});
              },
          .keys =
              [](int worker, int, int64_t step) {
                return std::vector<uint64_t>{7, static_cast<uint64_t>(100 + worker * kSteps + step),
                                             static_cast<uint64_t>(200 + worker)};
              },
          .row_gradients =
              [](int worker, int, int64_t step, const std::vector<std::byte>& rows) {
                std::vector<float> values(rows.size() / sizeof(float));
                std::memcpy(values.data(), rows.data(), rows.size());
                for (float& value : values)
                  value = value * 0.5F + static_cast<float>(worker + step);
                return bytes_in(values);
              }};
}

template <class T>
std::string raw_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// By ascending key, whatever order the rows came in.
std::string rows_of(const SparseShard& tables, int table) {
  const SparseRows rows = SparseReader(tables.snapshot(table)).next(1'000'000);
  std::string all = raw_of(rows.keys) + raw_of(rows.rows) + raw_of(rows.ages);
  for (const auto& state : rows.states) all += raw_of(state);
  for (const optim::StepScalars& s : rows.scalars)
    all += fmt::format(" {} {} {} {} {}", s.learning_rate, s.beta1_power, s.beta2_power,
                       s.decay_power, s.count);
  return fmt::format("version {}: ", tables.version(table)) + all;
}

// All that goes on from a cut: parameters, states, scalars and versions, rows and their ages.
std::vector<std::string> memory_of(const PartitionState& state) {
  std::vector<std::string> all;
  for (const auto& [number, piece] : state.pieces()) {
    all.push_back(piece.facts());
    for (const Bytes& block : piece.memory()) all.push_back(raw(block));
  }
  for (int table = 0; table < state.tables().num_tables(); ++table)
    all.push_back(rows_of(state.tables(), table));
  return all;
}

using Memory = std::vector<std::vector<std::string>>;  // by partition

// By steps: what servers have after so many that nobody disturbed.
std::vector<Memory> undisturbed(const Spec& spec, const Program& program) {
  std::vector<Memory> all;
  for (int64_t steps = 0; steps <= kSteps; ++steps) {
    Simulation calm(spec, kServers, steps, program, 1);
    EXPECT_TRUE(calm.run()) << calm.words();
    calm.settle();
    Memory& memory = all.emplace_back();
    for (int p = 0; p < kServers; ++p) memory.push_back(memory_of(calm.partition(p)));
  }
  return all;
}

using Parts = std::map<int, std::shared_ptr<PartitionCut>>;

// What workers had as they began each step; all that were there had the same.
using Seen = std::map<int64_t, std::vector<std::string>>;

std::vector<std::string> parameters_of(const Spec& spec, const Parts& parts) {
  std::vector<std::string> all;
  for (int piece = 0; piece < std::ssize(spec.pieces); ++piece)
    all.push_back(raw(parts.at(spec.pieces[piece].partition)->state().piece(piece).parameters()));
  return all;
}

// Of everything as many updates; with what those were made of.
void expect_one_step(const Spec& spec, const Parts& parts, const std::vector<Memory>& expected,
                     const Seen& seen) {
  const int64_t step = parts.at(0)->step();
  ASSERT_GE(step, 0);
  ASSERT_LE(step, kSteps);
  for (const auto& [partition, cut] : parts) {
    EXPECT_EQ(cut->step(), step) << "partition " << partition;
    for (const auto& [number, piece] : cut->state().pieces())
      EXPECT_EQ(piece.version(), step) << "piece " << number;
    for (const int64_t version : cut->state().tables().versions()) EXPECT_EQ(version, step);
    EXPECT_EQ(cut->state().counts().updates, step) << "partition " << partition;
    if (spec.on_lost_worker == OnLostWorker::go_on) continue;
    EXPECT_EQ(memory_of(cut->state()), expected[step][partition]) << "partition " << partition;
  }
  const auto there = seen.find(step);
  if (there == seen.end()) return;
  EXPECT_EQ(parameters_of(spec, parts), there->second) << "step " << step;
}

float applied(const Spec& spec, const Parts& parts, int piece, int worker, int64_t step) {
  const PartitionState& state = parts.at(spec.pieces[piece].partition)->state();
  return floats_of(state.piece(piece).parameters()).at(worker * kSteps + step);
}

// Of each worker that has marked it anywhere exactly the steps before its mark, everywhere; and of
// one that has not, which had gone, nothing twice.
void expect_steps_before_marks(const Spec& spec, const Parts& parts, const Simulation& simulation) {
  std::map<int, int64_t> marks;
  for (const auto& [partition, cut] : parts) {
    const CutPart part = cut->part(partition);
    marks.insert(part.marks->begin(), part.marks->end());
  }
  for (int worker = 0; worker < spec.num_workers; ++worker)
    for (int piece = 0; piece < std::ssize(spec.pieces); ++piece)
      for (int64_t step = 0; step < kSteps; ++step) {
        const float times = applied(spec, parts, piece, worker, step);
        EXPECT_TRUE(times == 0 || times == 1) << times;
        EXPECT_TRUE(marks.contains(worker) || !simulation.alive(worker)) << worker;
        if (!marks.contains(worker)) continue;
        EXPECT_EQ(times, step < marks.at(worker) ? 1 : 0)
            << "worker " << worker << " step " << step << " of " << marks.at(worker) << " piece "
            << piece;
      }
}

class DeathsAtEveryMessage : public ::testing::TestWithParam<Case> {
 protected:
  void train(uint64_t seed, const Deaths& deaths) {
    const bool in_step = spec_.staleness.synchronous();
    Seen seen;
    Program program = program_;
    if (in_step)
      program.begins = [&](int worker, int64_t step, const std::vector<Bytes>& parameters) {
        std::vector<std::string> all;
        for (const Bytes& piece : parameters) all.push_back(raw(piece));
        const auto [first, fresh] = seen.try_emplace(step, all);
        EXPECT_EQ(first->second, all) << "worker " << worker << " in step " << step;
      };
    Simulation simulation(spec_, kServers, kSteps, program, seed);
    simulation.run({.returns = deaths.others_after < 0 && waits() ? 1 : 0}, deaths);
    const auto look = [&] {
      for (const auto& [number, parts] : simulation.cuts()) {
        SCOPED_TRACE(fmt::format("cut {}", number));
        ASSERT_EQ(parts.size(), size_t{kServers});
        if (in_step)
          expect_one_step(spec_, parts, expected_, seen);
        else
          expect_steps_before_marks(spec_, parts, simulation);
      }
    };
    if (!in_step) look();
    const size_t during = simulation.cuts().size();
    const size_t dead = simulation.num_dead();
    const bool ends = in_step && spec_.on_lost_worker == OnLostWorker::end;
    EXPECT_TRUE(ends || deaths.others_after >= 0 || simulation.done()) << simulation.words();
    simulation.end();
    look();
    written_ += during;
    written_at_end_ += simulation.cuts().size() - during;
    written_after_deaths_ += dead > 0 ? simulation.cuts().size() - during : 0;
    given_up_ += simulation.given_up().size();
    moves_ = simulation.moves();
  }

  bool waits() const { return spec_.on_lost_worker == OnLostWorker::wait; }

  const Spec spec_ = make_spec(GetParam());
  const Program program_ = program_of(spec_);
  const std::vector<Memory> expected_ =
      spec_.staleness.synchronous() ? undisturbed(spec_, program_) : std::vector<Memory>();
  int64_t moves_ = 0;  // of the last schedule
  size_t written_ = 0;
  size_t written_at_end_ = 0;
  size_t written_after_deaths_ = 0;
  size_t given_up_ = 0;
};

TEST_P(DeathsAtEveryMessage, LeaveCutsOfOneMomentOrNone) {
  const int wanted = seeds(kSchedules);
  int schedules = 0;
  for (uint64_t seed = 0; schedules < wanted; ++seed) {
    const Deaths calm{.cut_every = 12};
    train(seed, calm);
    const int64_t moves = moves_;
    for (int64_t after = 0; after < moves; ++after) {
      Deaths deaths = calm;
      deaths.after = after;
      deaths.worker = static_cast<int>(schedules % spec_.num_workers);
      deaths.delivers = after % 3 != 0;
      const bool ends = spec_.staleness.synchronous() && spec_.on_lost_worker == OnLostWorker::end;
      deaths.others_after = ends || after % 4 == 0 ? (after * 7 + schedules) % 60 : -1;
      SCOPED_TRACE(fmt::format("seed {}, worker {} dies after {} moves, the others {} later", seed,
                               deaths.worker, after, deaths.others_after));
      train(seed, deaths);
      ++schedules;
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(written_, wanted / 2);
  EXPECT_GT(written_after_deaths_, wanted / 20);
  EXPECT_GT(given_up_, wanted / 20);
}

const Case kCases[] = {
    {.name = "end", .staleness = "0"},
    {.name = "end_three", .staleness = "0", .workers = 3},
    {.name = "end_tables", .staleness = "0", .tables = true},
    {.name = "end_hosts", .staleness = "0", .workers = 3, .hosts = "2+1"},
    {.name = "continue", .staleness = "0", .on_lost_worker = OnLostWorker::go_on, .workers = 3},
    {.name = "continue_tables",
     .staleness = "0",
     .on_lost_worker = OnLostWorker::go_on,
     .tables = true},
    {.name = "wait", .staleness = "0", .on_lost_worker = OnLostWorker::wait},
    {.name = "stale", .staleness = "1"},
    {.name = "free", .staleness = "inf", .workers = 3}};
static_assert(std::size(kCases) * kSchedules >= 10'000);

INSTANTIATE_TEST_SUITE_P(PsSimulation, DeathsAtEveryMessage, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tutti::ps::testing::deaths
