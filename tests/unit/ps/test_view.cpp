// Who has which partition as servers come and go: a table of transitions.
#include <gmock/gmock.h>

#include <functional>

#include "tutti/base/error.h"
#include "tutti/ps/view/view.h"

#include "tests/support/message_of.h"

namespace tutti::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tutti::test::message_of;

ViewState begun(int servers, bool backups = true) {
  ViewState state(servers, 2, backups);
  for (int i = 0; i < servers; ++i) state.add_server(fmt::format("pid {}", i), "here");
  return state;
}

std::string roles(const ViewState& state) {
  std::string words;
  for (const PartitionView& p : state.view().partitions)
    words += fmt::format("{}{}/{}/{}", words.empty() ? "" : " ", p.primary, p.backup, p.joining);
  return words;
}

// Primary/backup/joining of each partition.
TEST(ViewState, Transitions) {
  struct Case {
    std::string name;
    int servers;
    std::function<void(ViewState&)> event;
    std::string roles;
  };
  const auto lose = [](int server) { return [=](ViewState& s) { s.lose_server(server, "died"); }; };
  for (const Case& c : std::vector<Case>{
           {"one", 1, [](ViewState&) {}, "0/-1/-1"},
           {"three", 3, [](ViewState&) {}, "0/1/-1 1/2/-1 2/0/-1"},
           {"backup takes over", 2, lose(0), "1/-1/-1 1/-1/-1"},
           {"somebody joins", 3, lose(1), "0/-1/2 2/-1/0 2/0/-1"},
           {"twice is once", 3, [&](ViewState& s) { lose(1)(s), lose(1)(s); },
            "0/-1/2 2/-1/0 2/0/-1"},
           {"synced", 3, [&](ViewState& s) { lose(1)(s), s.synced(0, 0, 2); },
            "0/2/-1 2/-1/0 2/0/-1"},
           {"synced, by another", 3, [&](ViewState& s) { lose(1)(s), s.synced(0, 2, 2); },
            "0/-1/2 2/-1/0 2/0/-1"},
           {"synced, another", 3, [&](ViewState& s) { lose(1)(s), s.synced(0, 0, 0); },
            "0/-1/2 2/-1/0 2/0/-1"},
           {"synced, nobody", 3, [&](ViewState& s) { s.synced(0, 0, -1); }, "0/1/-1 1/2/-1 2/0/-1"},
           {"joining dies", 3, [&](ViewState& s) { lose(1)(s), lose(2)(s); },
            "0/-1/-1 -1/-1/-1 0/-1/-1"},
           {"joining is not promoted", 2,
            [&](ViewState& s) { lose(1)(s), s.add_server("pid 9", ""), lose(0)(s); },
            "-1/-1/-1 -1/-1/-1"},
           {"a newcomer joins", 2, [&](ViewState& s) { lose(0)(s), s.add_server("pid 9", ""); },
            "1/-1/2 1/-1/2"},
           {"suspected", 2, [](ViewState& s) { s.suspect(0, 0, 1); }, "0/-1/-1 1/0/-1"},
           {"suspected, by another", 2, [](ViewState& s) { s.suspect(0, 1, 1); }, "0/1/-1 1/0/-1"},
           {"suspected, another", 3, [](ViewState& s) { s.suspect(0, 0, 2); },
            "0/1/-1 1/2/-1 2/0/-1"},
           {"suspected, a third is there", 3, [](ViewState& s) { s.suspect(0, 0, 1); },
            "0/-1/2 1/2/-1 2/0/-1"},
           {"synced too late", 3,
            [&](ViewState& s) { lose(1)(s), s.suspect(0, 0, 2), s.synced(0, 0, 2); },
            "0/-1/-1 2/-1/0 2/0/-1"},
           {"without backups", 0, [](ViewState&) {}, "0/-1/-1 1/-1/-1"}}) {
    SCOPED_TRACE(c.name);
    ViewState state = c.servers == 0 ? begun(2, false) : begun(c.servers);
    c.event(state);
    EXPECT_EQ(roles(state), c.roles);
    EXPECT_EQ(state.view().failure.empty(), c.roles.find("-1/-1/-1 -1") == std::string::npos &&
                                                c.roles.find(" -1/") == std::string::npos);
  }
}

TEST(ViewState, EpochsAreThoseOfTheViewThatChangedThem) {
  ViewState state = begun(3);
  const View first = state.view();
  state.add_worker(0, "pid 7");
  EXPECT_EQ(state.view().partitions, first.partitions);
  EXPECT_EQ(state.view().number, first.number + 1);
  state.suspect(0, 0, 1);
  EXPECT_EQ(state.view().partitions[0].epoch, state.view().number);
  EXPECT_EQ(state.view().partitions[1].epoch, first.number);
  const int64_t number = state.view().number;
  state.suspect(0, 0, 1);  // not true any more
  EXPECT_EQ(state.view().number, number);
}

