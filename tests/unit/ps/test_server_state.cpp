// One server, told what to hear: what it may say when, and to whom it does not listen.
#include <gmock/gmock.h>

#include <map>

#include "tutti/base/error.h"
#include "tutti/ps/server/server_state.h"

#include "tests/support/message_of.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tutti::test::message_of;
using Kind = Message::Kind;

constexpr Peer kBackup{Peer::Kind::server, 1};
constexpr Peer kOther{Peer::Kind::server, 2};
constexpr Peer kPrimary{Peer::Kind::primary, 0};

View view_of(int64_t number, int primary, int backup, int joining = -1) {
  View view{.number = number};
  view.partitions = {{primary, backup, joining, number}};
  for (int i = 0; i < 3; ++i) view.servers.push_back({fmt::format("server {}", i), "", true, ""});
  for (int i = 0; i < 2; ++i) view.workers.push_back({fmt::format("worker {}", i), "", true, ""});
  return view;
}

class Host {
 public:
  explicit Host(int number)
      : state(number, Compute::plain(),
              [this](Peer to, Message message) { said.emplace_back(to, std::move(message)); }) {}

  void hear(Peer from, Message message, int64_t view = 1) {
    message.view = view;
    state.on_message(from, std::move(message));
  }
  void logged(int64_t index, Peer from = kBackup) {
    hear(from, {.kind = Kind::logged, .index = index});
  }
  void order(Message message, int64_t index) {
    message.index = index;
    hear(kPrimary, std::move(message));
  }
  // "settled 1", with the sequence, or index between servers; cleared then.
  std::vector<std::string> words(Peer to) {
    std::vector<std::string> words;
    for (const auto& [peer, message] : said)
      if (peer == to)
        words.push_back(
            fmt::format("{} {}", name_of(message.kind),
                        to.kind == Peer::Kind::worker ? message.sequence : message.index));
    std::erase_if(said, [&](const auto& entry) { return entry.first == to; });
    return words;
  }
  void finish_copies(int server) {
    while (state.copies_to().contains(server)) state.continue_copies(server);
  }
  int64_t bytes_copied() const {
    int64_t bytes = 0;
    for (const auto& [peer, message] : said)
      if (message.kind == Kind::chunk) bytes += message.payload.size();
    return bytes;
  }
  // What `other` has said to this one's peer `as`; forgotten then.
  void hear_all(Host& other, Peer as, Peer from) {
    for (auto& [to, message] : std::exchange(other.said, {}))
      if (to == as) state.on_message(from, std::move(message));
  }
  float value() const { return first_of(state.partition(0).piece(0).parameters()); }

  std::vector<std::pair<Peer, Message>> said;
  ServerState state;
};

// Server 0 with backup 1, both workers and the values there.
struct Primary : Host {
  explicit Primary(Spec made, View view = view_of(1, 0, 1)) : Host(0), spec(std::move(made)) {
    state.on_view(view);
    state.on_connected(kBackup);
    for (int w = 0; w < 2; ++w) {
      state.on_connected(worker_peer(w));
      hear(worker_peer(w), hello(spec, w));
    }
    logged(2);
    hear(worker_peer(0), assign(spec, 0, {0}));
    logged(3);
    said.clear();
  }
  const Spec spec;
};

TEST(ServerState, SaysNothingBeforeItsBackupHasIt) {
  Primary server(small_spec(2, Staleness::unbounded()));
  Message first = push(server.spec, 0, 1, 0, {1});
  first.flags |= Message::then_pull;
  server.hear(worker_peer(0), first);
  EXPECT_THAT(server.words(kBackup), ElementsAre("push 4"));
  EXPECT_THAT(server.words(worker_peer(0)), IsEmpty());
  EXPECT_EQ(server.value(), 0);
  server.logged(3);
  EXPECT_THAT(server.words(worker_peer(0)), IsEmpty());
  server.logged(4);
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("settled 1", "parameters 0"));
  EXPECT_EQ(server.value(), -1);
}

