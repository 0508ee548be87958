#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/random.h"
#include "tutti/ps/partition/cursor.h"

namespace tutti::ps {
namespace {

LeaseRequest request(int64_t epoch, int64_t batches, int64_t returned = -1, double sum = 0) {
  return {.epoch = epoch, .num_batches = batches, .returned = returned, .sums = {sum, 1}};
}

std::vector<std::pair<int, Lease>> answers_of(Cursor& cursor) {
  return cursor.answers([](int) { return true; });
}

TEST(Cursor, WhoMayNotBeginAStepGetsNoBatch) {
  Cursor cursor;
  cursor.ask(0, request(0, 1));
  cursor.ask(1, request(0, 1));
  const auto answers = cursor.answers([](int worker) { return worker == 1; });
  ASSERT_EQ(answers.size(), 1);
  EXPECT_EQ(answers[0].first, 1);
  cursor.ask(1, request(0, 1, 0));
  // That the epoch is over, everybody hears.
  EXPECT_EQ(cursor.answers([](int) { return false; }).size(), 2);
}

// The cursor of a cut: what was given back before the marks is done, all else is to be done again.
TEST(Cursor, ARestoredOneGivesOutWhatWasNotDone) {
  Cursor live;
  for (const int64_t epoch : {0, 1, 2}) {
    live.ask(0, request(epoch, 0));
    answers_of(live);
  }
  for (const int worker : {0, 1}) live.ask(worker, request(3, 6));
  answers_of(live);  // 0 and 1 are out
  Cursor cut = live;
  cut.record(request(3, 6, 1, 10));  // worker 1 marks behind this
  cut.record(request(3, 6, 1, 10));  // once
  cut.record(request(3, 6, 4, 20));  // leased while the cut was open; 2 and 3, too
  cut.record(request(4, 6, 0, 5));   // an epoch that began meanwhile
  cut.reopen();
  Cursor restored;
  restored.restore(cut.to_text());
  EXPECT_EQ(restored.objection(request(3, 8)), "");
  EXPECT_NE(restored.objection(request(3, 4)), "");
  restored.ask(0, request(1, 6));
  auto answers = answers_of(restored);
  ASSERT_EQ(answers.size(), 1);
  EXPECT_TRUE(answers[0].second.past);
  std::vector<int64_t> batches;
  int64_t returned = -1;
  while (true) {
    restored.ask(0, request(3, 6, returned, returned < 0 ? 0 : 1));
    answers = answers_of(restored);
    ASSERT_EQ(answers.size(), 1);
    EXPECT_FALSE(answers[0].second.past);
    returned = answers[0].second.batch;
    if (returned < 0) break;
    batches.push_back(returned);
  }
  EXPECT_EQ(batches, (std::vector<int64_t>{0, 2, 3, 5}));
  EXPECT_EQ(answers[0].second.sums, (std::vector<double>{10 + 20 + 4, 6}));
  EXPECT_EQ(answers[0].second.repeats, 0);
  restored.ask(1, request(4, 6));
  EXPECT_EQ(answers_of(restored).at(0).second.batch, 1);
}

TEST(Cursor, EachBatchOnceThenTheSumsOfAll) {
  Cursor cursor;
  cursor.ask(0, request(0, 3));
  cursor.ask(1, request(0, 3));
  auto answers = answers_of(cursor);
  ASSERT_EQ(answers.size(), 2);
  EXPECT_EQ(answers[0].second.batch, 0);
  EXPECT_EQ(answers[1].second.batch, 1);
  cursor.ask(0, request(0, 3, 0, 10));
  EXPECT_EQ(answers_of(cursor).at(0).second.batch, 2);
  // All are out: whoever asks now waits.
  cursor.ask(1, request(0, 3, 1, 20));
  EXPECT_TRUE(answers_of(cursor).empty());
  EXPECT_TRUE(cursor.waits(1));
  cursor.ask(0, request(0, 3, 2, 30));
  answers = answers_of(cursor);
  ASSERT_EQ(answers.size(), 2);
  for (const auto& [worker, lease] : answers) {
    EXPECT_EQ(lease.batch, -1);
    EXPECT_EQ(lease.sums, (std::vector<double>{60, 3}));
  }
}

TEST(Cursor, LeasesOfALostWorkerAreGivenOutAgain) {
  Cursor cursor;
  cursor.ask(0, request(0, 1));
  EXPECT_EQ(answers_of(cursor).at(0).second.batch, 0);
  cursor.ask(1, request(0, 1));
  EXPECT_TRUE(answers_of(cursor).empty());
  cursor.leave(0);
  const Lease lease = answers_of(cursor).at(0).second;
  EXPECT_EQ(lease.batch, 0);
  EXPECT_TRUE(lease.repeated);
  // What the lost worker gives back after all does not count twice.
  cursor.ask(0, request(0, 1, 0, 5));
  cursor.ask(1, request(0, 1, 0, 7));
  const auto over = answers_of(cursor);
  EXPECT_EQ(over.at(0).second.sums, (std::vector<double>{7, 1}));
  EXPECT_EQ(over.at(0).second.repeats, 1);
}

TEST(Cursor, EpochsFollowEachOther) {
  Cursor cursor;
  EXPECT_THROW(cursor.ask(0, request(1, 2)), Error);
  cursor.ask(0, request(0, 1));
  EXPECT_THROW(cursor.ask(1, request(1, 1)), Error);
  EXPECT_THROW(cursor.ask(1, request(0, 2)), Error);
  answers_of(cursor);
  cursor.ask(0, request(0, 1, 0));
  answers_of(cursor);
  cursor.ask(0, request(1, 1));
  EXPECT_EQ(answers_of(cursor).at(0).second.batch, 0);
  // One that was behind still hears how the epoch before ended.
  cursor.ask(1, request(0, 1));
  EXPECT_EQ(answers_of(cursor).at(0).second.batch, -1);
  EXPECT_THROW(lease_request_from("[1,"), Error);
  EXPECT_THROW(lease_from("{}"), Error);
}

// A loss that is no number is counted, sent and kept as that.
TEST(Cursor, SumsThatAreNotFiniteStay) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double sum : {infinity, -infinity, std::nan("")}) {
    const auto same = [&](double other) {
      return std::isnan(sum) ? std::isnan(other) : other == sum;
    };
    Cursor cursor;
    cursor.ask(0, lease_request_from(to_text(request(0, 2))));
    answers_of(cursor);
    cursor.ask(0, lease_request_from(to_text(request(0, 2, 0, sum))));
    answers_of(cursor);
    Cursor restored;
    restored.restore(cursor.to_text());
    restored.ask(0, request(0, 2, 1, 5));
    const Lease over = lease_from(to_text(answers_of(restored).at(0).second));
    ASSERT_EQ(over.sums.size(), 2);
    EXPECT_TRUE(same(over.sums[0])) << over.sums[0];
    EXPECT_EQ(over.sums[1], 2);
  }
}

