// Input that is bad, and the error of the take() that would have used it: file, place in it,
// sample, batch, epoch and stage. What is seen when a dataset is made is in
// tests/unit/data_sources.
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "tutti/data/loader/loader.h"
#include "tutti/data/sources/image_folder.h"
#include "tutti/data/sources/tfrecord.h"
#include "tutti/data/sources/webdataset.h"
#include "tutti/data/transforms/transforms.h"

#include "tests/support/expect.h"
#include "tests/unit/data_sources/record_samples.h"
#include "tests/unit/data_transforms/photos.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

const Deadline soon() { return Deadline(Millis{20'000}); }

void begin_alone(Loader& loader, const Epoch& epoch) {
  loader.begin(epoch, {.end_step = epoch.num_batches(), .part = [epoch](int64_t step, int) {
                         return BatchPart{step, {0, epoch.batch_size(step)}};
                       }});
}

/// What is said of batch `bad`, counted from 1, of an epoch, once those before it are taken.
std::string told_by_loader(const Dataset& dataset, int workers, int64_t bad, int64_t number = 0) {
  const Epoch epoch = dataset.epoch({.epoch = number});
  Loader loader({.workers = workers});
  begin_alone(loader, epoch);
  for (int64_t step = 0; step + 1 < bad; ++step)
    EXPECT_EQ(loader.take(step, 0, soon()).size, epoch.batch_size(step));
  return message_of<DataError>([&] { loader.take(bad - 1, 0, soon()); });
}

void put_some_photos(const fs::path& folder) {
  for (const char* name : {"ants", "bees"}) {
    fs::create_directories(folder / name);
    for (int i = 0; i < 4; ++i)
      put_bytes(folder / name / fmt::format("{}.jpg", i), make_jpeg(20, 20 + i));
  }
}

Dataset decoded(const fs::path& folder) {
  return image_folder(folder)
      .map(transforms::decode())
      .map(transforms::resize(transforms::Size(8)))
      .batch(2);
}

TEST(BadInput, PhotosAreNamedWithSampleBatchEpochAndStage) {
  const std::string whole = make_jpeg(20, 21);
  const std::map<std::string, const char*> photos{
      {whole.substr(0, whole.size() / 2),
       "decode\\(\\): .*damaged JPEG of [0-9]+ bytes: Premature end.*"},
      {"", "decode\\(\\): .*got 0 bytes.*"},
      {"name,price\nants,3\n", "decode\\(\\): .*got 18 bytes.*expected a JPEG.*"}};
  for (const auto& [bytes, what] : photos)
    for (const int workers : {0, 2}) {
      const TempFolder folder;
      put_some_photos(folder.path());
      put_bytes(folder / "bees/1.jpg", bytes);
      EXPECT_THAT(
          told_by_loader(decoded(folder.path()), workers, 3),
          MatchesRegex(std::string(".*bees/1.jpg.*, sample 2 of batch 3 of epoch 1, in ") + what));
    }
}

TEST(BadInput, APhotoThatVanishesBetweenTwoEpochs) {
  const TempFolder folder;
  put_some_photos(folder.path());
  const Dataset data = decoded(folder.path());
  Loader loader({.workers = 2});
  for (const int64_t number : {0, 1}) {
    const Epoch epoch = data.epoch({.epoch = number});
    begin_alone(loader, epoch);
    for (int64_t step = 0; step < 3; ++step) EXPECT_EQ(loader.take(step, 0, soon()).size, 2);
    if (number == 1)
      EXPECT_THAT(message_of<DataError>([&] { loader.take(3, 0, soon()); }),
                  AllOf(HasSubstr("bees/2.jpg, sample 1 of batch 4 of epoch 2, in read: "),
                        HasSubstr((folder / "bees/2.jpg").string()), HasSubstr("it was there")));
    else
      EXPECT_EQ(loader.take(3, 0, soon()).size, 2);
    fs::remove(folder / "bees/2.jpg");
  }
}

TEST(BadInput, ARecordWithAWrongChecksum) {
  const TempFolder folder;
  const std::vector<Column> columns{{"y", DType::int64, {}}};
  const Written written =
      write_tfrecord(folder / "out", columns, [i = int64_t{0}]() mutable -> std::optional<Sample> {
        return i == 8 ? std::nullopt : std::optional(Sample{{scalar(i++)}});
      });
  const size_t record = get_bytes(written.files.at(0)).size() / 8;
  test::flip_byte(written.files[0], 5 * record + record / 2);
  const Dataset data = tfrecord(folder / "out", {.features = features_of(columns)}).batch(3);
  for (const int workers : {0, 2})
    EXPECT_THAT(
        told_by_loader(data, workers, 2),
        AllOf(HasSubstr(fmt::format("shard-00000.tfrecord, record 5 (byte {})", 5 * record)),
              HasSubstr("sample 3 of batch 2 of epoch 1, in read: "), HasSubstr("checksum")));
}

TEST(BadInput, ATarThatIsCutOffBetweenTwoEpochs) {
  const TempFolder folder;
  const Written written =
      write_webdataset(folder / "out", {{"y", DType::int64, {}}},
                       [i = int64_t{0}]() mutable -> std::optional<Sample> {
                         return i == 8 ? std::nullopt : std::optional(Sample{{scalar(i++)}});
                       });
  const Dataset data = webdataset(folder / "out", {.columns = {"y.cls"}}).batch(3);
  EXPECT_EQ(data.epoch({}).batch(1).size, 3);
  test::cut(written.files.at(0), 5 * 1024 + 512);
  for (const int workers : {0, 2})
    EXPECT_THAT(told_by_loader(data, workers, 2, 1),
                AllOf(HasSubstr("shard-00000.tar"), HasSubstr("byte 5120"),
                      HasSubstr("sample 3 of batch 2 of epoch 2, in read: ")));
}

TEST(BadInput, ALambdaThatThrowsOrGivesAnotherShape) {
  const std::map<const char*, std::function<Sample(Sample)>> lambdas{
      {"unlucky", [](const Sample&) -> Sample { throw std::runtime_error("unlucky"); }},
      {"odd gave column \"x\" as int64 [2], expected int64 []",
       [](const Sample&) { return Sample{{array_of(std::vector<int64_t>{1, 2}, {2})}}; }},
      {"odd gave column \"x\" as float32 [], expected int64 []",
       [](const Sample&) { return Sample{{scalar(1.0f)}}; }},
      {"odd gave 0 columns, expected 1", [](const Sample&) { return Sample{}; }}};
  for (const auto& [what, lambda] : lambdas)
    for (const int workers : {0, 2}) {
      std::vector<int64_t> x{0, 1, 2, 3, 4, 5, 6, 7};
      const Dataset data =
          from_arrays({array_of(std::move(x), {8})})
              .map(
                  [lambda](Sample sample) {
                    return sample.columns[0].as<int64_t>()[0] == 5 ? lambda(sample) : sample;
                  },
                  {.name = "odd"})
              .batch(2);
      EXPECT_EQ(told_by_loader(data, workers, 3, 4),
                fmt::format("row 5, sample 2 of batch 3 of epoch 5, in odd: {}", what));
    }
}

/// 0 .. n-1, of which those in `bad` are damaged.
Dataset damaged_in(int64_t n, const std::set<int64_t>& bad) {
  std::vector<int64_t> x(static_cast<size_t>(n));
  std::iota(x.begin(), x.end(), 0);
  return from_arrays({array_of(std::move(x), {n})})
      .map(
          [bad](Sample sample) {
            if (bad.contains(sample.columns[0].as<int64_t>()[0])) throw DataError("torn");
            return sample;
          },
          {.name = "intact", .columns = {{"x", DType::int64, {}}}});
}

std::vector<int64_t> replaced_rows(const Dataset& dataset, EpochOptions options, int workers) {
  const Epoch epoch = dataset.epoch(options);
  Loader loader({.workers = workers, .on_bad = replace()});
  begin_alone(loader, epoch);
  std::vector<int64_t> rows;
  for (int64_t step = 0; step < epoch.num_batches(); ++step) {
    const Batch batch = loader.take(step, 0, soon());
    const auto x = batch.columns[0].as<int64_t>();
    rows.insert(rows.end(), x.begin(), x.end());
  }
  EXPECT_EQ(loader.report().replaced.size(), 1u);
  EXPECT_THAT(loader.report().replaced.at(0), HasSubstr("row 13"));
  EXPECT_THAT(loader.report().replaced.at(0), HasSubstr("in intact: torn"));
  return rows;
}

TEST(BadInput, AReplacementIsDrawnBySeedEpochAndSample) {
  const Dataset data = damaged_in(64, {13}).batch(10);
  std::set<int64_t> drawn;
  for (const EpochOptions& options : std::vector<EpochOptions>{{.epoch = 0, .seed = 1},
                                                               {.epoch = 1, .seed = 1},
                                                               {.epoch = 0, .seed = 2},
                                                               {.epoch = 3, .seed = 9}}) {
    const auto rows = replaced_rows(data, options, 0);
    EXPECT_EQ(replaced_rows(data, options, 3), rows);
    ASSERT_EQ(rows.size(), 64u);
    EXPECT_NE(rows[13], 13);
    drawn.insert(rows[13]);
    for (size_t row = 0; row < 64; ++row) EXPECT_TRUE(row == 13 || std::cmp_equal(rows[row], row));
  }
  EXPECT_GT(drawn.size(), 1u);
}

TEST(BadInput, IsListedOnceHoweverOftenItIsMet) {
  const Dataset data = damaged_in(64, {13}).batch(10);
  Loader loader({.workers = 0, .on_bad = replace()});
  for (int64_t number = 0; number < 3; ++number) {
    const Epoch epoch = data.epoch({.epoch = number});
    begin_alone(loader, epoch);
    for (int64_t step = 0; step < epoch.num_batches(); ++step) loader.take(step, 0, soon());
  }
  EXPECT_THAT(loader.report().replaced,
              ElementsAre(AllOf(HasSubstr("row 13"), HasSubstr("of epoch 1"))));
}

TEST(BadInput, MayBeReplacedUpToItsShareOfAnEpoch) {
  const auto take_all = [](const std::set<int64_t>& bad) {
    const Epoch epoch = damaged_in(2000, bad).batch(100).epoch({});
    Loader loader({.workers = 2, .on_bad = replace({.at_most = 1e-3})});
    begin_alone(loader, epoch);
    for (int64_t step = 0; step < epoch.num_batches(); ++step) loader.take(step, 0, soon());
    return loader.report();
  };
  const LoaderReport report = take_all({5, 1999});
  EXPECT_EQ(report.replaced.size(), 2u);
  EXPECT_THAT(report.to_string(), AllOf(HasSubstr("2 damaged samples were replaced"),
                                        HasSubstr("row 5"), HasSubstr("row 1999")));
  EXPECT_THAT(message_of<DataError>([&] { take_all({5, 700, 1999}); }),
              HasSubstr("3 of 2000 samples of this epoch are damaged by now, more than the 0.001"));
}

}  // namespace
}  // namespace tutti::data
