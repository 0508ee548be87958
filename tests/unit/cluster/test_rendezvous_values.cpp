// Values that processes leave for each other at the rendezvous.
#include <future>

#include "tutti/cluster/join/join.h"
#include "tutti/cluster/rendezvous/job_links.h"
#include "tutti/cluster/rendezvous/rendezvous_values.h"

#include "tests/support/expect.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

constexpr Millis kPatience = 20s;

class ValuesOfAJob : public testing::Test {
 protected:
  void SetUp() override {
    zero_ = links(0);
    port_ = zero_->listener()->address().port();
    one_ = links(1);
  }
  std::unique_ptr<JobLinks> links(int worker) {
    return std::make_unique<JobLinks>(JobPlace{.worker = worker,
                                               .num_workers = 2,
                                               .rendezvous = {"127.0.0.1", port_},
                                               .hosts_rendezvous = worker == 0,
                                               .name = "rank " + std::to_string(worker)},
                                      Credentials{.token = token_, .job = "job-1"},
                                      Deadline(kPatience));
  }
  const Token token_ = Token::random();
  uint16_t port_ = 0;
  std::unique_ptr<JobLinks> zero_, one_;
};

TEST_F(ValuesOfAJob, AnyBytesGoThere) {
  const auto ours = zero_->key_values("a"), theirs = one_->key_values("a");
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every += static_cast<char>(byte);
  const std::vector<std::string> values{"", "x", every,
                                        std::string(detail::kMaxValueBytes, '\xff')};
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string key = "key \"" + std::to_string(i) + "\"";
    ours->put(key, values[i]);
    EXPECT_EQ(theirs->get(key, Deadline(kPatience)), values[i]);
    EXPECT_EQ(theirs->try_get(key), values[i]);
    EXPECT_EQ(ours->get(key, Deadline(kPatience)), values[i]);
  }
}

TEST_F(ValuesOfAJob, WhoAsksFirstWaits) {
  const auto theirs = one_->key_values("a");
  std::vector<std::future<std::string>> waiting;
  for (int i = 0; i < 3; ++i)
    waiting.push_back(
        std::async(std::launch::async, [&] { return theirs->get("late", Deadline(kPatience)); }));
  EXPECT_EQ(theirs->try_get("late"), std::nullopt);
  zero_->key_values("a")->put("late", "there");
  for (auto& one : waiting) EXPECT_EQ(one.get(), "there");
}

TEST_F(ValuesOfAJob, NamesKeepKeysApart) {
  zero_->key_values("a")->put("k", "of a");
  zero_->key_values("b")->put("k", "of b");
  EXPECT_EQ(one_->key_values("a")->get("k", Deadline(kPatience)), "of a");
  EXPECT_EQ(one_->key_values("c")->try_get("k"), std::nullopt);
}

TEST_F(ValuesOfAJob, AreSetOnce) {
  zero_->key_values("a")->put("k", "first");
  const auto theirs = one_->key_values("a");
  theirs->put("k", "first");
  EXPECT_THAT(message_of<UsageError>([&] { theirs->put("k", "second"); }),
              HasSubstr("value \"a/k\": another value stands there already"));
  EXPECT_EQ(zero_->key_values("a")->try_get("k"), "first");
  EXPECT_THAT(message_of<UsageError>(
                  [&] { theirs->put("big", std::string(detail::kMaxValueBytes + 1, 'x')); }),
              HasSubstr("value \"a/big\": 4194305 bytes, at most 4194304"));
}

TEST_F(ValuesOfAJob, WhatNeverComesIsATimeoutThatNamesTheKey) {
  EXPECT_THAT(message_of<Timeout>([&] { zero_->key_values("a")->get("k", Deadline(Millis{50})); }),
              HasSubstr("value \"a/k\": nobody has put it within 50 ms"));
  // Its late answer is nobody's.
  one_->key_values("a")->put("k", "late");
  EXPECT_EQ(zero_->key_values("a")->get("k", Deadline(kPatience)), "late");
}

TEST_F(ValuesOfAJob, TheEndOfThisProcesssLinksEndsWhoWaits) {
  const auto values = one_->key_values("a");
  auto waiting = std::async(std::launch::async, [&] {
    return message_of<PeerLost>([&] { values->get("k", Deadline(kPatience)); });
  });
  one_.reset();
  EXPECT_THAT(waiting.get(), HasSubstr("value \"a/k\": "));
  EXPECT_THAT(message_of<PeerLost>([&] { values->try_get("k"); }),
              HasSubstr("value \"a/k\": this process has left the job"));
}

TEST_F(ValuesOfAJob, AProcessWithoutARendezvousHasNone) {
  EXPECT_THAT(message_of<UsageError>([] { key_values_of_job("plugin"); }),
              AllOf(HasSubstr("values \"plugin\" of a job"), HasSubstr("call join() first")));
}

}  // namespace
}  // namespace tutti
