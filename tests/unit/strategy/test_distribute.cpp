// What distribute() leaves of a dataset: batches that each replica has for itself, epochs at once.
// Datasets and DataLoaders of LibTorch in place of ours.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/torch.h>

#include <atomic>
#include <sstream>

#include "tutti/base/error.h"
#include "tutti/comm/solo/solo.h"
#include "tutti/data/transforms/mix.h"
#include "tutti/strategy/input/distributed_dataset.h"
#include "tutti/strategy/input/from_tensors.h"
#include "tutti/strategy/input/torch_data.h"
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

// ---- torch's ----

using LabelledExample = torch::data::Example<>;

/// Sample i is [i, i / 2] and label i % 3.
struct HalvesByTorch : torch::data::datasets::Dataset<HalvesByTorch> {
  explicit HalvesByTorch(size_t count, std::shared_ptr<std::atomic<int>> copies = nullptr)
      : count(count), copies(std::move(copies)) {}
  HalvesByTorch(const HalvesByTorch& other)
      : torch::data::datasets::Dataset<HalvesByTorch>(other),
        count(other.count),
        copies(other.copies) {
    if (copies) ++*copies;
  }
  LabelledExample get(size_t index) override {
    EXPECT_FALSE(busy.exchange(true)) << "a copy serves one thread at a time";
    const auto i = static_cast<float>(index);
    LabelledExample pair{torch::tensor({i, i / 2}), torch::tensor(static_cast<int64_t>(index % 3))};
    busy = false;
    return pair;
  }
  std::optional<size_t> size() const override { return count; }

  size_t count;
  std::shared_ptr<std::atomic<int>> copies;
  std::atomic<bool> busy{false};
};

data::Dataset halves_by_hand(int64_t count) {
  const at::Tensor i = torch::arange(count, torch::kFloat);
  return data::from_tensors({torch::stack({i, i / 2}, 1), torch::arange(count) % 3});
}

std::vector<std::string> batches_of(const data::Dataset& dataset) {
  std::vector<std::string> all;
  const data::Epoch epoch = dataset.shuffle().batch(4).epoch({.epoch = 1, .seed = 5});
  for (int64_t step = 0; step < epoch.num_batches(); ++step)
    for (const Array& column : epoch.batch(step).columns)
      all.push_back(c10::str(tensor_of(column)) + c10::str(tensor_of(column).dtype()));
  return all;
}

TEST(FromTorch, GivesTheBatchesOfTheSameTensors) {
  const auto expected = batches_of(halves_by_hand(11));
  EXPECT_EQ(batches_of(data::from_torch(HalvesByTorch(11))), expected);
  EXPECT_EQ(batches_of(data::from_torch(HalvesByTorch(11).map(torch::data::transforms::Stack<>()))),
            expected);
  EXPECT_EQ(data::from_torch(HalvesByTorch(11)).num_samples(), 11);
}

TEST(FromTorch, ReplicasReadCopiesAtOnce) {
  const auto copies = std::make_shared<std::atomic<int>>(0);
  Strategy strategy({.kind = "mirrored", .replicas = 3, .threads_per_replica = 1});
  const auto torchs = data::from_torch(HalvesByTorch(50, copies));
  auto data = strategy.distribute(torchs.shuffle().batch(12), {.loader = {.workers = 2}});
  auto by_hand = strategy.distribute(halves_by_hand(50).shuffle().batch(12));
  const auto sums = [&](DistributedDataset& from) {
    std::vector<double> all;
    for (auto&& batch : from.epoch(0)) {
      const auto each = strategy.run([&](ReplicaContext& replica) {
        const auto [x, y] = batch.local(replica);
        return (x.sum() + 1000 * y.sum()).item<double>();
      });
      all.insert(all.end(), each.values().begin(), each.values().end());
    }
    return all;
  };
  EXPECT_EQ(sums(data), sums(by_hand));
  EXPECT_GE(copies->load(), 1);
}

/// Targets that are plain numbers, and none.
struct PlainTargets
    : torch::data::datasets::Dataset<PlainTargets, torch::data::Example<at::Tensor, int>> {
  torch::data::Example<at::Tensor, int> get(size_t index) override {
    return {torch::ones({2}, torch::kDouble), static_cast<int>(index)};
  }
  std::optional<size_t> size() const override { return 4; }
};
struct BareTensors : torch::data::datasets::Dataset<BareTensors, torch::data::TensorExample> {
  explicit BareTensors(std::optional<size_t> count) : count(count) {}
  torch::data::TensorExample get(size_t index) override {
    if (index == 3) throw std::runtime_error("no sample 3 today");
    return {torch::ones({index == 2 ? 5 : 2})};
  }
  std::optional<size_t> size() const override { return count; }
  std::optional<size_t> count;
};

