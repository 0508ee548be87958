// Predictions: their parts against sums by hand, draws, and a queue followed by the tick.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/comm/group/host_view.h"
#include "tutti/plan/collective_time.h"
#include "tutti/plan/predict.h"
#include "tutti/ps/spec/placement.h"

#include "tests/support/message_of.h"
#include "tests/unit/plan/some_machine.h"

namespace tutti::plan {
namespace {

using test::message_of;
using test::some_machine;
using ::testing::HasSubstr;

TEST(MeanOfGreatest, OfUniformIsKnown) {
  const std::vector<double> uniform{0, 1}, pieces{0, 0.25, 0.5, 0.75, 1};
  for (double n : {1.0, 2.0, 7.0, 1000.0}) {
    EXPECT_NEAR(mean_of_greatest(uniform, n), n / (n + 1), 1e-12);
    EXPECT_NEAR(mean_of_greatest(pieces, n), n / (n + 1), 1e-12);
  }
  const std::vector<double> constant{3, 3, 3};
  EXPECT_NEAR(mean_of_greatest(constant, 5), 3, 1e-12);
}

TEST(MeanOfGreatest, IsThatOfDraws) {
  const std::vector<double> quantiles{0.8, 0.9, 1, 1.3, 4};
  std::mt19937_64 random(7);
  const auto draw = [&] {
    const double u = std::uniform_real_distribution<>(0, 4)(random);
    const auto i = std::min<size_t>(3, static_cast<size_t>(u));
    return quantiles[i] + (u - static_cast<double>(i)) * (quantiles[i + 1] - quantiles[i]);
  };
  for (int n : {1, 3, 16}) {
    double sum = 0;
    constexpr int kDraws = 200'000;
    for (int k = 0; k < kDraws; ++k) {
      double greatest = 0;
      for (int i = 0; i < n; ++i) greatest = std::max(greatest, draw());
      sum += greatest;
    }
    EXPECT_NEAR(mean_of_greatest(quantiles, n), sum / kDraws, 0.01) << n;
  }
}

// A wire that takes one bucket at a time, of which some may be on their way, looked at every tick.
TEST(EndOfQueue, IsThatOfTicks) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const size_t count = 1 + random() % 6;
    std::vector<double> ready(count), seconds(count);
    for (size_t i = 0; i < count; ++i) {
      ready[i] = static_cast<double>(random() % 20) + (i > 0 ? ready[i - 1] : 0);
      seconds[i] = static_cast<double>(1 + random() % 15);
    }
    const int latency = static_cast<int>(random() % 10), at_a_time = 1 + round % 3;
    size_t next = 0;
    int left = 0;
    std::vector<int> done;
    for (int tick = 0; done.size() < count; ++tick) {
      const auto under_way = std::ranges::count_if(done, [&](int when) { return when > tick; });
      if (left == 0 && next < count && ready[next] <= tick && under_way < at_a_time)
        left = static_cast<int>(seconds[next++]);
      if (left > 0 && --left == 0) done.push_back(tick + 1 + latency);
    }
    EXPECT_DOUBLE_EQ(end_of_queue(ready, seconds, latency, at_a_time), done.back());
  }
}

TEST(Predict, OfOneReplicaIsComputeAndUpdate) {
  const Prediction one = predict(some_machine(), {.batch = 8});
  EXPECT_DOUBLE_EQ(one.compute, 3e-3);
  EXPECT_DOUBLE_EQ(one.step, 3.5e-3);
  EXPECT_DOUBLE_EQ(one.exchange, 0);
  EXPECT_DOUBLE_EQ(one.efficiency, 1);
  EXPECT_DOUBLE_EQ(one.samples_per_second, 8 / 3.5e-3);
  EXPECT_EQ(one.bound_by, "compute");
  EXPECT_EQ(one.balance, 1);
  EXPECT_LT(one.low, one.step);
  EXPECT_GT(one.high, one.step);
}

