// The choice against a search of its own, and what it says.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/plan/choose.h"

#include "tests/support/message_of.h"
#include "tests/unit/plan/some_machine.h"

namespace tutti::plan {
namespace {

using test::message_of;
using test::some_machine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Search some_search() {
  return {.hosts = {1, 2, 4, 8, 16},
          .replicas_per_host = {1, 2},
          .batches = {8, 32, 128},
          .kinds = {Job{}, Job{.exchange = Exchange::parameter_server, .servers = 2}},
          .link = {1e8, 5e-5}};
}

TEST(Choose, IsTheBestOfAll) {
  for (Objective objective : {Objective::time, Objective::cost})
    for (double noise : {0.0, 200.0}) {
      Search search = some_search();
      search.objective = objective;
      search.noise_scale = noise;
      const Choice choice = choose(some_machine(), search);
      EXPECT_EQ(choice.tried, 2 * 5 * 2 * 3);
      double best = std::numeric_limits<double>::infinity();
      for (const Job& kind : search.kinds)
        for (int hosts : search.hosts)
          for (int replicas : search.replicas_per_host)
            for (int64_t batch : search.batches) {
              Job job = kind;
              job.link = search.link;
              job.hosts = hosts;
              job.replicas_per_host = replicas;
              job.batch = batch;
              const double samples = static_cast<double>(batch) * hosts * replicas;
              const double steps = 1e9 * (noise == 0 ? 1 : 1 + samples / noise) / samples;
              double value = steps * predict(some_machine(), job).step;
              if (objective == Objective::cost)
                value *= hosts + (kind.exchange == Exchange::parameter_server ? 2 : 0);
              best = std::min(best, value);
            }
      const Candidate& chosen = choice.best;
      EXPECT_NEAR(objective == Objective::time ? chosen.seconds : chosen.host_seconds, best,
                  best * 1e-9);
    }
}

TEST(Choose, SaysWhyAndWhatWouldChangeIt) {
  Search search = some_search();
  search.noise_scale = 500;
  const Choice choice = choose(some_machine(), search);
  EXPECT_THAT(choice.why, HasSubstr("the fastest of 60 jobs"));
  EXPECT_THAT(choice.why, HasSubstr("bound by " + choice.best.prediction.bound_by));
  // What it says leads to another choice does, and less does not.
  EXPECT_THAT(choice.what_changes, HasSubstr("It would be another with a link of "));
  const auto hosts_with = [&](double times) {
    Search other = search;
    other.link.bytes_per_second *= times;
    return choose(some_machine(), other).best.prediction.job;
  };
  Job same = choice.best.prediction.job;
  bool changed = false;
  for (double times : {1.5, 2.0, 4.0, 10.0}) {
    Job other = hosts_with(times);
    other.link = same.link;
    const std::string words =
        "with a link of " + words_of(Link{search.link.bytes_per_second * times, 5e-5}) + ":";
    EXPECT_EQ(choice.what_changes.find(words) != std::string::npos && !changed,
              other != same && !changed)
        << words << choice.what_changes;
    changed = changed || other != same;
  }
  EXPECT_TRUE(changed);
}

TEST(Choose, LooksAtEachEngineOnce) {
  Search search{.hosts = {1, 2},
                .replicas_per_host = {1, 2},
                .batches = {8},
                .kinds = {Job{}, Job{.exchange = Exchange::parameter_server}},
                .engines = {EngineKind::fitting, EngineKind::tcp, EngineKind::hier}};
  std::vector<std::string> jobs;
  for (const Job& job : jobs_of(search))
    jobs.push_back(fmt::format(
        "{} x {} {}", job.hosts, job.replicas_per_host,
        job.exchange == Exchange::parameter_server ? "served" : name_of(engine_of(job))));
  EXPECT_THAT(jobs, ElementsAre("1 x 1 shm", "2 x 1 tcp", "1 x 2 shm", "2 x 2 hier", "2 x 2 tcp",
                                "1 x 1 served", "2 x 1 served", "1 x 2 served", "2 x 2 served"));
  search.engines = {EngineKind::shm};
  EXPECT_THAT(message_of<UsageError>([&] { jobs_of(search); }),
              HasSubstr("engine shm: it is for the ranks of one host, not of 2"));
  search.engines = {};
  EXPECT_THAT(message_of<UsageError>([&] { jobs_of(search); }), HasSubstr("engines: none"));
}

TEST(Choose, SaysByWhichEngineAndWhatTheOtherWouldTake) {
  const Choice choice = choose(some_machine(), {.hosts = {2},
                                                .replicas_per_host = {2},
                                                .batches = {8},
                                                .engines = {EngineKind::fitting, EngineKind::tcp},
                                                .link = {1e8, 5e-5}});
  EXPECT_EQ(choice.best.prediction.job.engine, EngineKind::hier);  // sends half as much
  EXPECT_THAT(choice.why, HasSubstr("batch 8 a replica, engine hier: the fastest of 2 jobs"));
  EXPECT_THAT(choice.why, HasSubstr("engine tcp (a loop of your own) would take "));
}

TEST(Choose, FindsTheBestBucketAndSaysIt) {
  Search search{.hosts = {4}, .batches = {80}, .kinds = {}, .link = {1e9, 1e-4}};
  for (int64_t kib : {4, 256, 1024, 100 * 1024})
    search.kinds.push_back({.overlap = true, .bucket_bytes = kib << 10});
  const Choice choice = choose(some_machine(), search);
  double best = std::numeric_limits<double>::infinity();
  for (const Candidate& one : candidates_of(some_machine(), search))
    best = std::min(best, one.seconds);
  EXPECT_DOUBLE_EQ(choice.best.seconds, best);
  EXPECT_EQ(choice.best.prediction.job.bucket_bytes, 256 << 10);
  EXPECT_THAT(choice.why, HasSubstr("batch 80 a replica, buckets of 0.25 MiB: the fastest of 4"));
  EXPECT_THAT(choice.why, HasSubstr("buckets of 1 MiB would take "));
}

TEST(Choose, FindsTheBestPieceAndLeavesOutWhatAmountsToAnother) {
  Search search{.hosts = {1, 2}, .batches = {80}, .kinds = {{}}, .link = {1e9, 1e-4}};
  for (int64_t kib : {4, 256, 1024, 64 * 1024}) search.kinds.push_back({.piece_bytes = kib << 10});
  search.kinds.push_back({.updates_each = true});
  // On one host there are no pieces, and those of 1 MiB are what strategies take for two.
  EXPECT_EQ(jobs_of(search).size(), 2u + 3u + 2u);
  search.hosts = {2};
  const Choice choice = choose(some_machine(), search);
  double best = std::numeric_limits<double>::infinity();
  for (const Candidate& one : candidates_of(some_machine(), search))
    best = std::min(best, one.seconds);
  EXPECT_DOUBLE_EQ(choice.best.seconds, best);
  EXPECT_EQ(choice.best.prediction.job.piece_bytes, 256 << 10);
  EXPECT_THAT(choice.why, HasSubstr("batch 80 a replica, pieces of 0.25 MiB: the fastest of 5"));
}

TEST(Choose, LeavesOutWhatDoesNotFit) {
  Machine machine = some_machine();
  machine.memory = 30'000'000;
  Search search = some_search();
  const Choice choice = choose(machine, search);
  EXPECT_GT(choice.too_large, 0);
  EXPECT_EQ(choice.tried + choice.too_large, 60);
  machine.memory = 1;
  EXPECT_THAT(message_of<UsageError>([&] { choose(machine, search); }),
              HasSubstr("no batch fits into memory"));
  search.within = 1;
  EXPECT_THAT(message_of<UsageError>([&] { choose(some_machine(), search); }),
              HasSubstr("no job ends within 1 s: the fastest takes"));
  search.hosts = {};
  EXPECT_THAT(message_of<UsageError>([&] { choose(some_machine(), search); }),
              HasSubstr("hosts: none to choose from"));
}

}  // namespace
}  // namespace tutti::plan