TEST(FromTorch, KnowsWhatSamplesAreAndRefusesTheRest) {
  const auto plain = data::from_torch(PlainTargets());
  ASSERT_EQ(plain.columns().size(), 2U);
  EXPECT_EQ(plain.columns()[0].to_string(), "x float64 [2]");
  EXPECT_EQ(plain.columns()[1].to_string(), "y int64 []");
  EXPECT_EQ(data::from_torch(BareTensors(2)).columns().size(), 1U);
  EXPECT_THAT(test::message_of<UsageError>([] { data::from_torch(BareTensors(std::nullopt)); }),
              testing::HasSubstr("does not know its size()"));
  EXPECT_THAT(test::message_of<UsageError>([] { data::from_torch(BareTensors(0)); }),
              testing::HasSubstr("the dataset has no samples"));
  const auto read = [](int64_t batch) {
    return test::message_of<DataError>(
        [&] { data::from_torch(BareTensors(4)).batch(batch).epoch({}).batch(1); });
  };
  EXPECT_THAT(read(2),
              testing::AnyOf(testing::HasSubstr("no sample 3 today"), testing::HasSubstr("[5]")));
}

// What each of three ranks gets from torch's loader with the sampler, epoch by epoch.
std::vector<std::vector<int64_t>> loaded(int ranks, int64_t samples, int64_t batch, int epochs,
                                         std::pair<int64_t, int64_t> from = {0, 0}) {
  Strategy strategy({.kind = "mirrored", .replicas = ranks, .threads_per_replica = 1});
  return strategy
      .run([&](ReplicaContext& replica) {
        HalvesByTorch dataset(static_cast<size_t>(samples));
        data::BatchSampler sampler(replica.group(), samples, batch, {.seed = 5});
        sampler.set_epoch(from.first, from.second);
        auto loader = torch::data::make_data_loader(dataset, sampler, static_cast<size_t>(batch));
        std::vector<int64_t> all;
        for (int epoch = 0; epoch < epochs; ++epoch) {
          for (auto& examples : *loader) {
            for (auto& example : examples) all.push_back(example.data[0].item<int64_t>());
            all.push_back(-1);
          }
          EXPECT_EQ(sampler.epoch(), from.first + epoch);
        }
        return all;
      })
      .values();
}

TEST(BatchSampler, RanksOfTorchsLoaderHaveTheBatchesOfAStrategy) {
  const int ranks = 3;
  const auto got = loaded(ranks, 34, 9, 2);
  std::vector<std::vector<int64_t>> expected(ranks);
  for (const int64_t epoch : {0, 1}) {
    const data::RankBatches batches(34, 9, ranks, {.seed = 5});
    const data::Epoch order = batches.epoch(epoch);
    for (int64_t step = 0; step < batches.num_batches(); ++step)
      for (int rank = 0; rank < ranks; ++rank) {
        for (const int64_t row : batches.rows(order, step, rank))
          expected[static_cast<size_t>(rank)].push_back(row);
        expected[static_cast<size_t>(rank)].push_back(-1);
      }
  }
  EXPECT_EQ(got, expected);
  // From the middle of the second epoch on: what is left of it.
  const auto rest = loaded(ranks, 34, 9, 1, {1, 2});
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& all = expected[static_cast<size_t>(rank)];
    const auto& end = rest[static_cast<size_t>(rank)];
    ASSERT_LT(end.size(), all.size());
    EXPECT_TRUE(std::equal(end.rbegin(), end.rend(), all.rbegin()));
    EXPECT_EQ(std::ranges::count(end, -1), 2);  // of four batches
  }
}

