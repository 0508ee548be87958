// Which worker runs which task, in tables and in thousands of random orders of events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tutti/coordinator/dispatch_state.h"

namespace tutti::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Given = std::pair<int, int64_t>;  // worker and task

// A dispatcher without links: keeps what was given out and what came of it.
struct Desk {
  explicit Desk(int64_t most_waiting = 1000)
      : state(
            most_waiting,
            [this](int worker, const Task& task) { given.emplace_back(worker, task.number); },
            [this](int64_t task, const Outcome& outcome) {
              EXPECT_TRUE(ended.emplace(task, outcome).second) << "task " << task << " ended twice";
            }) {}
  int64_t schedule() { return state.schedule("train", {}); }

  std::vector<Given> given;
  std::map<int64_t, Outcome> ended;
  DispatchState state;
};

TEST(DispatchState, GivesTasksInOrderToWhoeverIsFree) {
  Desk desk;
  desk.schedule();
  desk.state.come(2, "worker 2");
  desk.state.come(1, "worker 1");
  desk.schedule();
  desk.schedule();
  desk.state.done(1, 2, {});
  EXPECT_THAT(desk.given, ElementsAre(Given{2, 1}, Given{1, 2}, Given{1, 3}));
  EXPECT_FALSE(desk.state.idle());
  desk.state.done(1, 3, {});
  desk.state.done(2, 1, {});
  EXPECT_TRUE(desk.state.idle());
  EXPECT_EQ(desk.state.counts().done, 3);
}

TEST(DispatchState, TheTaskOfALostWorkerGoesToTheNextFirst) {
  Desk desk;
  desk.state.come(1, "worker 1 (host a)");
  desk.schedule();
  desk.schedule();
  desk.state.lose(1, "closed the connection");
  EXPECT_EQ(desk.state.last_lost(), "worker 1 (host a) closed the connection");
  desk.state.come(2, "worker 2");
  desk.state.done(1, 1, {});  // it is late: nobody waits for its word
  desk.state.done(2, 1, {});
  EXPECT_THAT(desk.given, ElementsAre(Given{1, 1}, Given{2, 1}, Given{2, 2}));
  EXPECT_EQ(desk.state.counts().repeated, 1);
  EXPECT_EQ(desk.state.counts().workers_lost, 1);
}

TEST(DispatchState, TheFirstErrorCancelsWhatWaitsAndIsTakenOnce) {
  Desk desk;
  desk.state.come(1, "worker 1");
  desk.state.come(2, "worker 2");
  for (int i = 0; i < 4; ++i) desk.schedule();
  desk.state.fail(1, 1, "no data");
  EXPECT_TRUE(desk.state.failed());
  EXPECT_TRUE(desk.state.runs()) << "task 2 comes to its end";
  EXPECT_THAT(desk.ended.at(3).words, HasSubstr("step \"train\" on worker 1: no data"));
  EXPECT_EQ(desk.ended.at(4).kind, Outcome::Kind::cancelled);
  desk.state.fail(2, 2, "the second");
  EXPECT_EQ(desk.state.take_error(), "step \"train\" on worker 1: no data");
  EXPECT_FALSE(desk.state.failed());
  EXPECT_TRUE(desk.state.idle());
  desk.schedule();
  EXPECT_EQ(desk.given.size(), 3U) << "it goes on";
}

TEST(DispatchState, ATaskWhoseWorkerIsLostAfterAnErrorIsNotRunAgain) {
  Desk desk;
  desk.state.come(1, "worker 1");
  desk.state.come(2, "worker 2");
  desk.schedule();
  desk.schedule();
  desk.state.fail(1, 1, "no data");
  desk.state.lose(2, "closed the connection");
  EXPECT_EQ(desk.ended.at(2).kind, Outcome::Kind::cancelled);
  EXPECT_EQ(desk.state.counts().repeated, 0);
}

TEST(DispatchState, IsFullWhenSoManyWait) {
  Desk desk(2);
  desk.schedule();
  EXPECT_FALSE(desk.state.full());
  desk.schedule();
  EXPECT_TRUE(desk.state.full());
  desk.state.come(1, "worker 1");
  EXPECT_FALSE(desk.state.full());
}

// Workers that come, go, end and fail their tasks in any order. Checked: no task runs twice at a
// time, each ends once, an error ends what was scheduled before it, and in the end all is done.
class RandomOrder {
 public:
  explicit RandomOrder(int seed) : draw_(static_cast<unsigned>(seed)) {}

  void run() {
    for (int event = 0; event < 400; ++event) {
      step();
      check();
    }
    finish();
  }

 private:
  static constexpr int kWorkers = 4;

  int below(int n) { return static_cast<int>(draw_() % static_cast<unsigned>(n)); }
  int64_t running(int worker) {
    const Task* const task = desk_.state.running(worker);
    return task == nullptr ? -1 : task->number;
  }

  void step() {
    const int worker = 1 + below(kWorkers);
    DispatchState& state = desk_.state;
    switch (below(12)) {
      case 0: state.come(worker, "worker"); break;
      case 1: state.lose(worker, "was lost"); break;
      case 2:
        if (running(worker) > 0 && below(4) == 0) state.fail(worker, running(worker), "failed");
        break;
      case 3: state.done(worker, 1 + below(50), {}); break;  // perhaps a word that comes too late
      case 4:
        if (state.failed() && !state.runs()) state.take_error();
        break;
      case 5:
      case 6:
      case 7:
        if (!state.failed() && !state.full()) desk_.schedule();
        break;
      default:
        if (running(worker) > 0) state.done(worker, running(worker), {});
    }
  }

  void check() {
    std::set<int64_t> now;
    for (int worker = 1; worker <= kWorkers; ++worker) {
      const int64_t task = running(worker);
      if (task < 0) continue;
      EXPECT_TRUE(desk_.state.is_here(worker));
      EXPECT_TRUE(now.insert(task).second) << "task " << task << " runs twice at a time";
      EXPECT_FALSE(desk_.ended.contains(task)) << "task " << task << " runs and has ended";
    }
    if (desk_.state.failed()) {
      EXPECT_EQ(desk_.state.num_waiting(), 0);
    }
    const DispatchCounts& counts = desk_.state.counts();
    EXPECT_EQ(counts.scheduled, std::ssize(desk_.ended) + desk_.state.num_waiting() +
                                    static_cast<int64_t>(now.size()));
    EXPECT_EQ(std::ssize(desk_.ended), counts.done + counts.failed + counts.cancelled);
    // Given out once more for each loss, and in the order of scheduling else.
    std::set<int64_t> given;
    int64_t newest = 0, again = 0;
    for (const auto& [worker, task] : desk_.given) {
      if (!given.insert(task).second) {
        ++again;
        continue;
      }
      EXPECT_GT(task, newest);
      newest = task;
    }
    EXPECT_LE(again, counts.repeated);
  }

  void finish() {
    DispatchState& state = desk_.state;
    state.come(1, "worker 1");
    while (!state.idle() || state.failed()) {
      if (state.failed() && !state.runs()) state.take_error();
      for (int worker = 1; worker <= kWorkers; ++worker)
        if (running(worker) > 0) state.done(worker, running(worker), {});
    }
    EXPECT_EQ(std::ssize(desk_.ended), state.counts().scheduled);
  }

  std::mt19937 draw_;
  Desk desk_{20};
};

TEST(DispatchState, AnyOrderOfEventsKeepsItsPromises) {
  for (int seed = 0; seed < 2000 && !testing::Test::HasFailure(); ++seed) RandomOrder(seed).run();
}

}  // namespace
}  // namespace tutti::coordinator
