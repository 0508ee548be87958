// One worker, told what to hear: what it sends again, in which order, and what it does not believe.
#include <gmock/gmock.h>

#include "tutti/base/error.h"
#include "tutti/ps/client/client_state.h"
#include "tutti/ps/wire/frame_stream.h"

#include "tests/support/message_of.h"
#include "tests/unit/ps/small_job.h"

namespace tutti::ps::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tutti::test::message_of;
using Kind = Message::Kind;

View view_of(int64_t number, int primary) {
  View view{.number = number};
  view.partitions = {{primary, -1, -1, 1}};
  for (int i = 0; i < 2; ++i) view.servers.push_back({fmt::format("server {}", i), "", true, ""});
  for (int i = 0; i < 2; ++i) view.workers.push_back({fmt::format("worker {}", i), "", true, ""});
  return view;
}

struct Worker {
  explicit Worker(int number, Staleness staleness = Staleness::unbounded())
      : spec(two_pieces(2, staleness)),
        state(
            number, spec,
            [this](int server, Message m) { said.emplace_back(server, std::move(m)); },
            [this](int piece, int64_t step, const Bytes&) { came.emplace_back(piece, step); },
            [this](int piece) { return bytes_of(spec.pieces[piece], {1}); }) {}

  void meet(int server, int64_t sequence = 0, int64_t assigned = 1) {
    state.on_connected(server);
    hear(server, {.kind = Kind::welcome, .sequence = sequence, .version = assigned});
  }
  void hear(int server, const Message& message) { state.on_message(server, message); }
  void push(int piece, int64_t step, bool then_pull = true) {
    state.push({.piece = piece,
                .step = step,
                .learning_rate = 1,
                .then_pull = then_pull,
                .parts = {{0, {1}}},
                .payload = bytes_of(spec.pieces[piece], {1})});
  }
  Message parameters(int piece, int64_t step) const {
    return {.kind = Kind::parameters,
            .piece = piece,
            .step = step,
            .payload = bytes_of(spec.pieces[piece], {})};
  }
  // "push 1 of 0": sequence and piece; cleared then.
  std::vector<std::string> words(int server) {
    std::vector<std::string> words;
    for (const auto& [to, m] : said)
      if (to == server)
        words.push_back(fmt::format("{} {} of {}", name_of(m.kind), m.sequence, m.piece));
    said.clear();
    return words;
  }

  const Spec spec;
  std::vector<std::pair<int, Message>> said;
  std::vector<std::pair<int, int64_t>> came;
  ClientState state;
};

// Worker 0 is there, too: as a rule the first values are its to give.
TEST(ClientState, GivesTheFirstValuesWhenTold) {
  for (const bool told : {false, true}) {
    Worker worker(1);
    if (told) worker.state.assign_always();
    worker.state.on_view(view_of(1, 0));
    worker.meet(0, 0, 0);
    const auto words = worker.words(0);
    EXPECT_EQ(std::ranges::count(words, "assign 0 of 0"), told ? 1 : 0);
    EXPECT_EQ(std::ranges::count(words, "assign 0 of 1"), told ? 1 : 0);
  }
}

TEST(ClientState, SendsWhatTheNextForwardNeedsFirst) {
  Worker worker(0);
  worker.state.on_view(view_of(1, 0));
  worker.meet(0);
  worker.push(1, 0);
  worker.push(0, 1);
  worker.push(0, 0);
  worker.words(0);
  while (worker.state.send_next(0)) {
  }
  ASSERT_EQ(worker.said.size(), 3U);
  EXPECT_EQ(worker.said[0].second.flags, Message::then_pull);
  EXPECT_EQ(worker.said[1].second.flags, Message::then_pull | Message::last_of_step);
  EXPECT_THAT(worker.words(0), ElementsAre("push 1 of 0", "push 2 of 1", "push 3 of 0"));
}

TEST(ClientState, ExpectsSomethingOfAServerUntilAllIsAnswered) {
  Worker worker(0);
  worker.state.on_view(view_of(1, 0));
  worker.meet(0);
  EXPECT_FALSE(worker.state.expects(0));
  for (int piece : {0, 1}) worker.push(piece, 0);
  EXPECT_TRUE(worker.state.expects(0));
  EXPECT_FALSE(worker.state.expects(1));
  while (worker.state.send_next(0)) {
  }
  for (int sequence : {1, 2}) worker.hear(0, {.kind = Kind::settled, .sequence = sequence});
  worker.hear(0, worker.parameters(0, 1));
  EXPECT_TRUE(worker.state.expects(0)) << "parameters of piece 1";
  worker.hear(0, worker.parameters(1, 1));
  EXPECT_FALSE(worker.state.expects(0));
  worker.state.ask_lease({.epoch = 0});
  EXPECT_TRUE(worker.state.expects(0));
}