TEST(ViewState, AWorkerThatNeverCameIsLostOnceAndMayStillCome) {
  ViewState state = begun(1);
  state.lose_worker(1, "exited with code 2");
  const ProcessView& lost = state.view().workers[1];
  EXPECT_EQ(lost, (ProcessView{.name = "worker 1", .ending = "exited with code 2"}));
  const int64_t number = state.view().number;
  state.lose_worker(1, "was killed by SIGKILL");
  EXPECT_EQ(lost.ending, "exited with code 2");
  EXPECT_EQ(state.view().number, number);
  state.add_worker(1, "pid 8");
  EXPECT_TRUE(lost.alive);
}

TEST(ViewState, BeginsWhenAllServersAreThere) {
  ViewState state(2, 1);
  EXPECT_EQ(state.add_server("b", "", 1), 1);
  state.add_worker(0, "w");
  EXPECT_FALSE(state.begun());
  EXPECT_THAT(message_of<UsageError>([&] { state.add_server("c", "", 1); }),
              HasSubstr("c wants to be server 1: that is server 1 (b)"));
  EXPECT_THAT(message_of<UsageError>([&] { state.add_server("c", "", 2); }),
              HasSubstr("there are 2"));
  EXPECT_EQ(state.add_server("a", ""), 0);
  EXPECT_TRUE(state.begun());
  EXPECT_EQ(state.add_server("d", ""), 2);
  state.lose_server(0, "died");
  EXPECT_EQ(state.add_server("e", ""), 3);  // nobody comes back under its old number
}

TEST(ViewState, ReservedNumbersAreForThoseWhoAskForTheirs) {
  ViewState state(3, 1, true, 2);
  EXPECT_EQ(state.add_server("any", ""), 2);
  EXPECT_EQ(state.add_server("one too many", ""), 3);
  EXPECT_EQ(state.add_server("its own", "", 1), 1);
  EXPECT_FALSE(state.begun());
  EXPECT_EQ(state.add_server("its own", "", 0), 0);
  EXPECT_TRUE(state.begun());
  EXPECT_EQ(roles(state), "0/1/-1 1/2/-1 2/0/-1");
}

TEST(ViewState, OfALaterTrainingTheServersAreThoseThatAreLeft) {
  const auto servers_of = [](const std::vector<bool>& alive) {
    View view;
    for (const bool one : alive) view.servers.push_back({.alive = one});
    return view;
  };
  EXPECT_THAT(servers_for_later(servers_of({true, true}), 2), ElementsAre(0, 1));
  EXPECT_THAT(servers_for_later(servers_of({true, true, true}), 2), ElementsAre(0, 1));
  EXPECT_THAT(servers_for_later(servers_of({false, true, true, true}), 2), ElementsAre(2, 1));
  EXPECT_THAT(servers_for_later(servers_of({false, true}), 2), ElementsAre(-1, 1));
  EXPECT_THAT(servers_for_later(servers_of({false, false, false, true}), 3),
              ElementsAre(3, -1, -1));
}

TEST(ViewState, OfALaterTrainingTheOthersTakeWhatADeadServerWouldHave) {
  ViewState state(3, 1, true, 3, true);
  state.miss_server(1, "server 1 (b)", "died");
  state.add_server("a", "", 0);
  EXPECT_EQ(state.add_server("any", ""), 3);  // those that are expected keep their numbers
  EXPECT_FALSE(state.begun());
  state.add_server("c", "", 2);
  EXPECT_EQ(roles(state), "0/3/-1 3/2/-1 2/0/-1");
}

TEST(ViewState, OfALaterTrainingOneServerMayHaveAll) {
  ViewState state(3, 1, true, 3, true);
  state.add_server("a", "", 0);
  state.add_server("b", "", 1);
  state.lose_server(0, "died");
  state.miss_server(2, "server 2 (c)", "died");
  EXPECT_EQ(roles(state), "1/-1/-1 1/-1/-1 1/-1/-1");
  EXPECT_EQ(state.view().failure, "");
  state.add_server("d", "");
  EXPECT_EQ(roles(state), "1/-1/3 1/-1/3 1/-1/3");
}

TEST(ViewState, OfALaterTrainingWithTwoLeftEachBacksTheOther) {
  ViewState state(3, 1, true, 3, true);
  state.miss_server(1, "server 1 (b)", "died");
  state.add_server("a", "", 0);
  state.add_server("c", "", 2);
  EXPECT_EQ(roles(state), "0/2/-1 0/2/-1 2/0/-1");
}

TEST(ViewState, OfALaterTrainingWithoutServersNothingBegins) {
  ViewState state(2, 1, true, 2, true);
  state.add_server("a", "", 0);
  state.lose_server(0, "died");
  EXPECT_EQ(state.view().failure, "");
  state.miss_server(1, "server 1 (b)", "was killed");
  EXPECT_THAT(state.view().failure, HasSubstr("server 1 (b) was killed before all servers had"));
}

TEST(ViewState, LosingOneBeforeTheBeginningIsTheEnd) {
  ViewState state(2, 1);
  state.add_server("a", "");
  state.lose_server(0, "died");
  EXPECT_THAT(state.view().failure, HasSubstr("server 0 (a) died before all servers had come"));
}

