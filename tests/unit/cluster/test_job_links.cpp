// Jobs of several processes over loopback, as threads: who gets in, and what the loss of one does.
#include <gmock/gmock.h>

#include <future>

#include "tutti/base/error.h"
#include "tutti/cluster/job_links.h"
#include "tutti/comm/shm/shm.h"
#include "tutti/net/connect_link.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

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
  EXPECT_THAT(test::message_of<Mismatch>([&] { join(1, credentials_of(Token::random())); }),
              HasSubstr("token"));
  EXPECT_THAT(test::message_of<Mismatch>([&] { join(1, credentials_of(token_, "job-2")); }),
              HasSubstr("job"));
  const auto one = join(1, credentials_of(token_));  // the job is untouched
  EXPECT_EQ(zero_->rendezvous().first_loss(), "");
}

TEST_F(JobLinksTest, LossOfAWorkerEndsGroupsOfTheOthers) {
  const auto engines = make_shm_threads(2);
  zero_->follow(engines[0]);
  const Credentials credentials = credentials_of(token_);
  auto raw = connect_link_with_retry({"127.0.0.1", port_}, credentials,
                                     {.purpose = "rendezvous", .rank = 1}, "the rendezvous",
                                     Deadline(kLimit));
  TextStream dying(std::move(raw), detail::kMaxRendezvousBytes);
  dying.send(encode(detail::RendezvousMessage{.kind = detail::RendezvousMessage::Kind::hello,
                                              .worker = 1,
                                              .number = 2,
                                              .text = "rank 1 (host b, pid 9)"}));
  auto waiting = std::async(std::launch::async, [&] {
    return test::message_of<PeerLost>(
        [&] { engines[0]->run({.collective = Collective::barrier, .limit = kLimit}); });
  });
  dying.link().shutdown();
  EXPECT_THAT(waiting.get(), HasSubstr("rank 1 (host b, pid 9) closed its connection"));
  // A group that is made afterwards ends at once.
  const auto later = make_shm_threads(2);
  zero_->follow(later[0]);
  EXPECT_THROW(later[0]->run({.collective = Collective::barrier, .limit = kLimit}), PeerLost);
}

}  // namespace
}  // namespace tutti
