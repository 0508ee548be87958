// What decode() takes, and what each bad photo gets.
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "tutti/data/transforms/detail/codec.h"
#include "tutti/data/transforms/transforms.h"

#include "photos.h"
#include "tests/support/expect.h"

namespace tutti::data {
namespace {

// Encoded photos of the table, by name.
std::string photo_named(const std::string& name) {
  static const nlohmann::json kTable = [] {
    std::ifstream file("tests/tables/transforms.json");
    return nlohmann::json::parse(file);
  }();
  for (const auto& photo : kTable.at("photos")) {
    if (photo.at("name") != name) continue;
    const std::string hex = photo.at("photo");
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2)
      bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
  }
  ADD_FAILURE() << "no photo " << name;
  return {};
}

std::string error_for(const std::string& bytes, const TransformHandle& transform) {
  return message_of<DataError>([&] { applied(transform, bytes_of(bytes)); });
}

TEST(Decode, SaysWhatIsWrongWithAPhoto) {
  const auto decode = transforms::decode();
  EXPECT_THAT(error_for("", decode), AllOf(HasSubstr("decode()"), HasSubstr("got 0 bytes")));
  EXPECT_THAT(error_for("name,price\nants,3\n", decode),
              AllOf(HasSubstr("got 18 bytes"), HasSubstr("6e 61 6d 65"), HasSubstr("name,pri"),
                    HasSubstr("expected a JPEG")));
  EXPECT_THAT(error_for("\xff\xd8\xff", decode), HasSubstr("damaged JPEG of 3 bytes"));
  EXPECT_THAT(error_for("\x89PNG\r\n\x1a\n", decode),
              AllOf(HasSubstr("damaged PNG of 8 bytes, at byte 8"), HasSubstr("cut off")));
  EXPECT_THAT(error_for("RIFF----WEBP", decode), HasSubstr("damaged WebP of 12 bytes"));
}

// A BMP of 3 x 2 pixels by hand: `rows` are its bytes from the bottom up, each padded to 4.
std::string bmp_of(int bits, const std::string& palette, const std::string& rows, int height = 2,
                   int compression = 0) {
  const auto number = [](int64_t value, size_t bytes) {
    std::string text;
    for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i);
    return text;
  };
  const auto begin = static_cast<int64_t>(54 + palette.size());
  return "BM" + number(begin + std::ssize(rows), 4) + number(0, 4) + number(begin, 4) +
         number(40, 4) + number(3, 4) + number(height, 4) + number(1, 2) + number(bits, 2) +
         number(compression, 4) + number(std::ssize(rows), 4) + number(2835, 4) + number(2835, 4) +
         number(std::ssize(palette) / 4, 4) + number(0, 4) + palette + rows;
}

TEST(Decode, ReadsBmpOfEveryKindThatIsNotCompressed) {
  using namespace std::string_literals;
  // Red, green, blue; black, white, red: planes of rows from the top.
  const std::vector<uint8_t> expected = {255, 0,   0,   0, 255, 255,  //
                                         0,   255, 0,   0, 255, 0,    //
                                         0,   0,   255, 0, 255, 0};
  const std::string top24 = "\0\0\xff\0\xff\0\xff\0\0\0\0\0"s,
                    bottom24 = "\0\0\0\xff\xff\xff\0\0\xff\0\0\0"s,
                    rows32 = "\0\0\0x\xff\xff\xffx\0\0\xffx\0\0\xffx\0\xff\0x\xff\0\0x"s,
                    palette = "\0\0\0\0\xff\xff\xff\0\0\0\xff\0\0\xff\0\0\xff\0\0\0"s;
  const std::string sound[] = {bmp_of(24, "", bottom24 + top24),
                               bmp_of(24, "", top24 + bottom24, -2), bmp_of(32, "", rows32),
                               bmp_of(8, palette, "\0\1\2\0\2\3\4\0"s),
                               bmp_of(4, palette, "\x01\x20\0\0\x23\x40\0\0"s)};
  for (const std::string& bytes : sound) {
    const Array image = applied(transforms::decode(), bytes_of(bytes));
    EXPECT_EQ(image.shape(), (std::vector<int64_t>{3, 2, 3}));
    EXPECT_EQ(std::vector<uint8_t>(image.as<uint8_t>().begin(), image.as<uint8_t>().end()),
              expected);
    for (size_t size = 2; size < bytes.size(); ++size)
      ASSERT_THAT(error_for(bytes.substr(0, size), transforms::decode()), HasSubstr("BMP")) << size;
    RandomStream random(bytes.size());
    for (int i = 0; i < 300; ++i) {  // damage is an error or another picture, never worse
      std::string damaged = bytes;
      damaged[2 + random.below(52)] = static_cast<char>(random.below(256));
      try {
        applied(transforms::decode({.max_pixels = 1 << 16}), bytes_of(damaged));
      } catch (const DataError&) {
      }
    }
  }
  EXPECT_THAT(error_for(bmp_of(8, palette, "\0\1\2\0\2\3\5\0"s), transforms::decode()),
              HasSubstr("colour 5 of a palette of 5"));
  EXPECT_THAT(error_for(bmp_of(8, palette, "\0\1\2\0\2\3\4\0"s, 2, 1), transforms::decode()),
              AllOf(HasSubstr("8 bits a pixel, compression 1"), HasSubstr("as PNG")));
  EXPECT_THAT(error_for(sound[0], transforms::decode({.max_pixels = 5})), HasSubstr("max_pixels"));
}