TEST(ServerState, RepeatedPushesAreAnsweredAndCountOnce) {
  Primary server(small_spec(2, Staleness::unbounded()));
  Message first = push(server.spec, 0, 1, 0, {1});
  first.flags |= Message::then_pull;
  server.hear(worker_peer(0), first);
  server.hear(worker_peer(0), first);  // again, before it is logged
  EXPECT_THAT(server.words(kBackup), ElementsAre("push 4"));
  server.logged(4);
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("settled 1", "parameters 0"));
  server.hear(worker_peer(0), first);
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("settled 1", "parameters 0"));
  EXPECT_EQ(server.value(), -1);
  EXPECT_THAT(
      message_of<Mismatch>([&] { server.hear(worker_peer(0), push(server.spec, 0, 3, 1, {1})); }),
      HasSubstr("push 3 before push 2"));
}

TEST(ServerState, ARoundHoldsBackTheAnswersOfAllItsPushes) {
  Primary server(small_spec(2, Staleness(0)));
  server.hear(worker_peer(0), push(server.spec, 0, 1, 0, {1}));
  server.logged(4);
  server.hear(worker_peer(0), push(server.spec, 0, 1, 0, {1}));  // connected anew
  EXPECT_THAT(server.words(worker_peer(0)), IsEmpty());
  server.hear(worker_peer(1), push(server.spec, 1, 1, 0, {2}));
  server.logged(5);
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("settled 1"));
  EXPECT_THAT(server.words(worker_peer(1)), ElementsAre("settled 1"));
}

TEST(ServerState, ASecondQuestionIsToldWhomItWaitsFor) {
  Primary server(small_spec(2, Staleness(0)));
  server.hear(worker_peer(0), push(server.spec, 0, 1, 0, {1}));
  server.logged(4);
  server.hear(worker_peer(0), pull(0, 1));
  EXPECT_THAT(server.words(worker_peer(0)), IsEmpty());
  server.hear(worker_peer(0), pull(0, 1));
  ASSERT_EQ(server.said.size(), 2U);  // the push to the backup, and this
  EXPECT_EQ(server.said[1].second.kind, Kind::waiting);
  EXPECT_EQ(server.said[1].second.text, "worker 1");
}

TEST(ServerState, ALostBackupIsNotShedBeforeTheViewSaysSo) {
  Primary server(small_spec(2, Staleness::unbounded()));
  server.hear(worker_peer(0), push(server.spec, 0, 1, 0, {1}));
  server.state.on_closed(kBackup, "broke");
  EXPECT_THAT(server.words(Peer{}), ElementsAre("suspect 0"));
  EXPECT_THAT(server.words(worker_peer(0)), IsEmpty());
  EXPECT_THAT(server.state.followers(), IsEmpty());
  server.said.clear();
  server.state.on_connected(kBackup);  // what it has may count: it is sent nothing
  server.hear(worker_peer(0), push(server.spec, 0, 2, 1, {1}));
  EXPECT_THAT(server.words(kBackup), IsEmpty());
  server.state.on_view(view_of(2, 0, -1));
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("settled 1", "settled 2"));
}

TEST(ServerState, AJoiningServerIsWaitedForOnceItHasTheCopy) {
  Primary server(small_spec(2, Staleness::unbounded()));
  server.state.on_view(view_of(2, 0, -1, 2));
  EXPECT_THAT(server.words(kOther), IsEmpty());
  server.state.on_connected(kOther);
  server.finish_copies(2);
  EXPECT_THAT(server.words(kOther),
              ElementsAre("copying 3", "chunk 0", "chunk 0", "chunk 0", "copied 3"));
  server.hear(worker_peer(0), push(server.spec, 0, 1, 0, {1}));
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("settled 1"));  // alone still
  server.logged(3, kOther);
  EXPECT_THAT(server.words(Peer{}), IsEmpty());
  server.hear(worker_peer(0), push(server.spec, 0, 2, 1, {1}));
  EXPECT_THAT(server.words(worker_peer(0)), IsEmpty());  // it may be the backup soon
  server.logged(4, kOther);
  EXPECT_THAT(server.words(Peer{}), ElementsAre("synced 0"));
  server.logged(5, kOther);
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("settled 2"));
}

