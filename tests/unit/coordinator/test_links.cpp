// A coordinator and its workers, as threads of one process over real connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <list>
#include <numeric>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/coordinator/cluster_coordinator.h"
#include "tutti/coordinator/step_server.h"
#include "tutti/net/connect.h"
#include "tutti/ps/server/view_service.h"

#include "tests/support/message_of.h"

namespace tutti::coordinator {
namespace {

using testing::AllOf;

using test::message_of;
using testing::HasSubstr;

constexpr Millis kSoon{20'000};

// ---- the steps ----

const auto add = remote("add", [](int64_t a, int64_t b) { return a + b; });
const auto who = remote("who", [](RemoteWorker& worker) { return worker.number(); });
const auto fail = remote("fail", [](const std::string& words) -> int { throw Error(words); });
const auto nothing = remote("nothing", [] {});

struct Counter {
  explicit Counter(RemoteWorker& worker) : number(worker.number()) {}
  int number;
  int64_t count = 0;
};
const auto count_up = remote("count up", [](RemoteWorker& worker) {
  return std::pair(worker.number(), ++worker.keep<Counter>().count);
});

const auto make_numbers = remote(
    "numbers", [](RemoteWorker& worker) { return std::vector<int64_t>{100 * worker.number()}; });
const auto next_number = remote("next number", [](std::vector<int64_t>& numbers) {
  numbers.push_back(numbers.back() + 1);
  return numbers.back();
});

const auto twice = remote("twice", [](const std::vector<double>& values) {
  std::vector<double> all;
  for (const double value : values) all.push_back(2 * value);
  return all;
});

// A step that ends when the test lets it, and says when it has begun.
std::atomic<int> begun{0};
std::atomic<bool> may_end{false};
const auto wait_for_test = remote("wait", [](RemoteWorker& worker) {
  ++begun;
  begun.notify_all();
  may_end.wait(false);
  return worker.number();
});

void until_begun(int times) {
  for (int now = begun; now < times; now = begun) begun.wait(now);
}

void hold_steps() {
  begun = 0;
  may_end = false;
}

void let_steps_end() {
  may_end = true;
  may_end.notify_all();
}

// ---- the job ----

class Cluster {
 public:
  explicit Cluster(int workers, Millis silence = Millis{10'000})
      : num_workers_(workers),
        credentials_{Token::random(), "test", nullptr},
        service_({.num_workers = workers + 1, .silence = silence},
                 *Address::from_number("127.0.0.1", 0), credentials_) {
    for (int number = 1; number <= workers; ++number) start(number);
  }
  ~Cluster() {
    for (Worker& worker : workers_) worker.thread.join();
  }

  void start(int number, const std::string& build = "b1", const std::string& process = "host a") {
    Worker& worker = workers_.emplace_back();
    worker.thread = std::thread([this, number, build, process, &worker] {
      try {
        serve_steps({.number = number,
                     .num_workers = num_workers_,
                     .view_service = where(),
                     .build = build,
                     .process = process,
                     .limit = kSoon},
                    credentials_);
      } catch (const std::exception& error) {
        worker.error = error.what();
      }
    });
  }
  /// How the worker that was started then ended; "": in order.
  std::string error_of(int index) {
    auto worker = std::next(workers_.begin(), index);
    worker->thread.join();
    worker->thread = std::thread([] {});
    return worker->error;
  }

  HostPort where() const { return {"127.0.0.1", service_.address().port()}; }
  DispatcherOptions options() const {
    return {.num_workers = num_workers_, .view_service = where(), .build = "b1", .limit = kSoon};
  }
  const Credentials& credentials() const { return credentials_; }

 private:
  struct Worker {
    std::thread thread;
    std::string error;
  };
  const int num_workers_;
  const Credentials credentials_;
  ps::ViewService service_;
  std::list<Worker> workers_;
};

TEST(Steps, RunOnWorkersAndGiveTheirResults) {
  Cluster cluster(2);
  ClusterCoordinator coordinator(cluster.options(), cluster.credentials());
  std::vector<RemoteValue<int64_t>> sums;
  for (int i = 0; i < 100; ++i) sums.push_back(coordinator.schedule(add, i, 1));
  coordinator.join();
  EXPECT_TRUE(coordinator.done());
  std::vector<int64_t> expected(100);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(coordinator.fetch(sums), expected);
  EXPECT_EQ(coordinator.counts().done, 100);
  coordinator.fetch(coordinator.schedule(nothing));
}

TEST(Steps, LargeValuesTravelBothWays) {
  Cluster cluster(1);
  ClusterCoordinator coordinator(cluster.options(), cluster.credentials());
  std::vector<double> values(300'000);
  std::iota(values.begin(), values.end(), 0.5);
  const auto got = coordinator.fetch(coordinator.schedule(twice, values));
  ASSERT_EQ(got.size(), values.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], 2 * values[i]);
}

TEST(Steps, WorkersKeepWhatTheyMade) {
  Cluster cluster(2);
  ClusterCoordinator coordinator(cluster.options(), cluster.credentials());
  std::vector<RemoteValue<std::pair<int, int64_t>>> counts;
  for (int i = 0; i < 50; ++i) counts.push_back(coordinator.schedule(count_up));
  std::map<int, int64_t> last;
  for (const auto& [worker, count] : coordinator.fetch(counts)) EXPECT_EQ(count, ++last[worker]);
  EXPECT_EQ(last[1] + last[2], 50);
}

TEST(Steps, PerWorkerValuesAreEachWorkersOwn) {
  Cluster cluster(2);
  ClusterCoordinator coordinator(cluster.options(), cluster.credentials());
  const auto numbers = coordinator.create_per_worker_dataset(make_numbers);
  const auto others = coordinator.create_per_worker_dataset(make_numbers);
  std::map<int64_t, int64_t> last{{1, 100}, {2, 200}};
  std::vector<RemoteValue<int64_t>> all;
  for (int i = 0; i < 40; ++i) all.push_back(coordinator.schedule(next_number, numbers));
  for (const int64_t number : coordinator.fetch(all)) EXPECT_EQ(number, ++last[number / 100]);
  EXPECT_EQ(coordinator.fetch(coordinator.schedule(next_number, others)) % 100, 1)
      << "two datasets of one factory are two";
}

TEST(Steps, AnErrorIsThrownOnceAndCancelsWhatWaits) {
  Cluster cluster(1);
  ClusterCoordinator coordinator(cluster.options(), cluster.credentials());
  hold_steps();
  const auto held = coordinator.schedule(wait_for_test);
  const auto bad = coordinator.schedule(fail, std::string("no such file"));
  const auto after = coordinator.schedule(add, 1, 2);
  let_steps_end();
  const auto words = message_of<Error>([&] { coordinator.join(); });
  EXPECT_THAT(words,
              AllOf(HasSubstr("step \"fail\" on worker 1 (host "), HasSubstr("): no such file")));
  coordinator.join();
  EXPECT_EQ(coordinator.fetch(held), 1);
  EXPECT_EQ(message_of<Error>([&] { coordinator.fetch(bad); }), words);
  EXPECT_THAT(message_of<Error>([&] { coordinator.fetch(after); }),
              AllOf(HasSubstr("was cancelled, after: "), HasSubstr("no such file")));
  EXPECT_EQ(coordinator.fetch(coordinator.schedule(add, 2, 3)), 5) << "it goes on";
  EXPECT_EQ(coordinator.counts().failed, 1);
  EXPECT_EQ(coordinator.counts().cancelled, 1);
}

TEST(Steps, ScheduleAndDoneThrowTheErrorToo) {
  Cluster cluster(1);
  ClusterCoordinator coordinator(cluster.options(), cluster.credentials());
  for (const bool by_schedule : {true, false}) {
    const auto bad = coordinator.schedule(fail, std::string("broken"));
    EXPECT_THAT(message_of<Error>([&] { coordinator.fetch(bad); }), HasSubstr("broken"));
    EXPECT_THAT(message_of<Error>([&] {
                  by_schedule ? (void)coordinator.schedule(who) : (void)coordinator.done();
                }),
                HasSubstr("broken"));
    EXPECT_TRUE(coordinator.done());
  }
}

TEST(Steps, AFullQueueWaits) {
  Cluster cluster(1);
  DispatcherOptions options = cluster.options();
  options.most_waiting = 2;
  ClusterCoordinator coordinator(options, cluster.credentials());
  std::vector<RemoteValue<int64_t>> sums;
  for (int i = 0; i < 50; ++i) sums.push_back(coordinator.schedule(add, i, i));
  EXPECT_EQ(coordinator.fetch(sums).back(), 98);
}

TEST(Steps, OfUnknownNamesAndWrongTypesAreErrors) {
  Cluster cluster(1);
  ClusterCoordinator coordinator(cluster.options(), cluster.credentials());
  const RemoteFunction<int(int)> unknown("ad");
  EXPECT_THAT(message_of<Error>([&] { coordinator.fetch(coordinator.schedule(unknown, 1)); }),
              AllOf(HasSubstr("unknown step \"ad\""), HasSubstr("did you mean \"add\"")));
  EXPECT_THROW(coordinator.join(), Error);
  const RemoteFunction<int(std::string)> other("add");
  EXPECT_THAT(
      message_of<Error>([&] { coordinator.fetch(coordinator.schedule(other, std::string("x"))); }),
      HasSubstr("got a string, expected a whole number"));
  EXPECT_THROW(coordinator.join(), Error);
  const PerWorker<std::vector<int64_t>> wrong(77, "who");
  EXPECT_THAT(
      message_of<Error>([&] { coordinator.fetch(coordinator.schedule(next_number, wrong)); }),
      HasSubstr("\"who\" does not make what this step takes"));
}

TEST(Steps, AnotherBuildIsTurnedAwayByName) {
  Cluster cluster(0);
  cluster.start(1, "b2");
  DispatcherOptions options = cluster.options();
  options.num_workers = 1;
  ClusterCoordinator coordinator(options, cluster.credentials());
  coordinator.schedule(nothing);
  const auto says_both = AllOf(HasSubstr("worker 1 (host "), HasSubstr("runs build b2"),
                               HasSubstr("the coordinator (host "), HasSubstr("build b1"));
  EXPECT_THAT(message_of<Error>([&] { coordinator.join(); }), says_both);
  EXPECT_THAT(cluster.error_of(0), says_both);
}

TEST(Steps, WithoutWorkersEndInAnError) {
  Cluster cluster(0);
  DispatcherOptions options = cluster.options();
  options.num_workers = 2;
  options.without_workers = Millis{50};
  ClusterCoordinator coordinator(options, cluster.credentials());
  coordinator.schedule(nothing);
  EXPECT_THAT(message_of<Error>([&] { coordinator.join(); }),
              HasSubstr("no worker is there, and 1 steps wait"));
}

TEST(Steps, OneThatIsTooLongIsAnErrorAndItsWorkerComesAgain) {
  Cluster cluster(1);
  DispatcherOptions options = cluster.options();
  options.step_limit = Millis{100};
  ClusterCoordinator coordinator(options, cluster.credentials());
  hold_steps();
  coordinator.schedule(wait_for_test);
  EXPECT_THAT(message_of<Error>([&] { coordinator.join(); }),
              AllOf(HasSubstr("step \"wait\" on worker 1"), HasSubstr("within 100 ms")));
  let_steps_end();
  EXPECT_EQ(coordinator.fetch(coordinator.schedule(who)), 1);
}

TEST(Steps, ASecondWorkerOfANumberIsTurnedAway) {
  Cluster cluster(1);
  ClusterCoordinator coordinator(cluster.options(), cluster.credentials());
  hold_steps();
  const auto value = coordinator.schedule(wait_for_test);
  until_begun(1);
  cluster.start(1, "b1", "host b");
  EXPECT_THAT(cluster.error_of(1),
              HasSubstr("worker 1 (host b): worker 1 (host a) is there already"));
  let_steps_end();
  EXPECT_EQ(coordinator.fetch(value), 1);
  EXPECT_EQ(coordinator.counts().repeated, 0);
}

TEST(Steps, WorkersEndInOrderWhenTheCoordinatorIsDone) {
  Cluster cluster(2);
  {
    ClusterCoordinator coordinator(cluster.options(), cluster.credentials());
    hold_steps();
    coordinator.schedule(wait_for_test);
    coordinator.schedule(wait_for_test);
    until_begun(2);
    let_steps_end();
    coordinator.join();
  }
  EXPECT_EQ(cluster.error_of(0), "");
  EXPECT_EQ(cluster.error_of(1), "");
}

TEST(Steps, AWorkerThatComesWhenAllIsDoneEndsInOrder) {
  Cluster cluster(1);
  {
    ClusterCoordinator coordinator(cluster.options(), cluster.credentials());
    EXPECT_EQ(coordinator.fetch(coordinator.schedule(who)), 1);
  }
  EXPECT_EQ(cluster.error_of(0), "");
  cluster.start(1, "b1", "host b");
  EXPECT_EQ(cluster.error_of(1), "");
}

}  // namespace
}  // namespace tutti::coordinator