TEST(ClientState, TheNewPrimaryGetsWhatIsNotThroughUnderItsNumber) {
  Worker worker(0);
  worker.state.on_view(view_of(1, 0));
  worker.meet(0);
  for (int piece : {0, 1}) worker.push(piece, 0);
  while (worker.state.send_next(0)) {
  }
  worker.hear(0, {.kind = Kind::settled, .sequence = 1});
  worker.state.on_connected(1);
  worker.words(0);
  worker.state.on_view(view_of(2, 1));
  EXPECT_THAT(worker.words(1), ElementsAre("hello 0 of 0"));
  worker.hear(0, {.kind = Kind::settled, .sequence = 2});  // it was replaced
  EXPECT_EQ(worker.state.num_unsettled(), 1);
  EXPECT_FALSE(worker.state.send_next(1));
  worker.hear(1, {.kind = Kind::welcome, .sequence = 1, .version = 1});
  // The push asks for what is behind it: a question of its own would overtake it.
  EXPECT_THAT(worker.words(1), ElementsAre("push 2 of 1", "pull 0 of 0"));
  EXPECT_EQ(worker.state.counts().resent, 1);
  worker.hear(1, {.kind = Kind::settled, .sequence = 2});
  worker.hear(1, {.kind = Kind::settled, .sequence = 2});
  EXPECT_EQ(worker.state.counts().settled, 2);
}

TEST(ClientState, AWorkerThatComesAgainGoesOnWithItsNumbers) {
  Worker worker(1);
  worker.state.on_view(view_of(7, 0));
  worker.meet(0, 5);
  // Its server may have to hear first that it is back.
  EXPECT_EQ(worker.said[0].second.view, 7);
  worker.push(0, 0);
  worker.state.send_next(0);
  EXPECT_THAT(worker.words(0), ElementsAre("hello 0 of 0", "push 6 of 0"));
}

TEST(ClientState, APullNeverOvertakesItsOwnPush) {
  Worker worker(0);
  worker.state.on_view(view_of(1, 0));
  worker.meet(0);
  worker.words(0);
  worker.push(1, 0, false);
  worker.state.pull(0, 1);
  worker.state.pull(1, 1);
  worker.state.ask_who();
  EXPECT_THAT(worker.words(0), ElementsAre("pull 1 of 0", "pull 1 of 0"));
  worker.state.send_next(0);
  EXPECT_THAT(worker.words(0), ElementsAre("push 1 of 1", "pull 1 of 1"));
}

TEST(ClientState, TakesWhatItAskedForAndNothingElse) {
  Worker worker(0);
  worker.state.on_view(view_of(1, 0));
  worker.meet(0);
  worker.state.pull(0, 3);
  worker.hear(0, worker.parameters(1, 3));
  worker.hear(0, worker.parameters(0, 2));
  worker.hear(0, worker.parameters(0, 4));  // of an earlier life
  worker.hear(1, worker.parameters(0, 3));  // not its server
  EXPECT_THAT(worker.came, IsEmpty());
  Message short_one = worker.parameters(0, 3);
  short_one.payload.span = short_one.payload.span.first(8);
  EXPECT_THAT(message_of<Error>([&] { worker.hear(0, short_one); }), HasSubstr("8 bytes"));
  worker.hear(0, worker.parameters(0, 3));
  worker.hear(0, worker.parameters(0, 3));
  EXPECT_THAT(worker.came, ElementsAre(std::pair(0, 3)));
}

TEST(ClientState, TheFirstWorkerThatIsNotGoneGivesTheValues) {
  Worker first(0);
  Worker second(1);
  View view = view_of(1, 0);
  for (Worker* worker : {&first, &second}) {
    worker->state.on_view(view);
    worker->meet(0, 0, 0);
  }
  EXPECT_THAT(first.words(0), ElementsAre("hello 0 of 0", "assign 0 of 0", "assign 0 of 1"));
  EXPECT_THAT(second.words(0), ElementsAre("hello 0 of 0"));
  view.number = 2;
  view.workers[0] = {"worker 0", "", false, "was killed"};
  second.state.on_view(view);
  EXPECT_THAT(second.words(0), ElementsAre("hello 0 of 0"));
  second.hear(0, {.kind = Kind::welcome, .version = 0});
  EXPECT_THAT(second.words(0), ElementsAre("assign 0 of 0", "assign 0 of 1"));
}

TEST(ClientState, InStepNobodyBeginsWithoutAWorkerThatNeverCame) {
  Worker in_step(1, Staleness(0));
  Worker out_of_step(1);
  View view = view_of(1, 0);
  view.workers[0] = {"worker 0", "", false, "exited with code 2: no such folder"};
  view.workers[1].comings = 1;
  for (Worker* worker : {&in_step, &out_of_step}) worker->state.on_view(view);
  EXPECT_EQ(in_step.state.missed_worker(), "worker 0 exited with code 2: no such folder");
  EXPECT_EQ(out_of_step.state.missed_worker(), "");
  view.number = 2;
  view.workers[0].comings = 1;  // it was there, and its round is refused
  in_step.state.on_view(view);
  EXPECT_EQ(in_step.state.missed_worker(), "");
}

