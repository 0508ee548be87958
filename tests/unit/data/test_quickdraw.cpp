#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/detail/doodles.h"
#include "tutti/data/npy.h"
#include "tutti/data/quickdraw.h"

#include "tests/support/expect.h"
#include "tests/support/failing_open.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data/gzip_support.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPixels = 784;

// Doodle r of a class: pixel p is ink(seed, r, p).
uint8_t ink(int seed, int64_t row, int64_t pixel) {
  return static_cast<uint8_t>(seed * 50 + row * 7 + pixel);
}

Array doodles(int seed, int64_t rows) {
  std::vector<uint8_t> pixels;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t pixel = 0; pixel < kPixels; ++pixel) pixels.push_back(ink(seed, row, pixel));
  return array_of(std::move(pixels), {rows, kPixels});
}

// Three classes, two mapped and one packed, in an order that sorting changes.
void fill(const TempFolder& folder) {
  write_npy(folder / "zebra.npy", doodles(2, 13));
  write_npy(folder / "Zebra.npy", doodles(0, 6));
  write_npy(folder / "alarm clock.npy", doodles(1, 12));
  put_bytes(folder / "alarm clock.npy.gz", gzip(get_bytes(folder / "alarm clock.npy")));
  fs::remove(folder / "alarm clock.npy");
  put_bytes(folder / "README.md", "not a class");
  put_bytes(folder / ".npy", "not a class either");
}

TEST(Quickdraw, SplitsTheLastSixthOfEachClass) {
  const TempFolder folder;
  fill(folder);
  const Dataset train = quickdraw(folder.path()),
                test = quickdraw(folder.path(), {.split = "test"});
  EXPECT_THAT(train.classes(), ElementsAre("Zebra", "alarm clock", "zebra"));
  EXPECT_EQ(train.num_classes(), 3);
  EXPECT_EQ(train.num_samples(), 5 + 10 + 11);  // 6, 12 and 13 rows: 1, 2 and 2 to test
  EXPECT_EQ(test.num_samples(), 1 + 2 + 2);
  EXPECT_EQ(quickdraw(folder.path(), {.split = "all"}).num_samples(), 31);

  const Batch batch = test.batch(5).epoch({}).batch(0);
  EXPECT_THAT(batch.columns[1].as<int64_t>(), ElementsAre(0, 1, 1, 2, 2));
  const int64_t file_rows[] = {5, 10, 11, 11, 12};
  const auto x = batch.columns[0].as<float>();
  for (size_t i = 0; i < 5; ++i)
    for (size_t p = 0; p < kPixels; ++p) {
      const int seed = static_cast<int>(batch.columns[1].as<int64_t>()[i]);
      ASSERT_NEAR(x[i * kPixels + p], ink(seed, file_rows[i], static_cast<int64_t>(p)) / 255.0,
                  1e-7);
    }
}

TEST(Quickdraw, DeliversFloatsFromZeroToOne) {
  const TempFolder folder;
  std::vector<uint8_t> pixels(kPixels);
  for (size_t i = 0; i < kPixels; ++i) pixels[i] = static_cast<uint8_t>(i);
  write_npy(folder / "ramp.npy", array_of(pixels, {1, kPixels}));
  const Dataset dataset = quickdraw(folder.path(), {.split = "all"});
  EXPECT_EQ(dataset.columns()[0].dtype, DType::float32);
  EXPECT_THAT(dataset.columns()[0].shape, ElementsAre(1, 28, 28));
  const Batch batch = dataset.batch(4).epoch({}).batch(0);
  EXPECT_EQ(batch.columns[0].to_string(), "float32 [1, 1, 28, 28]");
  const auto x = batch.columns[0].as<float>();
  for (size_t i = 0; i < kPixels; ++i)
    EXPECT_EQ(x[i], static_cast<float>(static_cast<uint8_t>(i)) * (1.0f / 255.0f));
  EXPECT_EQ(x[0], 0.0f);
  EXPECT_EQ(x[255], 1.0f);
}

TEST(Quickdraw, AnAxisOfOneAndTwoOfSidesAreTheSameDoodles) {
  const TempFolder folder;
  const Array flat = doodles(1, 6);
  const std::vector<int64_t> shapes[] = {
      {6, 1, 784}, {6, 28, 28}, {6, 28, 28, 1}, {6, 1, 28, 28}, {6, 784}};
  for (const std::vector<int64_t>& shape : shapes) {
    write_npy(folder / "cat.npy", Array::view(flat.data(), DType::uint8, shape, flat.owner()));
    const Array read = detail::read_doodles(folder / "cat.npy");
    EXPECT_EQ(read.to_string(), "uint8 [6, 784]");
    EXPECT_TRUE(std::ranges::equal(read.as<uint8_t>(), flat.as<uint8_t>()));
    const Batch batch = quickdraw(folder.path(), {.split = "all"}).batch(6).epoch({}).batch(0);
    EXPECT_EQ(batch.columns[0].to_string(), "float32 [6, 1, 28, 28]");
    EXPECT_EQ(batch.columns[0].as<float>()[5 * kPixels + 3],
              static_cast<float>(ink(1, 5, 3)) * (1.0f / 255.0f));
  }
}

