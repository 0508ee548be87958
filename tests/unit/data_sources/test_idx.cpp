#include <bit>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>

#include "tutti/data/sources/idx.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/data/gzip_support.h"
#include "tests/unit/data_sources/rows.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

// Big-endian, as the format has it.
template <class T>
std::string big_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  if constexpr (std::endian::native == std::endian::little) std::ranges::reverse(bytes);
  return bytes;
}

std::string header(char type, const std::vector<uint32_t>& sizes) {
  std::string bytes{'\0', '\0', type, static_cast<char>(sizes.size())};
  for (uint32_t size : sizes) bytes += big_endian(size);
  return bytes;
}

std::string images(uint32_t count) {  // of 2 x 3 pixels: 0, 1, 2, ...
  std::string bytes = header(0x08, {count, 2, 3});
  for (uint32_t i = 0; i < count * 6; ++i) bytes += static_cast<char>(i);
  return bytes;
}

std::string labels(const std::string& values) {
  return header(0x08, {static_cast<uint32_t>(values.size())}) + values;
}

TEST(Idx, FindsTheLabelsAndScales) {
  for (const bool packed : {false, true}) {
    const TempFolder folder;
    const std::string ending = packed ? ".gz" : "";
    const auto put = [&](const std::string& name, const std::string& bytes) {
      put_bytes(folder / (name + ending), packed ? gzip(bytes) : bytes);
    };
    put("train-images-idx3-ubyte", images(50));
    put("train-labels-idx1-ubyte", labels(std::string(49, '\3') + '\1'));
    const Dataset data = idx(folder / ("train-images-idx3-ubyte" + ending));
    EXPECT_THAT(words_of(data.columns()), ElementsAre("x float32 [1, 2, 3]", "y int64 []"));
    EXPECT_THAT(data.classes(), ElementsAre("0", "1", "2", "3"));
    const auto x = values_of<float>(data, 0);
    ASSERT_EQ(x.size(), 300u);
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_EQ(x[i], static_cast<float>(i % 256) * (1.0f / 255.0f));
    EXPECT_EQ(values_of<int64_t>(data, 1)[0], 3);
    EXPECT_EQ(values_of<int64_t>(data, 1)[49], 1);
  }
}

TEST(Idx, FindsPackedLabelsOfPlainImagesAndTheReverse) {
  const TempFolder folder;
  put_bytes(folder / "t10k-images-idx3-ubyte", images(1));
  put_bytes(folder / "t10k-labels-idx1-ubyte.gz", gzip(labels("\2")));
  EXPECT_EQ(idx(folder / "t10k-images-idx3-ubyte").num_classes(), 3);
  put_bytes(folder / "images.gz", gzip(images(1)));
  put_bytes(folder / "labels", labels("\4"));
  EXPECT_EQ(idx(folder / "images.gz").num_classes(), 5);
}

