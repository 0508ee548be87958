// Samples that come one after another.

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/data/generator.h"

#include "tests/support/message_of.h"
#include "tests/unit/data_pipeline/batches.h"

namespace tutti::data {
namespace {

using test::message_of;
using testing::HasSubstr;

/// Of epoch e: 100 e, 100 e + 1, ..., `there` of them; counts its calls.
struct Numbers {
  int64_t there = 1000;
  std::atomic<int64_t> begun{0};
  std::atomic<int64_t> given{0};
  std::atomic<int64_t> calls_after_end{0};

  Dataset dataset(int64_t num_samples) {
    return from_generator(
        [this](const GeneratorContext& context) -> Generator {
          ++begun;
          return [this, next = int64_t{0},
                  from = 100 * context.epoch]() mutable -> std::optional<Sample> {
            if (next > there) ++calls_after_end;
            if (next++ >= there) return std::nullopt;
            ++given;
            return Sample{{scalar(from + next - 1)}};
          };
        },
        {.columns = {{"x", DType::int64, {}}}, .num_samples = num_samples, .name = "numbers"});
  }
};

TEST(FromGenerator, GivesSamplesInOrderOnceAnEpoch) {
  Numbers numbers;
  const Dataset dataset = numbers.dataset(5);
  EXPECT_TRUE(dataset.sequential());
  EXPECT_EQ(batches(dataset.batch(2)), (Lists{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(numbers.given, 5);  // what comes beyond is left
  EXPECT_EQ(batches(dataset.batch(3), {.epoch = 2}), (Lists{{200, 201, 202}, {203, 204}}));
  EXPECT_EQ(numbers.begun, 2);
  EXPECT_EQ(batches(dataset.repeat(2).batch(5), {.epoch = 1}),
            (Lists{{200, 201, 202, 203, 204}, {300, 301, 302, 303, 304}}));
  EXPECT_EQ(batches(dataset.skip(2).take(2).batch(9)), (Lists{{2, 3}}));
  EXPECT_TRUE(numbers.dataset(0).batch(4).epoch({}).num_batches() == 0);
}

TEST(FromGenerator, ReplicasOfOneEpochShareTheRun) {
  Numbers numbers;
  const Epoch epoch = numbers.dataset(48).shuffle({.window = 7}).batch(6).epoch({.seed = 3});
  Lists parts(3);
  std::vector<std::jthread> replicas;
  for (int rank = 0; rank < 3; ++rank)
    replicas.emplace_back([&, rank] {
      for (int64_t step = 0; step < epoch.num_batches(); ++step)
        for (int64_t number : numbers_in(epoch.part(step, share(6, 3, rank))))
          parts[static_cast<size_t>(rank)].push_back(number);
    });
  replicas.clear();
  std::vector<int64_t> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  std::ranges::sort(all);
  EXPECT_EQ(numbers.begun, 1);
  EXPECT_EQ(all.size(), 48u);
  EXPECT_EQ(std::ranges::unique(all).size(), 0u);
  Numbers again;
  const Lists whole = batches(again.dataset(48).shuffle({.window = 7}).batch(6), {.seed = 3});
  for (size_t step = 0; step < whole.size(); ++step)
    EXPECT_EQ(whole[step][2], parts[1][2 * step]);  // the first of rank 1
  EXPECT_EQ(again.begun, 1);
  EXPECT_EQ(again.given, 48);
}

TEST(FromGenerator, RunsUpToWhereTrainingGoesOn) {
  Numbers numbers;
  const Epoch epoch = numbers.dataset(1000).batch(4).epoch({});
  testing::internal::CaptureStderr();
  EXPECT_EQ(numbers_in(epoch.batch(200)), (std::vector<int64_t>{800, 801, 802, 803}));
  EXPECT_EQ(numbers.begun, 1);
  // And back: it begins anew, and says so.
  EXPECT_EQ(numbers_in(epoch.batch(0)), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(numbers.begun, 2);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("numbers begins anew, for sample 0, which is 804 behind"));
}

// A loader's worker that was held up asks for its rows when all others are done.
TEST(FromGenerator, RemembersAsFarBackAsALoaderComputesAhead) {
  Numbers numbers;
  const Epoch epoch = numbers.dataset(100).batch(4).epoch({});
  for (int64_t step = 17; step >= 0; --step)
    EXPECT_EQ(numbers_in(epoch.batch(step)).at(0), 4 * step);
  EXPECT_EQ(numbers.begun, 1);
}

TEST(FromGenerator, ThatEndsEarlyIsAnError) {
  Numbers numbers;
  numbers.there = 5;
  const Epoch epoch = numbers.dataset(8).batch(4).epoch({.epoch = 1});
  EXPECT_EQ(numbers_in(epoch.batch(0)), (std::vector<int64_t>{100, 101, 102, 103}));
  for (int tries = 0; tries < 2; ++tries) {
    const std::string said = message_of<DataError>([&] { epoch.batch(1); });
    EXPECT_THAT(said,
                HasSubstr("sample 2 of batch 2 of epoch 2, in numbers: ended before sample 5, "
                          "expected 8 samples in an epoch"));
  }
  EXPECT_EQ(numbers.calls_after_end, 0);
}

TEST(FromGenerator, ThatThrowsOrGivesAnotherShapeIsNamed) {
  const GeneratorOptions options{.columns = {{"x", DType::int64, {}}}, .num_samples = 3};
  const auto throws = [](const GeneratorContext&) -> Generator {
    return []() -> std::optional<Sample> { throw std::runtime_error("the simulator fell over"); };
  };
  EXPECT_THAT(
      message_of<DataError>([&] { from_generator(throws, options).batch(2).epoch({}).batch(0); }),
      HasSubstr("generator, sample 0, sample 1 of batch 1 of epoch 1, in generator: the "
                "simulator fell over"));
  const auto floats = [](const GeneratorContext&) -> Generator {
    return [] { return std::optional(Sample{{scalar(1.5f)}}); };
  };
  EXPECT_THAT(
      message_of<DataError>([&] { from_generator(floats, options).batch(2).epoch({}).batch(0); }),
      HasSubstr("gave column \"x\" as float32 [], expected int64 []"));
}

TEST(FromGenerator, RefusesWhatLooksAtSamplesInAnyOrder) {
  Numbers numbers;
  const Dataset dataset = numbers.dataset(5);
  const auto all = [](const Sample&) { return true; };
  EXPECT_THAT(message_of<UsageError>([&] { dataset.filter(all); }), HasSubstr("one after another"));
  EXPECT_THAT(message_of<UsageError>([&] { dataset.shuffle(); }), HasSubstr(".window = "));
  EXPECT_THROW(dataset.cache(), UsageError);
  EXPECT_THROW(dataset.window(2), UsageError);
  EXPECT_THROW(concatenate({dataset}), UsageError);
  EXPECT_THROW(zip({dataset, counting(3)}), UsageError);
  EXPECT_THAT(message_of<UsageError>([&] { dataset.map([](Sample in) { return in; }); }),
              HasSubstr("MapOptions::columns"));
  EXPECT_EQ(numbers.begun, 0);
  const GeneratorFactory factory = [](const GeneratorContext&) { return Generator(); };
  EXPECT_THROW(from_generator(nullptr, {.columns = {{"x"}}}), UsageError);
  EXPECT_THROW(from_generator(factory, {}), UsageError);
  EXPECT_THROW(from_generator(factory, {.columns = {{"x"}}, .num_samples = -1}), UsageError);
}

}  // namespace
}  // namespace tutti::data
