// Embedding tables of clients and servers of one process, over real connections.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "tutti/base/error.h"

#include "tests/unit/ps/job_of_threads.h"

namespace tutti::ps {
namespace {

constexpr int kWorkers = 2;
constexpr int64_t kSteps = 6;
constexpr int64_t kWidth = 64;
Deadline soon() { return Deadline(Millis{30'000}); }

Spec spec_for(Staleness staleness) {
  Spec spec{.rule = optim::sgd({.learning_rate = 1})};
  spec.tables = {{.name = "user", .width = kWidth, .initializer = ZeroRows{}},
                 {.name = "item", .width = 1, .dtype = DType::float64, .initializer = ZeroRows{}}};
  spec.num_partitions = 2;
  spec.num_workers = kWorkers;
  spec.shape = ReductionShape::flat(kWorkers);
  spec.staleness = staleness;
  return spec;
}

std::vector<uint64_t> keys_of(int worker) {
  std::vector<uint64_t> keys = {5, 5, 9};  // 5 comes twice
  for (uint64_t i = 0; i < 2'000; ++i) keys.push_back(1000 + i + 2'000 * worker);
  return keys;
}

double row(Client& client, int table, uint64_t key, int64_t step) {
  const Array rows = client.sparse_fetch(client.sparse_pull(table, {&key, 1}, step), soon());
  return table == 0 ? rows.as<float>().back() : rows.as<double>().back();
}

// Each worker takes 1 from the row of each of its keys, at every place, in every step.
void work(Client& client, int worker) {
  const auto keys = keys_of(worker);
  const std::vector<float> ones(keys.size() * kWidth, 1.0F);
  const std::vector<double> more(keys.size(), 1.0);
  for (int64_t step = 0; step < kSteps; ++step) {
    const AskedRows users = client.sparse_pull(0, keys, step);
    const AskedRows items = client.sparse_pull(1, keys, step);
    const Array rows = client.sparse_fetch(users, soon());
    EXPECT_EQ(rows.shape(), (std::vector<int64_t>{std::ssize(keys), kWidth}));
    const auto own = rows.as<float>().subspan(3 * kWidth);
    EXPECT_TRUE(std::ranges::all_of(own, [&](float v) { return v == -step; })) << own[0];
    EXPECT_EQ(client.sparse_fetch(items, soon()).as<double>()[4], -step);
    client.sparse_push(0, keys, {const_cast<float*>(ones.data()), std::ssize(ones)}, step, 1);
    client.sparse_push(
        1, keys, {const_cast<double*>(more.data()), std::ssize(more), DType::float64}, step, 1);
  }
}

void run(const Staleness& staleness, bool share_memory) {
  const Spec spec = spec_for(staleness);
  Job job(2, kWorkers, share_memory);
  std::atomic<int> through = 0;
  std::vector<std::thread> workers;
  for (int w = 0; w < kWorkers; ++w)
    workers.emplace_back([&, w] {
      try {
        Client client(job.options(w), job.credentials(), spec, [](int) { return Bytes{}; });
        work(client, w);
        client.wait_until_settled(soon());
        ++through;
        while (through < kWorkers) std::this_thread::yield();
        // Whatever the staleness, all of it is there in the end.
        for (int table = 0; table < 2; ++table) {
          EXPECT_EQ(row(client, table, 5, kSteps), -2 * kWorkers * kSteps);
          EXPECT_EQ(row(client, table, 9, kSteps), -kWorkers * kSteps);
          EXPECT_EQ(row(client, table, 1000, kSteps), -kSteps);
        }
        const PartitionCounts counts = client.server_counts(soon()).counts;
        EXPECT_GT(counts.sparse_rows, 1'000);
        EXPECT_GT(counts.sparse_bytes, counts.sparse_rows * 8);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "worker " << w << ": " << error.what();
        through = kWorkers;
      }
    });
  for (std::thread& worker : workers) worker.join();
}

TEST(PsSparseClient, RowsOfAllWorkersAddUpOverTwoServers) {
  for (const bool share_memory : {true, false}) {
    run(Staleness(0), share_memory);
    run(Staleness(1), share_memory);
    run(Staleness::unbounded(), share_memory);
  }
}

TEST(PsSparseClient, GradientsOfAnotherLengthAreRefused) {
  Job job(2, 1);
  Spec spec = spec_for(Staleness(0));
  spec.num_workers = 1;
  spec.shape = ReductionShape::flat(1);
  Client client(job.options(0), job.credentials(), spec, [](int) { return Bytes{}; });
  std::vector<float> gradient(kWidth + 1);
  const uint64_t key = 1;
  EXPECT_THROW(client.sparse_push(0, {&key, 1}, {gradient.data(), kWidth + 1}, 0, 1), UsageError);
  EXPECT_THROW(client.sparse_push(1, {&key, 1}, {gradient.data(), 1}, 0, 1), UsageError);
}

}  // namespace
}  // namespace tutti::ps