TEST(Predict, OfTwoHostsSendsWhatTheScheduleSends) {
  Machine machine = some_machine();
  machine.payload = 1;
  machine.tcp.latency = 0;
  const Link link{.bytes_per_second = 1e8, .latency = 1e-4};
  const Prediction two = predict(machine, {.hosts = 2, .batch = 8, .link = link});
  // 4 pieces, pairwise by chunks of 2^16 elements: half goes each way, twice, in three rounds,
  // whose latency the next piece hides; a small one, one trip each.
  const double wire = 4e6 / 1e8, words = engine_seconds(2, 64, link);
  EXPECT_NEAR(two.exchange, wire + 3 * 1e-4 + 1e-4, 2e-4);
  // The first of 4 pieces goes after a quarter of backward, and the link is busy from then on.
  const BatchTime time = machine.compute_of(8);
  const double piece = engine_seconds(2, 1e6, {.bytes_per_second = 1e8, .latency = 0});
  const double pieces = 3 * piece + engine_seconds(2, 1e6, link);
  EXPECT_NEAR(two.exchange, pieces + words, 1e-12);
  EXPECT_NEAR(two.exposed, pieces - time.backward * 3 / 4 + words, 1e-12);
  EXPECT_LT(two.exposed, two.exchange);
  EXPECT_NEAR(two.update, 0.5e-3 * 9 / 7, 1e-9);  // one replica, and the sums that crossed
  EXPECT_NEAR(two.step, two.compute + two.exposed + two.update, 1e-12);
  EXPECT_DOUBLE_EQ(two.rule, two.exchange);
  EXPECT_EQ(two.bound_by, "exchange");
  // The balance is where compute covers it.
  const BatchTime at = machine.compute_of(static_cast<double>(two.balance));
  EXPECT_GE(at.forward + at.backward, two.exchange);
  const BatchTime below = machine.compute_of(static_cast<double>(two.balance - 1));
  EXPECT_LT(below.forward + below.backward, two.exchange);
}

TEST(Predict, OfOnePieceNothingIsHidden) {
  Machine machine = some_machine();
  machine.bytes = piece_bytes(2);
  const Job job{.hosts = 2, .batch = 80, .link = {.bytes_per_second = 1e8, .latency = 1e-4}};
  const Prediction two = predict(machine, job);
  EXPECT_DOUBLE_EQ(two.exposed, two.exchange);
  machine.bytes = 2 * piece_bytes(2);
  const Prediction hidden = predict(machine, job);
  EXPECT_LT(hidden.exposed, 0.6 * hidden.exchange);
  Job of_two = job;  // a host, with half of it each
  of_two.replicas_per_host = 2;
  const Prediction four = predict(machine, of_two);
  EXPECT_DOUBLE_EQ(four.exposed, four.exchange);
}

// Small ones cost a latency each, of large ones the last is exposed.
TEST(Predict, PiecesHaveABestSizeBetweenTooSmallAndTooLarge) {
  const Machine machine = some_machine();
  Job job{.hosts = 2, .batch = 80, .link = {.bytes_per_second = 1e9, .latency = 1e-4}};
  const double as_it_is = predict(machine, job).exposed;
  job.piece_bytes = piece_bytes(2);
  EXPECT_DOUBLE_EQ(predict(machine, job).exposed, as_it_is);
  std::vector<double> exposed;
  for (int64_t bytes : {4'000, 400'000, 3'999'999, 4'000'000}) {
    job.piece_bytes = bytes;
    exposed.push_back(predict(machine, job).exposed);
  }
  EXPECT_GT(exposed[0], exposed[1]);
  EXPECT_LT(exposed[1], exposed[2]);
  // Of one piece nothing is hidden.
  EXPECT_DOUBLE_EQ(exposed[3], predict(machine, job).exchange);
}

TEST(Predict, ServersTakePiecesOfTheSizeThatIsAsked) {
  const Machine machine = some_machine();
  Job job{.hosts = 2, .batch = 80, .link = {1e8, 1e-4}, .exchange = Exchange::parameter_server};
  const double as_it_is = predict(machine, job).step;
  job.piece_bytes = ps::kPieceBytesOverHosts;
  EXPECT_DOUBLE_EQ(predict(machine, job).step, as_it_is);
  job.piece_bytes = 1 << 30;
  EXPECT_GT(predict(machine, job).step, as_it_is);
}