TEST(Quickdraw, TakesAFractionAndALimit) {
  const TempFolder folder;
  fill(folder);
  const auto count = [&](QuickdrawOptions options) {
    return quickdraw(folder.path(), options).num_samples();
  };
  EXPECT_EQ(count({.split = "train", .test_fraction = 0}), 31);
  EXPECT_EQ(count({.split = "test", .test_fraction = 0.5}), 3 + 6 + 6);
  EXPECT_EQ(count({.split = "train", .limit_per_class = 7}), 5 + 7 + 7);
  EXPECT_EQ(count({.split = "test", .limit_per_class = 1}), 3);
  // The limit takes the first rows of the split, and so never mixes the two.
  const Batch batch =
      quickdraw(folder.path(), {.split = "test", .limit_per_class = 1}).batch(3).epoch({}).batch(0);
  EXPECT_NEAR(batch.columns[0].as<float>()[kPixels], ink(1, 10, 0) / 255.0, 1e-7);
}

TEST(Quickdraw, NumbersClassesAsItIsTold) {
  const TempFolder folder;
  fill(folder);
  const Dataset data = quickdraw(
      folder.path(), {.split = "test", .classes = {"zebra", "yak", "alarm clock", "Zebra"}});
  EXPECT_THAT(data.classes(), ElementsAre("zebra", "yak", "alarm clock", "Zebra"));
  const Batch batch = data.batch(5).epoch({}).batch(0);
  EXPECT_THAT(batch.columns[1].as<int64_t>(), ElementsAre(0, 0, 2, 2, 3));
  EXPECT_NEAR(batch.columns[0].as<float>()[4 * kPixels], ink(0, 5, 0) / 255.0, 1e-7);
  EXPECT_THAT(message_of<DataError>(
                  [&] { quickdraw(folder.path(), {.classes = {"zebra", "alarm clock"}}); }),
              HasSubstr("unknown class \"Zebra\""));
}

TEST(Quickdraw, RejectsOptionsWithTheValidOnes) {
  const TempFolder folder;
  fill(folder);
  const auto why = [&](QuickdrawOptions options) {
    return message_of<UsageError>([&] { quickdraw(folder.path(), options); });
  };
  EXPECT_THAT(why({.split = "trian"}), AllOf(HasSubstr("\"trian\""), HasSubstr("\"train\"")));
  EXPECT_THAT(why({.split = ""}), HasSubstr("train, test, all"));
  EXPECT_THAT(why({.test_fraction = 1}), HasSubstr("0 <= fraction < 1"));
  EXPECT_THAT(why({.test_fraction = -0.1}), HasSubstr("0 <= fraction < 1"));
  EXPECT_THAT(why({.limit_per_class = -1}), HasSubstr("0 (all) or more"));
  EXPECT_THAT(why({.split = "test", .test_fraction = 0}), HasSubstr("empty"));
}

TEST(Quickdraw, RejectsFoldersAndFilesBeforeTraining) {
  const TempFolder folder;
  const auto why = [&](const fs::path& path) {
    return message_of<DataError>([&] { quickdraw(path); });
  };
  EXPECT_THAT(why(folder / "none"), AllOf(HasSubstr("none"), HasSubstr("does not exist")));
  EXPECT_THAT(why(folder.path()), AllOf(HasSubstr("got no class"), HasSubstr("uint8 [rows, 784]")));
  put_bytes(folder / "file", "x");
  EXPECT_THAT(why(folder / "file"), HasSubstr("is no folder"));

  const auto with = [&](const std::string& name, const std::string& bytes) {
    put_bytes(folder / name, bytes);
    const std::string message = why(folder.path());
    EXPECT_THAT(message, HasSubstr(name));
    fs::remove(folder / name);
    return message;
  };
  write_npy(folder / "cat.npy", doodles(0, 6));
  const std::string good = get_bytes(folder / "cat.npy");
  EXPECT_THAT(with("dog.npy", good.substr(0, 4000)),
              HasSubstr("truncated: got 4000 bytes, expected 4832"));
  EXPECT_THAT(with("dog.npy.gz", gzip(good).substr(0, 200)), HasSubstr("truncated"));
  EXPECT_THAT(with("dog.npy", "GIF89a"), HasSubstr("wrong magic"));
  EXPECT_THAT(with("cat.npy.gz", gzip(good)), HasSubstr("is there twice"));
  write_npy(folder / "dog.npy", Array::zeros(DType::float32, {6, kPixels}));
  EXPECT_THAT(why(folder.path()), HasSubstr("got float32 [6, 784], expected uint8 [rows, 784]"));
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {6, 28, 27}, {6, 785}, {4704}, {6, 28, 1, 28}, {6, 1, 1, 784}, {6, 28, 28, 3}}) {
    const Array odd = Array::zeros(DType::uint8, shape);
    write_npy(folder / "dog.npy", odd);
    EXPECT_THAT(why(folder.path()), HasSubstr("got " + odd.to_string() + ", expected uint8 [rows"));
  }
  write_npy(folder / "dog.npy", doodles(1, 0));
  EXPECT_THAT(why(folder.path()), AllOf(HasSubstr("dog.npy"), HasSubstr("uint8 [0, 784]"),
                                        HasSubstr("one row or more")));
}

