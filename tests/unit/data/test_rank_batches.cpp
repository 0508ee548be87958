// Whose each sample of a global batch is, held against the batches of a Dataset.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tutti/base/error.h"
#include "tutti/data/rank_batches.h"

#include "tests/support/message_of.h"

namespace tutti::data {
namespace {

using ::testing::HasSubstr;

using Batches = std::vector<std::vector<int64_t>>;

// The batches of an epoch as a Dataset trains them.
Batches trained(int64_t samples, int64_t batch, uint64_t seed, int64_t number) {
  std::vector<int64_t> numbers(static_cast<size_t>(samples));
  std::iota(numbers.begin(), numbers.end(), 0);
  const Epoch epoch = from_arrays({array_of(numbers, {samples})})
                          .shuffle()
                          .batch(batch)
                          .epoch({.epoch = number, .seed = seed});
  Batches all;
  for (int64_t step = 0; step < epoch.num_batches(); ++step) {
    const Batch whole = epoch.batch(step);
    const auto values = whole.columns[0].as<int64_t>();
    all.emplace_back(values.begin(), values.end());
  }
  return all;
}

// The same, but that a last one which has not a sample for each rank is part of the one before.
Batches trained_by(int ranks, Batches batches) {
  if (batches.size() < 2 || std::ssize(batches.back()) >= ranks) return batches;
  const std::vector<int64_t> rest = batches.back();
  batches.pop_back();
  batches.back().insert(batches.back().end(), rest.begin(), rest.end());
  return batches;
}

// What ranks have, by batch, each time rank by rank.
Batches dealt_out(const RankBatches& batches, int ranks, int64_t number) {
  const Epoch epoch = batches.epoch(number);
  Batches all;
  for (int64_t step = 0; step < batches.num_batches(); ++step) {
    std::vector<int64_t>& whole = all.emplace_back();
    size_t least = SIZE_MAX, most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto own = batches.rows(epoch, step, rank);
      least = std::min(least, own.size());
      most = std::max(most, own.size());
      whole.insert(whole.end(), own.begin(), own.end());
    }
    EXPECT_GE(least, 1U) << "every rank has a part of every batch";
    EXPECT_LE(most - least, 1U);
    EXPECT_EQ(std::ssize(whole), batches.batch_size(step));
  }
  return all;
}

TEST(RankBatches, AreThoseOfADatasetWithoutOverlap) {
  for (const int ranks : {1, 2, 3, 5})
    for (const int64_t batch : {5, 6, 16})
      for (const int64_t samples : {5, 6, 7, 16, 33, 50, 51})
        for (const int64_t number : {0, 1}) {
          const RankBatches batches(samples, batch, ranks, {.seed = 9});
          EXPECT_EQ(dealt_out(batches, ranks, number),
                    trained_by(ranks, trained(samples, batch, 9, number)))
              << samples << " samples, batches of " << batch << ", " << ranks << " ranks";
        }
  EXPECT_NE(trained(50, 16, 9, 0), trained(50, 16, 9, 1)) << "or epochs would show nothing";
}

TEST(RankBatches, WhatIsLeftOverGoesWhereEveryRankHasAPart) {
  const RankBatches two(33, 16, 2);  // 16 and 17: one alone is no batch for two
  EXPECT_EQ(two.num_batches(), 2);
  EXPECT_EQ(two.batch_size(1), 17);
  const RankBatches rest(34, 16, 2);
  EXPECT_EQ(rest.num_batches(), 3);
  EXPECT_EQ(rest.batch_size(2), 2);
  const RankBatches dropped(34, 16, 2, {.drop_last = true});
  EXPECT_EQ(dropped.num_batches(), 2);
  EXPECT_EQ(dropped.batch_size(1), 16);
  const RankBatches small(3, 16, 3);
  EXPECT_EQ(small.num_batches(), 1);
  EXPECT_EQ(small.batch_size(0), 3);
}

TEST(RankBatches, LieAsTheyAreUnlessShuffled) {
  const RankBatches batches(5, 4, 2, {.shuffle = false});
  const Epoch epoch = batches.epoch(3);
  EXPECT_EQ(batches.rows(epoch, 0, 0), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(batches.rows(epoch, 0, 1), (std::vector<int64_t>{3, 4}));
}

TEST(RankBatches, RefusesNumbersThatLeaveARankWithout) {
  const auto message = [](int64_t samples, int64_t batch, int ranks,
                          RankBatchesOptions options = {}) {
    return test::message_of<UsageError>([&] { RankBatches(samples, batch, ranks, options); });
  };
  EXPECT_THAT(message(10, 2, 3), HasSubstr("batch is 2, there are 3 ranks; expected the global"));
  EXPECT_THAT(message(2, 3, 3), HasSubstr("2 samples for 3 ranks"));
  EXPECT_THAT(message(0, 3, 1), HasSubstr("0 samples for 1 ranks"));
  EXPECT_THAT(message(10, 4, 0), HasSubstr("0 ranks"));
  EXPECT_THAT(message(3, 4, 1, {.drop_last = true}), HasSubstr("leaves nothing of 3 samples"));
  EXPECT_THAT(test::message_of<UsageError>([] { RankBatches(8, 4, 1).batch_size(2); }),
              HasSubstr("batch 2 of 2, from 0"));
}

}  // namespace
}  // namespace tutti::data
