// The rendezvous over links of this process: what the sockets, threads and deadlines add to
// test_rendezvous_state.cpp.
#include <future>

#include "tutti/cluster/rendezvous/detail/rendezvous_server.h"
#include "tutti/cluster/rendezvous/rendezvous.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

constexpr Millis kMeetingLimit = 20s;

class RendezvousTest : public testing::Test {
 protected:
  void serve(int workers, Millis silence = 30s) {
    server_ = std::make_unique<detail::RendezvousServer>(
        detail::RendezvousState::Options{.num_workers = workers, .silence = silence});
  }

  std::unique_ptr<Link> link(const std::string& name) {
    auto [ours, theirs] = make_link_pair("the rendezvous", name);
    server_->add(std::move(theirs));
    return std::move(ours);
  }

  std::unique_ptr<Rendezvous> join(int worker, int workers, Rendezvous::Events events = {}) {
    const std::string name = "rank " + std::to_string(worker) + " (host a, pid 7)";
    return std::make_unique<Rendezvous>(
        link(name), Rendezvous::Options{.worker = worker, .num_workers = workers, .name = name},
        std::move(events), Deadline(kMeetingLimit));
  }

  std::unique_ptr<detail::RendezvousServer> server_;
};

TEST_F(RendezvousTest, SwapsTextsInRankOrder) {
  constexpr int kWorkers = 5;
  serve(kWorkers);
  std::vector<std::future<std::vector<std::string>>> results;
  for (int w = kWorkers - 1; w >= 0; --w)
    results.push_back(std::async(std::launch::async, [this, w] {
      const auto rendezvous = join(w, kWorkers);
      RendezvousMeeting meeting(*rendezvous, "group 1", w, kWorkers);
      meeting.exchange("first", "x", Deadline(kMeetingLimit));
      return meeting.exchange("second", std::string(1, static_cast<char>('a' + w)),
                              Deadline(kMeetingLimit));
    }));
  for (auto& result : results) EXPECT_THAT(result.get(), ElementsAre("a", "b", "c", "d", "e"));
}

TEST_F(RendezvousTest, SeveralRanksOfOneProcess) {
  serve(2);
  const auto zero = join(0, 2);
  const auto one = join(1, 2);
  std::vector<std::future<std::vector<std::string>>> results;
  for (int rank = 0; rank < 4; ++rank)
    results.push_back(std::async(std::launch::async, [&, rank] {
      return (rank < 2 ? zero : one)
          ->exchange("k", rank, 4, std::to_string(rank), Deadline(kMeetingLimit));
    }));
  for (auto& result : results) EXPECT_THAT(result.get(), ElementsAre("0", "1", "2", "3"));
}

TEST_F(RendezvousTest, DifferentSizesEndBothWithTheSameWords) {
  serve(2);
  const auto zero = join(0, 2);
  const auto one = join(1, 2);
  const auto refused = [](Rendezvous& rendezvous, int rank, int size) {
    return refusal_of<UsageError>(
        [&] { rendezvous.exchange("k", rank, size, "", Deadline(kMeetingLimit)); });
  };
  auto other = std::async(std::launch::async, [&] { return refused(*one, 1, 3); });
  const auto words = AllOf(HasSubstr("rank 0 (host a, pid 7)"), HasSubstr("one of 2"),
                           HasSubstr("rank 1 (host a, pid 7)"), HasSubstr("one of 3"));
  EXPECT_THAT(refused(*zero, 0, 2), words);
  EXPECT_THAT(other.get(), words);
}

TEST_F(RendezvousTest, MissingRanksAreNamed) {
  serve(3);
  const auto zero = join(0, 3);
  const auto two = join(2, 3);
  EXPECT_THAT(message_of<Timeout>([&] { zero->exchange("k", 0, 3, "", Deadline(50ms)); }),
              HasSubstr("rendezvous \"k\", rank 0 of 3: after 50 ms ranks 1, 2 had not come"));
}

TEST_F(RendezvousTest, LostWorkerEndsAnExchangeAndIsNamed) {
  serve(2);
  std::promise<std::string> heard;
  const auto zero =
      join(0, 2, {.lost = [&](int, const std::string& words) { heard.set_value(words); }});
  auto raw = link("rank 1");
  TextStream dying(std::move(raw), detail::kMaxRendezvousBytes);
  dying.send(encode(detail::RendezvousMessage{.kind = detail::RendezvousMessage::Kind::hello,
                                              .worker = 1,
                                              .number = 2,
                                              .text = "rank 1 (host b, pid 9)"}));
  auto waiting = std::async(std::launch::async, [&] {
    return message_of<PeerLost>([&] { zero->exchange("k", 0, 2, "", Deadline(kMeetingLimit)); });
  });
  auto asking = std::async(std::launch::async, [&] {
    return message_of<PeerLost>([&] { zero->get("v", Deadline(kMeetingLimit)); });
  });
  dying.link().shutdown();
  EXPECT_THAT(waiting.get(), HasSubstr("rank 1 (host b, pid 9) closed its connection"));
  EXPECT_THAT(asking.get(), HasSubstr("value \"v\": rank 1 (host b, pid 9) closed its"));
  EXPECT_THAT(heard.get_future().get(), HasSubstr("rank 1 (host b, pid 9)"));
  EXPECT_THAT(zero->first_loss(), HasSubstr("rank 1"));
}

TEST_F(RendezvousTest, LostLauncherIsNamedToTheOthers) {
  serve(2);
  std::promise<std::string> heard;
  const auto staying =
      join(-1, 2, {.lost = [&](int, const std::string& words) { heard.set_value(words); }});
  TextStream leaving(link("node 1"), detail::kMaxRendezvousBytes);
  leaving.send(encode(detail::RendezvousMessage{
      .kind = detail::RendezvousMessage::Kind::hello, .number = 2, .text = "node 1 (rank 1)"}));
  leaving.link().shutdown();
  EXPECT_THAT(heard.get_future().get(), HasSubstr("node 1 (rank 1) closed its connection"));
}

