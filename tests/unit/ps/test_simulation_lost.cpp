// Schedules in which workers in step are lost and come again: everybody comes to the end, and those
// that wait for a lost one get the bits of a training in which nobody was lost.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/unit/ps/simulation.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing::lost {
namespace {

constexpr int kWorkers = 3;
constexpr int64_t kSteps = 6;
constexpr int64_t kMeetsEvery = 2;
constexpr int kServers = 2;

Spec make_spec(OnLostWorker on_lost_worker, const optim::Rule& rule) {
  Spec spec = two_pieces(kWorkers, Staleness(0), rule);
  PlacementOptions options{.num_servers = kServers, .how = PlacementOptions::How::round_robin};
  options.partitioner = Partitioner::fixed(2);
  spec.pieces = pieces_of(spec.variables, place(spec.variables, options), 2048);
  spec.num_partitions = kServers;
  spec.on_lost_worker = on_lost_worker;
  return spec;
}

// Of the parameters of all pieces: it is right only when these are of one step.
std::vector<float> gradients(const Spec& spec, int worker, int piece, int64_t step,
                             const std::vector<Bytes>& parameters) {
  float mixed = 0;
  for (const Bytes& other : parameters) mixed += first_of(other);
  std::vector<float> values(spec.pieces[piece].num_bytes / sizeof(float));
  std::memcpy(values.data(), parameters[piece].span.data(), parameters[piece].span.size());
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = (mixed + values[i]) * std::sin(static_cast<float>(i + worker * 7 + step));
  return values;
}

Bytes start_of(const Spec& spec, int piece) { return bytes_of(spec.pieces[piece], {1, 2, 3}); }

std::vector<std::byte> bytes_in(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// All workers in turn, one sum, one update of each piece.
std::vector<Bytes> oracle(const Spec& spec) {
  std::vector<DensePiece> pieces;
  std::vector<Bytes> parameters;
  for (int number = 0; number < std::ssize(spec.pieces); ++number) {
    pieces.emplace_back(spec.pieces[number], spec.rule, Compute::plain());
    pieces.back().assign(start_of(spec, number));
    parameters.push_back(Bytes::copy_of(pieces.back().parameters().span));
  }
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int number = 0; number < std::ssize(pieces); ++number) {
      std::vector<std::vector<float>> each;
      std::vector<Part> parts;
      for (int worker = 0; worker < kWorkers; ++worker) {
        each.push_back(gradients(spec, worker, number, step, parameters));
        parts.push_back({worker, std::vector<uint8_t>(spec.pieces[number].segments.size(), 1)});
      }
      std::vector<const Part*> pointers;
      std::vector<const std::byte*> data;
      for (int worker = 0; worker < kWorkers; ++worker) {
        pointers.push_back(&parts[worker]);
        data.push_back(std::as_bytes(std::span(each[worker])).data());
      }
      pieces[number].update({.parts = pointers,
                             .data = data,
                             .shape = &spec.shape,
                             .learning_rate = spec.rule.learning_rate()});
    }
    for (int number = 0; number < std::ssize(pieces); ++number)
      parameters[number] = Bytes::copy_of(pieces[number].parameters().span);
  }
  return parameters;
}

// Who was at each meeting, as each worker that was there saw it.
using Seen = std::map<int64_t, std::map<int, std::vector<int>>>;

Program program_of(const Spec& spec, Seen& seen) {
  return {.gradients =
              [&spec](int worker, int piece, int64_t step, const std::vector<Bytes>& parameters) {
                return bytes_in(gradients(spec, worker, piece, step, parameters));
              },
          .initial = [&spec](int piece) { return start_of(spec, piece); },
          .meets_every = kMeetsEvery,
          .met =
              [&seen](int worker, int64_t step, const Brought& values) {
                std::vector<int>& who = seen[step][worker];
                who.clear();
                for (const auto& [other, value] : values) {
                  EXPECT_EQ(std::to_integer<int>(value.span[0]), other);
                  who.push_back(other);
                }
              }};
}

void expect_one_view_of_each_meeting(const Seen& seen) {
  for (const auto& [step, workers] : seen)
    for (const auto& [worker, who] : workers)
      EXPECT_EQ(who, workers.begin()->second) << "after " << step << " steps, worker " << worker;
}

std::vector<Faults> faults() {
  return {{.worker_crashes = 1, .returns = 1},
          {.worker_crashes = 4, .returns = 4, .breaks = 2, .questions = 10},
          {.server_crashes = 1,
           .worker_crashes = 3,
           .returns = 3,
           .breaks = 4,
           .newcomers = 2,
           .questions = 20}};
}

