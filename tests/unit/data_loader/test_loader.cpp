#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tutti/base/file.h"
#include "tutti/data/dataset.h"
#include "tutti/data/generator.h"
#include "tutti/data/loader/detail/choice.h"
#include "tutti/data/loader/loader.h"

#include "tests/support/expect.h"

namespace tutti::data {
namespace {

const Deadline in_time() { return Deadline(Millis{20'000}); }

// x float32 [3] = (i, i, i), y int64 = i.
Dataset numbers(int64_t n) {
  std::vector<float> x;
  std::vector<int64_t> y;
  for (int64_t i = 0; i < n; ++i) {
    x.insert(x.end(), 3, static_cast<float>(i));
    y.push_back(i);
  }
  return from_arrays({array_of(std::move(x), {n, 3}), array_of(std::move(y), {n})});
}

// Adds a draw to x.
Dataset drawn(const Dataset& data) {
  return data.map(
      [](Sample sample, Draw& draw) {
        Array x = make_array(DType::float32, {3});
        for (int i = 0; i < 3; ++i)
          x.as<float>()[static_cast<size_t>(i)] =
              sample.columns[0].as<float>()[static_cast<size_t>(i)] + draw.uniform();
        sample.columns[0] = x;
        return sample;
      },
      {.name = "drawn"});
}

std::string bytes_of_batch(const Batch& batch) {
  std::string bytes;
  for (const Array& column : batch.columns)
    bytes.append(static_cast<const char*>(column.data()), static_cast<size_t>(column.num_bytes()));
  return bytes;
}

LoaderPlan plan_of(const Epoch& epoch, int replicas, int64_t first = 0) {
  return {.replicas = replicas,
          .first_step = first,
          .end_step = epoch.num_batches(),
          .part = [epoch, replicas](int64_t step, int replica) {
            return BatchPart{step, share(epoch.batch_size(step), replicas, replica)};
          }};
}

// All steps, by a thread for each replica; parts of a step one behind another.
std::string taken(Loader& loader, const Epoch& epoch, int replicas) {
  const auto steps = static_cast<size_t>(epoch.num_batches());
  std::vector<std::vector<std::string>> parts(
      steps, std::vector<std::string>(static_cast<size_t>(replicas)));
  std::vector<std::jthread> threads;
  for (int replica = 0; replica < replicas; ++replica)
    threads.emplace_back([&, replica] {
      for (size_t step = 0; step < steps; ++step)
        parts[step][static_cast<size_t>(replica)] =
            bytes_of_batch(loader.take(static_cast<int64_t>(step), replica, in_time()));
    });
  threads.clear();
  std::string all;
  for (const auto& step : parts)
    for (const std::string& part : step) all += part;
  return all;
}

std::string inline_bytes(const Epoch& epoch, int replicas) {
  std::string all;
  for (int64_t step = 0; step < epoch.num_batches(); ++step)
    for (int replica = 0; replica < replicas; ++replica)
      all += bytes_of_batch(epoch.part(step, share(epoch.batch_size(step), replicas, replica)));
  return all;
}

TEST(Loader, GivesTheSameBytesWithAnyNumberOfWorkersAndReplicas) {
  const Dataset data = drawn(numbers(103).shuffle()).batch(8);
  for (int workers : {0, 1, 2, 5, kAuto})
    for (int replicas : {1, 2, 3}) {
      Loader loader({.workers = workers});
      for (int64_t number : {0, 1}) {
        const Epoch epoch = data.epoch({.epoch = number, .seed = 3});
        loader.begin(epoch, plan_of(epoch, replicas));
        EXPECT_EQ(taken(loader, epoch, replicas), inline_bytes(epoch, replicas))
            << workers << " workers, " << replicas << " replicas, epoch " << number;
      }
    }
}

TEST(Loader, GoesOnInTheMiddleOfAnEpoch) {
  const Epoch epoch = drawn(numbers(64).shuffle()).batch(8).epoch({.epoch = 2, .seed = 1});
  Loader loader({.workers = 2});
  loader.begin(epoch, plan_of(epoch, 1, 5));
  for (int64_t step = 5; step < 8; ++step)
    EXPECT_EQ(bytes_of_batch(loader.take(step, 0, in_time())), bytes_of_batch(epoch.batch(step)));
}

TEST(Loader, TakesStepsThatWereLeased) {
  const Epoch epoch = drawn(numbers(64)).batch(8).epoch({.epoch = 0, .seed = 1});
  Loader loader({.workers = 2});
  LoaderPlan plan = plan_of(epoch, 1);
  plan.end_step = 0;
  loader.begin(epoch, plan);
  loader.expect(3);
  loader.expect(6);
  EXPECT_EQ(bytes_of_batch(loader.take(3, 0, in_time())), bytes_of_batch(epoch.batch(3)));
  EXPECT_EQ(bytes_of_batch(loader.take(6, 0, in_time())), bytes_of_batch(epoch.batch(6)));
  EXPECT_EQ(bytes_of_batch(loader.take(1, 0, in_time())), bytes_of_batch(epoch.batch(1)));  // again
}

TEST(Loader, LeavesStepsOut) {
  const Epoch epoch = drawn(numbers(80)).batch(8).epoch({.epoch = 0, .seed = 1});
  Loader loader({.workers = 2});
  loader.begin(epoch, plan_of(epoch, 1));
  for (int64_t step : {0, 4, 9})
    EXPECT_EQ(bytes_of_batch(loader.take(step, 0, in_time())), bytes_of_batch(epoch.batch(step)));
}

// Sample 13 throws.
Dataset with_a_bad_one(int64_t n = 64) {
  return numbers(n).map(
      [](Sample sample) {
        if (sample.columns[1].as<int64_t>()[0] == 13) throw std::runtime_error("unlucky");
        return sample;
      },
      {.name = "lucky"});
}

TEST(Loader, NamesABadSampleBeforeTheStepThatWouldUseIt) {
  const Epoch epoch = with_a_bad_one().batch(8).epoch({.epoch = 1, .seed = 1});
  for (int workers : {0, 3}) {
    Loader loader({.workers = workers});
    loader.begin(epoch, plan_of(epoch, 1));
    loader.take(0, 0, in_time());
    const std::string said = message_of<DataError>([&] { loader.take(1, 0, in_time()); });
    EXPECT_THAT(said, HasSubstr("row 13, sample 6 of batch 2 of epoch 2, in lucky: unlucky"));
  }
}

TEST(Loader, ReplacesBadSamplesAllAlikeAndListsThem) {
  const Dataset data = with_a_bad_one().shuffle().batch(8);
  const Epoch epoch = data.epoch({.epoch = 0, .seed = 5});
  std::string first;
  for (int workers : {0, 1, 4})
    for (int replicas : {1, 2}) {
      Loader loader({.workers = workers, .on_bad = replace({.at_most = 0.02})});
      loader.begin(epoch, plan_of(epoch, replicas));
      const std::string all = taken(loader, epoch, replicas);
      // By rows, so that the number of parts does not show: labels come last in each part.
      if (replicas == 1) {
        if (first.empty()) first = all;
        EXPECT_EQ(all, first);
      }
      ASSERT_EQ(loader.report().replaced.size(), 1u);
      EXPECT_THAT(loader.report().replaced[0], HasSubstr("unlucky"));
      EXPECT_THAT(loader.report().to_string(), HasSubstr("1 damaged sample was replaced"));
    }
}

TEST(Loader, StopsAboveTheLimitOfReplacements) {
  const Dataset data = numbers(40).map(
      [](Sample sample) {
        if (sample.columns[1].as<int64_t>()[0] % 4 == 1) throw std::runtime_error("unlucky");
        return sample;
      },
      {.name = "lucky"});
  const Epoch epoch = data.batch(8).epoch({});
  Loader loader({.workers = 0, .on_bad = replace({.at_most = 0.1})});
  loader.begin(epoch, plan_of(epoch, 1));
  EXPECT_THAT(message_of<DataError>([&] {
                for (int64_t step = 0; step < 5; ++step) loader.take(step, 0, in_time());
              }),
              HasSubstr("5 of 40 samples of this epoch are damaged by now, more than the 0.1"));
}

TEST(Loader, NamesWhoIsStuckAndWhere) {
  std::atomic<bool> go = false;
  const Dataset data = numbers(16).map(
      [&go](Sample sample) {
        if (sample.columns[1].as<int64_t>()[0] == 9)
          while (!go) std::this_thread::sleep_for(Millis{1});
        return sample;
      },
      {.name = "sleepy"});
  const Epoch epoch = data.batch(8).epoch({});
  Loader loader({.workers = 2});
  loader.begin(epoch, plan_of(epoch, 1));
  loader.take(0, 0, in_time());
  // The workers were a step ahead: the stuck sample is theirs, the replica has nothing to help
  // with.
  std::this_thread::sleep_for(Millis{100});
  const std::string said = message_of<Timeout>([&] { loader.take(1, 0, Deadline(Millis{200})); });
  EXPECT_THAT(said, AllOf(HasSubstr("batch 2 of epoch 1 was not ready within 200 ms"),
                          HasSubstr("is in sleepy for"), HasSubstr("with sample 2 (row 9)")));
  go = true;
}

TEST(Loader, SaysWhichStepsHoldAllMemory) {
  const Epoch epoch = numbers(80).batch(8).epoch({});
  // A part: 8 rows of 12 and of 8 bytes.
  Loader loader({.workers = 1, .memory = 2 * 192});
  loader.begin(epoch, plan_of(epoch, 1));
  std::vector<Batch> kept;
  kept.push_back(loader.take(0, 0, in_time()));
  kept.push_back(loader.take(1, 0, in_time()));
  EXPECT_THAT(message_of<Timeout>([&] { loader.take(2, 0, Deadline(Millis{100})); }),
              AllOf(HasSubstr("no memory for step 2"), HasSubstr("steps 0, 1")));
  kept.clear();
  EXPECT_EQ(loader.take(2, 0, in_time()).size, 8);
  EXPECT_LE(loader.report().peak_bytes, 2 * 192);
}

TEST(Loader, SaysTheLeastMemoryThatWorks) {
  const Epoch epoch = numbers(80).batch(8).epoch({});
  Loader loader({.memory = 500});
  EXPECT_THAT(message_of<UsageError>([&] { loader.begin(epoch, plan_of(epoch, 2)); }),
              AllOf(HasSubstr("memory 500 B"), HasSubstr("512 B")));
  Loader least({.memory = 512});
  least.begin(epoch, plan_of(epoch, 2));
  EXPECT_EQ(taken(least, epoch, 2), inline_bytes(epoch, 2));
}

TEST(Loader, BatchesOutliveIt) {
  const Epoch epoch = numbers(80).batch(8).epoch({});
  Batch kept;
  {
    Loader loader({.workers = 2});
    loader.begin(epoch, plan_of(epoch, 1));
    kept = loader.take(0, 0, in_time());
  }
  EXPECT_EQ(bytes_of_batch(kept), bytes_of_batch(epoch.batch(0)));
}

// A row of it is read when another one is being read.
class ReadTogether final : public SampleSource {
 public:
  int64_t num_rows() const override { return 8; }
  const std::vector<Column>& columns() const override { return columns_; }
  Sample read_row(int64_t row) const override {
    std::unique_lock lock(mutex_);
    most_ = std::max(most_, ++reading_);
    more_.notify_all();
    waits_ = waits_ && more_.wait_for(lock, Millis{10'000}, [&] { return most_ > 1; });
    --reading_;
    return {{scalar(row)}};
  }
  int most() const { return most_; }

 private:
  std::vector<Column> columns_{{"x", DType::int64, {}}};
  mutable std::mutex mutex_;
  mutable std::condition_variable more_;
  mutable int reading_ = 0, most_ = 0;
  mutable bool waits_ = true;  // until it was in vain
};

TEST(Loader, RowsOfOneBatchAreReadByManyAtOnce) {
  const auto source = std::make_shared<ReadTogether>();
  const Epoch epoch = Dataset(source).batch(8).epoch({});
  Loader loader({.workers = 2});
  loader.begin(epoch, plan_of(epoch, 1));
  const Batch batch = loader.take(0, 0, in_time());
  EXPECT_GT(source->most(), 1);
  EXPECT_EQ(bytes_of_batch(batch), bytes_of_batch(epoch.batch(0)));
}

TEST(WorkerChoice, FewFollowWhoSleepsWhereCoresAreTheLimit) {
  // Nobody computes beside the loader: a step is as long as it takes two cores to make it.
  const detail::LoadFigures figures{
      .period = 1e-5, .compute = 0.16, .blocked = 0.01, .reading = 0.09, .free_cores = 2};
  EXPECT_EQ(detail::choose_workers(figures), (detail::WorkerChoice{.at_once = 3, .readers = 2}));
  EXPECT_EQ(detail::with_workers(2, figures), (detail::WorkerChoice{.at_once = 2, .readers = 2}));
}

TEST(WorkerChoice, ReadsAreFollowedByAsManyAsASlowDiskWants) {
  const detail::LoadFigures figures{.period = 0.02, .reading = 32 * 0.02, .free_cores = 1};
  EXPECT_EQ(detail::choose_workers(figures), (detail::WorkerChoice{.at_once = 1, .readers = 36}));
}

TEST(Loader, ReadsFailingDisksAgain) {
  struct Flaky final : SampleSource {
    int64_t num_rows() const override { return 8; }
    const std::vector<Column>& columns() const override {
      static const std::vector<Column> kColumns{{.name = "y", .dtype = DType::int64, .shape = {}}};
      return kColumns;
    }
    Sample read_row(int64_t row) const override {
      if (row == 3 && tries++ < 2) throw IoError("the mount is away");
      return {.columns = {scalar(row)}};
    }
    mutable std::atomic<int> tries = 0;
  };
  const auto source = std::make_shared<Flaky>();
  const Dataset data = Dataset(source).map([](Sample sample) { return sample; });
  const Epoch epoch = data.batch(8).epoch({});
  Loader loader({.workers = 0});
  loader.begin(epoch, plan_of(epoch, 1));
  EXPECT_EQ(loader.take(0, 0, in_time()).size, 8);
  EXPECT_EQ(source->tries, 3);
}

TEST(Loader, RefusesOptionsThatMakeNoSense) {
  EXPECT_THAT(message_of<UsageError>([] { check_options({.workers = -2}); }),
              HasSubstr("workers -2"));
  EXPECT_THAT(message_of<UsageError>([] { check_options({.memory = 0}); }), HasSubstr("memory 0"));
  EXPECT_THAT(message_of<UsageError>([] { check_options({.ahead = 0}); }), HasSubstr("ahead 0"));
  EXPECT_THAT(message_of<UsageError>([] { check_options({.on_bad = replace({.at_most = 2})}); }),
              HasSubstr("at most 2"));
}

}  // namespace
}  // namespace tutti::data