// A snapshot is read while other words come and go: only what the last welcome asked for counts.
TEST(ClientState, WhatIsReadForAServerThatIsGoneIsNotSent) {
  const Spec spec = two_pieces(2, Staleness::unbounded());
  std::vector<std::function<void(Message)>> asked;
  std::vector<std::pair<int, int>> sent;
  ClientState state(
      0, spec,
      [&](int server, const Message& m) {
        if (m.kind == Kind::assign) sent.emplace_back(server, m.piece);
      },
      [](int, int64_t, const Bytes&) {}, [](int) { return Bytes{}; }, {},
      [&](int, const std::function<void(Message)>& assign) { asked.push_back(assign); });
  state.on_view(view_of(1, 0));
  state.on_connected(0);
  state.on_message(0, {.kind = Kind::welcome});
  ASSERT_EQ(asked.size(), 1U);
  asked[0]({.kind = Kind::assign, .piece = 0});
  EXPECT_THAT(sent, ElementsAre(std::pair(0, 0)));
  state.on_closed(0);
  asked[0]({.kind = Kind::assign, .piece = 1});
  state.on_view(view_of(2, 1));
  state.on_connected(1);
  state.on_message(1, {.kind = Kind::welcome});
  ASSERT_EQ(asked.size(), 2U);
  asked[0]({.kind = Kind::assign, .piece = 1});
  EXPECT_EQ(sent.size(), 1U);
  asked[1]({.kind = Kind::assign, .piece = 0});
  EXPECT_THAT(sent, ElementsAre(std::pair(0, 0), std::pair(1, 0)));
}

TEST(ClientState, SaysWhatItWaitsFor) {
  Worker worker(0);
  worker.state.pull(0, 1);
  EXPECT_THAT(worker.state.words(), HasSubstr("have not all come"));
  worker.state.on_view(view_of(1, 0));
  EXPECT_THAT(worker.state.words(), HasSubstr("step 1 of server 0, not connected"));
  worker.meet(0);
  worker.hear(0, {.kind = Kind::waiting, .piece = 0, .step = 1, .text = "worker 1"});
  worker.push(1, 0, false);
  EXPECT_EQ(worker.state.words(), "1 pushes at server 0; step 1 waits for worker 1");
}

// What all bring to a meeting goes back as one payload, which would end the servers.
TEST(ClientState, BringsNoMoreThanServersCanPassOn) {
  constexpr int kWorkers = 4096;
  EXPECT_LE(kWorkers * most_bytes_brought(kWorkers), FrameStreamOptions{}.max_payload_bytes);
  Spec spec = two_pieces(kWorkers, Staleness(0));
  spec.on_lost_worker = OnLostWorker::go_on;
  ClientState state(
      0, spec, [](int, const Message&) {}, [](int, int64_t, const Bytes&) {},
      [](int) { return Bytes(); });
  const auto value = [](int64_t bytes) {
    return Bytes::copy_of(std::vector<std::byte>(static_cast<size_t>(bytes)));
  };
  EXPECT_THAT(message_of<UsageError>([&] { state.bring(3, value(300'000)); }),
              AllOf(HasSubstr("worker 0 gives 300000 bytes"), HasSubstr("after 3 steps"),
                    HasSubstr("at most 262144"), HasSubstr("in parts")));
  EXPECT_FALSE(state.meets());
  state.bring(3, value(262'144));
  EXPECT_TRUE(state.meets());

  PartitionState partition(0, Compute::plain());
  partition.apply(hello(spec, 0));
  Message bring{.kind = Kind::bring, .worker = 0, .sequence = 1, .payload = value(300'000)};
  EXPECT_THAT(partition.objection(bring), HasSubstr("at most 262144"));
  bring.payload = value(262'144);
  EXPECT_EQ(partition.objection(bring), "");
}

TEST(ClientState, EndsWhenItIsToldTo) {
  Worker worker(0);
  worker.state.on_view(view_of(1, 0));
  worker.meet(0);
  worker.push(0, 0);
  worker.state.send_next(0);
  worker.hear(0, {.kind = Kind::settled, .flags = Message::not_finite, .sequence = 1, .text = "w"});
  EXPECT_EQ(worker.state.failure(), "the gradient of \"w\" is not finite (worker 0)");
  EXPECT_EQ(worker.state.counts().not_finite, 1);
  EXPECT_THAT(message_of<Error>([&] { worker.hear(0, {.kind = Kind::join}); }),
              HasSubstr("says join"));
  EXPECT_THAT(message_of<Error>([&] { worker.hear(0, {.kind = Kind::settled, .partition = 1}); }),
              HasSubstr("partition 1"));
  View other = view_of(2, 0);
  other.partitions.emplace_back();
  EXPECT_THAT(message_of<Error>([&] { worker.state.on_view(other); }),
              HasSubstr("1 servers, the job has 2"));
  worker.push(0, 1);
  EXPECT_THAT(message_of<Error>([&] { worker.push(0, 1); }), HasSubstr("pushed twice"));
}

}  // namespace
}  // namespace tutti::ps::testing
