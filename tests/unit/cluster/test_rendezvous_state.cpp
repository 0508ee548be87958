// What the rendezvous decides: stories of messages, with what each client is told.
#include "tutti/cluster/rendezvous/detail/rendezvous_state.h"

#include "tests/support/expect.h"

namespace tutti::detail {
namespace {

using namespace std::chrono_literals;
using Kind = RendezvousMessage::Kind;

const TimePoint kStart{};

RendezvousMessage hello(int worker, int of = 2) {
  return {
      .kind = Kind::hello,
      .worker = worker,
      .number = of,
      .text = "rank " + std::to_string(worker) + " (host a, pid 1" + std::to_string(worker) + ")"};
}

RendezvousMessage give(int rank, int size, const std::string& key, const std::string& text) {
  return {.kind = Kind::exchange, .worker = rank, .number = size, .key = key, .text = text};
}

// "2 lost: words", one line a message.
std::vector<std::string> words_of(const RendezvousState::Outbox& outbox) {
  std::vector<std::string> lines;
  for (const auto& [to, message] : outbox) {
    std::string line = std::to_string(to) + " ";
    if (message.kind == Kind::welcome) line += "welcome";
    if (message.kind == Kind::beat) line += "beat";
    if (message.kind == Kind::refused) line += "refused: " + message.text;
    if (message.kind == Kind::lost) line += "lost: " + message.text;
    if (message.kind == Kind::failed) line += "failed: " + message.text;
    if (message.kind == Kind::ended) line += "ended: " + message.text;
    if (message.kind == Kind::who) line += "who: " + message.text;
    if (message.kind == Kind::exchanged) {
      line += "exchanged";
      for (const std::string& text : message.texts) line += " " + text;
    }
    if (message.kind == Kind::answer) {
      line += "answer " + std::to_string(message.number);
      for (const std::string& text : message.texts) line += " " + text;
      if (!message.text.empty()) line += " no: " + message.text;
    }
    lines.push_back(line);
  }
  return lines;
}

class RendezvousOfTwo : public testing::Test {
 protected:
  void SetUp() override {
    EXPECT_THAT(words_of(state_.on_message(10, hello(0), kStart)), ElementsAre("10 welcome"));
    EXPECT_THAT(words_of(state_.on_message(11, hello(1), kStart)), ElementsAre("11 welcome"));
  }
  RendezvousState state_{{.num_workers = 2, .silence = 30s}};
};

TEST_F(RendezvousOfTwo, ExchangeIsToldToAllOnceAllGave) {
  EXPECT_THAT(state_.on_message(11, give(1, 2, "k", "b"), kStart), IsEmpty());
  EXPECT_THAT(words_of(state_.on_message(10, give(0, 2, "k", "a"), kStart)),
              ElementsAre("10 exchanged a b", "11 exchanged a b"));
  // The key is free again.
  EXPECT_THAT(state_.on_message(11, give(1, 2, "k", "d"), kStart), IsEmpty());
}

TEST_F(RendezvousOfTwo, RanksOfOneProcessAreToldOnce) {
  EXPECT_THAT(state_.on_message(10, give(0, 4, "k", "a"), kStart), IsEmpty());
  EXPECT_THAT(state_.on_message(10, give(1, 4, "k", "b"), kStart), IsEmpty());
  EXPECT_THAT(state_.on_message(11, give(2, 4, "k", "c"), kStart), IsEmpty());
  EXPECT_THAT(words_of(state_.on_message(11, give(3, 4, "k", "d"), kStart)),
              ElementsAre("10 exchanged a b c d", "11 exchanged a b c d"));
}

TEST_F(RendezvousOfTwo, EndOfALaunchersWorkersIsToldToAll) {
  const RendezvousMessage launcher{.kind = Kind::hello, .number = 2, .text = "node 1 (host b)"};
  EXPECT_THAT(words_of(state_.on_message(12, launcher, kStart)), ElementsAre("12 welcome"));
  EXPECT_THAT(words_of(state_.on_message(12, {.kind = Kind::ended}, kStart)),
              ElementsAre("10 ended: node 1 (host b)", "11 ended: node 1 (host b)",
                          "12 ended: node 1 (host b)"));
}

RendezvousMessage question(Kind kind, int64_t number, const std::string& text = "") {
  return {.kind = kind, .number = number, .key = "k", .text = text};
}

TEST_F(RendezvousOfTwo, AValueIsToldToThoseThatWaitForIt) {
  EXPECT_THAT(words_of(state_.on_message(11, question(Kind::look, 1), kStart)),
              ElementsAre("11 answer 1"));
  EXPECT_THAT(state_.on_message(11, question(Kind::get, 2), kStart), IsEmpty());
  EXPECT_THAT(state_.on_message(10, question(Kind::get, 1), kStart), IsEmpty());
  EXPECT_THAT(words_of(state_.on_message(10, question(Kind::put, 2, "v"), kStart)),
              ElementsAre("10 answer 2", "11 answer 2 v", "10 answer 1 v"));
  EXPECT_THAT(words_of(state_.on_message(11, question(Kind::get, 3), kStart)),
              ElementsAre("11 answer 3 v"));
  EXPECT_THAT(words_of(state_.on_message(11, question(Kind::look, 4), kStart)),
              ElementsAre("11 answer 4 v"));
}

TEST_F(RendezvousOfTwo, WhoHasLeftIsNotToldOfAValue) {
  EXPECT_THAT(state_.on_message(11, question(Kind::get, 1), kStart), IsEmpty());
  EXPECT_THAT(state_.on_message(11, {.kind = Kind::bye}, kStart), IsEmpty());
  EXPECT_THAT(words_of(state_.on_message(10, question(Kind::put, 1, "v"), kStart)),
              ElementsAre("10 answer 1"));
}

TEST_F(RendezvousOfTwo, AValueStaysWhatItIs) {
  EXPECT_THAT(words_of(state_.on_message(10, question(Kind::put, 1, "v"), kStart)),
              ElementsAre("10 answer 1"));
  EXPECT_THAT(words_of(state_.on_message(11, question(Kind::put, 1, "v"), kStart)),
              ElementsAre("11 answer 1"));
  EXPECT_THAT(words_of(state_.on_message(11, question(Kind::put, 2, "w"), kStart)),
              ElementsAre("11 answer 2 no: another value stands there already"));
  EXPECT_THAT(words_of(state_.on_message(11, question(Kind::get, 3), kStart)),
              ElementsAre("11 answer 3 v"));
}

TEST_F(RendezvousOfTwo, ValuesThatAreTooLargeAreRefused) {
  const std::string large(2 * kMaxValueBytes, 'a');
  EXPECT_THAT(words_of(state_.on_message(10, question(Kind::put, 1, large + "a"), kStart)),
              ElementsAre("10 answer 1 no: it is too large"));
  EXPECT_THAT(words_of(state_.on_message(10, question(Kind::put, 2, large), kStart)),
              ElementsAre("10 answer 2"));
}

TEST_F(RendezvousOfTwo, WhoNamesThoseThatHaveNotGiven) {
  EXPECT_THAT(state_.on_message(10, give(0, 2, "k", "a"), kStart), IsEmpty());
  EXPECT_THAT(words_of(state_.on_message(10, {.kind = Kind::who, .key = "k"}, kStart)),
              ElementsAre("10 who: rank 1"));
}

TEST_F(RendezvousOfTwo, ClosedConnectionIsLostAndNamed) {
  state_.on_message(11, {.kind = Kind::beat, .text = "its last call was barrier (#3)"}, kStart);
  const auto told = words_of(state_.on_closed(11, "closed its connection"));
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(
      told[0],
      "10 lost: rank 1 (host a, pid 11) closed its connection; its last call was barrier (#3)");
  // Whoever comes later is told too, and a number may be taken again.
  EXPECT_THAT(words_of(state_.on_message(12, hello(1), kStart)),
              ElementsAre("12 welcome", HasSubstr("12 lost: rank 1")));
}

TEST_F(RendezvousOfTwo, WhoSaysByeIsNotLost) {
  EXPECT_THAT(state_.on_message(11, {.kind = Kind::bye}, kStart), IsEmpty());
  EXPECT_THAT(state_.on_closed(11, "closed its connection"), IsEmpty());
  EXPECT_FALSE(state_.over());
  EXPECT_THAT(state_.on_message(10, {.kind = Kind::bye}, kStart), IsEmpty());
  EXPECT_TRUE(state_.over());
}

TEST_F(RendezvousOfTwo, SilenceBeyondTheLimitIsLost) {
  EXPECT_THAT(words_of(state_.on_time(kStart + 10s)), ElementsAre("10 beat", "11 beat"));
  state_.on_message(10, {.kind = Kind::beat}, kStart + 20s);
  EXPECT_THAT(words_of(state_.on_time(kStart + 29s)), ElementsAre("10 beat", "11 beat"));
  const auto told = words_of(state_.on_time(kStart + 30s));
  EXPECT_THAT(told, ElementsAre("10 lost: rank 1 (host a, pid 11) was silent for 30000 ms",
                                "11 lost: rank 1 (host a, pid 11) was silent for 30000 ms"));
}

TEST_F(RendezvousOfTwo, FailureIsToldToAllWithItsName) {
  EXPECT_THAT(words_of(state_.on_message(11, {.kind = Kind::failed, .text = "Error: no"}, kStart)),
              ElementsAre("10 failed: rank 1 (host a, pid 11) failed: Error: no",
                          "11 failed: rank 1 (host a, pid 11) failed: Error: no"));
}

TEST_F(RendezvousOfTwo, LostWorkerIsNamedWithTheErrorThatItTold) {
  state_.on_message(11, {.kind = Kind::failed, .text = "Error: no"}, kStart);
  EXPECT_EQ(words_of(state_.on_closed(11, "closed its connection")).at(0),
            "10 lost: rank 1 (host a, pid 11) failed: Error: no");
}

TEST_F(RendezvousOfTwo, LauncherTellsHowItsWorkerEnded) {
  RendezvousMessage launcher{.kind = Kind::hello, .worker = -1, .text = "node 1 (host b)"};
  EXPECT_THAT(words_of(state_.on_message(20, launcher, kStart)), ElementsAre("20 welcome"));
  const RendezvousMessage death{
      .kind = Kind::failed, .worker = 1, .text = "rank 1 was killed by SIGKILL"};
  EXPECT_THAT(words_of(state_.on_message(20, death, kStart)),
              ElementsAre("10 failed: rank 1 was killed by SIGKILL",
                          "11 failed: rank 1 was killed by SIGKILL",
                          "20 failed: rank 1 was killed by SIGKILL"));
}

TEST(RendezvousState, RefusesWhatContradicts) {
  RendezvousState state({.num_workers = 2});
  EXPECT_THAT(words_of(state.on_message(1, hello(0), kStart)), ElementsAre("1 welcome"));
  struct Case {
    const char* name;
    RendezvousMessage message;
    const char* why;
  };
  const Case cases[] = {
      {"another number of workers", hello(1, 3), "has 3 workers, the rendezvous waits for 2"},
      {"a number beyond", hello(2), "worker 2 of 2: workers count from 0"},
      {"the same number twice", hello(0), "worker 0 is here already: rank 0 (host a, pid 10)"},
      {"no hello", {.kind = Kind::beat}, "the first message is hello"},
  };
  for (const Case& c : cases)
    EXPECT_THAT(words_of(state.on_message(2, c.message, kStart)),
                ElementsAre(AllOf(HasSubstr("2 refused"), HasSubstr(c.why))))
        << c.name;
}

TEST(RendezvousState, ImpossibleExchangesLoseTheirSender) {
  const RendezvousMessage cases[] = {
      give(2, 2, "k", ""),
      give(-1, 2, "k", ""),
      give(1, 2, "k", ""),
      give(0, 2, "k", std::string(kMaxExchangeBytes + 1, 'x')),
  };
  for (const auto& message : cases) {
    RendezvousState state({.num_workers = 2});
    state.on_message(1, hello(0), kStart);
    state.on_message(2, hello(1), kStart);
    ASSERT_THAT(state.on_message(2, give(1, 2, "k", "there"), kStart), IsEmpty());
    const auto told = words_of(state.on_message(1, message, kStart));
    ASSERT_FALSE(told.empty()) << message.worker;
    EXPECT_THAT(told[0], HasSubstr("2 lost: rank 0 (host a, pid 10) gave part"));
  }
}

TEST_F(RendezvousOfTwo, AllThatGaveHearWhoSaysAnotherSize) {
  EXPECT_THAT(state_.on_message(10, give(0, 2, "nodes", "a"), kStart), IsEmpty());
  const std::string words =
      " refused: rank 0 (host a, pid 10) is one of 2, rank 1 (host a, pid 11) one of 3";
  EXPECT_THAT(words_of(state_.on_message(11, give(1, 3, "nodes", "b"), kStart)),
              ElementsAre("10" + words, "11" + words));
  // Nobody is lost, and the key is free again.
  EXPECT_THAT(state_.on_message(11, give(1, 2, "nodes", "b"), kStart), IsEmpty());
  EXPECT_THAT(words_of(state_.on_message(10, give(0, 2, "nodes", "a"), kStart)),
              ElementsAre("10 exchanged a b", "11 exchanged a b"));
}

TEST(RendezvousMessages, ComeBackAsTheyWere) {
  const RendezvousMessage messages[] = {
      hello(3, 8),
      give(1, 2, "mesh/1", "10.0.0.1:99 \"quoted\" \n"),
      {.kind = Kind::beat},
      question(Kind::put, 3, "v"),
      question(Kind::look, 4),
      {.kind = Kind::answer, .number = 5, .texts = {""}},
      {.kind = Kind::exchanged, .key = "k", .texts = {"a", "", "c"}}};
  for (const auto& message : messages) EXPECT_EQ(decode_rendezvous(encode(message)), message);
}

TEST(RendezvousMessages, OtherTextIsRefused) {
  for (const char* text :
       {"", "{", "[]", "{}", "{\"kind\":\"shout\"}", "{\"kind\":3}",
        "{\"kind\":\"beat\",\"number\":\"x\"}", "{\"kind\":\"beat\",\"texts\":1}"})
    EXPECT_THROW(decode_rendezvous(text), Error) << text;
}

}  // namespace
}  // namespace tutti::detail
