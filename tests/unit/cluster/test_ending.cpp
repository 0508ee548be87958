// When what is left of a job is told to end: stories of events, with what is sent and when.
#include <gmock/gmock.h>

#include <csignal>

#include "tutti/cluster/launch/detail/ending.h"

namespace tutti::detail {
namespace {

using namespace std::chrono_literals;

struct Event {
  Millis at;
  int signal = 0;  // 0: a worker failed
};

struct Sent {
  Millis at;
  int signal;
  bool operator==(const Sent&) const = default;
};

struct Story {
  const char* name;
  bool end_on_failure = true;
  std::vector<Event> events;
  std::vector<Sent> sent;
};

std::vector<Sent> play(const Story& story) {
  const TimePoint start{};
  Ending ending({.failure_grace = 2s, .signal_grace = 5s, .end_on_failure = story.end_on_failure});
  std::vector<Sent> sent;
  size_t next_event = 0;
  const auto collect = [&](TimePoint now) {
    while (const auto signal = ending.due(now)) {
      sent.push_back({std::chrono::duration_cast<Millis>(now - start), *signal});
    }
  };
  for (Millis now = 0ms; now <= 20s; now += 100ms) {
    for (; next_event < story.events.size() && story.events[next_event].at <= now; ++next_event) {
      const Event& event = story.events[next_event];
      if (event.signal == 0) ending.on_failure(start + now);
      if (event.signal != 0) ending.on_signal(event.signal, start + now);
    }
    if (ending.next() && *ending.next() > start + now) {
      EXPECT_EQ(ending.due(start + now), std::nullopt) << story.name << ": before its time";
    }
    collect(start + now);
  }
  EXPECT_EQ(ending.next(), std::nullopt) << story.name;
  return sent;
}

TEST(Ending, Stories) {
  const Story stories[] = {
      {.name = "nothing happens", .events = {}, .sent = {}},
      {.name = "a failure: 2 s for their own errors, then SIGTERM, then SIGKILL",
       .events = {{1s}},
       .sent = {{3s, SIGTERM}, {8s, SIGKILL}}},
      {.name = "only the first failure counts",
       .events = {{1s}, {2s}, {4s}},
       .sent = {{3s, SIGTERM}, {8s, SIGKILL}}},
      {.name = "the rest may go on", .end_on_failure = false, .events = {{1s}}, .sent = {}},
      {.name = "a signal is forwarded at once",
       .events = {{1s, SIGINT}},
       .sent = {{1s, SIGINT}, {6s, SIGKILL}}},
      {.name = "a second one kills",
       .events = {{1s, SIGTERM}, {2s, SIGINT}},
       .sent = {{1s, SIGTERM}, {2s, SIGKILL}}},
      {.name = "two at once", .events = {{1s, SIGINT}, {1s, SIGINT}}, .sent = {{1s, SIGKILL}}},
      {.name = "failures after a signal change nothing",
       .events = {{1s, SIGTERM}, {2s}},
       .sent = {{1s, SIGTERM}, {6s, SIGKILL}}},
      {.name = "a signal after a failure does not give more time",
       .events = {{1s}, {3s, SIGINT}},
       .sent = {{3s, SIGINT}, {8s, SIGKILL}}},
      {.name = "a signal ends a job whose failures it survives",
       .end_on_failure = false,
       .events = {{1s}, {3s, SIGINT}},
       .sent = {{3s, SIGINT}, {8s, SIGKILL}}},
  };
  for (const Story& story : stories) EXPECT_EQ(play(story), story.sent) << story.name;
}

TEST(Ending, IsOverOnceWhatIsLeftIsKilled) {
  Ending ending({.failure_grace = 2s, .signal_grace = 5s});
  EXPECT_FALSE(ending.begun());
  ending.on_failure(TimePoint{});
  EXPECT_TRUE(ending.begun());
  EXPECT_EQ(ending.due(TimePoint{2s}), SIGTERM);
  EXPECT_FALSE(ending.over());
  EXPECT_EQ(ending.due(TimePoint{7s}), SIGKILL);
  EXPECT_TRUE(ending.over());
}

TEST(Ending, ComesWithThatOfTheLeadThoughFailuresEndNothing) {
  Ending ending({.failure_grace = 2s, .signal_grace = 5s, .end_on_failure = false});
  ending.on_failure(TimePoint{});
  EXPECT_FALSE(ending.begun());
  ending.on_lead_ended(TimePoint{1s});
  EXPECT_EQ(ending.due(TimePoint{3s}), SIGTERM);
  EXPECT_EQ(ending.due(TimePoint{8s}), SIGKILL);
}

TEST(Ending, GivesWhatWasAskedForUntilItBegins) {
  Ending ending({.failure_grace = 2s, .signal_grace = 5s});
  ending.set_signal_grace(40s);
  ending.on_signal(SIGTERM, TimePoint{1s});
  ending.set_signal_grace(0s);
  EXPECT_EQ(ending.due(TimePoint{1s}), SIGTERM);
  EXPECT_EQ(ending.next(), TimePoint{41s});
}

TEST(Ending, RemembersTheFirstSignal) {
  Ending ending({});
  EXPECT_EQ(ending.first_signal(), 0);
  ending.on_signal(SIGTERM, TimePoint{});
  ending.on_signal(SIGINT, TimePoint{});
  EXPECT_EQ(ending.first_signal(), SIGTERM);
}

}  // namespace
}  // namespace tutti::detail