TEST_F(RendezvousTest, FailureIsTold) {
  serve(2);
  std::promise<std::string> heard;
  const auto zero = join(0, 2, {.failed = [&](int worker, const std::string& words) {
                           heard.set_value(std::to_string(worker) + " " + words);
                         }});
  const auto one = join(1, 2);
  one->report_failure("Error: no such file");
  EXPECT_EQ(heard.get_future().get(), "1 rank 1 (host a, pid 7) failed: Error: no such file");
}

// A link on which this machine has no memory to send, as ENOBUFS and ENOMEM are told.
class LinkWithoutMemory : public Link {
 public:
  explicit LinkWithoutMemory(std::unique_ptr<Link> link) : link_(std::move(link)) {}
  int64_t write_some(std::span<const iovec>) override { throw Error("no memory for sockets"); }
  int64_t read_some(void* to, int64_t bytes) override { return link_->read_some(to, bytes); }
  int descriptor() const noexcept override { return link_->descriptor(); }
  short wants_to_read() const noexcept override { return link_->wants_to_read(); }
  short wants_to_write() const noexcept override { return link_->wants_to_write(); }
  bool has_buffered() const noexcept override { return link_->has_buffered(); }
  void shutdown() noexcept override { link_->shutdown(); }
  const std::string& peer() const noexcept override { return link_->peer(); }

 private:
  const std::unique_ptr<Link> link_;
};

TEST_F(RendezvousTest, AClientThatCannotBeToldAnythingIsLostAlone) {
  serve(2);
  std::promise<std::string> lost;
  const auto first =
      join(0, 2, {.lost = [&](int, const std::string& how) { lost.set_value(how); }});
  auto [ours, theirs] = make_link_pair("the rendezvous", "rank 1 (host a, pid 7)");
  server_->add(std::make_unique<LinkWithoutMemory>(std::move(theirs)));
  EXPECT_THROW(Rendezvous(std::move(ours), {.worker = 1, .num_workers = 2, .name = "rank 1"}, {},
                          Deadline(kMeetingLimit)),
               PeerLost);
  auto how = lost.get_future();
  ASSERT_EQ(how.wait_for(kMeetingLimit), std::future_status::ready);
  EXPECT_THAT(how.get(), HasSubstr("no memory for sockets"));
}

TEST_F(RendezvousTest, RefusalSaysWhy) {
  serve(2);
  EXPECT_THAT(message_of<UsageError>([&] { join(0, 3); }), HasSubstr("the rendezvous waits for 2"));
}

TEST_F(RendezvousTest, SilentClientIsLost) {
  serve(2, 100ms);
  std::promise<std::string> heard;
  const auto zero =
      join(0, 2, {.lost = [&](int, const std::string& words) { heard.set_value(words); }});
  TextStream silent(link("rank 1"), detail::kMaxRendezvousBytes);
  silent.send(encode(detail::RendezvousMessage{
      .kind = detail::RendezvousMessage::Kind::hello, .worker = 1, .number = 2, .text = "rank 1"}));
  EXPECT_EQ(heard.get_future().get(), "rank 1 was silent for 100 ms");
}

TEST_F(RendezvousTest, SilentRendezvousIsLost) {
  auto [ours, theirs] = make_link_pair("the rendezvous", "rank 0");
  TextStream server(std::move(theirs), detail::kMaxRendezvousBytes);
  server.send(encode(
      detail::RendezvousMessage{.kind = detail::RendezvousMessage::Kind::welcome, .number = 100}));
  std::promise<std::string> heard;
  const Rendezvous rendezvous(std::move(ours), {.worker = 0, .num_workers = 2, .name = "rank 0"},
                              {.lost =
                                   [&](int worker, const std::string& words) {
                                     heard.set_value(std::to_string(worker) + " " + words);
                                   }},
                              Deadline(kMeetingLimit));
  EXPECT_EQ(heard.get_future().get(), "-1 the rendezvous was silent for 100 ms");
}

TEST_F(RendezvousTest, RendezvousThatEndsInOrderIsNoLoss) {
  serve(2);
  const auto zero =
      join(0, 2, {.lost = [](int, const std::string& words) { ADD_FAILURE() << words; }});
  auto waiting = std::async(std::launch::async, [&] {
    return message_of<PeerLost>([&] { zero->exchange("k", 0, 2, "", Deadline(kMeetingLimit)); });
  });
  server_.reset();
  EXPECT_THAT(waiting.get(), HasSubstr("the rendezvous has ended"));
}

TEST_F(RendezvousTest, GarbageLosesItsSenderAlone) {
  serve(2);
  const auto zero = join(0, 2);
  TextStream garbage(link("somebody"), detail::kMaxRendezvousBytes);
  garbage.send("\xff\xfe not a message");
  const Deadline deadline(kMeetingLimit);
  bool closed = false;
  while (!closed && !deadline.passed()) {
    try {
      garbage.receive();
    } catch (const PeerLost&) {
      closed = true;
    }
  }
  EXPECT_TRUE(closed);
  const auto one = join(1, 2);
  auto other = std::async(std::launch::async,
                          [&] { return one->exchange("k", 1, 2, "b", Deadline(kMeetingLimit)); });
  EXPECT_THAT(zero->exchange("k", 0, 2, "a", Deadline(kMeetingLimit)), ElementsAre("a", "b"));
  other.get();
}

}  // namespace
}  // namespace tutti