TEST(BatchSampler, UnlikeNumbersAndLikeBatchesAreNamed) {
  Strategy strategy({.kind = "mirrored", .replicas = 2, .threads_per_replica = 1});
  const auto in_run = [&](const std::function<void(ReplicaContext&)>& body) {
    return test::message_of<Error>(
        [&] { Strategy({.kind = "mirrored", .replicas = 2}).run(body); });
  };
  EXPECT_THAT(in_run([](ReplicaContext& replica) {
                data::BatchSampler(replica.group(), 40 - replica.rank(), 8);
              }),
              testing::HasSubstr("rank 0 has \"samples: 40\", rank 1 has \"samples: 39\""));
  EXPECT_THAT(in_run([](ReplicaContext& replica) {
                data::BatchSampler sampler(replica.group(), 40, 8);
                sampler.next(5);
              }),
              testing::HasSubstr("the DataLoader has a batch_size of 5"));
  EXPECT_THAT(in_run([](ReplicaContext& replica) {
                data::BatchSampler(replica.group(), 40, 8).set_epoch(0, 6);
              }),
              testing::HasSubstr("a batch from 0 to 5"));
  EXPECT_THAT(in_run([](ReplicaContext& replica) {
                data::require_unlike_batches(replica.group(), torch::ones({3}));
              }),
              testing::HasSubstr("ranks 0 and 1 have the same batch"));
  EXPECT_THAT(in_run([](ReplicaContext& replica) {
                data::require_unlike_batches(replica.group(),
                                             replica.rank() == 1 ? at::Tensor() : torch::ones({3}));
              }),
              testing::HasSubstr("the batch of rank 1 is undefined"));
  strategy.run([](ReplicaContext& replica) {
    data::require_unlike_batches(replica.group(), torch::full({3}, replica.rank()));
    data::BatchSampler sampler(replica.group(), 40, 8);
    for (const size_t asked : {1, 4, 8}) EXPECT_EQ(sampler.next(asked)->size(), 4U);
    EXPECT_EQ(sampler.own_size(4), 4);
    torch::serialize::OutputArchive kept;
    sampler.save(kept);
    std::stringstream file;
    kept.save_to(file);
    torch::serialize::InputArchive read;
    read.load_from(file);
    data::BatchSampler other(replica.group(), 40, 8);
    other.load(read);
    other.reset();
    EXPECT_EQ(other.next(1), sampler.next(1));
    EXPECT_TRUE(other.next(1).has_value());
    EXPECT_FALSE(other.next(1).has_value());
  });
}

torch::serialize::InputArchive saved(const data::BatchSampler& sampler) {
  torch::serialize::OutputArchive kept;
  sampler.save(kept);
  std::stringstream file;
  kept.save_to(file);
  torch::serialize::InputArchive read;
  read.load_from(file);
  return read;
}

// Batches until the end of the epoch that begins next.
int64_t rest_of(data::BatchSampler& sampler) {
  sampler.reset();
  int64_t batches = 0;
  while (sampler.next(1)) ++batches;
  return batches;
}

TEST(BatchSampler, GoesOnWhereItWasWhereverThatIs) {
  const Group alone(make_solo());
  const auto made = [&] { return data::BatchSampler(alone, 40, 8, {.seed = 3}); };
  const auto expect = [&](const data::BatchSampler& sampler, int64_t epoch, int64_t batches) {
    data::BatchSampler other = made();
    auto archive = saved(sampler);
    other.load(archive);
    EXPECT_EQ(rest_of(other), batches);
    EXPECT_EQ(other.epoch(), epoch);
  };
  data::BatchSampler sampler = made();
  expect(sampler, 0, 5);
  EXPECT_EQ(rest_of(sampler), 5);
  expect(sampler, 1, 5);  // of an epoch that has ended nothing is left
  sampler.set_epoch(5, 2);
  expect(sampler, 5, 3);
  sampler.reset();
  sampler.next(1);
  expect(sampler, 5, 2);
}

TEST(BatchSampler, GoesOnFromNoneThatHasOtherBatches) {
  const Group alone(make_solo());
  auto archive = saved(data::BatchSampler(alone, 40, 8, {.seed = 3}));
  EXPECT_THAT(test::message_of<Mismatch>(
                  [&] { data::BatchSampler(alone, 40, 8, {.seed = 4}).load(archive); }),
              testing::AllOf(testing::HasSubstr("saved of 40 samples, batch 8, shuffled, seed 3"),
                             testing::HasSubstr("this one is of 40 samples, batch 8, shuffled, "
                                                "seed 4, with the rest, 5 batches an epoch")));
  EXPECT_THROW(data::BatchSampler(alone, 48, 8, {.seed = 3}).load(archive), Mismatch);
  torch::serialize::OutputArchive kept;
  kept.write("other", torch::ones({1}), true);
  std::stringstream file;
  kept.save_to(file);
  torch::serialize::InputArchive foreign;
  foreign.load_from(file);
  EXPECT_THAT(test::message_of<DataError>([&] { data::BatchSampler(alone, 40, 8).load(foreign); }),
              testing::HasSubstr("has not what a BatchSampler saves"));
}

}  // namespace
}  // namespace tutti