TEST(ViewState, ASpareTakesThePlaceOfOneThatDiesBeforeTheBeginning) {
  const auto lose = [](int server) { return [=](ViewState& s) { s.lose_server(server, "died"); }; };
  const auto come = [](int number) {
    return [=](ViewState& s) { s.add_server(fmt::format("pid {}", number), "", number); };
  };
  const struct {
    std::string name;
    std::vector<std::function<void(ViewState&)>> events;  // after server 0 and the spare 3 came
    std::string roles;
  } cases[] = {
      {"before the last", {lose(0), come(1), come(2)}, "3/1/-1 1/2/-1 2/3/-1"},
      {"after it", {come(1), lose(0), come(2)}, "3/1/-1 1/2/-1 2/3/-1"},
      {"a spare that died is none",
       {come(-1), lose(3), lose(0), come(1), come(2)},
       "4/1/-1 1/2/-1 2/4/-1"},
      {"two for two", {come(-1), come(2), lose(2), lose(0), come(1)}, "3/1/-1 1/4/-1 4/3/-1"},
      {"not needed", {lose(3), come(1), come(2)}, "0/1/-1 1/2/-1 2/0/-1"},
      {"more are missing", {lose(0), come(1)}, "-1/-1/-1 -1/-1/-1 -1/-1/-1"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    ViewState state(3, 1, true, 3);
    state.add_server("pid 0", "", 0);
    state.add_server("spare", "");
    for (const auto& event : c.events) event(state);
    EXPECT_EQ(state.view().failure, "");
    EXPECT_EQ(roles(state), c.roles);
  }
  ViewState state(3, 1, true, 3);
  state.add_server("pid 0", "", 0);
  state.add_server("spare", "");
  state.lose_server(0, "died");
  state.lose_server(3, "died too");
  EXPECT_EQ(state.view().failure, "server 3 (spare) died too before all servers had come");
}

TEST(ViewState, WorkersComeOnceAtATime) {
  ViewState state = begun(1);
  state.add_worker(1, "w");
  EXPECT_THAT(message_of<UsageError>([&] { state.add_worker(1, "x"); }),
              HasSubstr("worker 1 is there already: worker 1 (w)"));
  for (const int worker : {-1, 2})
    EXPECT_THAT(message_of<UsageError>([&] { state.add_worker(worker, "x"); }),
                HasSubstr("there are 2"));
  state.lose_worker(1, "died");
  EXPECT_FALSE(state.view().workers[1].finished);
  state.add_worker(1, "x");
  EXPECT_TRUE(state.view().workers[1].alive);
  state.finish_worker(1);
  EXPECT_TRUE(state.view().workers[1].finished);
  EXPECT_FALSE(state.view().workers[1].alive);
  EXPECT_EQ(view_from(to_text(state.view())), state.view());
}

TEST(ViewState, WhatNobodyHasBreaksTheRules) {
  ViewState state = begun(2);
  for (const int partition : {-1, 2, 1 << 30}) {
    EXPECT_THAT(message_of<Mismatch>([&] { state.synced(partition, 0, 1); }), HasSubstr("of 2"));
    EXPECT_THAT(message_of<Mismatch>([&] { state.suspect(partition, 0, 1); }), HasSubstr("of 2"));
  }
  EXPECT_THAT(message_of<UsageError>([] { ViewState(0, 1); }), HasSubstr("0 servers"));
  EXPECT_THAT(message_of<UsageError>([] { ViewState(1, 0); }), HasSubstr("0 workers"));
}

TEST(View, ComesBackFromItsTextOrIsRefused) {
  ViewState state = begun(3);
  state.lose_server(1, "was \"killed\"\n");
  const std::string good = to_text(state.view());
  EXPECT_EQ(view_from(good), state.view());
  for (const std::string& bad : {std::string("{}"), std::string("7"), good.substr(1)})
    EXPECT_THAT(message_of<Error>([&] { view_from(bad); }), HasSubstr("cannot be read"));
  for (const int server : {3, -2}) {
    View view = state.view();
    view.partitions[0].joining = server;
    EXPECT_THAT(message_of<Error>([&] { view_from(to_text(view)); }),
                HasSubstr(fmt::format("server {} of 3", server)));
  }
}

TEST(View, ChangesAreToldInWords) {
  ViewState state = begun(3);
  const View first = state.view();
  EXPECT_THAT(changes({}, first), IsEmpty());
  state.lose_server(1, "was killed");
  EXPECT_THAT(
      changes(first, state.view()),
      ElementsAre("server 1 (pid 1) was killed", "partition 0: without a backup",
                  "partition 1: server 2 (pid 2) takes over", "partition 1: without a backup"));
  const View second = state.view();
  state.synced(0, 0, 2);
  state.add_worker(1, "w");
  EXPECT_THAT(changes(second, state.view()),
              ElementsAre("worker 1 (w) has come", "partition 0: server 2 (pid 2) is its backup"));
}

}  // namespace
}  // namespace tutti::ps