// Its sums are the same; what differs is the update, of all parameters on each.
TEST(Predict, ReductionAllReduceUpdatesOnEachReplica) {
  const Machine machine = some_machine();
  const Job fused{.hosts = 2, .replicas_per_host = 2, .batch = 80, .link = {1e9, 1e-5}};
  Job each = fused;
  each.updates_each = true;
  EXPECT_GT(predict(machine, each).update, predict(machine, fused).update);
  each.overlap = true;
  EXPECT_THAT(message_of<UsageError>([&] { predict(machine, each); }),
              HasSubstr("reduction all_reduce is of strategies' sums"));
}

TEST(Predict, OverlapHidesUpToBackward) {
  Machine machine = some_machine();
  Job job{.hosts = 4, .batch = 80, .link = {1e9, 1e-5}, .bucket_bytes = 1'000'000};
  const Prediction after = predict(machine, job);
  job.overlap = true;
  const Prediction beside = predict(machine, job);
  EXPECT_LT(beside.exposed, after.exchange);
  EXPECT_GE(beside.exposed, after.exchange / 4 * 0.9);  // the last of 4 buckets at least
  EXPECT_GE(beside.step, std::max(beside.compute, beside.exchange));
}

// Small ones spend their time on latency, one of all begins when backward is over.
TEST(Predict, OverlapHasABestBucketBetweenTooSmallAndTooLarge) {
  const Machine machine = some_machine();
  Job job{.hosts = 4, .batch = 80, .link = {1e9, 1e-4}};
  const Link flow{1e9 * machine.payload, 1.1e-4};
  const double after = engine_seconds(4, 4e6, flow);
  job.overlap = true;
  std::vector<double> exposed;
  for (int64_t bytes : {4'000, 40'000, 250'000, 1'000'000, 4'000'000, 100'000'000}) {
    job.bucket_bytes = bytes;
    exposed.push_back(predict(machine, job).exposed);
  }
  EXPECT_GT(exposed[0], 2 * after);
  EXPECT_LT(exposed[2], 0.5 * after);
  const auto best = std::ranges::min_element(exposed) - exposed.begin();
  EXPECT_TRUE(best == 1 || best == 2 || best == 3) << best;
  EXPECT_LT(exposed[static_cast<size_t>(best)], std::min(exposed[0], exposed[4]));
  // All in one: nothing is hidden. What is said beside gradients goes along.
  EXPECT_DOUBLE_EQ(exposed[4], exposed[5]);
  EXPECT_NEAR(exposed[4], after, 2 * engine_seconds(4, 64, flow) + 1e-9);
}

TEST(EngineOf, IsWhatTheLibraryTakes) {
  using enum EngineKind;
  const struct {
    Job job;
    EngineKind engine;
  } cases[] = {
      {{.hosts = 1}, shm},
      {{.hosts = 1, .replicas_per_host = 2, .engine = tcp}, shm},
      {{.hosts = 2}, tcp},
      {{.hosts = 2, .engine = hier}, tcp},
      {{.hosts = 2, .replicas_per_host = 2}, hier},
      {{.hosts = 2, .replicas_per_host = 2, .engine = hier}, hier},
      {{.hosts = 2, .replicas_per_host = 2, .engine = tcp}, tcp},
      {{.hosts = 2, .overlap = true}, nccl},
      {{.hosts = 2, .exchange = Exchange::parameter_server}, fitting},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(engine_of(one.job), one.engine) << name_of(one.engine);
    EXPECT_EQ(predict(some_machine(), one.job).job.engine, one.engine);
  }
  const auto refusal = [](const Job& job) {
    return message_of<UsageError>([&] { predict(some_machine(), job); });
  };
  EXPECT_THAT(refusal({.hosts = 3, .engine = shm}),
              HasSubstr("engine shm: it is for the ranks of one host, not of 3; use hier, tcp"));
  EXPECT_THAT(refusal({.engine = nccl}), HasSubstr("engine nccl"));
  EXPECT_THAT(refusal({.engine = hier, .overlap = true}), HasSubstr("engine hier: nccl overlaps"));
  EXPECT_THAT(refusal({.exchange = Exchange::parameter_server, .engine = tcp}),
              HasSubstr("engine tcp: workers of servers"));
}

// Bytes that leave a host, counted by hand: L (n - L) / n S raw pieces, as many sums, of n ranks, L
// a host (pairwise); or 2 (H - 1) / H S where partners are neighbours first (halving).
TEST(Predict, OneGroupOfAllSendsWhatItsScheduleSends) {
  Machine machine = some_machine();
  machine.payload = 1;
  machine.tcp = {0, 1e12};
  const double wire = 4e6 / 1e8;
  const struct {
    int hosts, here;
    double flat, hier;  // times all bytes
  } cases[] = {{2, 2, 2, 1}, {3, 2, 2 * 2 * 4. / 6, 4. / 3}, {4, 2, 1.5, 1.5}, {2, 4, 1, 1}};
  for (const auto& one : cases) {
    Job job{.hosts = one.hosts, .replicas_per_host = one.here, .batch = 8, .link = {1e8, 1e-6}};
    EXPECT_NEAR(predict(machine, job).exchange, one.hier * wire, 0.02 * wire) << one.hosts;
    job.engine = EngineKind::tcp;
    const Prediction flat = predict(machine, job);
    EXPECT_NEAR(flat.exchange, one.flat * wire, 0.06 * wire) << one.hosts << " x " << one.here;
    // Each replica updates all, from a sum that it has written and read; 4 cores, memory for 2.
    EXPECT_NEAR(flat.update, 0.5e-3 * 9 / 7 * one.here / 2, 1e-9);
  }
  Job job{.hosts = 4, .batch = 8, .link = {1e8, 1e-6}};
  const double alone = predict(machine, job).step;
  for (EngineKind engine : {EngineKind::tcp, EngineKind::hier}) {
    job.engine = engine;
    EXPECT_DOUBLE_EQ(predict(machine, job).step, alone) << "one replica a host";
  }
}

TEST(Predict, ReplicasOfAHostShareTheUpdate) {
  // Two of them read one gradient more than one does; two cores move twice as much as one here.
  EXPECT_NEAR(predict(some_machine(), {.replicas_per_host = 2, .batch = 8}).update,
              0.5e-3 * 8 / 7 / 2 + 2e-6, 1e-12);
}

TEST(Predict, JitterCostsMoreTheMoreReplicas) {
  Machine machine = some_machine();
  machine.jitter = {0.9, 1, 1.5};
  double last = 0;
  for (int replicas : {1, 2, 8, 64}) {
    const Prediction one = predict(machine, {.replicas_per_host = replicas, .batch = 8});
    EXPECT_GT(one.slowest, last);
    EXPECT_NEAR(one.slowest, 3e-3 * mean_of_greatest(machine.jitter, replicas), 1e-12);
    last = one.slowest;
  }
}

TEST(Predict, ServersAreBoundByTheBusiestLink) {
  Machine machine = some_machine();
  machine.payload = 1;
  machine.update = 0;
  machine.tcp = {0, 1e12};
  Job job{.hosts = 8,
          .batch = 8,
          .link = {1e9, 0},
          .exchange = Exchange::parameter_server,
          .servers = 2};
  const double wire = 4e6 / 1e9;
  EXPECT_NEAR(predict(machine, job).exchange, 2 * 4 * wire, 1e-12);
  job.servers = 16;
  EXPECT_NEAR(predict(machine, job).exchange, 2 * wire, 1e-12);
  // A parameter that one server has whole keeps that one busy.
  machine.largest_parameter = 3'000'000;
  EXPECT_NEAR(predict(machine, job).exchange, 2 * 8 * 0.75 * wire, 1e-12);
  machine.largest_parameter = 40'000;
  // Nobody waits: what one takes alone, or what the server's port takes for all.
  job.servers = 1;
  job.staleness = kAnyStaleness;
  for (int64_t batch : {8, 80, 800}) {
    job.batch = batch;
    const Prediction one = predict(machine, job);
    const BatchTime time = machine.compute_of(static_cast<double>(batch));
    const double alone = served_step({.forward = time.forward,
                                      .backward = time.backward,
                                      .pieces = 4,
                                      .stations = {wire, 0, wire}});
    EXPECT_LT(alone, one.compute + 1.6 * wire);
    EXPECT_NEAR(one.step, std::max(8 * wire, alone), 1e-12);
    job.hosts = 1;
    EXPECT_NEAR(predict(machine, job).step, alone, 1e-12);
    job.hosts = 8;
  }
}

TEST(Predict, PartsOfAStepWithServersAddUp) {
  Machine machine = some_machine();
  machine.bytes = 24'000'000;
  machine.update = 40e-3;
  machine.tcp = {0, 1e12};
  for (const int staleness : {0, 3, kAnyStaleness})
    for (const int servers : {1, 3, 40})
      for (const int replicas : {1, 4})
        for (const int64_t largest : {int64_t{40'000}, machine.bytes / 2})
          for (const double rate : {1e7, 1e9, 1e12}) {
            machine.largest_parameter = largest;
            const Job job{.hosts = 4,
                          .replicas_per_host = replicas,
                          .batch = 8,
                          .link = {rate, 1e-5},
                          .exchange = Exchange::parameter_server,
                          .servers = servers,
                          .staleness = staleness};
            const Prediction one = predict(machine, job);
            const double compute = one.step - one.exposed - one.update;
            EXPECT_GE(compute, std::max(one.compute, one.input) - 1e-12);
            EXPECT_LE(compute, std::max(one.slowest, one.input) + 1e-12);
            EXPECT_GE(one.exposed, 0);
            EXPECT_GT(one.update, 0);
            if (rate == 1e12) {
              EXPECT_LT(one.exposed, 1e-3);
            }
          }
  // Nothing to compute, and all of it to wait for.
  machine.compute = {{8, 0, 0}};
  const Job idle{.hosts = 2,
                 .batch = 8,
                 .link = {1e9, 0},
                 .exchange = Exchange::parameter_server,
                 .servers = 2};
  EXPECT_GT(predict(machine, idle).step, 24e6 / 1e9);
  EXPECT_LT(predict(machine, idle).step, 1);
}

/// Customers that begin together, one after the other through stations in a row: the mean round of
/// the last half of their rounds.
double simulated_round(int customers, double think, const std::vector<double>& stations) {
  constexpr int kRounds = 4000;
  const auto count = static_cast<size_t>(customers);
  std::vector<double> begins(count, 0);          // of each one's round
  std::vector<double> free(stations.size(), 0);  // from when on a station is
  double middle = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round == kRounds / 2) middle = begins.front();
    std::ranges::sort(begins);  // who comes first is served first, everywhere
    for (double& now : begins) {
      now += think;
      for (size_t i = 0; i < stations.size(); ++i)
        free[i] = now = std::max(now, free[i]) + stations[i];
    }
  }
  return (begins.front() - middle) / (kRounds / 2);
}

TEST(RoundOfQueues, IsThatOfCustomersWhoSpreadOut) {
  const std::vector<std::vector<double>> rows{{2}, {2, 2, 2}, {1, 3, 1}, {4, 0.5, 4}};
  for (const auto& stations : rows)
    for (int customers : {1, 2, 3, 8})
      for (double think : {0.0, 1.0, 7.0, 40.0})
        EXPECT_NEAR(
            round_of_queues(customers, std::accumulate(stations.begin(), stations.end(), think),
                            stations),
            simulated_round(customers, think, stations), 0.01)
            << customers << " customers think " << think;
}

// Pieces that go from station to station, looked at every tick.
double served_by_ticks(int forward, int backward, int pieces, const std::array<int, 3>& stations) {
  struct Station {
    std::set<int> here;
    int piece = -1, left = 0;
  };
  std::array<Station, 4> all;  // the last: at the worker
  int made = 0, used = 0, using_it = 0;
  for (int tick = 0;; ++tick) {
    while (made < pieces && tick >= backward * (made + 1)) all[0].here.insert(pieces - ++made);
    for (size_t s = 0; s < 3; ++s) {
      Station& station = all[s];
      if (station.piece >= 0 && --station.left == 0)
        all[s + 1].here.insert(std::exchange(station.piece, -1));
      if (station.piece >= 0 || station.here.empty()) continue;
      station.piece = *station.here.begin();
      station.here.erase(station.here.begin());
      station.left = stations[s];
    }
    if (using_it > 0 && --using_it == 0 && ++used == pieces) return tick;
    if (using_it == 0 && tick >= backward * pieces && all[3].here.contains(used))
      using_it = forward;
  }
}

TEST(ServedStep, IsThatOfTicks) {
  std::mt19937_64 random(11);
  const auto draw = [&] { return 1 + static_cast<int>(random() % 9); };
  for (int round = 0; round < 300; ++round) {
    const int forward = draw(), backward = draw(), pieces = draw();
    const std::array<int, 3> each{draw(), draw(), draw()};
    ServedStep step{
        .forward = 1.0 * forward * pieces, .backward = 1.0 * backward * pieces, .pieces = pieces};
    for (size_t s = 0; s < each.size(); ++s) step.stations[s] = 1.0 * each[s] * pieces;
    EXPECT_NEAR(served_step(step), served_by_ticks(forward, backward, pieces, each), 1e-9)
        << forward << " " << backward << " " << pieces;
    const double busiest = std::ranges::max(step.stations);
    EXPECT_GE(served_step(step), std::max(step.forward + step.backward, busiest) - 1e-9);
  }
}

TEST(Predict, FormulasGoOnWhereSimulationEnds) {
  const Link link{1e9, 1e-5};
  for (double bytes : {64.0, 1e5, 1e8}) {
    const int ranks = 33;
    CollectiveWork work{.ranks = ranks, .num_elements = static_cast<int64_t>(bytes / 4)};
    work.algorithm = bytes < 4096 ? Algorithm::tree : Algorithm::pairwise;
    const double simulated = simulated_seconds(work, link);
    EXPECT_GE(engine_seconds(ranks, bytes, link), simulated * 0.9) << bytes;
    EXPECT_LE(engine_seconds(ranks, bytes, link), simulated * 1.6) << bytes;
    double last = 0;
    for (int more : {64, 128, 1024, 8192}) {
      EXPECT_GE(engine_seconds(more, bytes, link), last * (1 - 1e-9));
      last = engine_seconds(more, bytes, link);
    }
    EXPECT_GT(predict(some_machine(), {.hosts = 10'000, .link = link}).step, 0);
    // Of hosts of several ranks, by pairwise, halving or a tree.
    for (int hosts : {17, 32}) {
      const Neighbours two{2, {4e9, 1e-6}};
      CollectiveWork flat{.ranks = 2 * hosts, .num_elements = static_cast<int64_t>(bytes / 4)};
      flat.algorithm = bytes < 4096 ? Algorithm::tree : Algorithm::pairwise;
      if (hosts == 32)
        flat.algorithm = bytes < 4096 ? Algorithm::doubling : Algorithm::halving_doubling;
      const double of_hosts = simulated_seconds(flat, link, two);
      EXPECT_GE(engine_seconds(2 * hosts, bytes, link, two), of_hosts * 0.9) << bytes;
      EXPECT_LE(engine_seconds(2 * hosts, bytes, link, two), of_hosts * 1.6) << bytes;
    }
  }
  EXPECT_DOUBLE_EQ(engine_seconds(1, 1e9, link), 0);
}

TEST(Predict, WhatCannotBeIsRefused) {
  const auto message = [](const Job& job) {
    return message_of<UsageError>([&] { predict(some_machine(), job); });
  };
  EXPECT_THAT(message({.hosts = 0}), HasSubstr("hosts: 0; expected 1 or more"));
  EXPECT_THAT(message({.replicas_per_host = 0}), HasSubstr("replicas of a host: 0"));
  EXPECT_THAT(message({.batch = 0}), HasSubstr("batch: 0"));
  EXPECT_THAT(message({.servers = 0}), HasSubstr("servers: 0"));
  EXPECT_THAT(message({.staleness = -2}), HasSubstr("staleness: -2"));
  EXPECT_THAT(message({.bucket_bytes = 0}), HasSubstr("bucket: 0 bytes"));
  Machine machine = some_machine();
  machine.memory = 100'000'000;
  EXPECT_THAT(message_of<UsageError>([&] { predict(machine, {.batch = 1000}); }),
              HasSubstr("the largest that fits is 840"));
}

}  // namespace
}  // namespace tutti::plan
