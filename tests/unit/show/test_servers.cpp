// `tutti show parameter-server`, `sync` and `async`: their traces against what the strategy
// promises.
#include <map>
#include <set>

#include "tutti/cli/show/servers.h"

#include "tests/unit/show/made_events.h"
#include "tests/unit/show/shown_files.h"

namespace tutti::cli {
namespace {

template <class List>
std::set<std::array<int64_t, 3>> by_worker_server_and_step(const List& transfers) {
  std::set<std::array<int64_t, 3>> all;
  for (const auto& one : transfers)
    all.insert({one.at("worker").template get<int64_t>(), one.at("server").template get<int64_t>(),
                one.at("step").template get<int64_t>()});
  return all;
}

// Every step of every worker, with every server.
std::set<std::array<int64_t, 3>> all_of(int workers, int servers, int64_t first, int64_t end) {
  std::set<std::array<int64_t, 3>> all;
  for (int w = 0; w < workers; ++w)
    for (int s = 0; s < servers; ++s)
      for (int64_t step = first; step < end; ++step) all.insert({w, s, step});
  return all;
}

TEST(ShowServers, EveryWorkerPushesToEveryServerAndPullsFromIt) {
  const Shown shown = servers_shown(run_servers({.workers = 4, .servers = 2, .steps = 3}),
                                    ServersView::parameter_server);
  const OrderedJson& got = shown.figures;
  EXPECT_EQ(by_worker_server_and_step(got.at("pushes")), all_of(4, 2, 0, 3));
  EXPECT_EQ(got.at("pushes").size(), 4u * 2 * 3) << "each once";
  EXPECT_EQ(by_worker_server_and_step(got.at("pulls")), all_of(4, 2, 1, 4));
  EXPECT_EQ(got.at("updates").size(), 2u * 3) << "a server updates once a step";
  int64_t bytes = 0;
  std::set<int64_t> servers;
  for (const auto& piece : got.at("pieces")) {
    bytes += piece.at("bytes").get<int64_t>();
    servers.insert(piece.at("server").get<int64_t>());
  }
  EXPECT_EQ(bytes, 4096 * 4) << "the shards are the whole";
  EXPECT_EQ(servers, (std::set<int64_t>{0, 1}));
  EXPECT_LT(got.at("loss_last").get<double>(), got.at("loss_first").get<double>());
  for (const auto& one : got.at("pushes"))
    EXPECT_LE(one.at("sent_us").get<double>(), one.at("received_us").get<double>());
}

TEST(ShowServers, InStepNobodyGetsParametersBeforeTheLastHasPushed) {
  const Shown shown =
      servers_shown(run_servers({.workers = 3, .steps = 4, .slow_rows = 3}), ServersView::sync);
  ASSERT_EQ(shown.figures.at("barriers").size(), 4u);
  for (const auto& barrier : shown.figures.at("barriers"))
    EXPECT_LE(barrier.at("last_push_us").get<double>(),
              barrier.at("first_parameters_us").get<double>());
  EXPECT_EQ(shown.figures.at("most_steps_ahead"), 0);
  EXPECT_EQ(shown.figures.at("staleness_most"), 0);
  EXPECT_EQ(shown.figures.at("updates").size(), 4u);
  // One bar for each wait that is long enough, and each is in the figures.
  const auto drawn =
      std::ranges::count(shown.drawing.bars, drawings::Kind::wait, &drawings::Bar::kind);
  EXPECT_GE(drawn, 1);
  EXPECT_LE(drawn, std::ssize(shown.figures.at("waits").template get<std::vector<OrderedJson>>()));
}

TEST(ShowServers, StalenessBoundsHowFarAheadAWorkerIs) {
  for (const int64_t bound : {1, 2}) {
    const Shown shown = servers_shown(
        run_servers({.workers = 3, .staleness = ps::Staleness(bound), .steps = 8, .slow_rows = 3}),
        ServersView::async);
    EXPECT_LE(shown.figures.at("most_steps_ahead").get<int64_t>(), bound);
    EXPECT_EQ(shown.figures.at("updates").size(), 3u * 8) << "each push by itself";
    EXPECT_EQ(shown.figures.at("pushes").size(), 3u * 8);
    int64_t most = 0;
    for (const auto& update : shown.figures.at("updates"))
      most = std::max(most, update.at("staleness").get<int64_t>());
    EXPECT_EQ(shown.figures.at("staleness_most"), most);
    // Between a pull and its update each other worker makes at most 2 bound + 1 updates.
    EXPECT_LE(most, 2 * (2 * bound + 1));
  }
}

// Worker 1's push waits in the server's queue; its update begins when the server turns to it.
TEST(ShowServers, AnUpdateIsWhatTheServerComputesAndNoQueue) {
  ServersTrace trace{.job = {.workers = 2, .servers = 1, .staleness = ps::Staleness(2), .steps = 1},
                     .pieces = {{0, 64}},
                     .events = {}};
  for (int worker = 0; worker < 2; ++worker) {
    const std::map<std::string, int64_t> push = {
        {"worker", worker}, {"server", 0},  {"piece", 0}, {"step", 0},
        {"sequence", 1},    {"version", 0}, {"bytes", 64}};
    trace.events.push_back(test::made_event("show.compute", 10, 10, {{"worker", worker}}));
    trace.events.push_back(test::made_event("ps.push", 11, -1, push));
    trace.events.push_back(test::made_event("ps.push_came", 20, -1, push));
  }
  for (int worker = 0; worker < 2; ++worker)
    trace.events.push_back(test::made_event("ps.updated", 50 + 100 * worker, 3,
                                            {{"worker", worker},
                                             {"server", 0},
                                             {"piece", 0},
                                             {"sequence", 1},
                                             {"version", worker + 1}}));
  const OrderedJson updates = servers_shown(trace, ServersView::async).figures.at("updates");
  ASSERT_EQ(updates.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(updates.at(i).at("begin_us"), 47 + 100 * i);
    EXPECT_EQ(updates.at(i).at("end_us"), 50 + 100 * i);
    EXPECT_EQ(updates.at(i).at("staleness"), i) << "each was computed on version 0";
  }
}

TEST(ShowServers, TheProgramDrawsThem) {
  for (const char* words : {"parameter-server -n 2 --servers 2 --steps 2", "sync -n 2 --steps 2",
                            "async -n 2 --steps 3 --staleness inf"}) {
    const ShownFiles files(words);
    EXPECT_THAT(files.result.out, HasSubstr("worker 0 -> server 0: gradient of piece")) << words;
    EXPECT_THAT(files.result.out, HasSubstr("server 0 -> worker 1: parameters of piece")) << words;
    files.expect_xml();
  }
}

}  // namespace
}  // namespace tutti::cli
