// What each operator gives, by hand.

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "tutti/base/error.h"

#include "tests/support/pipeline_words.h"
#include "tests/unit/data_pipeline/batches.h"

namespace tutti::data {
namespace {

using testing::ElementsAre;

const auto even = [](const Sample& sample) { return number_in(sample) % 2 == 0; };
const auto ten_more = [](const Sample& sample) { return plus(sample, 10); };
// n: n times.
std::vector<Sample> as_often(const Sample& sample) {
  return std::vector<Sample>(static_cast<size_t>(number_in(sample)), sample);
}

TEST(Operators, GiveInOrder) {
  const Dataset five = counting(5);
  const auto from = [](int64_t n, int64_t more) {
    return counting(n).map([more](const Sample& sample) { return plus(sample, more); },
                           {.columns = counting(1).columns()});
  };
  const struct {
    const char* name;
    Dataset dataset;
    std::vector<int64_t> expected;
  } cases[] = {
      {"map", five.map(ten_more), {10, 11, 12, 13, 14}},
      {"filter", five.filter(even), {0, 2, 4}},
      {"filter twice",
       counting(12).filter(even).filter(
           [](const Sample& sample) { return number_in(sample) % 3 == 0; }),
       {0, 6}},
      {"filter none", five.filter([](const Sample&) { return false; }), {}},
      {"flat_map", counting(4).flat_map(as_often, {.columns = five.columns()}), {1, 2, 2, 3, 3, 3}},
      {"flat_map of what a filter left",
       counting(4).filter(even).flat_map(as_often, {.columns = five.columns()}),
       {2, 2}},
      {"flat_map of nothing", counting(1).flat_map(as_often, {.columns = five.columns()}), {}},
      {"skip", five.skip(3), {3, 4}},
      {"skip all", five.skip(9), {}},
      {"take and skip", five.take(4).skip(1), {1, 2, 3}},
      {"window", five.window(2), {0, 1, 2, 3}},
      {"window by 1", five.window(3, {.shift = 1}), {0, 1, 2, 1, 2, 3, 2, 3, 4}},
      {"window of every second", five.window(2, {.shift = 1, .stride = 2}), {0, 2, 1, 3, 2, 4}},
      {"window too large", five.window(6), {}},
      {"window of windows",
       counting(8).window(2).window(2, {.shift = 1}).take(2),
       {0, 1, 2, 3, 2, 3, 4, 5}},
      {"unbatch of windows", five.window(2).unbatch(), {0, 1, 2, 3}},
      {"unbatch of lists", lists({{1, 2}, {}, {3}}).unbatch(), {1, 2, 3}},
      {"unbatch of batches", five.batch(2).unbatch(), {0, 1, 2, 3, 4}},
      {"unbatch of full batches", five.batch(2, true).unbatch(), {0, 1, 2, 3}},
      {"cache", five.cache(), {0, 1, 2, 3, 4}},
      {"shuffle by a window of 1", five.shuffle({.window = 1}), {0, 1, 2, 3, 4}},
      {"concatenate", concatenate({from(2, 0), from(0, 5), from(2, 10)}), {0, 1, 10, 11}},
      {"concatenate of itself", concatenate({counting(2), counting(2)}), {0, 1, 0, 1}},
      {"interleave", interleave({from(3, 0), from(1, 10), from(2, 20)}), {0, 10, 20, 1, 21, 2}},
      {"interleave by blocks",
       interleave({from(5, 0), from(3, 10)}, {.block = 2}),
       {0, 1, 10, 11, 2, 3, 12, 4}},
      {"interleave two of three",
       interleave({from(2, 0), from(3, 10), from(2, 20)}, {.cycle = 2}),
       {0, 10, 1, 11, 20, 12, 21}},
      {"interleave more than there are",
       interleave({from(2, 0), from(1, 10)}, {.cycle = 9}),
       {0, 10, 1}},
      {"zip", zip({five, from(3, 10)}), {0, 1, 2}},
      {"weighted of one", weighted({{counting(3)}}), {0, 1, 2}},
  };
  for (const auto& [name, dataset, expected] : cases) {
    EXPECT_EQ(order_of(dataset), expected) << name;
    // Sizes count samples; a window or list is one.
    EXPECT_EQ(batches(dataset.batch(1)).size(), static_cast<size_t>(dataset.num_samples())) << name;
  }
}

TEST(Operators, GiveBatches) {
  const Dataset some = lists({{1}, {2, 2}, {3, 3, 3}, {4}, {}});
  const struct {
    const char* name;
    Dataset dataset;
    Lists expected;
  } cases[] = {
      {"batch", counting(5).batch(2), {{0, 1}, {2, 3}, {4}}},
      {"batch without the rest", counting(5).batch(2, true), {{0, 1}, {2, 3}}},
      {"batch of nothing", counting(0).batch(2), {}},
      {"batch, no full one", counting(1).batch(2, true), {}},
      {"the last batch() counts", counting(3).batch(1).batch(3), {{0, 1, 2}}},
      {"padded to the longest", some.padded_batch(2), {{1, 0, 2, 2}, {3, 3, 3, 4, 0, 0}, {}}},
      {"padded by -1", some.take(2).padded_batch(2, {.value = -1}), {{1, -1, 2, 2}}},
      {"padded to a size",
       some.skip(3).padded_batch(2, {.value = 9, .sizes = {2}}),
       {{4, 9, 9, 9}}},
      {"buckets",
       some.bucket_by_length({.boundaries = {2}, .batches = {2, 1}}),
       {{2, 2}, {3, 3, 3}, {1, 4}, {}}},
      {"full buckets",
       some.bucket_by_length(
           {.boundaries = {2}, .batches = {2, 9}, .pad = {.drop_remainder = true}}),
       {{1, 4}}},
      {"what is left over, short ones first",
       some.bucket_by_length({.boundaries = {1, 2, 3}, .batches = {9, 9, 9, 9}}),
       {{}, {1, 4}, {2, 2}, {3, 3, 3}}},
  };
  for (const auto& [name, dataset, expected] : cases) {
    EXPECT_EQ(batches(dataset), expected) << name;
    EXPECT_EQ(dataset.num_batches(), std::ssize(expected)) << name;
  }
}

TEST(Operators, PadCorners) {
  // [1, 2] and [2, 1] in a batch of [2, 2] each.
  const auto tall = [](std::vector<int64_t> values, std::vector<int64_t> shape) {
    return
        [values, shape](const Sample&) { return Sample{{array_of(std::vector(values), shape)}}; };
  };
  const MapOptions any{.columns = {{"x", DType::int64, {kAnySize, kAnySize}}}};
  const Dataset both = concatenate(
      {counting(1).map(tall({1, 2}, {1, 2}), any), counting(1).map(tall({3, 4}, {2, 1}), any)});
  EXPECT_EQ(batches(both.padded_batch(2)), (Lists{{1, 2, 0, 0, 3, 0, 4, 0}}));
  const Epoch epoch = both.padded_batch(2).epoch({});
  EXPECT_THAT(epoch.columns(0)[0].shape, ElementsAre(2, 2));
  // The share of one replica has the shape of the whole batch.
  EXPECT_EQ(epoch.part(0, {0, 1}).columns[0].to_string(), "int64 [1, 2, 2]");
  EXPECT_EQ(epoch.part(0, {1, 1}).columns[0].to_string(), "int64 [0, 2, 2]");
}

TEST(Operators, PadEachColumnByItsValueAndSayWhatIsPadding) {
  const Dataset both = zip({lists({{1}, {2, 2}, {3, 3, 3}}), lists({{7, 7}, {8}, {}})});
  const PadOptions options{.value = -1, .values = {{"x2", -100}}, .mask_of = "x2"};
  const auto expect = [](const Dataset& padded, const Lists& x, const Lists& y, const Lists& mask) {
    EXPECT_EQ(padded.columns().back().name, "mask");
    const Epoch epoch = padded.epoch({});
    for (int64_t step = 0; step < epoch.num_batches(); ++step) {
      const auto place = static_cast<size_t>(step);
      const Batch batch = epoch.batch(step);
      ASSERT_EQ(batch.columns.size(), 3U);
      EXPECT_EQ(numbers_in(batch, 0), x[place]);
      EXPECT_EQ(numbers_in(batch, 1), y[place]);
      EXPECT_EQ(batch.columns[2].dtype(), DType::boolean);
      EXPECT_EQ(batch.columns[2].shape(), batch.columns[1].shape());
      EXPECT_EQ(epoch.columns(step)[2].shape, epoch.columns(step)[1].shape);
      const auto flags = Array(batch.columns[2]).as<bool>();
      EXPECT_EQ(std::vector<int64_t>(flags.begin(), flags.end()), mask[place]);
    }
  };
  expect(both.padded_batch(2, options), {{1, -1, 2, 2}, {3, 3, 3}}, {{7, 7, 8, -100}, {}},
         {{1, 1, 1, 0}, {}});
  PadOptions sized = options;
  sized.sizes = {3, 2};
  expect(both.padded_batch(3, sized), {{1, -1, -1, 2, 2, -1, 3, 3, 3}},
         {{7, 7, 8, -100, -100, -100}}, {{1, 1, 1, 0, 0, 0}});
  expect(both.bucket_by_length({.boundaries = {2}, .batches = {3, 3}, .pad = options}),
         {{1}, {2, 2, -1, 3, 3, 3}}, {{7, 7}, {8, -100}}, {{1, 1}, {1, 0}});
}

TEST(Operators, ColumnsOfWhatIsPutTogether) {
  const Dataset pairs = zip({counting(3), counting(2), counting(4)});
  ASSERT_EQ(pairs.columns().size(), 3u);
  EXPECT_EQ(pairs.columns()[1].name, "x2");
  EXPECT_EQ(pairs.columns()[2].name, "x3");
  EXPECT_EQ(numbers_in(pairs.batch(2).epoch({}).batch(0), 2), (std::vector<int64_t>{0, 1}));
  const Dataset both = concatenate({counting(4).window(2), counting(3).window(3)});
  EXPECT_EQ(both.columns()[0].to_string(), "x int64 [?]");
  EXPECT_EQ(batches(both.padded_batch(3)), (Lists{{0, 1, 0, 2, 3, 0, 0, 1, 2}}));
}

TEST(Operators, MapsKeepOrChangeColumns) {
  const Dataset mapped = counting(3).map([](const Sample& sample) {
    return Sample{{array_of(std::vector<float>(2, 0.5f), {2}), sample.columns[0]}};
  });
  EXPECT_EQ(mapped.columns()[0].to_string(), "x float32 [2]");
  EXPECT_EQ(mapped.columns()[1].to_string(), "column1 int64 []");
  // Looked up from the first sample that there is: 0 is not.
  const Dataset behind = counting(3).skip(1).map([](const Sample& sample) {
    EXPECT_NE(number_in(sample), 0);
    return plus(sample, 1);
  });
  EXPECT_EQ(order_of(behind), (std::vector<int64_t>{2, 3}));
}

TEST(Weighted, SharesByWeightAndGoesOnInTheNextEpoch) {
  const auto a = counting(4);
  const auto b = counting(100).skip(50);
  const Dataset mix = weighted({{a, 1}, {b, 3}}, {.num_samples = 8});
  std::vector<int64_t> of_a, of_b;
  for (int64_t epoch = 0; epoch < 4; ++epoch)
    for (int64_t number : order_of(mix, {.epoch = epoch, .seed = 3}))
      (number < 50 ? of_a : of_b).push_back(number);
  EXPECT_THAT(of_a, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  ASSERT_EQ(of_b.size(), 24u);
  for (size_t i = 0; i < of_b.size(); ++i) EXPECT_EQ(of_b[i], 50 + static_cast<int64_t>(i));
  EXPECT_NE(order_of(mix, {.seed = 3}), order_of(mix, {.seed = 4}));
  // As many as come before one begins again: 4 are a quarter of 16.
  EXPECT_EQ(weighted({{a, 1}, {b, 3}}).num_samples(), 16);
}

TEST(Weighted, GivesEqualRemaindersToTheFirst) {
  // 2 by 4, 1 and 1: one and a third, a third, a third. 9 by 1, 2 and 3: 1.5, 3 and 4.5.
  const auto shares = [](std::vector<double> weights, int64_t samples) {
    std::vector<WeightedDataset> mix;
    for (size_t k = 0; k < weights.size(); ++k)
      mix.push_back({counting(30).skip(10 * static_cast<int64_t>(k)).take(10), weights[k]});
    std::vector<int64_t> counts(weights.size(), 0);
    for (int64_t number : order_of(weighted(mix, {.num_samples = samples})))
      ++counts[static_cast<size_t>(number / 10)];
    return counts;
  };
  EXPECT_THAT(shares({4, 1, 1}, 2), ElementsAre(2, 0, 0));
  EXPECT_THAT(shares({1, 4, 1}, 4), ElementsAre(1, 3, 0));
  EXPECT_THAT(shares({1, 2, 3}, 9), ElementsAre(2, 3, 4));
}

TEST(Shuffle, ByAWindowMixesOnlyNeighbours) {
  const auto order = order_of(counting(100).shuffle({.window = 10}), {.seed = 1});
  std::set<int64_t> all(order.begin(), order.end());
  EXPECT_EQ(all.size(), 100u);
  for (size_t place = 0; place < order.size(); ++place)
    EXPECT_LT(order[place], static_cast<int64_t>(place) + 10);  // a sample has to be there
  // A window for all is no window.
  EXPECT_EQ(order_of(counting(100).shuffle({.window = 100})), order_of(counting(100).shuffle()));
}

TEST(Shuffle, InsideAWindowAndOverItAreTwo) {
  const auto once = order_of(counting(50).shuffle().window(1));
  const auto twice = order_of(counting(50).shuffle().window(1).shuffle());
  EXPECT_EQ(twice, order_of(counting(50).shuffle().shuffle()));
  std::vector<int64_t> squared;
  for (int64_t place : once) squared.push_back(once[static_cast<size_t>(place)]);
  EXPECT_NE(twice, squared);
}

// What each sample of counting() drew.
std::vector<int64_t> draws(const Dataset& dataset, EpochOptions options = {}) {
  return order_of(dataset.map([](const Sample& sample, Draw& draw) {
    Sample out = plus(sample, 0);
    *static_cast<int64_t*>(out.columns[0].data()) = draw.below(int64_t{1} << 40);
    return out;
  }),
                  options);
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::ranges::sort(values);
  return values;
}

TEST(Draws, BelongToTheSampleNotToItsPlace) {
  const auto plain = draws(counting(20), {.epoch = 2, .seed = 5});
  EXPECT_EQ(std::set(plain.begin(), plain.end()).size(), 20u);
  EXPECT_EQ(draws(counting(20).skip(7), {.epoch = 2, .seed = 5}),
            std::vector(plain.begin() + 7, plain.end()));
  EXPECT_EQ(sorted(draws(counting(20).shuffle(), {.epoch = 2, .seed = 5})), sorted(plain));
  EXPECT_NE(draws(counting(20), {.epoch = 1, .seed = 5}), plain);
  EXPECT_NE(draws(counting(20), {.epoch = 2, .seed = 6}), plain);
  const auto twice = draws(counting(20).repeat(2), {.epoch = 1, .seed = 5});  // passes 2 and 3
  EXPECT_TRUE(std::equal(plain.begin(), plain.end(), twice.begin()));
  EXPECT_EQ(std::set(twice.begin(), twice.end()).size(), 40u);
}

TEST(Draws, DifferBetweenTheInputsOfACombination) {
  const Dataset drawing = counting(8).window(2).map(
      [](const Sample& sample, Draw& draw) { return plus(sample, draw.below(int64_t{1} << 40)); });
  // One handle twice: the parts of a window that a thread remembers are those of one input.
  const Dataset parts = drawing.unbatch();
  const Batch pairs = zip({parts, parts}).batch(8).epoch({}).batch(0);
  for (size_t i = 0; i < 8; ++i) EXPECT_NE(numbers_in(pairs, 0)[i], numbers_in(pairs, 1)[i]);
}

TEST(BatchTransforms, SeeThePartnerAlone) {
  class Sum final : public BatchTransform {
    std::string name() const override { return "sum()"; }
    std::vector<Column> columns(const std::vector<Column>& in) const override { return in; }
    Sample apply(const Sample& own, const Sample& partner, bool alone, Draw&) const override {
      return plus(own, alone ? 100 : number_in(partner) * 10);
    }
  };
  const Dataset sums = counting(5).batch(3).map(std::make_shared<Sum>());
  EXPECT_EQ(batches(sums), (Lists{{10, 1, 102}, {43, 34}}));
  EXPECT_EQ(numbers_in(sums.epoch({}).part(0, {1, 3})), (std::vector<int64_t>{1, 102}));
  EXPECT_EQ(batches(sums.map(std::make_shared<Sum>()))[0], (std::vector<int64_t>{20, 101, 202}));
}

TEST(Split, CutsBeforeWhatMixes) {
  const auto [rest, last] = counting(10)
                                .shuffle()
                                .filter(even)
                                .flat_map([](const Sample& sample) {
                                  return std::vector<Sample>{sample, plus(sample, 100)};
                                })
                                .batch(4)
                                .split_last(0.5);
  EXPECT_EQ(batches(last), (Lists{{6, 106, 8, 108}}));
  const auto first = batches(rest, {.seed = 2});
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(sorted({first[0][0], first[0][2], first[1][0]}), (std::vector<int64_t>{0, 2, 4}));
  for (const Dataset& mixed :
       {concatenate({counting(4).repeat(2)}), zip({counting(8).shuffle(), counting(8)}),
        counting(8).shuffle().window(2), interleave({counting(4).shuffle(), counting(4)}),
        weighted({{counting(8)}})})
    EXPECT_THROW(mixed.batch(2).split_last(0.5), UsageError);
  EXPECT_EQ(batches(concatenate({counting(2), counting(2)}).batch(2).split_last(0.5).second),
            (Lists{{0, 1}}));
}

}  // namespace
}  // namespace tutti::data
