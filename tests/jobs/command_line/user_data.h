// Data as users have it, made by the tests: small, and easy to learn.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tutti/base/random.h"

#include "tests/support/temp_folder.h"
#include "tests/unit/data_transforms/photos.h"

namespace tutti::test {

/// Photos of `count` a class, of sizes around 40 x 30: those of "dark" are dark, of "light" light.
inline void put_photos(const std::filesystem::path& folder, int count, uint64_t seed = 1) {
  RandomStream random(seed);
  for (const bool light : {false, true}) {
    const auto place = folder / (light ? "light" : "dark");
    std::filesystem::create_directories(place);
    for (int i = 0; i < count; ++i) {
      const int height = 30 + static_cast<int>(random.below(10));
      const int width = 40 - static_cast<int>(random.below(10));
      std::vector<uint8_t> pixels;
      for (int p = 0; p < height * width * 3; ++p)
        pixels.push_back(static_cast<uint8_t>((light ? 170 : 20) + random.below(60)));
      put_bytes(place / (std::to_string(i) + ".jpg"),
                data::make_jpeg(height, width, {}, std::move(pixels)));
    }
  }
}

/// "rooms,area,view,price,dear" of `rows` flats: price = 1000 * area + 50,000 * (view == "sea"),
/// and dear tells whether that is above 100,000. Every tenth lacks its rooms.
inline void put_flats(const std::filesystem::path& file, int rows, uint64_t seed = 1) {
  RandomStream random(seed);
  std::string text = "rooms,area,view,price,dear\n";
  for (int row = 0; row < rows; ++row) {
    const auto area = 20 + random.below(100);
    const bool sea = random.below(2) == 1;
    const auto price = 1000 * area + (sea ? 50'000 : 0);
    text += (row % 10 == 9 ? "" : std::to_string(1 + area / 25)) + "," + std::to_string(area) +
            (sea ? ",sea," : ",yard,") + std::to_string(price) +
            (price > 100'000 ? ",yes\n" : ",no\n");
  }
  put_bytes(file, text);
}

/// train-images-idx3-ubyte of `count` images of 12 x 12, its labels, and t10k-*: bright in the half
/// that the label tells, 0 left and 1 right.
inline void put_idx(const std::filesystem::path& folder, int count) {
  const auto number = [](int value) {
    return std::string{'\0', '\0', static_cast<char>(value / 256), static_cast<char>(value % 256)};
  };
  RandomStream random(3);
  for (const std::string name : {"train", "t10k"}) {
    std::string images = std::string{'\0', '\0', 8, 3} + number(count) + number(12) + number(12);
    std::string labels = std::string{'\0', '\0', 8, 1} + number(count);
    for (int i = 0; i < count; ++i) {
      const int label = i % 2;
      labels += static_cast<char>(label);
      for (int p = 0; p < 144; ++p) {
        const bool bright = (p % 12 >= 6) == (label == 1);
        images += static_cast<char>((bright ? 100 : 0) + random.below(100));
      }
    }
    put_bytes(folder / (name + "-images-idx3-ubyte"), images);
    put_bytes(folder / (name + "-labels-idx1-ubyte"), labels);
  }
}

}  // namespace tutti::test
