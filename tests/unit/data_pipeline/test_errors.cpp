// What is refused before anything runs, and what errors of samples name.

#include <gmock/gmock.h>

#include <atomic>
#include <limits>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/data/generator.h"

#include "tests/support/message_of.h"
#include "tests/support/pipeline_words.h"
#include "tests/unit/data_pipeline/batches.h"

namespace tutti::data {
namespace {

using test::blend;
using test::jitter;
using test::message_of;
using test::times;
using testing::HasSubstr;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
const auto all_of_them = [](const Sample&) { return true; };
const auto same = [](const Sample& sample) { return sample; };
const auto twice = [](const Sample& sample) { return std::vector<Sample>(2, sample); };

Dataset streamed_lists() {
  return from_generator([](const GeneratorContext&) -> Generator { return {}; },
                        {.columns = {{"x", DType::int64, {kAnySize}}}, .num_samples = 2});
}

TEST(Refused, BeforeAnythingIsRead) {
  const Dataset some = counting(10);
  const Dataset drawn = some.map(jitter(3));
  const Dataset cut = some.shuffle().take(5);
  const Dataset mix = weighted({{some}, {some}});
  const Dataset vary = lists({{1}, {2, 3}}), stream = streamed_lists();
  const Dataset floats = some.map([](const Sample&) { return Sample{{scalar(1.0f)}}; });
  const struct {
    const char* name;
    std::function<void()> call;
    const char* says;
  } cases[] = {
      {"filter of draws", [&] { drawn.filter(all_of_them); }, "jitter(3) makes another one"},
      {"filter of some of shuffled", [&] { cut.filter(all_of_them); },
       "differ from epoch to epoch"},
      {"filter of a mix", [&] { mix.filter(all_of_them); }, "behind weighted()"},
      {"flat_map of draws", [&] { drawn.flat_map(twice); }, "jitter(3)"},
      {"flat_map of some of shuffled", [&] { cut.flat_map(twice); }, "put it before"},
      {"flat_map without a first",
       [&] { some.flat_map([](const Sample&) { return std::vector<Sample>(); }); },
       "MapOptions::columns"},
      {"map of nothing", [&] { some.take(0).map(same); }, "there is no sample"},
      {"map by null", [&] { some.map(TransformHandle()); }, "null pointer"},
      {"map of batches by null", [&] { some.batch(2).map(BatchTransformHandle()); },
       "null pointer"},
      {"map behind batch", [&] { some.batch(2).map(times(2)); }, "before its batch()"},
      {"lambda behind batch", [&] { some.batch(2).map(same); }, "before its batch()"},
      {"map of batches before batch", [&] { some.map(blend()); }, "put it behind batch()"},
      {"map of padded batches", [&] { vary.padded_batch(2).map(blend()); }, "behind padding"},
      {"map of batches padded to a size",
       [&] { vary.padded_batch(2, {.sizes = {3}}).map(blend()); }, "behind padding"},
      {"unbatch of numbers", [&] { some.unbatch(); }, "no rows to part"},
      {"unbatch of padded", [&] { vary.padded_batch(2).unbatch(); }, "leave both out"},
      {"unbatch of blended", [&] { some.batch(2).map(blend()).unbatch(); }, "leave both out"},
      {"unbatch of draws", [&] { vary.map(jitter(3)).unbatch(); }, "jitter(3)"},
      {"unbatch of some of shuffled", [&] { vary.shuffle().take(1).unbatch(); }, "unbatch()"},
      {"window of 0", [&] { some.window(0); }, "expected 1 or more"},
      {"window by -1", [&] { some.window(2, {.shift = -1}); }, "expected 1 or more"},
      {"window, stride 0", [&] { some.window(2, {.stride = 0}); }, "expected 1 or more"},
      {"window of lists", [&] { vary.window(2); }, "differs in shape"},
      {"shuffle by -1", [&] { some.shuffle({.window = -1}); }, "window -1"},
      {"skip of -1", [&] { some.skip(-1); }, "skip(-1)"},
      {"batch of lists", [&] { vary.batch(2); }, "padded_batch"},
      {"padded batch of 0", [&] { vary.padded_batch(0); }, "1 or more"},
      {"padded, draws", [&] { vary.map(jitter(3)).padded_batch(2); }, "jitter(3)"},
      {"padded, two sizes for one", [&] { vary.padded_batch(2, {.sizes = {3, 4}}); },
       "one for each of the 1 sizes"},
      {"padded by half", [&] { vary.padded_batch(2, {.value = 0.5}); }, "0.5 is no value of int64"},
      {"padded by 1e30", [&] { vary.padded_batch(2, {.value = 1e30}); }, "no value of int64"},
      {"padded, a value for no column", [&] { vary.padded_batch(2, {.values = {{"z", 1}}}); },
       "unknown column \"z\""},
      {"padded, a value that it cannot hold",
       [&] { vary.padded_batch(2, {.values = {{"x", 0.5}}}); }, "0.5 is no value of int64"},
      {"padded, a mask of nothing", [&] { vary.padded_batch(2, {.mask_of = "y"}); },
       "unknown padded column \"y\""},
      {"padded, a mask of what is not padded", [&] { some.padded_batch(2, {.mask_of = "x"}); },
       "unknown padded column \"x\""},
      {"padded, from a generator", [&] { stream.padded_batch(2); }, "give PadOptions::sizes"},
      {"buckets of numbers", [&] { some.bucket_by_length({.boundaries = {2}, .batches = {2, 2}}); },
       "has no length"},
      {"buckets of column 1", [&] { vary.bucket_by_length({.batches = {2}, .column = 1}); },
       "is not there"},
      {"buckets descending",
       [&] { vary.bucket_by_length({.boundaries = {3, 2}, .batches = {1, 1, 1}}); }, "ascending"},
      {"buckets, a batch too few",
       [&] { vary.bucket_by_length({.boundaries = {3}, .batches = {1}}); }, "2 buckets"},
      {"buckets of 0", [&] { vary.bucket_by_length({.boundaries = {3}, .batches = {0, 1}}); },
       "1 or more"},
      {"buckets of some of shuffled",
       [&] { vary.shuffle().take(1).bucket_by_length({.batches = {2}}); }, "differ by the epoch"},
      {"buckets, draws", [&] { vary.map(jitter(3)).bucket_by_length({.batches = {2}}); },
       "jitter(3)"},
      {"nothing together", [] { concatenate({}); }, "concatenate: got no datasets"},
      {"nothing zipped", [] { zip({}); }, "zip: got no datasets"},
      {"nothing mixed", [] { weighted({}); }, "weighted: got no datasets"},
      {"batches together", [&] { concatenate({some.batch(2)}); }, "before its batch()"},
      {"other columns", [&] { concatenate({some, zip({some, some})}); },
       "dataset 2 has columns x int64 [], x2 int64 []; expected those of the first: x int64 []"},
      {"other dtypes", [&] { interleave({some, floats}); }, "dataset 2"},
      {"other dimensions", [&] { weighted({{some}, {some.window(2)}}); }, "dataset 2"},
      {"cycle of -1", [&] { interleave({some}, {.cycle = -1}); }, "cycle -1"},
      {"block of 0", [&] { interleave({some}, {.block = 0}); }, "block 0"},
      {"weight 0", [&] { weighted({{some, 0}}); }, "above 0"},
      {"weight of nothing", [&] { weighted({{some, NAN}}); }, "above 0"},
      {"weights beyond", [&] { weighted({{some, 1e308}, {some, 1e308}}); }, "finite sum"},
      {"weighted, none there", [&] { weighted({{some.take(0)}}); }, "no samples"},
      {"weighted, -1", [&] { weighted({{some}}, {.num_samples = -1}); }, "1 or more"},
      {"weighted, too many", [&] { weighted({{some}}, {.num_samples = kMost}); }, "at most"},
  };
  for (const auto& [name, call, says] : cases) {
    SCOPED_TRACE(name);
    EXPECT_THAT(message_of<UsageError>(call), HasSubstr(says));
  }
  EXPECT_EQ(some.window(kMost, {.stride = kMost}).num_samples(), 0);
}

TEST(Allowed, WhereTheNumberDoesNotDependOnTheEpoch) {
  const Dataset some = counting(8);
  EXPECT_EQ(some.shuffle().take(8).filter(all_of_them).num_samples(), 8);
  EXPECT_EQ(some.shuffle().shard(0, 1).filter(all_of_them).num_samples(), 8);
  EXPECT_EQ(some.window(2).shuffle().take(3).unbatch().num_samples(), 6);
  EXPECT_EQ(weighted({{some.window(2)}}, {.num_samples = 5}).unbatch().num_samples(), 10);
  EXPECT_EQ(some.window(2).map(jitter(3)).unbatch().num_samples(), 8);
  EXPECT_EQ(lists({{1}, {2, 3}}).map(jitter(3)).padded_batch(2, {.sizes = {2}}).num_batches(), 1);
}

/// Ten numbers; of 7, `stage` makes something else.
Dataset bad_seventh(std::function<Sample(const Sample&)> of_seventh) {
  return Dataset(counted_reads(10))
      .map(
          [of_seventh](const Sample& sample) {
            return number_in(sample) == 7 ? of_seventh(sample) : sample;
          },
          {.name = "crop", .columns = {{"x", DType::int64, {1}}}});
}

TEST(ErrorsOfSamples, NameSamplePlaceBatchEpochAndStage) {
  const std::string where = "list 7, sample 2 of batch 3 of epoch 5, in crop: ";
  const auto said = [&](const Dataset& dataset) {
    const Epoch epoch = dataset.batch(3).epoch({.epoch = 4});
    EXPECT_EQ(numbers_in(epoch.batch(1)), (std::vector<int64_t>{3, 4, 5}));
    EXPECT_EQ(numbers_in(epoch.part(2, {0, 1})), (std::vector<int64_t>{6}));  // not mine
    return message_of<DataError>([&] { epoch.batch(2); });
  };
  EXPECT_EQ(said(bad_seventh([](const Sample&) -> Sample { throw std::runtime_error("torn"); })),
            where + "torn");
  EXPECT_EQ(said(bad_seventh([](const Sample&) { return Sample{{scalar(int64_t{1})}}; })),
            where + "crop gave column \"x\" as int64 [], expected int64 [1]");
  EXPECT_EQ(said(bad_seventh([](const Sample&) { return Sample{{make_array(DType::int8, {1})}}; })),
            where + "crop gave column \"x\" as int8 [1], expected int64 [1]");
  EXPECT_EQ(said(bad_seventh([](const Sample&) { return Sample{}; })),
            where + "crop gave 0 columns, expected 1");
  // Stages behind it are not to blame.
  EXPECT_EQ(said(bad_seventh([](const Sample&) -> Sample {
                   throw DataError("torn");
                 }).map(same, {.name = "later"})),
            where + "torn");
}

TEST(ErrorsOfSamples, OfASourceNameItToo) {
  const auto source = counted_reads(10);
  source->on_read = [](int64_t row) {
    if (row == 7) throw DataError("byte 12: torn");
  };
  const std::string where = "list 7, sample 2 of batch 3 of epoch 1, in read: ";
  for (const Dataset& dataset : {Dataset(source), Dataset(source).map(times(1))})
    EXPECT_EQ(message_of<DataError>([&] { dataset.batch(3).epoch({}).batch(2); }),
              where + "byte 12: torn");
  EXPECT_THAT(message_of<DataError>([&] { Dataset(source).window(5).batch(1).epoch({}).batch(1); }),
              HasSubstr("window 1, sample 1 of batch 2 of epoch 1, in read: byte 12: torn"));
}

TEST(ErrorsOfSamples, OfASourceThatGivesAnotherShape) {
  Lists rows(6, {1, 2});
  rows[4] = {1, 2, 3, 4, 5, 6, 7};
  const auto source = std::make_shared<ListSource>(std::move(rows));
  source->columns_[0].shape = {2};
  for (const Dataset& dataset : {Dataset(source), Dataset(source).window(2).unbatch(),
                                 Dataset(source).map(times(1)), Dataset(source).cache()})
    EXPECT_THAT(message_of<DataError>([&] { dataset.batch(6).epoch({}).batch(0); }),
                HasSubstr("in read: read gave column \"x\" as int64 [7], expected int64 [2]"));
}

TEST(ErrorsOfSamples, ReadsThatFailAreTriedAgain) {
  for (const bool mapped : {false, true}) {
    const auto source = counted_reads(4);
    std::atomic<int> failures = 2;
    source->on_read = [&](int64_t row) {
      if (row == 1 && failures-- > 0) throw IoError("the disk is busy");
    };
    const Dataset dataset(source);
    EXPECT_EQ((mapped ? dataset.map(times(1)) : dataset).batch(4).epoch({}).batch(0).size, 4);
    source->on_read = [](int64_t) { throw IoError("the disk is gone"); };
    EXPECT_EQ(message_of<IoError>([&] { dataset.batch(1).epoch({}).batch(0); }),
              "list 0, sample 1 of batch 1 of epoch 1, in read: the disk is gone");
  }
}

TEST(ErrorsOfSamples, OfPaddingAndWholeBatches) {
  const Epoch padded = lists({{1}, {2}, {3, 4, 5}}).padded_batch(2, {.sizes = {2}}).epoch({});
  EXPECT_EQ(message_of<DataError>([&] { padded.batch(1); }),
            "list 2, sample 1 of batch 2 of epoch 1, in padding: column \"x\" is int64 [3], longer "
            "than [2], to which it is padded");
  class Bad final : public BatchTransform {
   public:
    explicit Bad(bool throws) : throws_(throws) {}
    std::string name() const override { return "bad()"; }
    std::vector<Column> columns(const std::vector<Column>& in) const override { return in; }
    Sample apply(const Sample& own, const Sample&, bool alone, Draw&) const override {
      if (alone && throws_) throw std::runtime_error("nobody to mix with");
      return alone ? Sample{{make_array(DType::int64, {3})}} : own;
    }

   private:
    const bool throws_;
  };
  const auto said = [](bool throws) {
    const Epoch epoch = counting(5).batch(3).map(std::make_shared<Bad>(throws)).epoch({});
    return message_of<DataError>([&] { epoch.batch(0); });
  };
  EXPECT_EQ(said(true), "row 2, sample 3 of batch 1 of epoch 1, in bad(): nobody to mix with");
  EXPECT_EQ(
      said(false),
      "row 2, sample 3 of batch 1 of epoch 1, in bad(): bad() gave column \"x\" as int64 [3], "
      "expected int64 []");
}

TEST(ErrorsOfSamples, WhileColumnsAreLookedUp) {
  const auto fails = [](const Sample&) -> Sample { throw std::runtime_error("torn"); };
  EXPECT_EQ(message_of<DataError>([&] { counting(3).skip(1).map(fails, {.name = "crop"}); }),
            "row 1, looked at for its columns, in crop: torn");
}

TEST(KeyedOperators, NameTheFirstBadSampleWhateverThreadsDo) {
  for (int tries = 0; tries < 20; ++tries) {
    const auto keeps = [](const Sample& sample) -> bool {
      if (number_in(sample) % 100 == 41) throw std::runtime_error("torn");
      return true;
    };
    EXPECT_EQ(message_of<DataError>([&] { counting(1000).filter(keeps, "large"); }),
              "row 41, large looks at samples, in large: torn");
  }
  const auto source = counted_reads(300);
  source->on_read = [](int64_t row) {
    if (row >= 123) throw DataError("torn");
  };
  EXPECT_EQ(message_of<DataError>([&] { Dataset(source).filter(all_of_them); }),
            "list 123, filter looks at samples, in read: torn");
}

TEST(KeyedOperators, LeaveAloneWhatIsNotThere) {
  const auto source = counted_reads(100);
  const auto small = [](const Sample& sample) { return number_in(sample) < 20; };
  const Dataset some = Dataset(source).take(50).filter(small);
  EXPECT_EQ(source->num_reads(), 50);
  some.filter([](const Sample& sample) {
    EXPECT_LT(number_in(sample), 20);
    return true;
  });
  EXPECT_EQ(source->num_reads(), 70);
  EXPECT_THROW(Dataset(source).shuffle().take(5).filter(small), UsageError);
  EXPECT_EQ(source->num_reads(), 70);
}

TEST(UnfoldedSamples, ThatComeOutOtherwiseThanTheyWereCounted) {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const Dataset parts = counting(2).flat_map(
      [calls](const Sample& sample) { return std::vector<Sample>(++*calls > 2 ? 1 : 2, sample); },
      {.columns = counting(2).columns()});
  EXPECT_EQ(message_of<DataError>([&] { parts.batch(4).epoch({}).batch(0); }),
            "part 0 of row 0, sample 1 of batch 1 of epoch 1, in flat_map: gave 1 samples, and 2 "
            "when it was looked at first");
}

}  // namespace
}  // namespace tutti::data
