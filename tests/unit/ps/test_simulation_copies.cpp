// Schedules of what a plain sum does not show: a backup has its primary's bits, whatever the rules
// for stale and late gradients, and rounds that do not wait for all count what they left out.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/ps/simulation.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing::copies {
namespace {

constexpr int kWorkers = 3;
constexpr int64_t kSteps = 6;

Spec make_spec(Staleness staleness, const optim::Rule& rule) {
  Spec spec = two_pieces(kWorkers, staleness, rule);
  PlacementOptions options{.num_servers = 2, .how = PlacementOptions::How::round_robin};
  options.partitioner = Partitioner::fixed(2);
  spec.pieces = pieces_of(spec.variables, place(spec.variables, options), 2048);
  spec.num_partitions = 2;
  return spec;
}

// Gradients that depend on the parameters, so that an old or new version shows.
Program wild(const Spec& spec) {
  return {.gradients =
              [&spec](int worker, int piece, int64_t step, const std::vector<Bytes>& parameters) {
                std::vector<float> values(spec.pieces[piece].num_bytes / sizeof(float));
                std::memcpy(values.data(), parameters[piece].span.data(),
                            parameters[piece].span.size());
                for (size_t i = 0; i < values.size(); ++i)
                  values[i] = (1 + values[i]) * std::sin(static_cast<float>(i + worker * 7 + step));
                return std::vector<std::byte>(std::as_bytes(std::span(values)).begin(),
                                              std::as_bytes(std::span(values)).end());
              },
          .initial = [&spec](int piece) { return bytes_of(spec.pieces[piece], {1, 2, 3}); }};
}

std::vector<Faults> faults() {
  return {{},
          {.breaks = 6, .questions = 20},
          {.server_crashes = 1, .breaks = 3, .newcomers = 2, .questions = 20},
          {.server_crashes = 2, .worker_crashes = 2, .breaks = 2, .newcomers = 4, .questions = 5}};
}

std::vector<Spec> specs() {
  const Staleness free = Staleness::unbounded();
  std::vector<Spec> all{make_spec(Staleness(0), optim::adam()),
                        make_spec(Staleness(2), optim::ftrl()), make_spec(free, optim::adam()),
                        make_spec(free, optim::sgd({.momentum = 0.9})),
                        make_spec(Staleness(0), optim::sgd())};
  all[1].delay_compensation = 0.01;
  all[2].delay_compensation = 0.01;
  all[3].scale_by_staleness = true;
  all[4].drop_slowest = 1;
  return all;
}

TEST(PsSimulation, ABackupHasThePrimarysBits) {
  int64_t compared = 0;
  for (const Spec& spec : specs())
    for (const Faults& fault : faults())
      for (int seed = 0; seed < seeds(20); ++seed) {
        SCOPED_TRACE(
            fmt::format("{} staleness {} seed {}", spec.rule.name(), spec.staleness.text(), seed));
        Simulation simulation(spec, 2, kSteps, wild(spec), seed);
        ASSERT_TRUE(simulation.run(fault)) << simulation.words();
        simulation.settle();
        compared += expect_equal_backups(simulation, spec.num_partitions);
      }
  EXPECT_GT(compared, seeds(500));
}

// Whatever is not acknowledged as dropped is in the sum, and every round has all but the slowest.
TEST(PsSimulation, RoundsLeaveOutTheSlowestAndNobodyElse) {
  Spec spec = make_spec(Staleness(0), optim::sgd({.learning_rate = 1}));
  spec.drop_slowest = 1;
  const Program program{.gradients =
                            [&](int worker, int piece, int64_t step, const std::vector<Bytes>&) {
                              std::vector<float> values(worker * kSteps + step, 0.0F);
                              values.push_back(1);
                              const Bytes bytes = bytes_of(spec.pieces[piece], values);
                              return std::vector<std::byte>(bytes.span.begin(), bytes.span.end());
                            },
                        .initial = [&](int piece) { return bytes_of(spec.pieces[piece], {}); }};
  for (int seed = 0; seed < seeds(60); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Simulation simulation(spec, 2, kSteps, program, seed);
    ASSERT_TRUE(simulation.run({.server_crashes = 1, .breaks = 4, .newcomers = 1}))
        << simulation.words();
    int64_t left_out = 0;
    for (int number = 0; number < static_cast<int>(spec.pieces.size()); ++number) {
      const PartitionState& partition = simulation.partition(spec.pieces[number].partition);
      const Bytes values = partition.piece(number).parameters();
      for (int64_t step = 0; step < kSteps; ++step) {
        int counted = 0;
        for (int worker = 0; worker < kWorkers; ++worker) {
          float value = 0;
          std::memcpy(&value, values.span.data() + sizeof(float) * (worker * kSteps + step),
                      sizeof value);
          EXPECT_TRUE(value == 0 || value == -1.5F) << value;
          counted += value != 0 ? 1 : 0;
        }
        left_out += kWorkers - counted;
      }
    }
    int64_t dropped = 0;
    for (int partition = 0; partition < 2; ++partition)
      dropped += simulation.partition(partition).counts().dropped;
    EXPECT_EQ(left_out, dropped);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tutti::ps::testing::copies
