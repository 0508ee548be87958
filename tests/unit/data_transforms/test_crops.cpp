// decode_crop() and decode_center_crop() against decoding whole photos; what crops are drawn.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tutti/data/transforms/detail/codec.h"
#include "tutti/data/transforms/detail/image.h"
#include "tutti/data/transforms/transforms.h"

#include "photos.h"

namespace tutti::data {
namespace {

using detail::Box;

struct PhotoSize {
  int height, width;
};
constexpr PhotoSize kPhotoSizes[] = {{1, 1}, {7, 5}, {16, 16}, {33, 47}, {70, 101}, {150, 90}};

// The region of RGBX that a decoder gives, as R, G, B of each pixel.
std::vector<uint8_t> region_of(const std::string& bytes, const detail::Region& region) {
  const auto photo = detail::open_photo(bytes, {.max_pixels = 1 << 20});
  const detail::Pixels pixels = photo->read(region);
  std::vector<uint8_t> rgb;
  for (int64_t y = region.top; y < region.bottom; ++y)
    for (int64_t x = region.left; x < region.right; ++x)
      rgb.insert(rgb.end(), pixels.at(y, x), pixels.at(y, x) + 3);
  return rgb;
}

std::vector<uint8_t> cut_out(const std::vector<uint8_t>& whole, int64_t width,
                             const detail::Region& region) {
  std::vector<uint8_t> rgb;
  for (int64_t y = region.top; y < region.bottom; ++y) {
    const auto row = whole.begin() + 3 * y * width;
    rgb.insert(rgb.end(), row + 3 * region.left, row + 3 * region.right);
  }
  return rgb;
}

TEST(DecodeCrop, EveryRegionHasThePixelsOfTheWholePhoto) {
  for (const JpegKind& kind : jpeg_kinds())
    for (const PhotoSize& size : kPhotoSizes) {
      const std::string photo = make_jpeg(size.height, size.width, kind);
      const std::vector<uint8_t> whole = region_of(photo, {0, 0, size.height, size.width});
      RandomStream random(static_cast<uint64_t>(size.height));
      for (int i = 0; i < 60; ++i) {
        detail::Region region;
        region.top = static_cast<int64_t>(random.below(static_cast<uint64_t>(size.height)));
        region.left = static_cast<int64_t>(random.below(static_cast<uint64_t>(size.width)));
        region.bottom =
            region.top + 1 +
            static_cast<int64_t>(random.below(static_cast<uint64_t>(size.height - region.top)));
        region.right =
            region.left + 1 +
            static_cast<int64_t>(random.below(static_cast<uint64_t>(size.width - region.left)));
        ASSERT_TRUE(region_of(photo, region) == cut_out(whole, size.width, region))
            << kind.name << " " << size.height << " x " << size.width << ": rows " << region.top
            << " to " << region.bottom << ", columns " << region.left << " to " << region.right;
      }
    }
}

TEST(DecodeCrop, IsDecodeAndRandomResizedCrop) {
  const auto one = transforms::decode_crop({24, 31});
  const auto two = transforms::random_resized_crop({24, 31});
  for (const JpegKind& kind : jpeg_kinds())
    for (const PhotoSize& size : kPhotoSizes) {
      const Array photo = bytes_of(make_jpeg(size.height, size.width, kind));
      const Array whole = applied(transforms::decode(), photo);
      for (uint64_t key = 0; key < 20; ++key)
        ASSERT_TRUE(bytes_in(applied(one, photo, key)) == bytes_in(applied(two, whole, key)))
            << kind.name << ", key " << key;
    }
}

TEST(DecodeCrop, CenterCropIsResizeAndCenterCrop) {
  const auto one = transforms::decode_center_crop(40, {32, 36});
  for (const JpegKind& kind : jpeg_kinds())
    for (const PhotoSize& size : kPhotoSizes) {
      const Array photo = bytes_of(make_jpeg(size.height, size.width, kind));
      const Array resized = applied(transforms::resize(40), applied(transforms::decode(), photo));
      ASSERT_TRUE(bytes_in(applied(one, photo)) ==
                  bytes_in(applied(transforms::center_crop({32, 36}), resized)))
          << kind.name << " " << size.height << " x " << size.width;
    }
}

TEST(DecodeCrop, GrayIsThatOfDecode) {
  for (const JpegKind& kind : jpeg_kinds()) {
    const Array photo = bytes_of(make_jpeg(70, 101, kind));
    const Array gray = applied(transforms::decode({.gray = true}), photo);
    EXPECT_EQ(gray.shape(), (std::vector<int64_t>{1, 70, 101}));
    EXPECT_TRUE(bytes_in(applied(transforms::decode_crop(16, {.gray = true}), photo, 3)) ==
                bytes_in(applied(transforms::random_resized_crop(16), gray, 3)))
        << kind.name;
  }
}

// Of a smooth photo a mean over pixels, before or after the inverse transform, is nearly the same.
TEST(DecodeCrop, ShrinkingIsNearlyTheSame) {
  std::vector<uint8_t> smooth;
  for (int y = 0; y < 301; ++y)
    for (int x = 0; x < 402; ++x)
      for (int c = 0; c < 3; ++c)
        smooth.push_back(static_cast<uint8_t>(128 + 100 * std::sin(x * 0.02 + y * 0.03 + c)));
  const Array photo = bytes_of(make_jpeg(301, 402, {}, smooth));
  const auto exact = transforms::decode_crop(24, {.scale = {0.5, 1}});
  const auto shrunk = transforms::decode_crop(24, {.scale = {0.5, 1}, .shrink = true});
  for (uint64_t key = 0; key < 20; ++key) {
    const Array a = applied(exact, photo, key), b = applied(shrunk, photo, key);
    double sum = 0;
    for (size_t i = 0; i < a.as<uint8_t>().size(); ++i)
      sum += std::abs(a.as<uint8_t>()[i] - b.as<uint8_t>()[i]);
    EXPECT_LT(sum / static_cast<double>(a.num_elements()), 1.5) << "key " << key;
  }
}

TEST(DecodeCrop, EqualKeysGiveEqualBytes) {
  const Array photo = bytes_of(make_jpeg(90, 120));
  const auto crop = transforms::decode_crop(16);
  std::map<std::string, int> seen;
  for (uint64_t key = 0; key < 50; ++key) {
    EXPECT_EQ(bytes_in(applied(crop, photo, key)), bytes_in(applied(crop, photo, key)));
    ++seen[bytes_in(applied(crop, photo, key))];
  }
  EXPECT_GT(seen.size(), 45U) << "keys make a difference";
}

// Of 20,000 crops: area uniform in scale, the logarithm of the shape uniform in that of ratio,
// place uniform in what is left. 4 standard errors.
TEST(DrawCrop, AreaShapeAndPlaceAreUniform) {
  constexpr int kCrops = 20000;
  const transforms::RandomResizedCropOptions options{.scale = {0.1, 0.5}};
  double area = 0, area_squared = 0, shape = 0, top = 0, left = 0;
  for (uint64_t key = 0; key < kCrops; ++key) {
    Draw draw(key);
    const Box box = detail::draw_crop(1000, 1000, options, draw);
    ASSERT_TRUE(box.top >= 0 && box.left >= 0 && box.top + box.height <= 1000 &&
                box.left + box.width <= 1000);
    const double share = static_cast<double>(box.height * box.width) / 1e6;
    const double ratio = static_cast<double>(box.width) / static_cast<double>(box.height);
    ASSERT_TRUE(share > 0.099 && share < 0.501) << share;
    ASSERT_TRUE(ratio > 0.745 && ratio < 1.34) << ratio;
    area += share / kCrops;
    area_squared += share * share / kCrops;
    shape += std::log(ratio) / kCrops;
    top += static_cast<double>(box.top) / static_cast<double>(1000 - box.height) / kCrops;
    left += static_cast<double>(box.left) / static_cast<double>(1000 - box.width) / kCrops;
  }
  const double error = 4 / std::sqrt(12.0 * kCrops);  // of a mean, for a range of 1
  EXPECT_NEAR(area, 0.3, 0.4 * error);
  EXPECT_NEAR(area_squared - area * area, 0.4 * 0.4 / 12, 0.4 * 0.4 / 12 * 0.05);
  EXPECT_NEAR(shape, 0, 2 * std::log(4.0 / 3) * error);
  EXPECT_NEAR(top, 0.5, error);
  EXPECT_NEAR(left, 0.5, error);
}

TEST(DrawCrop, WhatDoesNotFitIsTakenFromTheMiddle) {
  Draw draw(1);
  const transforms::RandomResizedCropOptions whole{.scale = {1, 1}};
  EXPECT_EQ(detail::draw_crop(10, 1000, whole, draw), (Box{0, 493, 10, 13}));
  EXPECT_EQ(detail::draw_crop(1000, 10, whole, draw), (Box{493, 0, 13, 10}));
  EXPECT_EQ(detail::draw_crop(1, 1, {.scale = {0.01, 0.02}}, draw), (Box{0, 0, 1, 1}));
}

TEST(DrawErased, LiesWithinAndLeavesSomething) {
  const transforms::RandomErasingOptions options;
  for (uint64_t key = 0; key < 2000; ++key) {
    Draw draw(key);
    const Box box = detail::draw_erased(60, 80, options, draw);
    ASSERT_TRUE(box.height < 60 && box.width < 80 && box.top + box.height <= 60 &&
                box.left + box.width <= 80);
    ASSERT_LT(box.height * box.width, 0.36 * 60 * 80);
  }
  Draw draw(1);
  EXPECT_EQ(detail::draw_erased(1, 1, options, draw).height, 0) << "of one pixel, nothing";
}

}  // namespace
}  // namespace tutti::data