TEST(Idx, KeepsWhatItIsToldToKeep) {
  const TempFolder folder;
  put_bytes(folder / "a", images(2));
  put_bytes(folder / "b", labels({'\1', '\0'}));
  const Dataset raw =
      idx(folder / "a", {.labels = folder / "b", .scale = false, .classes = {"zero", "one"}});
  EXPECT_THAT(words_of(raw.columns()), ElementsAre("x uint8 [2, 3]", "y int64 []"));
  EXPECT_THAT(values_of<uint8_t>(raw, 0), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(raw.classes(), ElementsAre("zero", "one"));
  const Dataset alone = idx(folder / "a", {.labelled = false});
  EXPECT_THAT(words_of(alone.columns()), ElementsAre("x float32 [1, 2, 3]"));
  EXPECT_TRUE(alone.classes().empty());
}

TEST(Idx, ReadsEveryType) {
  const TempFolder folder;
  const auto read = [&](const std::string& bytes) {
    put_bytes(folder / "file", bytes);
    return read_idx(folder / "file");
  };
  EXPECT_THAT(values_of<int8_t>(read(header(0x09, {2}) + "\xFF\x01")), ElementsAre(-1, 1));
  EXPECT_THAT(values_of<int16_t>(read(header(0x0B, {1}) + big_endian(int16_t{-300}))),
              ElementsAre(-300));
  EXPECT_THAT(values_of<int32_t>(read(header(0x0C, {1, 1}) + big_endian(int32_t{-70000}))),
              ElementsAre(-70000));
  EXPECT_THAT(values_of<float>(read(header(0x0D, {1}) + big_endian(1.5f))), ElementsAre(1.5f));
  EXPECT_THAT(values_of<double>(read(header(0x0E, {1}) + big_endian(-2.25))), ElementsAre(-2.25));
  EXPECT_EQ(read(header(0x08, {0, 28, 28})).num_elements(), 0);
}

TEST(Idx, RefusesDamagedFiles) {
  const TempFolder folder;
  const auto refusal = [&](const std::string& bytes) {
    put_bytes(folder / "file", bytes);
    return message_of<DataError>([&] { read_idx(folder / "file"); });
  };
  EXPECT_THAT(refusal(""), HasSubstr("wrong magic"));
  EXPECT_THAT(refusal("\x89PNG...."), AllOf(HasSubstr("got 89 50 4e 47"), HasSubstr("file")));
  EXPECT_THAT(refusal(header(0x0A, {1}) + "x"), HasSubstr("wrong magic"));
  EXPECT_THAT(refusal(header(0x08, {})), HasSubstr("wrong magic"));
  EXPECT_THAT(refusal(header(0x08, {2, 2}).substr(0, 9)), HasSubstr("got 9 bytes, expected 12"));
  EXPECT_THAT(refusal(images(2) + "x"), HasSubstr("got 29 bytes, expected 28"));
  EXPECT_THAT(refusal(images(3).substr(0, 33)), HasSubstr("got 33 bytes, expected 34"));
  EXPECT_THAT(refusal(header(0x0E, {~0u, ~0u, ~0u})), HasSubstr("truncated or damaged"));
  EXPECT_THAT(refusal(header(0x08, {1u << 30}) + "x"), HasSubstr("truncated or damaged"));
  const std::string packed = gzip(images(30));
  EXPECT_THAT(refusal(packed.substr(0, packed.size() - 9)), HasSubstr("truncated gzip"));
  EXPECT_THAT(refusal(gzip(images(2) + "x")), HasSubstr("got 29 bytes, expected 28"));
  std::string bomb = gzip(header(0x08, {300'000'000}));
  const std::string zeros = gzip(std::string(1 << 20, '\0'));
  for (int i = 0; i < 300; ++i) bomb += zeros;
  EXPECT_THAT(refusal(bomb), HasSubstr("unpacks to 300000000 bytes or more"));
  EXPECT_THAT(message_of<DataError>([&] { read_idx(folder / "none"); }), HasSubstr("none"));
}

TEST(Idx, RefusesSamplesWithoutAValue) {
  const TempFolder folder;
  put_bytes(folder / "file", header(0x08, {739'311'616, 0, 28}));
  EXPECT_THAT(message_of<DataError>([&] { idx(folder / "file", {.labelled = false}); }),
              HasSubstr("got 739311616 samples without a value"));
  put_bytes(folder / "file", header(0x08, {0, 28, 28}));
  EXPECT_EQ(idx(folder / "file", {.labelled = false}).num_samples(), 0);
}

TEST(Idx, RefusesLabelsThatDoNotBelong) {
  const TempFolder folder;
  put_bytes(folder / "images", images(3));
  const auto refusal = [&](const std::string& bytes, IdxOptions options = {}) {
    put_bytes(folder / "labels", bytes);
    return message_of<DataError>([&] { idx(folder / "images", options); });
  };
  EXPECT_THAT(refusal(labels("ab")), HasSubstr("got 2 labels, expected 3"));
  EXPECT_THAT(refusal(images(3)), HasSubstr("got uint8 [3, 2, 3], expected labels"));
  EXPECT_THAT(refusal(header(0x0D, {3}) + std::string(12, '\0')), HasSubstr("expected labels"));
  EXPECT_THAT(refusal(header(0x09, {3}) + "\x01\xFF\x01"), HasSubstr("row 1: got label -1"));
  EXPECT_THAT(refusal(labels("\1\1\2"), {.classes = {"a", "b"}}),
              HasSubstr("row 2: got label 2, expected 0 to 1"));
  fs::remove(folder / "labels");
  EXPECT_THAT(message_of<DataError>([&] { idx(folder / "images"); }),
              AllOf(HasSubstr("neither labels nor labels.gz"), HasSubstr("labelled = false")));
  put_bytes(folder / "pictures", images(3));
  EXPECT_THAT(message_of<DataError>([&] { idx(folder / "pictures"); }), HasSubstr("no \"images\""));
}

TEST(Idx, ReadsRealImages) {
  const fs::path folder = test::shared_data() / "mnist";
  if (!fs::exists(folder)) GTEST_SKIP() << "there is no " << folder;
  const Dataset data = idx(folder / "t10k-images-idx3-ubyte.gz");
  EXPECT_EQ(data.num_samples(), 10'000);
  EXPECT_EQ(data.num_classes(), 10);
  const auto x = values_of<float>(data, 0);
  EXPECT_NEAR(std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size()), 0.1325,
              1e-4);  // 0.1307 on the training set
}

}  // namespace
}  // namespace tutti::data