TEST(Decode, EveryCutOffPhotoIsAnError) {
  for (const char* name : {"jpeg 4:2:0", "jpeg progressive", "jpeg gray", "jpeg cmyk", "png rgb",
                           "png palette", "png 16 bit rgb", "webp", "webp lossless with alpha"}) {
    const std::string whole = photo_named(name);
    // Of a PNG the mark of the end, 12 bytes with their sum, and the sum of the data may be
    // missing.
    const size_t needed = whole.size() - (std::string(name).starts_with("png") ? 16 : 0);
    for (size_t size = 0; size < needed; size += 1 + size / 40) {
      const std::string bytes = whole.substr(0, size);
      for (const auto& transform : {transforms::decode(), transforms::decode_crop(4)})
        ASSERT_THAT(error_for(bytes, transform), HasSubstr(transform->name() + ": "))
            << name << ", " << size << " bytes";
    }
  }
}

TEST(Decode, CropFindsTheEndMissingWhereverItLies) {
  const std::string whole = make_jpeg(300, 300);
  const auto top = transforms::decode_crop(8, {.scale = {0.001, 0.002}});
  for (uint64_t key = 0; key < 20; ++key) {
    const std::string message = message_of<DataError>(
        [&] { applied(top, bytes_of(whole.substr(0, whole.size() - 100)), key); });
    EXPECT_THAT(message, AllOf(HasSubstr("truncated JPEG"), HasSubstr("300 x 300"),
                               HasSubstr(std::to_string(whole.size() - 100))));
  }
}

// Damage in the middle is an error or another picture, never worse.
TEST(Decode, NoDamageEndsTheProgram) {
  int errors = 0;
  for (const char* name : {"jpeg 4:2:0", "jpeg progressive", "jpeg cmyk", "jpeg turned by exif",
                           "png rgb", "png palette", "webp", "webp lossless with alpha"}) {
    const std::string whole = photo_named(name);
    RandomStream random(whole.size());
    for (int i = 0; i < 300; ++i) {
      std::string bytes = whole;
      for (int k = 0; k < 3; ++k)
        bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
      try {
        applied(transforms::decode({.exif = true, .max_pixels = 1 << 20}), bytes_of(bytes));
        applied(transforms::decode_crop(5, {.max_pixels = 1 << 20}), bytes_of(bytes));
      } catch (const DataError&) {
        ++errors;
      }
    }
  }
  EXPECT_GT(errors, 500);
}

TEST(Decode, AHugePhotoIsRefusedBeforeItsPixelsAreRead) {
  for (const char* name : {"jpeg 4:2:0", "png rgb", "webp"}) {
    const std::string bytes = photo_named(name);
    EXPECT_THAT(
        error_for(bytes, transforms::decode({.max_pixels = 246})),
        AllOf(HasSubstr("19 x 13 pixels"), HasSubstr("at most 246"), HasSubstr("max_pixels")));
    EXPECT_NO_THROW(applied(transforms::decode({.max_pixels = 247}), bytes_of(bytes)));
  }
  std::string claims = photo_named("jpeg 4:2:0");
  const size_t frame = claims.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  claims.replace(frame + 5, 4, "\xff\xdc\xff\xdc");
  EXPECT_THAT(error_for(claims, transforms::decode()), HasSubstr("65500 x 65500 pixels"));
}

TEST(Decode, TurnsUprightOnlyWhenAsked) {
  const Array photo = bytes_of(photo_named("jpeg turned by exif"));
  const Array plain = applied(transforms::decode(), photo);
  const Array upright = applied(transforms::decode({.exif = true}), photo);
  ASSERT_EQ(plain.shape(), (std::vector<int64_t>{3, 13, 19}));
  ASSERT_EQ(upright.shape(), (std::vector<int64_t>{3, 19, 13}));
  // Orientation 6: what is shown as the top row lies as the left column, read from below.
  for (size_t x = 0; x < 13; ++x)
    EXPECT_EQ(upright.as<uint8_t>()[x], plain.as<uint8_t>()[(12 - x) * 19]);
}

TEST(Upright, AllEightOrientations) {
  Array image = make_array(DType::uint8, {1, 2, 3});
  std::memcpy(image.data(), "abcdef", 6);
  const char* kExpected[] = {"abcdef", "cbafed", "fedcba", "defabc",
                             "adbecf", "daebfc", "fcebda", "cfbead"};
  for (int orientation = 1; orientation <= 8; ++orientation)
    EXPECT_EQ(bytes_in(detail::upright(image, orientation)), kExpected[orientation - 1])
        << orientation;
}

TEST(ExifOrientation, BothOrdersOfBytesAndDamage) {
  using namespace std::string_literals;
  const std::string little = "II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"s;
  const std::string big = "MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0"s;
  EXPECT_EQ(detail::exif_orientation(little), 6);
  EXPECT_EQ(detail::exif_orientation(big), 8);
  for (size_t size = 0; size + 4 < little.size(); ++size)
    EXPECT_EQ(detail::exif_orientation(little.substr(0, size)), 1) << size;
  EXPECT_EQ(detail::exif_orientation("II*\0\xff\xff\xff\xff"s), 1);
}

TEST(Decode, ThreadsDecodeAtOnce) {
  const Array photo = bytes_of(make_jpeg(120, 160));
  const std::string expected = bytes_in(applied(transforms::decode_crop(32), photo, 5));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i)
        EXPECT_EQ(bytes_in(applied(transforms::decode_crop(32), photo, 5)), expected);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tutti::data
