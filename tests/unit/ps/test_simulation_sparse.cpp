// Schedules of workers with embedding tables: every push of rows counts once, synchronous equals
// the sum in the order of the workers, backups have their primary's bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/unit/ps/simulation.h"
#include "tests/unit/ps/small_job.h"
#include "tests/unit/ps/sparse_oracle.h"

namespace tutti::ps::testing::rows {
namespace {

constexpr int kWorkers = 3;
constexpr int64_t kSteps = 5;
constexpr uint64_t kShared = 7;  // a key of all pushes

Spec make_spec(Staleness staleness, const optim::Rule& rule, int servers,
               SparseTableSpec::Initializer initializer) {
  Spec spec = small_spec(kWorkers, staleness, rule);
  spec.num_partitions = servers;
  spec.tables = {{.name = "user", .width = 3, .initializer = initializer},
                 {.name = "item",
                  .width = 5,
                  .dtype = DType::float64,
                  .initializer = initializer,
                  .seed = 4,
                  .idle_pushes = 3}};
  return spec;
}

uint64_t own_key(int worker, int64_t step) { return 1000 + worker * kSteps + step; }

template <class T>
std::vector<std::byte> raw_bytes(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

Bytes zeros(const Spec& spec, int piece) {
  return Bytes::copy_of(std::vector<std::byte>(spec.pieces[piece].num_bytes));
}

// Gradient 1 for a row of each push, for one that all have, and twice one half for a third: with
// learning rate 1 rows say how often they were updated.
Program marks(const Spec& spec) {
  return {.gradients =
              [&](int, int piece, int64_t, const std::vector<Bytes>&) {
                return std::vector<std::byte>(spec.pieces[piece].num_bytes);
              },
          .initial = [&](int piece) { return zeros(spec, piece); },
          .begins = {},
          .keys =
              [](int worker, int, int64_t step) {
                const uint64_t own = own_key(worker, step);
                return std::vector<uint64_t>{own, kShared, own + 5000, own + 5000};
              },
          .row_gradients =
              [&](int, int table, int64_t, const std::vector<std::byte>&) {
                const int64_t width = spec.tables[table].width;
                std::vector<double> values(4 * width, 1);
                std::fill(values.begin() + 2 * width, values.end(), 0.5);
                if (spec.tables[table].dtype == DType::float64) return raw_bytes(values);
                return raw_bytes(std::vector<float>(values.begin(), values.end()));
              }};
}

std::vector<double> row_of(const Simulation& simulation, const Spec& spec, int table,
                           uint64_t key) {
  const int partition = server_of_key(key, spec.num_partitions);
  const Bytes row = simulation.partition(partition).tables().rows(table, {&key, 1});
  std::vector<double> values;
  for (int64_t i = 0; i < spec.tables[table].width; ++i)
    values.push_back(spec.tables[table].dtype == DType::float32
                         ? reinterpret_cast<const float*>(row.span.data())[i]
                         : reinterpret_cast<const double*>(row.span.data())[i]);
  return values;
}

std::vector<Faults> faults() {
  return {{},
          {.breaks = 8, .questions = 10},
          {.server_crashes = 1, .breaks = 3},
          {.server_crashes = 2, .breaks = 2, .newcomers = 3, .questions = 5},
          {.breaks = 2, .zombies = 1, .newcomers = 1},
          {.worker_crashes = 1, .breaks = 2},
          {.server_crashes = 2, .worker_crashes = 1, .breaks = 4, .cuts = 1, .newcomers = 3}};
}

void expect_each_row_once(const Simulation& simulation, const Spec& spec, int table) {
  double pushes = 0;
  for (int worker = 0; worker < kWorkers; ++worker)
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto own = row_of(simulation, spec, table, own_key(worker, step));
      const auto twice = row_of(simulation, spec, table, own_key(worker, step) + 5000);
      pushes -= own[0];
      EXPECT_TRUE(own[0] == -1 || (own[0] == 0 && !simulation.alive(worker)))
          << own[0] << " worker " << worker << " step " << step;
      EXPECT_EQ(std::set<double>(own.begin(), own.end()).size(), 1U);
      EXPECT_TRUE(own[0] == twice[0] || !simulation.alive(worker)) << "places of a key add up";
    }
  // The partitions of a lost worker's rows may have got different numbers of its pushes.
  const double shared = -row_of(simulation, spec, table, kShared)[0];
  const bool all_alive = simulation.alive(0) && simulation.alive(1) && simulation.alive(2);
  EXPECT_TRUE(shared == pushes || !all_alive) << shared << " of " << pushes;
}

TEST(PsSparseSimulation, EveryPushCountsOnceWhateverBreaks) {
  for (const Staleness staleness : {Staleness(0), Staleness(2), Staleness::unbounded()})
    for (const Faults& fault : faults())
      for (int seed = 0; seed < seeds(25); ++seed) {
        SCOPED_TRACE(fmt::format("staleness {}, {} crashes, {} breaks, seed {}", staleness.text(),
                                 fault.server_crashes, fault.breaks, seed));
        Spec spec = make_spec(staleness, optim::sgd({.learning_rate = 1}), 3, ZeroRows{});
        spec.tables[1].idle_pushes = 0;
        const Program program = marks(spec);
        Simulation simulation(spec, 3, kSteps, program, seed);
        ASSERT_TRUE(simulation.run(fault)) << simulation.words();
        for (int table = 0; table < 2; ++table) expect_each_row_once(simulation, spec, table);
        if (HasFailure()) return;
      }
}

std::vector<uint64_t> wild_keys(int worker, int table, int64_t step) {
  RandomStream random(random_key(worker * 100 + table * 10 + step, RandomPurpose::test));
  std::vector<uint64_t> keys;
  for (uint64_t i = random.below(9); i > 0; --i) keys.push_back(random.below(12) << 50);
  return keys;
}

// Gradients that depend on the rows, so that an old or new version shows.
template <class T>
std::vector<T> wild(int worker, int64_t step, const T* rows, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] =
        static_cast<T>(std::sin(static_cast<double>(i + worker * 7919 + step))) * (T{1} + rows[i]);
  return values;
}

Program wild_program(const Spec& spec) {
  Program program = marks(spec);
  program.keys = wild_keys;
  program.row_gradients = [&](int worker, int table, int64_t step,
                              const std::vector<std::byte>& rows) {
    if (spec.tables[table].dtype == DType::float32)
      return raw_bytes(wild(worker, step, reinterpret_cast<const float*>(rows.data()),
                            rows.size() / sizeof(float)));
    return raw_bytes(wild(worker, step, reinterpret_cast<const double*>(rows.data()),
                          rows.size() / sizeof(double)));
  };
  return program;
}

// The slow and obvious way: each worker adds up its own gradients of a key, then the workers' are
// added in their order, and one table takes the sums.
template <class T>
sparse::Oracle<T> oracle(const Spec& spec, int table) {
  sparse::Oracle<T> all{.spec = spec.tables[table], .rule = spec.rule, .rows = {}};
  const auto width = static_cast<size_t>(spec.tables[table].width);
  for (int64_t step = 0; step < kSteps; ++step) {
    std::map<uint64_t, std::vector<T>> sums;
    for (int worker = 0; worker < kWorkers; ++worker) {
      const auto keys = wild_keys(worker, table, step);
      const std::vector<T> rows = all.pull(keys);
      const std::vector<T> gradients = wild(worker, step, rows.data(), rows.size());
      std::map<uint64_t, std::vector<T>> own;
      const auto add = [&](auto& to, uint64_t key, const T* from) {
        const auto [sum, fresh] = to.try_emplace(key, from, from + width);
        for (size_t i = 0; i < width && !fresh; ++i) sum->second[i] += from[i];
      };
      for (size_t i = 0; i < keys.size(); ++i) add(own, keys[i], &gradients[i * width]);
      for (const auto& [key, sum] : own) add(sums, key, sum.data());
    }
    std::vector<uint64_t> keys;
    std::vector<T> gradients;
    for (const auto& [key, sum] : sums) {
      keys.push_back(key);
      gradients.insert(gradients.end(), sum.begin(), sum.end());
    }
    all.push(keys, gradients, spec.rule.learning_rate());
  }
  return all;
}

template <class T>
void expect_rows(const Simulation& simulation, const Spec& spec, int table) {
  const auto expected = oracle<T>(spec, table);
  for (uint64_t i = 0; i < 12; ++i) {
    const uint64_t key = i << 50;
    const std::vector<T> row = expected.pull({key});
    EXPECT_EQ(row_of(simulation, spec, table, key), std::vector<double>(row.begin(), row.end()))
        << "table " << table << " key " << key;
  }
}

TEST(PsSparseSimulation, SynchronousIsTheSumOfAllBitForBit) {
  for (const optim::Rule& rule : {optim::sgd({.momentum = 0.9}), optim::adam(), optim::ftrl()})
    for (const Faults& fault : faults()) {
      if (fault.worker_crashes > 0) continue;
      const Spec spec = make_spec(Staleness(0), rule, 2, UniformRows{-1, 1});
      const Program program = wild_program(spec);
      for (int seed = 0; seed < seeds(12); ++seed) {
        SCOPED_TRACE(
            fmt::format("{}, {} crashes, seed {}", rule.name(), fault.server_crashes, seed));
        Simulation simulation(spec, 2, kSteps, program, seed);
        ASSERT_TRUE(simulation.run(fault)) << simulation.words();
        expect_rows<float>(simulation, spec, 0);
        expect_rows<double>(simulation, spec, 1);
        if (HasFailure()) return;
      }
    }
}

TEST(PsSparseSimulation, ABackupHasThePrimarysBits) {
  int64_t compared = 0;
  std::vector<Spec> specs = {make_spec(Staleness(0), optim::adam(), 2, NormalRows{}),
                             make_spec(Staleness(0), optim::sgd(), 2, NormalRows{}),
                             make_spec(Staleness(2), optim::ftrl(), 2, UniformRows{}),
                             make_spec(Staleness::unbounded(), optim::adagrad(), 2, UniformRows{})};
  specs[1].drop_slowest = 1;
  specs[3].scale_by_staleness = true;
  specs[3].tables[0].most_rows = 4;
  for (const Spec& spec : specs) {
    const Program program = wild_program(spec);
    for (const Faults& fault : faults())
      for (int seed = 0; seed < seeds(15); ++seed) {
        SCOPED_TRACE(fmt::format("staleness {} seed {}", spec.staleness.text(), seed));
        Simulation simulation(spec, 2, kSteps, program, seed);
        ASSERT_TRUE(simulation.run(fault)) << simulation.words();
        simulation.settle();
        compared += expect_equal_backups(simulation, spec.num_partitions);
      }
  }
  EXPECT_GT(compared, seeds(400));
}

}  // namespace
}  // namespace tutti::ps::testing::rows
