// Where memory is short, replicas go apart, stages throw what they should not, and replacements
// have to fit.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>

#include "tutti/data/generator.h"
#include "tutti/data/loader/loader.h"
#include "tutti/data/loader/registered.h"

#include "tests/support/expect.h"

namespace tutti::data {
namespace {

constexpr int64_t kLong = 1024;

Deadline before_long() { return Deadline(Millis{20'000}); }

// Sample i is kLong times i.
Dataset rows_of(int64_t samples) {
  std::vector<int64_t> x;
  for (int64_t i = 0; i < samples; ++i) x.insert(x.end(), kLong, i);
  return from_arrays({array_of(std::move(x), {samples, kLong})});
}

Dataset slowly_mapped(const Dataset& data) {
  return data.map([](Sample sample) { return sample; }, {.name = "same"});
}

int64_t first_of(const Batch& batch) { return batch.columns[0].as<int64_t>()[0]; }

LoaderPlan plan_for(const Epoch& epoch, int replicas) {
  return {.replicas = replicas,
          .end_step = epoch.num_batches(),
          .part = [epoch, replicas](int64_t step, int replica) {
            return BatchPart{step, share(epoch.batch_size(step), replicas, replica)};
          }};
}

TEST(LoaderMemory, AStepTakenAgainMakesRoom) {
  const Epoch epoch = slowly_mapped(rows_of(40)).batch(2).epoch({});
  Loader loader({.workers = 2, .memory = 3 * 2 * kLong * 8});
  loader.begin(epoch, plan_for(epoch, 1));
  for (int64_t step = 0; step < 10; ++step) {
    EXPECT_EQ(first_of(loader.take(step, 0, before_long())), 2 * step);
    EXPECT_EQ(first_of(loader.take(step, 0, before_long())), 2 * step);
  }
}

// The third batch alone is padded to 3 * kLong.
TEST(LoaderMemory, TheLargestPaddedBatchIsToldBeforeTheFirst) {
  const auto longer = [](Sample sample) {
    const int64_t times = sample.columns[0].as<int64_t>()[0] == 4 ? 3 : 1;
    return Sample{
        {array_of(std::vector<int64_t>(static_cast<size_t>(times * kLong)), {times * kLong})}};
  };
  const Epoch epoch =
      rows_of(8)
          .map(longer, {.name = "longer", .columns = {{"x", DType::int64, {kAnySize}}}})
          .padded_batch(2)
          .epoch({});
  const int64_t least = 2 * 2 * 3 * kLong * 8;
  Loader small({.workers = 2, .memory = least - 1}), enough({.workers = 2, .memory = least});
  EXPECT_THAT(message_of<UsageError>([&] { small.begin(epoch, plan_for(epoch, 1)); }),
              AllOf(HasSubstr("the least that works"), HasSubstr("96")));
  enough.begin(epoch, plan_for(epoch, 1));
  for (int64_t step = 0; step < 4; ++step)
    EXPECT_EQ(enough.take(step, 0, before_long()).columns[0].shape()[1],
              step == 2 ? 3 * kLong : kLong);
}

// As under one_device: replica 0 takes all of its parts before replica 1 does.
TEST(LoaderMemory, ReplicasInTurnDoNotWaitForEachOther) {
  const Epoch epoch = slowly_mapped(rows_of(160)).batch(4).epoch({});
  for (int workers : {0, 2}) {
    Loader loader({.workers = workers, .memory = 4 * 2 * kLong * 8});
    loader.begin(epoch, plan_for(epoch, 2));
    for (int replica = 0; replica < 2; ++replica)
      for (int64_t step = 0; step < epoch.num_batches(); ++step)
        EXPECT_EQ(first_of(loader.take(step, replica, before_long())), 4 * step + 2 * replica);
  }
}

TEST(LoaderErrors, AGeneratorThatThrewIsNotCalledAgain) {
  const GeneratorFactory counts = [](const GeneratorContext&) -> Generator {
    return [next = int64_t{0}]() mutable -> std::optional<Sample> {
      if (next == 5) {
        ++next;
        throw std::runtime_error("fell over");
      }
      return Sample{{scalar(next++)}};
    };
  };
  const Epoch epoch =
      from_generator(counts, {.columns = {{"x", DType::int64, {}}}, .num_samples = 12})
          .batch(3)
          .epoch({});
  Loader loader({.workers = 0});
  loader.begin(epoch, plan_for(epoch, 1));
  loader.take(0, 0, before_long());
  for (int tries = 0; tries < 2; ++tries)
    EXPECT_THAT(message_of<DataError>([&] { loader.take(1, 0, before_long()); }),
                HasSubstr("fell over"));
}

// Nobody waits for a replica that makes its samples itself: the process ends, and says why.
TEST(LoaderErrorsDeathTest, AReplicaThatIsStuckInAMapIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto take_all = [](const Dataset& data, int64_t batch, Millis limit) {
    const Epoch epoch = data.batch(batch).epoch({});
    Loader loader({.workers = 0});
    loader.begin(epoch, plan_for(epoch, 1));
    for (int64_t step = 0; step < epoch.num_batches(); ++step)
      loader.take(step, 0, Deadline(limit));
  };
  const auto sleepy = [](Sample sample) {
    while (sample.columns[0].as<int64_t>()[0] == 9) std::this_thread::sleep_for(Millis{50});
    return sample;
  };
  EXPECT_EXIT(take_all(rows_of(16).map(sleepy, {.name = "sleepy"}), 4, Millis{100}),
              testing::ExitedWithCode(1),
              "row 9, sample 2 of batch 3 of epoch 1, in sleepy: it has not returned for 200 ms");
  // As long as each sample comes in time, nothing is said.
  const auto slow = [](Sample sample) {
    std::this_thread::sleep_for(Millis{300});
    return sample;
  };
  const auto take_slowly = [&] {
    take_all(rows_of(8).map(slow, {.name = "slow"}), 8, Millis{1000});
    std::_Exit(0);
  };
  EXPECT_EXIT(take_slowly(), testing::ExitedWithCode(0), "");
}

// What is not the sample's fault is not replaced.
TEST(LoaderErrors, OnlyDamagedSamplesAreReplaced) {
  for (int workers : {0, 2}) {
    const Epoch no_memory = rows_of(8)
                                .map([](Sample) -> Sample { throw std::bad_alloc(); },
                                     {.name = "large", .columns = {{"x", DType::int64, {kLong}}}})
                                .batch(2)
                                .epoch({});
    Loader loader({.workers = workers, .on_bad = replace({.at_most = 1})});
    loader.begin(no_memory, plan_for(no_memory, 1));
    EXPECT_THROW(loader.take(0, 0, before_long()), std::bad_alloc);
  }
}

TEST(LoaderErrors, AThrownNumberIsNamedToo) {
  for (int workers : {0, 2}) {
    const Epoch epoch = rows_of(8)
                            .map([](Sample) -> Sample { throw 7; },
                                 {.name = "seven", .columns = {{"x", DType::int64, {kLong}}}})
                            .batch(2)
                            .epoch({});
    Loader loader({.workers = workers});
    loader.begin(epoch, plan_for(epoch, 1));
    EXPECT_THAT(message_of<DataError>([&] { loader.take(0, 0, before_long()); }),
                AllOf(HasSubstr("sample 1 of batch 1 of epoch 1, in seven"),
                      HasSubstr("no std::exception")));
  }
}

// Sample i has i + 1 elements, and 1 is damaged: batches of two short ones have no room for others.
TEST(LoaderErrors, ReplacementsFitTheBatchThatWasPlanned) {
  bool damaged = false;
  const Dataset data = from_arrays({array_of(std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}, {8})})
                           .map(
                               [&damaged](Sample sample) {
                                 const int64_t i = sample.columns[0].as<int64_t>()[0];
                                 if (damaged && i == 1) throw std::runtime_error("unlucky");
                                 return Sample{{make_array(DType::int64, {i + 1})}};
                               },
                               {.name = "grown", .columns = {{"x", DType::int64, {kAnySize}}}})
                           .padded_batch(2);
  damaged = true;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Epoch epoch = data.epoch({.epoch = 0, .seed = seed});
    Loader loader({.workers = 0, .on_bad = replace()});
    loader.begin(epoch, plan_for(epoch, 1));
    EXPECT_EQ(loader.take(0, 0, before_long()).columns[0].shape(), (std::vector<int64_t>{2, 2}));
    EXPECT_EQ(loader.report().replaced.size(), 1U);
  }
}

TEST(LoaderErrors, SizesOfPaddingAreLookedAt) {
  const Dataset data =
      rows_of(4).map([](Sample sample) { return sample; },
                     {.name = "any", .columns = {{"x", DType::int64, {kAnySize}}}});
  for (const int64_t size : {int64_t{-1}, int64_t{1} << 58})
    EXPECT_THAT(message_of<UsageError>([&] { data.padded_batch(2, {.sizes = {size}}); }),
                HasSubstr("PadOptions::sizes"));
}

TEST(LoaderErrors, AFilterBehindAHintedShardOfAnyOrderIsRefused) {
  const auto all = [](const Sample&) { return true; };
  EXPECT_THROW(rows_of(8).shuffle().shard(kShardHint, kShardHint).filter(all), UsageError);
  EXPECT_EQ(rows_of(8).shard(kShardHint, kShardHint).filter(all).num_samples(), 8);
}

// Code that several threads must not run at once: whoever looks at samples is alone, too.
std::atomic<int> inside = 0;
std::atomic<int> most_inside = 0;

Sample lonely(Sample sample) {
  const int now = ++inside;
  most_inside = std::max(most_inside.load(), now);
  std::this_thread::sleep_for(std::chrono::microseconds(100));
  --inside;
  return sample;
}

bool odd_one(const Sample& sample) { return sample.columns[0].as<int64_t>()[0] % 2 == 1; }

const Registered kLonely("lonely", [](const std::string& filtered) {
  const Dataset all = rows_of(400).map(lonely, {.name = "lonely"});
  return filtered.empty() ? all : all.filter(odd_one);
});

TEST(LoaderProcesses, WhatTheyAreGivenIsLookedAtByOneThread) {
  EXPECT_EQ(kLonely().filter(odd_one).num_samples(), 200);
  EXPECT_EQ(kLonely("filtered").num_samples(), 200);
  EXPECT_EQ(most_inside, 1);
  EXPECT_EQ(rows_of(400).map(lonely, {.name = "lonely"}).filter(odd_one).num_samples(), 200);
}

}  // namespace
}  // namespace tutti::data
