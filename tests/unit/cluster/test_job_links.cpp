// Jobs of several processes over loopback, as threads: who gets in, and what the loss of one does.
#include <future>

#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/net/connect_link.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

constexpr Millis kLimit = 20s;

Credentials credentials_of(const Token& token, const std::string& job = "job-1") {
  return {.token = token, .job = job};
}

JobPlace place_of(int worker, int workers, uint16_t port) {
  return {.worker = worker,
          .num_workers = workers,
          .rendezvous = {"127.0.0.1", port},
          .hosts_rendezvous = worker == 0,
          .name = "rank " + std::to_string(worker)};
}

class JobLinksTest : public testing::Test {
 protected:
  // The rendezvous listens at a port that the system chose.
  void SetUp() override {
    zero_ = std::make_unique<JobLinks>(place_of(0, 2, 0), credentials_of(token_), Deadline(kLimit));
    port_ = zero_->listener()->address().port();
  }
  std::unique_ptr<JobLinks> join(int worker, const Credentials& credentials) {
    return std::make_unique<JobLinks>(place_of(worker, 2, port_), credentials, Deadline(kLimit));
  }

  /// Worker 1 without a JobLinks: it has said hello.
  TextStream bare_worker_one() {
    auto link = connect_link_with_retry({"127.0.0.1", port_}, credentials_of(token_),
                                        {.purpose = "rendezvous", .rank = 1}, "the rendezvous",
                                        Deadline(kLimit));
    TextStream stream(std::move(link), detail::kMaxRendezvousBytes);
    stream.send(encode(detail::RendezvousMessage{.kind = detail::RendezvousMessage::Kind::hello,
                                                 .worker = 1,
                                                 .number = 2,
                                                 .text = "rank 1 (host b, pid 9)"}));
    return stream;
  }

  const Token token_ = Token::random();
  std::unique_ptr<JobLinks> zero_;
  uint16_t port_ = 0;
};

TEST_F(JobLinksTest, WorkersMeet) {
  const auto one = join(1, credentials_of(token_));
  auto other = std::async(std::launch::async, [&] {
    return one->rendezvous().exchange("k", 1, 2, "b", Deadline(kLimit));
  });
  EXPECT_THAT(zero_->rendezvous().exchange("k", 0, 2, "a", Deadline(kLimit)),
              ElementsAre("a", "b"));
  other.get();
}

TEST_F(JobLinksTest, WrongTokenAndOtherJobsAreTurnedAway) {
  EXPECT_THAT(message_of<Mismatch>([&] { join(1, credentials_of(Token::random())); }),
              HasSubstr("token"));
  EXPECT_THAT(message_of<Mismatch>([&] { join(1, credentials_of(token_, "job-2")); }),
              HasSubstr("job"));
  const auto one = join(1, credentials_of(token_));  // the job is untouched
  EXPECT_EQ(zero_->rendezvous().first_loss(), "");
}

TEST_F(JobLinksTest, LossOfAWorkerEndsGroupsOfTheOthers) {
  const auto engines = make_shm_threads(2);
  zero_->follow(engines[0]);
  TextStream dying = bare_worker_one();
  auto waiting = std::async(std::launch::async, [&] {
    return message_of<PeerLost>(
        [&] { engines[0]->run({.collective = Collective::barrier, .limit = kLimit}); });
  });
  dying.link().shutdown();
  EXPECT_THAT(waiting.get(), HasSubstr("rank 1 (host b, pid 9) closed its connection"));
  // A group that is made afterwards ends at once.
  const auto later = make_shm_threads(2);
  zero_->follow(later[0]);
  EXPECT_THROW(later[0]->run({.collective = Collective::barrier, .limit = kLimit}), PeerLost);
}

void expect_whole(const std::vector<std::shared_ptr<Engine>>& engines) {
  auto other = std::async(std::launch::async, [&] {
    engines[1]->run({.collective = Collective::barrier, .limit = kLimit});
  });
  engines[0]->run({.collective = Collective::barrier, .limit = kLimit});
  other.get();
}

TEST_F(JobLinksTest, LossOfAWorkerLeavesGroupsWithoutItAlone) {
  const auto whole = make_shm_threads(2);
  const auto hurt = make_shm_threads(2);
  zero_->follow(whole[0], {0, 2});
  zero_->follow(hurt[0], {0, 1});
  TextStream dying = bare_worker_one();
  dying.link().shutdown();
  EXPECT_THROW(hurt[0]->run({.collective = Collective::barrier, .limit = kLimit}), PeerLost);
  expect_whole(whole);
}

TEST(JobLinks, LossOfTheRendezvousIsThatOfWorkerZero) {
  const Credentials credentials = credentials_of(Token::random());
  Listener listener(*Address::from_number("127.0.0.1", 0), credentials);
  auto welcomed = std::async(std::launch::async, [&] {
    TextStream stream(listener.wait("rendezvous", "", Deadline(kLimit)).link,
                      detail::kMaxRendezvousBytes);
    stream.send(encode(detail::RendezvousMessage{.kind = detail::RendezvousMessage::Kind::welcome,
                                                 .number = Millis(kLimit).count()}));
    return stream;
  });
  JobLinks one(place_of(1, 3, listener.address().port()), credentials, Deadline(kLimit));
  const auto whole = make_shm_threads(2);
  const auto hurt = make_shm_threads(2);
  one.follow(whole[0], {1, 2});
  one.follow(hurt[0], {0, 1});
  welcomed.get().link().shutdown();
  EXPECT_THROW(hurt[0]->run({.collective = Collective::barrier, .limit = kLimit}), PeerLost);
  expect_whole(whole);
}

}  // namespace
}  // namespace tutti