// Who was asked for something else than those before it gets no batch of their epoch.
TEST(Cursor, AllOfAnEpochWereAskedForTheSame) {
  Cursor cursor;
  const auto asked = [&](int64_t epoch, const std::string& agreed) {
    LeaseRequest first = request(epoch, 2);
    first.agreed = agreed;
    return lease_request_from(to_text(first));
  };
  EXPECT_EQ(cursor.objection(asked(0, "seed: 7\nepochs: 1\n")), "");
  cursor.ask(0, asked(0, "seed: 7\nepochs: 1\n"));
  cursor.ask(1, asked(0, ""));
  cursor.ask(1, asked(0, "seed: 7\nepochs: 1\n"));
  EXPECT_EQ(cursor.objection(asked(0, "seed: 7\nepochs: 2\n")),
            "epoch 0: this worker was asked for something else than those before it\n"
            "  they have epochs: 1\n  it has epochs: 2\n"
            "  every worker makes the same calls, with the same options and data");
  EXPECT_THROW(cursor.ask(1, asked(0, "seed: 8\n")), Error);
  // A job that goes on from a snapshot may be asked for more.
  cursor.reopen();
  cursor.ask(0, asked(0, "seed: 7\nepochs: 2\n"));
}

// Workers come and go at random; a copy in the middle goes on like the original.
TEST(Cursor, EveryBatchIsTrainedWhoeverLeaves) {
  constexpr int64_t kBatches = 40;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    RandomStream random(random_key(seed, RandomPurpose::test));
    Cursor cursor;
    std::map<int64_t, int> trained;
    std::map<int, int64_t> has;  // worker: batch, or -1 once over
    int lost = 0;
    bool over = false;
    for (int worker = 0; worker < 4; ++worker) cursor.ask(worker, request(0, kBatches));
    for (int turn = 0; turn < 2'000 && !over; ++turn) {
      for (const auto& [worker, lease] : answers_of(cursor)) {
        has[worker] = lease.batch;
        over |= lease.batch < 0;
        if (lease.batch < 0) {
          EXPECT_EQ(lease.sums.at(1), kBatches);
        }
      }
      const int worker = static_cast<int>(random.below(4));
      if (random.below(20) == 0 && lost < 3) {
        ++lost;
        cursor.leave(worker);
        has.erase(worker);
        cursor.ask(worker, request(0, kBatches));  // it comes again
      } else if (has.contains(worker) && has[worker] >= 0) {
        ++trained[has[worker]];
        cursor.ask(worker, request(0, kBatches, has[worker], 1));
        has.erase(worker);
      }
      if (random.below(30) == 0) {
        Cursor copy;
        copy.restore(cursor.to_text());
        EXPECT_EQ(copy.to_text(), cursor.to_text());
        cursor = copy;
      }
    }
    EXPECT_TRUE(over) << seed;
    EXPECT_EQ(static_cast<int64_t>(trained.size()), kBatches);
  }
}

}  // namespace
}  // namespace tutti::ps
