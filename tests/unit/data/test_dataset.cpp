#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/loader/loader.h"

#include "tests/support/expect.h"

namespace tutti::data {
namespace {

// Rows 0 .. n-1: x float32 [2] = (i, i + 0.5), y int64 = i.
Dataset numbers(int64_t n) {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < n; ++i) {
    x.push_back(static_cast<float>(i));
    x.push_back(static_cast<float>(i) + 0.5f);
    y.push_back(i);
  }
  return from_arrays({array_of(std::move(x), {n, 2}), array_of(std::move(y), {n})});
}

// The labels of an epoch, read batch by batch.
std::vector<int64_t> labels(const Dataset& dataset, EpochOptions options = {}) {
  std::vector<int64_t> all;
  const Epoch epoch = dataset.epoch(options);
  for (int64_t step = 0; step < epoch.num_batches(); ++step) {
    const Batch batch = epoch.batch(step);
    const auto y = batch.columns[1].as<int64_t>();
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<int64_t> up_to(int64_t n) {
  std::vector<int64_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(Share, FollowsRankOrderAndGivesLowRanksTheRest) {
  const struct {
    int64_t size;
    int replicas;
    std::vector<double> weights;
    std::vector<int64_t> expected;
  } cases[] = {
      {128, 2, {}, {64, 64}},
      {13, 5, {}, {3, 3, 3, 2, 2}},
      {13, 5, {1, 1, 1, 1, 1}, {3, 3, 3, 2, 2}},
      {13, 5, {0.1, 0.1, 0.1, 0.1, 0.1}, {3, 3, 3, 2, 2}},
      {2, 4, {}, {1, 1, 0, 0}},
      {0, 3, {}, {0, 0, 0}},
      {0, 2, {1, 3}, {0, 0}},
      {128, 2, {1, 3}, {32, 96}},
      {10, 3, {2, 1, 0}, {7, 3, 0}},
      {10, 3, {0, 0, 5}, {0, 0, 10}},
      {7, 3, {1, 2, 4}, {1, 2, 4}},
      {3, 4, {1, 1, 1, 2}, {1, 1, 0, 1}},
      {1, 3, {1, 1, 2}, {0, 0, 1}},
  };
  for (const auto& [size, replicas, weights, expected] : cases) {
    int64_t end = 0;
    std::vector<int64_t> sizes;
    for (int rank = 0; rank < replicas; ++rank) {
      const Share part = share(size, replicas, rank, weights);
      EXPECT_EQ(part.begin, end);
      end = part.end;
      sizes.push_back(part.size());
    }
    EXPECT_EQ(end, size);
    EXPECT_EQ(sizes, expected) << size << " over " << replicas;
  }
}

TEST(Share, CoversEveryBatchWithOddWeights) {
  const std::vector<double> weights{0.1, 0.2, 0.3, 1e-9, 1e9, 0.7};
  for (int64_t size = 0; size < 300; ++size) {
    int64_t end = 0;
    for (int rank = 0; rank < 6; ++rank) {
      const Share part = share(size, 6, rank, weights);
      EXPECT_EQ(part.begin, end);
      EXPECT_GE(part.size(), 0);
      end = part.end;
    }
    EXPECT_EQ(end, size);
  }
}

TEST(Share, RejectsWhatMakesNoSense) {
  EXPECT_THROW(share(8, 0, 0), UsageError);
  EXPECT_THROW(share(8, 2, 2), UsageError);
  EXPECT_THROW(share(8, 2, -1), UsageError);
  EXPECT_THROW(share(-1, 2, 0), UsageError);
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const auto& weights : std::vector<std::vector<double>>{
           {1}, {1, 1, 1}, {0, 0}, {1, -1}, {1, nan}, {1, infinity}, {1e308, 1e308}})
    EXPECT_THROW(share(8, 2, 0, weights), UsageError);
}

TEST(Dataset, BatchesInOrderAndKeepsThePartialOne) {
  const Dataset dataset = numbers(10).batch(4);
  EXPECT_EQ(dataset.num_samples(), 10);
  EXPECT_EQ(dataset.num_batches(), 3);
  EXPECT_EQ(dataset.global_batch_size(), 4);
  const Epoch epoch = dataset.epoch({});
  EXPECT_EQ(epoch.num_samples(), 10);
  EXPECT_EQ(epoch.num_batches(), 3);
  EXPECT_EQ(epoch.batch_size(1), 4);
  EXPECT_EQ(epoch.batch_size(2), 2);
  EXPECT_THAT(epoch.rows(2), ElementsAre(8, 9));
  const Batch last = epoch.batch(2);
  EXPECT_EQ(last.size, 2);
  EXPECT_EQ(last.columns[0].to_string(), "float32 [2, 2]");
  EXPECT_EQ(last.columns[1].to_string(), "int64 [2]");
  EXPECT_THAT(last.columns[0].as<float>(), ElementsAre(8, 8.5f, 9, 9.5f));
  EXPECT_THAT(last.columns[1].as<int64_t>(), ElementsAre(8, 9));
  EXPECT_EQ(labels(dataset), up_to(10));
}

TEST(Dataset, BatchMemoryIsItsOwnAndAligned) {
  const Epoch epoch = numbers(10).batch(3).epoch({});
  const Batch one = epoch.batch(0);
  const Batch other = epoch.batch(0);
  for (const Array& column : one.columns)
    EXPECT_EQ(reinterpret_cast<uintptr_t>(column.data()) % 64, 0u);
  one.columns[1].as<int64_t>()[0] = 99;
  EXPECT_EQ(other.columns[1].as<int64_t>()[0], 0);
  EXPECT_EQ(epoch.batch(0).columns[1].as<int64_t>()[0], 0);
}

TEST(Dataset, ShuffleIsAPermutationOfSeedAndEpochAlone) {
  const Dataset dataset = numbers(1000).shuffle().batch(64);
  const auto first = labels(dataset, {.epoch = 0, .seed = 7});
  EXPECT_EQ(sorted(first), up_to(1000));
  EXPECT_NE(first, up_to(1000));
  EXPECT_EQ(labels(dataset, {.epoch = 0, .seed = 7}), first);
  EXPECT_EQ(labels(dataset.batch(13), {.epoch = 0, .seed = 7}), first);
  EXPECT_NE(labels(dataset, {.epoch = 1, .seed = 7}), first);
  EXPECT_NE(labels(dataset, {.epoch = 0, .seed = 8}), first);
}

TEST(Dataset, TheOrderIsTheSameOnEveryMachine) {
  EXPECT_THAT(labels(numbers(10).shuffle().batch(10), {.epoch = 0, .seed = 7}),
              ElementsAre(3, 6, 0, 1, 9, 4, 7, 2, 5, 8));
}

TEST(Dataset, ShuffleSeedsOverrideThatOfTheTraining) {
  const Dataset own = numbers(100).shuffle({.seed = 3}).batch(10);
  EXPECT_EQ(labels(own, {.seed = 1}), labels(own, {.seed = 2}));
  EXPECT_EQ(labels(own), labels(numbers(100).shuffle().batch(10), {.seed = 3}));
  EXPECT_NE(labels(own, {.epoch = 0}), labels(own, {.epoch = 1}));
  const Dataset fixed = numbers(100).shuffle({.seed = 3, .each_epoch = false}).batch(10);
  EXPECT_EQ(labels(fixed, {.epoch = 0}), labels(fixed, {.epoch = 1}));
  EXPECT_EQ(labels(fixed), labels(own));
}

TEST(Dataset, TwoShufflesDoNotRepeatEachOther) {
  const auto once = labels(numbers(50).shuffle().batch(50), {.seed = 5});
  const auto twice = labels(numbers(50).shuffle().shuffle().batch(50), {.seed = 5});
  std::vector<int64_t> squared;
  for (int64_t row : once) squared.push_back(once[static_cast<size_t>(row)]);
  EXPECT_EQ(sorted(twice), up_to(50));
  EXPECT_NE(twice, squared);
}

TEST(Dataset, RepeatChainsEpochs) {
  const auto one = [](int64_t epoch) {
    return labels(numbers(20).shuffle().batch(7), {.epoch = epoch, .seed = 1});
  };
  const auto three = labels(numbers(20).shuffle().repeat(3).batch(7), {.epoch = 2, .seed = 1});
  std::vector<int64_t> expected;
  for (int64_t pass : {6, 7, 8}) {
    const auto part = one(pass);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  EXPECT_EQ(three, expected);
  EXPECT_EQ(numbers(20).repeat(3).batch(7).num_batches(), 9);

  // The linear regression of the guide: one sample 100 times, in batches of 10.
  const Dataset guide = from_arrays({array_of(std::vector<float>{1}, {1, 1}),
                                     array_of(std::vector<float>{1}, {1, 1})})
                            .repeat(100)
                            .batch(10);
  EXPECT_EQ(guide.num_batches(), 10);
  EXPECT_EQ(guide.epoch({}).batch(9).columns[0].to_string(), "float32 [10, 1]");
}

TEST(Dataset, RepeatBeforeShuffleMixesThePasses) {
  const auto mixed = labels(numbers(20).repeat(2).shuffle().batch(8), {.seed = 1});
  auto twice = up_to(20);
  twice.insert(twice.end(), twice.begin(), twice.begin() + 20);
  EXPECT_EQ(sorted(mixed), sorted(twice));
  EXPECT_NE(sorted({mixed.begin(), mixed.begin() + 20}), up_to(20));
}

TEST(Dataset, ShardsHoldEachSampleOnce) {
  for (int64_t count : {1, 2, 3, 7, 25}) {
    const Dataset shuffled = numbers(23).shuffle();
    const auto order = labels(shuffled.batch(5), {.epoch = 4, .seed = 9});
    std::vector<int64_t> all;
    for (int64_t index = 0; index < count; ++index) {
      const Dataset shard = shuffled.shard(index, count).batch(5);
      const auto part = labels(shard, {.epoch = 4, .seed = 9});
      EXPECT_EQ(static_cast<int64_t>(part.size()), shard.num_samples());
      for (size_t i = 0; i < part.size(); ++i)
        EXPECT_EQ(part[i], order[static_cast<size_t>(index) + i * static_cast<size_t>(count)]);
      all.insert(all.end(), part.begin(), part.end());
    }
    EXPECT_EQ(sorted(all), up_to(23)) << count;
  }
}

TEST(Dataset, TakeIsTheFirstOfTheOrder) {
  const Dataset shuffled = numbers(30).shuffle();
  const auto order = labels(shuffled.batch(5), {.seed = 2});
  EXPECT_EQ(labels(shuffled.take(7).batch(5), {.seed = 2}),
            std::vector<int64_t>(order.begin(), order.begin() + 7));
  EXPECT_EQ(shuffled.take(100).num_samples(), 30);
  EXPECT_EQ(shuffled.take(0).batch(5).num_batches(), 0);
  EXPECT_EQ(shuffled.take(0).batch(5).epoch({}).num_batches(), 0);
}

TEST(Dataset, SplitTakesTheLastSamplesBeforeTheFirstShuffle) {
  const auto [rest, last] = numbers(10).shuffle({.seed = 3}).batch(4).split_last(0.25);
  EXPECT_EQ(rest.global_batch_size(), 4);
  EXPECT_EQ(labels(last), (std::vector<int64_t>{7, 8, 9}));  // floor(7.5) are the rest
  EXPECT_EQ(sorted(labels(rest)), up_to(7));
  EXPECT_EQ(labels(rest, {.epoch = 2}),
            labels(numbers(7).shuffle({.seed = 3}).batch(4), {.epoch = 2}));

  // What leaves samples out before the shuffle counts for both; what comes after, for the rest.
  const auto chain = numbers(40).shard(1, 2).take(10).shuffle().repeat(2).take(15).batch(5);
  const auto [most, end] = chain.split_last(0.2);
  EXPECT_EQ(labels(end), (std::vector<int64_t>{17, 19}));
  EXPECT_EQ(labels(most), labels(numbers(16).shard(1, 2).shuffle().repeat(2).take(15).batch(5)));

  // Repeated samples are on one side only.
  const auto [twice, once] = numbers(4).repeat(2).batch(2).split_last(0.5);
  EXPECT_EQ(labels(twice), (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(labels(once), (std::vector<int64_t>{2, 3}));

  for (const double bad : {0.0, 1.0, -0.5, 1.5, std::nan("")})
    EXPECT_THAT(message_of<UsageError>([&] { numbers(4).split_last(bad); }),
                HasSubstr("above 0 and below 1"));
  EXPECT_THAT(message_of<UsageError>([&] { numbers(1).split_last(0.5); }), HasSubstr("leave none"));
  EXPECT_THAT(message_of<UsageError>([&] { numbers(4).split_last(1e-17); }),
              HasSubstr("leave none"));
}

TEST(Dataset, PartsOfAllReplicasMakeTheSameGlobalBatch) {
  const Dataset dataset = numbers(100).shuffle().batch(13);
  const EpochOptions options{.epoch = 3, .seed = 11};
  const auto whole = labels(dataset, options);
  for (int replicas : {1, 2, 3, 5, 20}) {
    std::vector<std::vector<int64_t>> parts(static_cast<size_t>(replicas));
    const Epoch epoch = dataset.epoch(options);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < replicas; ++rank)
      threads.emplace_back([&, rank] {
        for (int64_t step = 0; step < epoch.num_batches(); ++step) {
          const Batch part = epoch.part(step, share(epoch.batch_size(step), replicas, rank));
          for (int64_t label : part.columns[1].as<int64_t>())
            parts[static_cast<size_t>(rank)].push_back(label);
        }
      });
    for (auto& thread : threads) thread.join();
    std::vector<size_t> read(parts.size(), 0);
    std::vector<int64_t> together;
    for (int64_t step = 0; step < epoch.num_batches(); ++step)
      for (int rank = 0; rank < replicas; ++rank) {
        const auto r = static_cast<size_t>(rank);
        const auto size = share(epoch.batch_size(step), replicas, rank).size();
        for (int64_t i = 0; i < size; ++i) together.push_back(parts[r].at(read[r]++));
      }
    EXPECT_EQ(together, whole) << replicas;
  }
}

TEST(Dataset, AnEmptyPartHasTheRightShapes) {
  const Batch none = numbers(3).batch(3).epoch({}).part(0, {1, 1});
  EXPECT_EQ(none.size, 0);
  EXPECT_EQ(none.columns[0].to_string(), "float32 [0, 2]");
  EXPECT_EQ(none.columns[1].to_string(), "int64 [0]");
}

TEST(Dataset, OutlivesTheHandlesItCameFrom) {
  Epoch epoch = [] { return numbers(5).batch(5).epoch({}); }();
  EXPECT_THAT(epoch.batch(0).columns[1].as<int64_t>(), ElementsAre(0, 1, 2, 3, 4));
}

TEST(Dataset, DescribesItsColumns) {
  const Dataset dataset = numbers(5);
  ASSERT_EQ(dataset.columns().size(), 2u);
  EXPECT_EQ(dataset.columns()[0].name, "x");
  EXPECT_EQ(dataset.columns()[0].dtype, DType::float32);
  EXPECT_THAT(dataset.columns()[0].shape, ElementsAre(2));
  EXPECT_EQ(dataset.columns()[1].name, "y");
  EXPECT_TRUE(dataset.columns()[1].shape.empty());
  EXPECT_EQ(dataset.num_classes(), 0);
}

TEST(Dataset, RejectsAbsurdNumbers) {
  const Dataset dataset = numbers(10);
  EXPECT_THROW(dataset.batch(0), UsageError);
  EXPECT_THROW(dataset.batch(-1), UsageError);
  EXPECT_THROW(dataset.repeat(0), UsageError);
  EXPECT_THROW(dataset.repeat(int64_t{1} << 40), UsageError);
  EXPECT_THROW(dataset.repeat(std::numeric_limits<int64_t>::max()), UsageError);
  EXPECT_THROW(dataset.take(-1), UsageError);
  EXPECT_THROW(dataset.shard(0, 0), UsageError);
  EXPECT_THROW(dataset.shard(2, 2), UsageError);
  EXPECT_THROW(dataset.shard(-1, 2), UsageError);
  EXPECT_THROW(Dataset(nullptr), UsageError);
  EXPECT_EQ(dataset.batch(std::numeric_limits<int64_t>::max()).num_batches(), 1);
  EXPECT_EQ(dataset.batch(std::numeric_limits<int64_t>::max()).epoch({}).batch(0).size, 10);
}

TEST(Dataset, RejectsTheWrongOrderOfCalls) {
  EXPECT_THAT(message_of<UsageError>([] { numbers(10).epoch({}); }), HasSubstr(".batch(n)"));
  EXPECT_THROW(numbers(10).num_batches(), UsageError);
  EXPECT_THAT(message_of<UsageError>([] { numbers(10).batch(2).shuffle(); }),
              HasSubstr("before its batch()"));
  EXPECT_EQ(numbers(10).batch(2).batch(5).num_batches(), 2);
  const Epoch epoch = numbers(10).batch(4).epoch({});
  EXPECT_THROW(epoch.batch(3), UsageError);
  EXPECT_THROW(epoch.batch(-1), UsageError);
  EXPECT_THROW(epoch.part(2, {0, 3}), UsageError);
  EXPECT_THROW(epoch.part(0, {3, 2}), UsageError);
  EXPECT_THROW(epoch.part(0, {-1, 2}), UsageError);
  EXPECT_THROW(numbers(10).batch(2).epoch({.epoch = -1}), UsageError);
}

// Says 10 rows, has 5.
struct EndsEarly final : Source {
  int64_t num_rows() const override { return 10; }
  const std::vector<Column>& columns() const override { return columns_; }
  Batch gather(std::span<const int64_t> rows) const override {
    const int64_t there = std::ranges::count_if(rows, [](int64_t row) { return row < 5; });
    return {{Array::zeros(DType::float32, {there}), Array::zeros(DType::int64, {there})}, there};
  }

 private:
  std::vector<Column> columns_{{"x", DType::float32, {}}, {"y", DType::int64, {}}};
};

TEST(UsersSource, ThatEndsEarlyIsAnErrorNotASmallerBatch) {
  const Epoch epoch = Dataset(std::make_shared<EndsEarly>()).batch(4).epoch({});
  EXPECT_EQ(epoch.batch(0).size, 4);
  EXPECT_THAT(message_of<DataError>([&] { epoch.batch(1); }),
              HasSubstr("batch 1: gather() of the source gave 1 rows, expected 4, of a source that "
                        "says it has 10 rows"));
}

// Says float32 [2] and int64 [], gives what it is told of row 2 on.
struct GivesOthers final : Source {
  explicit GivesOthers(Column given_in) : given(std::move(given_in)) {}
  int64_t num_rows() const override { return 4; }
  const std::vector<Column>& columns() const override { return said; }
  Batch gather(std::span<const int64_t> rows) const override {
    const bool good = std::ranges::all_of(rows, [](int64_t row) { return row < 2; });
    const auto count = std::ssize(rows);
    Batch batch{{make_column(good ? said[0] : given, count), make_column(said[1], count)}, count};
    for (const Array& column : batch.columns)
      std::memset(column.data(), 0, static_cast<size_t>(column.num_bytes()));
    return batch;
  }
  std::string where(int64_t row) const override { return fmt::format("mine, row {}", row); }

  Column given;
  std::vector<Column> said{{"x", DType::float32, {2}}, {"y", DType::int64, {}}};
};

TEST(UsersSource, ThatGivesAnotherDtypeOrShapeThanItsColumnsIsAnError) {
  for (const Column& given : {Column{"x", DType::int32, {2}}, Column{"x", DType::float32, {2, 1}},
                              Column{"x", DType::float32, {}}, Column{"x", DType::float64, {1}},
                              Column{"x", DType::uint8, {8}}}) {
    const auto source = std::make_shared<GivesOthers>(given);
    const auto dataset = Dataset(source).batch(2);
    const Epoch epoch = dataset.epoch({});
    EXPECT_EQ(epoch.batch(0).columns[0].to_string(), "float32 [2, 2]");
    Column both = given;
    both.shape.insert(both.shape.begin(), 2);
    EXPECT_EQ(message_of<DataError>([&] { epoch.batch(1); }),
              fmt::format(
                  "batch 1: gather() of the source gave column \"x\" as {} {} from mine, row 2 on, "
                  "expected float32 [2, 2], as its columns say",
                  name_of(both.dtype), shape_words(both.shape)));
    // Into memory of a loader, and row by row, as maps read.
    Loader loader({.workers = 1});
    const auto whole = [&](int64_t step, int) {
      return BatchPart{.batch = step, .share = {0, epoch.batch_size(step)}};
    };
    loader.begin(epoch, {.replicas = 1, .first_step = 1, .end_step = 2, .part = whole});
    EXPECT_THAT(message_of<DataError>([&] { loader.take(1, 0, Deadline(Millis{30'000})); }),
                AllOf(HasSubstr("mine, row 2, sample 1 of batch 2 of epoch 1, in read"),
                      HasSubstr("column \"x\" as " + std::string(name_of(given.dtype))),
                      HasSubstr("expected float32 [1, 2]")));
    EXPECT_THAT(message_of<DataError>([&] { source->read_row(3); }),
                AllOf(HasSubstr("mine, row 3"), HasSubstr("expected float32 [1, 2]")));
  }
}

TEST(FromArrays, RejectsColumnsThatDoNotFit) {
  EXPECT_THROW(from_arrays({}), UsageError);
  EXPECT_THROW(from_arrays({Array::zeros(DType::float32, {})}), UsageError);
  EXPECT_THAT(
      message_of<UsageError>([] {
        from_arrays({Array::zeros(DType::float32, {3, 2}), Array::zeros(DType::int64, {4})});
      }),
      HasSubstr("column 1 is int64 [4], column 0 is float32 [3, 2]"));
  EXPECT_THROW(array_of(std::vector<float>{1, 2, 3}, {2, 2}), UsageError);
  EXPECT_EQ(from_arrays({Array::zeros(DType::float32, {0, 2})}).num_samples(), 0);
}

}  // namespace
}  // namespace tutti::data
