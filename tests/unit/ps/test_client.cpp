// Clients, servers and a view service of one process, over real connections.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tutti/net/connect.h"
#include "tutti/ps/client/client.h"
#include "tutti/ps/server/server.h"
#include "tutti/ps/server/view_service.h"

#include "tests/unit/ps/job_of_threads.h"

namespace tutti::ps {
namespace {

constexpr int64_t kElements = 200'000;

Spec spec_for(int servers, int workers, Staleness staleness) {
  Spec spec{.rule = optim::sgd({.learning_rate = 1})};
  spec.variables = {{"small", {10}, DType::float32}, {"large", {kElements}, DType::float32}};
  PlacementOptions options{.num_servers = servers, .partitioner = Partitioner::fixed(servers)};
  options.rules = {{"small", 0}};
  spec.pieces = pieces_of(spec.variables, place(spec.variables, options), 256 << 10);
  spec.num_partitions = servers;
  spec.staleness = staleness;
  spec.num_workers = workers;
  spec.shape = ReductionShape::flat(workers);
  return spec;
}

// Each worker takes 1 from every element in every step; returns what it has in the end.
std::vector<std::vector<float>> train(Job& job, const Spec& spec, int64_t steps, int training = 0) {
  std::vector<std::vector<float>> results(spec.num_workers);
  std::vector<std::thread> workers;
  for (int w = 0; w < spec.num_workers; ++w)
    workers.emplace_back([&, w] {
      try {
        ClientOptions options = job.options(w);
        options.training = training;
        Client client(options, job.credentials(), spec, [&](int piece) {
          return Bytes::copy_of(std::vector<std::byte>(spec.pieces[piece].num_bytes));
        });
        const int pieces = static_cast<int>(spec.pieces.size());
        for (int piece = 0; piece < pieces; ++piece) client.pull(piece, 0);
        for (int64_t step = 0; step <= steps; ++step)
          for (int piece = 0; piece < pieces; ++piece) {
            client.fetch(piece, step, Deadline(Millis{20'000}), [&](const Bytes& values) {
              for (const Segment& segment : spec.pieces[piece].segments) {
                if (step < steps) continue;
                const auto* from =
                    reinterpret_cast<const float*>(values.span.data() + segment.offset_bytes);
                results[w].insert(results[w].end(), from, from + segment.count());
              }
            });
            if (step == steps) continue;
            const int64_t bytes = spec.pieces[piece].num_bytes;
            auto memory = client.allocate(bytes);
            std::fill_n(reinterpret_cast<float*>(memory.get()), bytes / 4, 1.0F);
            client.push(
                {.piece = piece,
                 .step = step,
                 .learning_rate = 1,
                 .parts = {{w, std::vector<uint8_t>(spec.pieces[piece].segments.size(), 1)}},
                 .payload = {{memory.get(), static_cast<size_t>(bytes)}, memory}});
          }
        client.wait_until_settled(Deadline(Millis{20'000}));
        EXPECT_EQ(client.counts().settled, steps * pieces);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "worker " << w << ": " << error.what();
      }
    });
  for (std::thread& worker : workers) worker.join();
  return results;
}

TEST(PsClient, SynchronousWorkersAddUpOverOneServerAndSeveral) {
  for (const int servers : {1, 3}) {
    const Spec spec = spec_for(servers, 2, Staleness(0));
    Job job(servers, 2);
    for (const auto& values : train(job, spec, 5)) {
      ASSERT_EQ(values.size(), 10 + kElements);
      for (const float value : values) ASSERT_EQ(value, -10);
    }
  }
}

void expect_all(const std::vector<std::vector<float>>& results, float expected) {
  for (const auto& values : results) {
    ASSERT_EQ(values.size(), 10 + kElements);
    for (const float value : values) ASSERT_EQ(value, expected);
  }
}

TEST(PsClient, OneTrainingMayFollowAnother) {
  const Spec spec = spec_for(2, 2, Staleness(0));
  Job job(2, 2);
  for (int training = 0; training < 4; ++training)
    expect_all(train(job, spec, 1 + training, training), -2.0F * (1 + training));
}

TEST(PsClient, TrainingsAtOnceDoNotTouchEachOther) {
  const Spec spec = spec_for(2, 2, Staleness(0));
  Job job(2, 2);
  expect_all(train(job, spec, 1), -2);
  std::thread other([&] { expect_all(train(job, spec, 6, 1), -12); });
  for (const Deadline soon(Millis{10'000}); !job.has_begun(1) && !soon.passed();)
    std::this_thread::sleep_for(Millis{1});
  expect_all(train(job, spec, 4, 2), -8);
  other.join();
}

TEST(PsClient, MemoryThatIsNotSharedIsNotNeeded) {
  const Spec spec = spec_for(2, 2, Staleness(0));
  Job job(2, 2, false);
  for (const auto& values : train(job, spec, 3))
    for (const float value : values) ASSERT_EQ(value, -6);
}

// One of the threads that wait drives the connections for all of them, and hands that on.
TEST(PsClient, SeveralThreadsWaitAtOnce) {
  const Spec spec = spec_for(2, 1, Staleness(0));
  Job job(2, 1);
  Client client(job.options(0), job.credentials(), spec, [&](int piece) {
    return Bytes::copy_of(std::vector<std::byte>(spec.pieces[piece].num_bytes));
  });
  const int pieces = static_cast<int>(spec.pieces.size());
  for (int64_t step = 0; step < 20; ++step) {
    std::vector<std::thread> threads;
    for (int piece = 0; piece < pieces; ++piece)
      threads.emplace_back([&, piece] {
        try {
          if (step == 0) client.pull(piece, 0);
          const int64_t bytes = spec.pieces[piece].num_bytes;
          client.fetch(piece, step, Deadline(Millis{20'000}), [&](const Bytes& values) {
            EXPECT_EQ(*reinterpret_cast<const float*>(values.span.data()), -step);
          });
          auto memory = client.allocate(bytes);
          std::fill_n(reinterpret_cast<float*>(memory.get()), bytes / 4, 1.0F);
          client.push({.piece = piece,
                       .step = step,
                       .learning_rate = 1,
                       .parts = {{0, std::vector<uint8_t>(spec.pieces[piece].segments.size(), 1)}},
                       .payload = {{memory.get(), static_cast<size_t>(bytes)}, memory}});
        } catch (const std::exception& error) {
          ADD_FAILURE() << "piece " << piece << ": " << error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  client.wait_until_settled(Deadline(Millis{20'000}));
  EXPECT_EQ(client.counts().settled, 20 * pieces);
}

TEST(PsClient, AsynchronousWorkersCountEveryPush) {
  const Spec spec = spec_for(2, 3, Staleness::unbounded());
  Job job(2, 3);
  float least = 0;
  for (const auto& values : train(job, spec, 4))
    for (const float value : values) least = std::min(least, value);
  // Whoever came last saw what all had done.
  EXPECT_EQ(least, -12);
}

}  // namespace
}  // namespace tutti::ps