TEST(PsSimulation, WhoWaitsForALostWorkerGetsTheBitsOfOneThatWasNeverAway) {
  int64_t again = 0;
  for (const optim::Rule& rule :
       {optim::sgd({.learning_rate = 0.1, .momentum = 0.9}), optim::adam()}) {
    const Spec spec = make_spec(OnLostWorker::wait, rule);
    const std::vector<Bytes> expected = oracle(spec);
    for (const Faults& fault : faults())
      for (int seed = 0; seed < seeds(150); ++seed) {
        SCOPED_TRACE(
            fmt::format("{}, {} crashes, seed {}", rule.name(), fault.worker_crashes, seed));
        Seen seen;
        const Program program = program_of(spec, seen);
        Simulation simulation(spec, kServers, kSteps, program, seed);
        ASSERT_TRUE(simulation.run(fault)) << simulation.words();
        for (int number = 0; number < std::ssize(spec.pieces); ++number) {
          const PartitionState& partition = simulation.partition(spec.pieces[number].partition);
          EXPECT_EQ(raw(partition.piece(number).parameters()), raw(expected[number])) << number;
          again += partition.counts().dropped;
        }
        expect_one_view_of_each_meeting(seen);
        simulation.settle();
        expect_equal_backups(simulation, kServers);
        if (HasFailure()) return;
      }
  }
  EXPECT_GT(again, seeds(100)) << "workers that came again did steps whose rounds were over";
}

TEST(PsSimulation, TheOthersGoOnWithoutALostWorker) {
  for (const int returns : {0, 2})
    for (int seed = 0; seed < seeds(200); ++seed) {
      SCOPED_TRACE(fmt::format("{} return, seed {}", returns, seed));
      const Spec spec = make_spec(OnLostWorker::go_on, optim::adam());
      Seen seen;
      const Program program = program_of(spec, seen);
      Simulation simulation(spec, kServers, kSteps, program, seed);
      ASSERT_TRUE(simulation.run({.server_crashes = 1,
                                  .worker_crashes = 2,
                                  .returns = returns,
                                  .breaks = 2,
                                  .newcomers = 1,
                                  .questions = 10}))
          << simulation.words();
      for (int number = 0; number < std::ssize(spec.pieces); ++number)
        EXPECT_EQ(simulation.partition(spec.pieces[number].partition).piece(number).version(),
                  kSteps);
      expect_one_view_of_each_meeting(seen);
      simulation.settle();
      expect_equal_backups(simulation, kServers);
      if (HasFailure()) return;
    }
}

// Gradient 1 of each worker and step at a place of its own: what the others add counts 3/2.
TEST(PsSimulation, WhatTheOthersAddIsScaledUpToAllWorkers) {
  const Spec spec = make_spec(OnLostWorker::go_on, optim::sgd({.learning_rate = 1}));
  Seen seen;
  Program program = program_of(spec, seen);
  program.gradients = [&](int worker, int piece, int64_t step, const std::vector<Bytes>&) {
    std::vector<float> values(spec.pieces[piece].num_bytes / sizeof(float), 0.0F);
    values.at(worker * kSteps + step) = 1;
    return bytes_in(values);
  };
  program.initial = [&](int piece) { return bytes_of(spec.pieces[piece], {}); };
  int64_t scaled = 0;
  for (int seed = 0; seed < seeds(60); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Simulation simulation(spec, kServers, kSteps, program, seed);
    ASSERT_TRUE(simulation.run({.worker_crashes = 1})) << simulation.words();
    for (int number = 0; number < std::ssize(spec.pieces); ++number) {
      const Bytes values =
          simulation.partition(spec.pieces[number].partition).piece(number).parameters();
      for (int64_t step = 0; step < kSteps; ++step) {
        std::vector<float> each(kWorkers);
        for (int worker = 0; worker < kWorkers; ++worker)
          std::memcpy(&each[worker], values.span.data() + sizeof(float) * (worker * kSteps + step),
                      sizeof(float));
        const auto counted = std::ranges::count_if(each, [](float value) { return value != 0; });
        ASSERT_TRUE(counted == kWorkers || counted == kWorkers - 1) << counted;
        const float expected = -static_cast<float>(kWorkers) / static_cast<float>(counted);
        for (const float value : each) EXPECT_TRUE(value == 0 || value == expected) << value;
        scaled += counted < kWorkers ? 1 : 0;
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(scaled, seeds(100));
}

}  // namespace
}  // namespace tutti::ps::testing::lost