TEST(CutQuickdraw, PacksTheFirstRowsAndRefusesTooFew) {
  if (std::system("python3 --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no python3";
  const TempFolder from, to;
  write_npy(from / "alarm clock.npy", doodles(1, 7));
  const auto cut = [&](const std::string& options) {
    return std::system(("python3 examples/data/cut_quickdraw.py " + from.path().string() + " " +
                        to.path().string() + options + " > /dev/null 2>&1")
                           .c_str());
  };
  EXPECT_NE(cut(" --rows 8"), 0);
  ASSERT_EQ(cut(" --rows 6"), 0);
  const std::string first = get_bytes(to / "alarm clock.npy.gz");
  ASSERT_EQ(cut(" --rows 6"), 0);
  EXPECT_EQ(get_bytes(to / "alarm clock.npy.gz"), first);
  const Array cut_rows = read_npy(to / "alarm clock.npy.gz");
  EXPECT_EQ(cut_rows.to_string(), "uint8 [6, 784]");
  EXPECT_EQ(std::memcmp(cut_rows.data(), doodles(1, 6).data(), 6 * kPixels), 0);
}

TEST(Quickdraw, OneSplitBesideTheOtherReadsNoFileAgain) {
  const TempFolder folder;
  fill(folder);
  std::optional<Dataset> train = quickdraw(folder.path());
  {
    const FailingOpen failing("", EIO);  // whatever it is
    EXPECT_EQ(quickdraw(folder.path(), {.split = "test"}).num_samples(), 1 + 2 + 2);
    EXPECT_EQ(failing.failed(), 0);
  }
  train.reset();
  const FailingOpen failing("alarm clock.npy.gz", EIO);
  EXPECT_THAT(message_of<Error>([&] { quickdraw(folder.path(), {.split = "test"}); }),
              HasSubstr("alarm clock.npy.gz"));
}

TEST(Quickdraw, AFileThatHasChangedIsReadAnew) {
  const TempFolder folder;
  fill(folder);
  const Dataset before = quickdraw(folder.path());
  put_bytes(folder / "alarm clock.npy.gz", gzip(npy_bytes(doodles(1, 18))));
  EXPECT_EQ(quickdraw(folder.path(), {.split = "test"}).num_samples(), 1 + 3 + 2);
  EXPECT_EQ(before.num_samples(), 5 + 10 + 11);
}

TEST(Quickdraw, AFileOfAsManyBytesThatWasWrittenLaterIsReadAnew) {
  const TempFolder folder;
  const fs::path file = folder / "dog.npy.gz";
  const std::string one = gzip(npy_bytes(doodles(1, 12))), other = gzip(npy_bytes(doodles(3, 12)));
  ASSERT_EQ(one.size(), other.size());
  put_bytes(file, one);
  const auto first_pixel = [](const Dataset& dataset) {
    return dataset.batch(1).epoch({}).batch(0).columns[0].as<float>()[0];
  };
  const Dataset before = quickdraw(folder.path());
  const auto written = fs::last_write_time(file);
  std::ofstream(file, std::ios::binary) << other;  // in its place
  fs::last_write_time(file, written + std::chrono::seconds(1));
  EXPECT_NEAR(first_pixel(quickdraw(folder.path())), ink(3, 0, 0) / 255.0, 1e-6);
  EXPECT_NEAR(first_pixel(before), ink(1, 0, 0) / 255.0, 1e-6);
}

TEST(Quickdraw, OfSeveralBadFilesTheFirstIsNamed) {
  const TempFolder folder;
  fill(folder);
  put_bytes(folder / "b.npy", "nothing");
  put_bytes(folder / "a.npy", "nothing");
  for (int again = 0; again < 10; ++again)
    EXPECT_THAT(message_of<DataError>([&] { quickdraw(folder.path()); }), HasSubstr("a.npy"));
}

TEST(Quickdraw, TheDoodlesOfTheExamplesAreWhole) {
  const Dataset train = quickdraw("examples/data/quickdraw").shuffle().batch(128);
  const Dataset test = quickdraw("examples/data/quickdraw", {.split = "test"}).batch(256);
  EXPECT_THAT(train.classes(), ElementsAre("airplane", "alarm clock", "banana", "bird", "book",
                                           "cat", "dog", "flower", "house", "rainbow"));
  EXPECT_EQ(train.num_samples(), 25'000);
  EXPECT_EQ(train.num_batches(), 196);
  EXPECT_EQ(test.num_samples(), 5'000);
  const Batch batch = train.epoch({.epoch = 0, .seed = 7}).batch(195);
  EXPECT_EQ(batch.size, 40);
  double sum = 0;
  for (float pixel : batch.columns[0].as<float>()) sum += pixel;
  EXPECT_GT(sum / (40 * kPixels), 0.05);  // ink covers 10 to 30 % of a doodle
  EXPECT_LT(sum / (40 * kPixels), 0.5);
}

}  // namespace
}  // namespace tutti::data