// 12 MiB of rows; the oldest have gone, and others lie in their places.
Message push_of_rows(int64_t sequence, uint64_t first_key) {
  constexpr size_t kRows = 6'000, kWidth = 512;
  std::vector<std::byte> bytes(kRows * (sizeof(uint64_t) + kWidth * sizeof(float)));
  for (size_t i = 0; i < kRows; ++i) {
    const uint64_t key = first_key + i;
    std::memcpy(bytes.data() + i * sizeof key, &key, sizeof key);
    const auto gradient = static_cast<float>(key);
    std::memcpy(bytes.data() + kRows * sizeof key + i * kWidth * sizeof gradient, &gradient,
                sizeof gradient);
  }
  return {.kind = Kind::sparse_push,
          .worker = 0,
          .sequence = sequence,
          .step = sequence - 1,
          .learning_rate = 1,
          .payload = Bytes::copy_of(bytes)};
}

Spec spec_with_rows() {
  Spec spec = small_spec(2, Staleness::unbounded());
  spec.tables = {{.name = "t", .width = 512, .initializer = ZeroRows{}, .most_rows = 6'000}};
  return spec;
}

TEST(ServerState, ALargeTableIsCopiedInTurns) {
  constexpr int64_t kMostATurn = 5 << 20;
  Primary server(spec_with_rows());
  server.hear(worker_peer(0), push_of_rows(1, 0));
  server.logged(4);
  server.hear(worker_peer(0), push_of_rows(2, 3'000));
  server.logged(5);
  server.said.clear();
  server.state.on_view(view_of(2, 0, -1, 2));
  server.state.on_connected(kOther);
  EXPECT_LE(server.bytes_copied(), kMostATurn);
  server.state.continue_copies(2);
  // Training goes on; its order comes behind the copy, which does not have it.
  server.hear(worker_peer(0), push_of_rows(3, 1'000));
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("settled 3"));
  int turns = 0;
  for (; server.state.copies_to().contains(2); ++turns) {
    const int64_t before = server.bytes_copied();
    server.state.continue_copies(2);
    EXPECT_LE(server.bytes_copied() - before, kMostATurn);
  }
  EXPECT_GT(turns, 3);
  Host joining(2);
  joining.state.on_view(view_of(2, 0, -1, 2));
  joining.hear_all(server, kOther, kPrimary);
  EXPECT_EQ(all_of(joining.state.partition(0)), all_of(server.state.partition(0)));
  EXPECT_EQ(joining.words(kPrimary), (std::vector<std::string>{"logged 5", "logged 6"}));
  // And evicts the same from then on.
  server.hear(worker_peer(0), push_of_rows(4, 20'000), 2);
  joining.hear_all(server, kOther, kPrimary);
  EXPECT_EQ(rows_of(joining.state.partition(0).tables()),
            rows_of(server.state.partition(0).tables()));
}

TEST(ServerState, ACopyEndsWithTheConnection) {
  Primary server(spec_with_rows());
  server.hear(worker_peer(0), push_of_rows(1, 0));
  server.logged(4);
  server.state.on_view(view_of(2, 0, -1, 2));
  server.state.on_connected(kOther);
  server.state.continue_copies(2);
  EXPECT_THAT(server.state.copies_to(), ElementsAre(2));
  server.state.on_closed(kOther, "broke");
  EXPECT_THAT(server.state.copies_to(), IsEmpty());
  server.said.clear();
  server.hear(worker_peer(0), push_of_rows(2, 3'000));
  EXPECT_THAT(server.words(kOther), IsEmpty());
}

TEST(ServerState, AReplacedPrimaryIsToldAndNotFollowed) {
  const Spec spec = small_spec(2, Staleness::unbounded());
  Host backup(1);
  backup.state.on_view(view_of(1, 0, 1));
  backup.order(hello(spec, 0), 1);
  backup.order(assign(spec, 0, {0}), 2);
  backup.order(push(spec, 0, 1, 0, {1}), 3);
  EXPECT_THAT(backup.words(kPrimary), ElementsAre("logged 1", "logged 2", "logged 3"));
  backup.order(push(spec, 0, 1, 0, {1}), 3);  // sent again
  EXPECT_EQ(backup.value(), -1);
  EXPECT_THAT(message_of<Mismatch>([&] { backup.order(push(spec, 0, 2, 1, {1}), 5); }),
              HasSubstr("order 5 of partition 0 after order 3"));
  backup.state.on_view(view_of(2, 1, -1));
  backup.said.clear();
  backup.order(push(spec, 0, 2, 1, {1}), 4);
  EXPECT_THAT(backup.words(kPrimary), ElementsAre("view 0"));
  EXPECT_EQ(backup.value(), -1);
  backup.hear(worker_peer(0), push(spec, 0, 2, 1, {1}), 1);  // the worker did not hear yet
  EXPECT_EQ(backup.value(), -2);
}

TEST(ServerState, ACopyThatIsNotAllIsRefused) {
  const Spec spec = small_spec(2, Staleness(0));
  Host joining(1);
  joining.state.on_view(view_of(1, 0, -1, 1));
  joining.hear(kPrimary, {.kind = Kind::copying, .index = 3});
  EXPECT_THAT(
      message_of<Mismatch>([&] { joining.hear(kPrimary, {.kind = Kind::copied, .index = 3}); }),
      HasSubstr("at order 3 has orders up to 0"));
  EXPECT_THAT(joining.words(kPrimary), IsEmpty());
}

TEST(ServerState, ABackupHasWhatItsPrimaryHasAfterAPromotion) {
  Spec spec = small_spec(2, Staleness::unbounded());
  spec.delay_compensation = 0.5;
  Primary primary(spec);
  Host backup(1);
  backup.state.on_view(view_of(1, 0, 1));
  backup.order(hello(spec, 0), 1);
  backup.order(hello(spec, 1), 2);
  backup.order(assign(spec, 0, {0}), 3);
  const auto exchange = [&] {
    for (const auto& [to, message] : std::exchange(primary.said, {}))
      if (to == kBackup) backup.hear(kPrimary, message);
    for (const auto& [to, message] : std::exchange(backup.said, {})) primary.hear(kBackup, message);
  };
  primary.hear(worker_peer(1), pull(1, 0));
  exchange();
  primary.hear(worker_peer(0), push(spec, 0, 1, 0, {2}));
  exchange();
  EXPECT_EQ(all_of(backup.state.partition(0)), all_of(primary.state.partition(0)));
  backup.state.on_view(view_of(2, 1, -1));
  backup.hear(worker_peer(1), push(spec, 1, 1, 0, {4}));
  EXPECT_EQ(backup.value(), -2 - (4 + 0.5F * 16 * -2));
}

TEST(ServerState, AWorkersWordsAreNotBelieved) {
  Primary server(small_spec(2, Staleness(0)));
  const auto breaks = [&](int peer, Message message) {
    return message_of<Mismatch>([&] { server.hear(worker_peer(peer), std::move(message)); });
  };
  EXPECT_THAT(breaks(1, push(server.spec, 0, 1, 0, {1})),
              HasSubstr("worker 1 speaks for worker 0"));
  EXPECT_THAT(breaks(2, hello(server.spec, 2)), HasSubstr("worker 2"));
  EXPECT_THAT(breaks(-1, hello(server.spec, -1)), HasSubstr("worker -1"));
  EXPECT_THAT(breaks(0, {.kind = Kind::view, .text = to_text(view_of(99, 2, -1))}),
              HasSubstr("a view"));
  EXPECT_THAT(breaks(0, {.kind = Kind::pull, .partition = 7}), HasSubstr("partition 7 of 1"));
  EXPECT_THAT(breaks(0, {.kind = Kind::pull, .partition = -1}), HasSubstr("partition -1 of 1"));
  EXPECT_THAT(breaks(0, {.kind = Kind::leave, .worker = 0}), HasSubstr("a leave of a worker"));
  EXPECT_THAT(message_of<Mismatch>([&] { server.hear(kBackup, {.kind = Kind::copied}); }),
              HasSubstr("server 1 answers with a copied"));
  EXPECT_EQ(server.state.view().number, 1);
  Message wild = push(server.spec, 0, std::numeric_limits<int64_t>::min(), 0, {1});
  server.hear(worker_peer(0), wild);
  server.said.erase(server.said.begin(), server.said.end() - 1);
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("refused 0"));
}

TEST(ServerState, WishesOfAWorkerDoNotPileUp) {
  Primary server(small_spec(2, Staleness(0)));
  for (int64_t step = 1; step < 1000; ++step) server.hear(worker_peer(0), pull(0, step));
  for (int w = 0; w < 2; ++w) server.hear(worker_peer(w), push(server.spec, w, 1, 0, {1}));
  server.hear(worker_peer(0), pull(0, 1));
  server.logged(5);
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("settled 1", "parameters 0"));
}

TEST(ServerState, WordsOfALaterViewWaitForIt) {
  Primary server(small_spec(2, Staleness::unbounded()), view_of(1, 0, 1));
  server.hear(worker_peer(0), push(server.spec, 0, 1, 0, {1}), 2);
  server.hear(worker_peer(0), push(server.spec, 0, 7, 1, {1}), 2);
  EXPECT_THAT(server.words(kBackup), IsEmpty());
  server.state.on_view(view_of(2, 0, -1));  // the view is right: no error of the view service's
  EXPECT_EQ(server.value(), -1);
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("settled 1", "refused 0"));
}

TEST(ServerState, TooMuchOfALaterViewBreaksTheRules) {
  Host server(0);
  const auto flood = [&] {
    for (int i = 0; i < 20'000; ++i) server.hear(worker_peer(0), pull(0, 0), 5);
  };
  EXPECT_THAT(message_of<Mismatch>(flood), HasSubstr("too many"));
}

TEST(ServerState, WhoWasReplacedEndsAndSaysNothingMore) {
  Primary server(small_spec(2, Staleness::unbounded()));
  View view = view_of(2, 1, -1);
  view.servers[0].alive = false;
  view.servers[0].ending = "was silent";
  server.hear(kBackup, {.kind = Kind::view, .text = to_text(view)});
  EXPECT_THAT(server.state.over(), HasSubstr("server 0 was replaced: it was silent"));
  server.hear(worker_peer(0), push(server.spec, 0, 1, 0, {1}));
  EXPECT_THAT(server.said, IsEmpty());
}

Spec going_on_spec() {
  Spec spec = small_spec(2, Staleness(0));
  spec.on_lost_worker = OnLostWorker::go_on;
  return spec;
}

TEST(ServerState, AWorkerThatIsLostIsRefusedAndNotWaitedForWhereTheOthersGoOn) {
  Primary server(going_on_spec(), view_of(1, 0, 1));
  server.hear(worker_peer(0), push(server.spec, 0, 1, 0, {1}));
  server.logged(4);
  View view = view_of(2, 0, 1);
  view.workers[1] = {"worker 1", "", false, "was killed"};
  server.state.on_view(view);
  EXPECT_THAT(server.words(kBackup), ElementsAre("push 4", "leave 5"));
  server.logged(5);
  EXPECT_THAT(server.words(worker_peer(0)), ElementsAre("settled 1"));
  server.hear(worker_peer(1), push(server.spec, 1, 1, 0, {1}));
  EXPECT_THAT(server.said.back().second.text, HasSubstr("worker 1 counts as lost: it was killed"));
}

// Also when it says so again, after its connection broke.
TEST(ServerState, WhoPushedForAStepThatALostWorkerLeftOpenIsToldSo) {
  Primary server(small_spec(2, Staleness(0)), view_of(1, 0, 1));
  server.hear(worker_peer(0), push(server.spec, 0, 1, 0, {1}));
  server.logged(4);
  View view = view_of(2, 0, 1);
  view.workers[1] = {"worker 1 (host b)", "", false, "was killed"};
  server.state.on_view(view);
  EXPECT_THAT(server.words(worker_peer(0)), IsEmpty());
  server.logged(5);
  for (int times = 0; times < 2; ++times) {
    ASSERT_FALSE(server.said.empty());
    EXPECT_EQ(server.said.back().second.kind, Kind::refused);
    EXPECT_EQ(server.said.back().second.text,
              "step 0 needs the gradients of all workers, and worker 1 (host b) was killed before "
              "it had pushed its own");
    EXPECT_EQ(server.value(), 0);
    server.said.clear();
    server.hear(worker_peer(0), push(server.spec, 0, 1, 0, {1}), 2);
  }
}

// A peer's view came before that in which it was lost.
TEST(ServerState, AWorkerThatIsLostAndComesAgainBetweenTwoViewsHasLeft) {
  Primary server(small_spec(2, Staleness(1)), view_of(1, 0, 1));
  View view = view_of(3, 0, 1);
  view.partitions[0].epoch = 1;
  view.workers[1].comings = 2;
  server.hear(kBackup, {.kind = Kind::view, .text = to_text(view)});
  EXPECT_THAT(server.words(kBackup), ElementsAre("leave 4"));
  view.number = 4;
  server.state.on_view(view);
  EXPECT_THAT(server.words(kBackup), IsEmpty());
  server.logged(4);
  EXPECT_FALSE(server.state.partition(0).is_here(1));
}

Spec waiting_spec() {
  Spec spec = small_spec(2, Staleness(0));
  spec.on_lost_worker = OnLostWorker::wait;
  return spec;
}

// Each step takes 2 from every element.
TEST(ServerState, AWorkerThatComesAgainGetsTheStepThatItBeginsWith) {
  Primary server(waiting_spec());
  int64_t index = 3;
  for (const int64_t step : {0, 1})
    for (const int worker : {0, 1}) {
      server.hear(worker_peer(worker), push(server.spec, worker, step + 1, step, {1, 1, 1, 1}));
      server.logged(++index);
    }
  const auto wants = [&](int64_t version) {
    Message exactly = pull(1, version);
    exactly.flags = Message::exactly;
    server.said.clear();
    server.hear(worker_peer(1), exactly);
    return server.said.back().second;
  };
  EXPECT_EQ(first_of(wants(2).payload), -4);
  EXPECT_EQ(first_of(wants(1).payload), -2);
  EXPECT_EQ(wants(1).version, 1);
  EXPECT_EQ(wants(0).kind, Kind::refused);
  EXPECT_THAT(wants(0).text, HasSubstr("version 0 of piece 0 is not known any more; it is at 2"));
}

TEST(ServerState, ALostWorkerThatIsWaitedForHasNotLeft) {
  Primary server(waiting_spec());
  View view = view_of(2, 0, 1);
  view.partitions[0].epoch = 1;
  view.workers[1] = {"worker 1", "", false, "was killed"};
  server.state.on_view(view);
  EXPECT_THAT(server.words(kBackup), IsEmpty());
  EXPECT_TRUE(server.state.partition(0).is_here(1));
  view.number = 3;
  view.workers[1].finished = true;
  server.state.on_view(view);
  EXPECT_THAT(server.words(kBackup), ElementsAre("leave 4"));
}

// The view service waits for the last cut of every partition.
TEST(ServerState, WhatCannotBeCutIsSaid) {
  std::vector<int> cut;
  std::vector<Message> said;
  ServerState server(
      0, Compute::plain(),
      [&](Peer to, Message message) {
        if (to == Peer{}) said.push_back(std::move(message));
      },
      [&](int partition, const std::shared_ptr<PartitionCut>&) { cut.push_back(partition); });
  View view = view_of(1, 0, -1);
  view.partitions.push_back({1, -1, -1, 1});  // another one leads it
  server.on_view(view);
  server.cut_all(7, "folder");
  EXPECT_THAT(cut, IsEmpty());
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].kind, Kind::written);
  EXPECT_EQ(said[0].partition, 0);
  EXPECT_EQ(said[0].sequence, 7);
  EXPECT_EQ(said[0].flags, Message::not_written);
  EXPECT_EQ(said[0].text, "no worker has registered");
  const Spec spec = small_spec(2, Staleness(0));
  Message first = hello(spec, 0);
  first.view = 1;
  server.on_message(worker_peer(0), first);
  server.cut_all(8, "folder");
  EXPECT_THAT(cut, ElementsAre(0));
  EXPECT_EQ(said.size(), 1U);
}

// Server 0 of partition 0; partition 1 goes from server 1 to server 2 in view 2.
class Cutting : public ::testing::Test {
 protected:
  Cutting() {
    view_.partitions.push_back({1, 2, -1, 1});
    server_.on_view(view_);
    for (int worker = 0; worker < 2; ++worker) hear(worker, hello(spec_, worker));
    hear(0, assign(spec_, 0, {0}));
  }
  void hear(int worker, Message message) {
    message.view = 1;
    server_.on_message(worker_peer(worker), std::move(message));
  }
  void mark(int worker, int64_t cut, int view) {
    hear(worker, {.kind = Kind::mark,
                  .worker = worker,
                  .piece = view,
                  .sequence = ++marks_[worker],
                  .version = cut,
                  .text = "folder"});
  }
  void hear_view_2() {
    view_.number = 2;
    view_.partitions[1] = {2, -1, -1, 2};
    server_.on_view(view_);
  }

  const Spec spec_ = small_spec(2, Staleness::unbounded());
  std::vector<int64_t> cuts_;
  std::map<int, int64_t> marks_;  // by worker
  View view_ = view_of(1, 0, -1);
  ServerState server_{
      0, Compute::plain(), [](Peer, const Message&) {},
      [this](int, const std::shared_ptr<PartitionCut>& cut) { cuts_.push_back(cut->number()); }};
};

TEST_F(Cutting, AMarkMayOvertakeTheViewInWhichItsCutBegan) {
  mark(0, 7, 2);
  hear_view_2();
  mark(1, 7, 2);
  EXPECT_THAT(cuts_, ElementsAre(7));
}

TEST_F(Cutting, ACutOfAnEarlierViewIsGivenUp) {
  mark(0, 7, 1);
  hear_view_2();
  mark(1, 7, 1);
  EXPECT_THAT(cuts_, IsEmpty());
  mark(0, 8, 2);
  mark(1, 8, 2);
  EXPECT_THAT(cuts_, ElementsAre(8));
}

// View 2 has it lost, view 3 has it again.
void lose_and_come(Primary& server, int worker) {
  View view = view_of(2, 0, 1);
  view.partitions[0].epoch = 1;
  view.workers[worker] = {"worker", "", false, "was killed"};
  server.state.on_view(view);
  view.number = 3;
  view.workers[worker] = {.name = "worker again", .alive = true, .comings = 2};
  server.state.on_view(view);
}

TEST(ServerState, AWorkerThatComesAgainBeforeItsLeaveIsLoggedIsRefused) {
  Primary server(small_spec(2, Staleness(0)));
  server.hear(worker_peer(1), push(server.spec, 1, 1, 0, {1}));
  server.logged(4);
  lose_and_come(server, 1);
  server.hear(worker_peer(1), hello(server.spec, 1));
  EXPECT_THAT(server.words(kBackup), ElementsAre("push 4", "leave 5", "hello 6"));
  EXPECT_THAT(server.words(worker_peer(1)), IsEmpty());
  server.logged(6);
  ASSERT_FALSE(server.said.empty());
  EXPECT_EQ(server.said.back().first, worker_peer(1));
  EXPECT_THAT(server.said.back().second.text, HasSubstr("worker 1 has left before"));
  EXPECT_THAT(server.words(worker_peer(1)), ElementsAre("refused 0"));
}

// It was welcomed by a server that did not know yet that it had been lost.
TEST(ServerState, AWorkerThatCameBeforeItsLossWasKnownIsRefusedOnceItHasLeft) {
  Primary server(small_spec(2, Staleness(0)));
  server.hear(worker_peer(1), push(server.spec, 1, 1, 0, {1}));
  server.logged(4);
  server.hear(worker_peer(1), hello(server.spec, 1));
  server.logged(5);
  EXPECT_THAT(server.words(worker_peer(1)), ElementsAre("welcome 1"));
  lose_and_come(server, 1);
  server.logged(6);
  server.said.clear();
  server.hear(worker_peer(1), push(server.spec, 1, 2, 0, {1}));
  server.hear(worker_peer(1), pull(1, 0));
  EXPECT_THAT(server.words(worker_peer(1)), ElementsAre("refused 0", "refused 0"));
}

}  // namespace
}  // namespace tutti::ps::testing
