// What distribute() leaves of a dataset: batches that each replica has for itself, epochs at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/data/transforms/mix.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/strategy.h"

#include "tests/support/message_of.h"

namespace tutti {
namespace {

data::Dataset labelled(int64_t n) {
  std::vector<float> x(static_cast<size_t>(n) * 4, 1.0F);
  std::vector<int64_t> y(static_cast<size_t>(n), 1);
  return data::from_arrays(
      {data::array_of(std::move(x), {n, 1, 2, 2}), data::array_of(std::move(y), {n})});
}

TEST(AutoShardOff, KeepsWhatBatchesAreMadeWith) {
  const Strategy strategy({.kind = "mirrored", .replicas = 2, .threads_per_replica = 1});
  const auto batches = [&](const data::Dataset& dataset) {
    return Strategy(strategy).distribute(dataset, {.auto_shard = AutoShard::off});
  };
  const auto mixed = labelled(11).batch(4, true).map(data::transforms::mixup(3));
  int64_t samples = 0;
  for (const auto& batch : batches(mixed).epoch(0)) {
    samples += batch.global_size();
    Strategy(strategy).run([&](ReplicaContext& replica) {
      const auto columns = batch.columns(replica);
      EXPECT_EQ(columns[1].size(1), 3);  // shares of classes
    });
  }
  EXPECT_EQ(samples, 10);  // five whole batches of two, which the replicas take in turn
}

TEST(AutoShardOff, RefusesBucketsWhichHaveSizesOfTheirOwn) {
  Strategy strategy({.kind = "mirrored", .replicas = 2, .threads_per_replica = 1});
  const auto buckets =
      labelled(10)
          .map([](data::Sample sample) { return data::Sample{{sample.columns[0]}}; },
               {.columns = {{"x", DType::float32, {1, 2, 2}}}})
          .bucket_by_length({.boundaries = {4}, .batches = {4, 2}});
  EXPECT_THAT(test::message_of<UsageError>(
                  [&] { strategy.distribute(buckets, {.auto_shard = AutoShard::off}); }),
              testing::HasSubstr("bucket_by_length()"));
}

TEST(Distribute, DamagedSamplesAreReplacedInOneEpochAtATime) {
  Strategy strategy({.kind = "mirrored", .replicas = 2, .threads_per_replica = 1});
  const auto walk = [&](const data::OnBad& on_bad) {
    const auto data = strategy.distribute(labelled(8).batch(4), {.loader = {.on_bad = on_bad}});
    const auto first = data.epoch(0), second = data.epoch(1);
    for (const auto& batches : {second, first})
      for (const auto& batch : batches)
        strategy.run([&](ReplicaContext& replica) { batch.columns(replica); });
  };
  walk({});
  EXPECT_THAT(test::message_of<UsageError>([&] { walk(data::replace()); }),
              testing::HasSubstr("gone on to another epoch"));
}

}  // namespace
}  // namespace tutti
