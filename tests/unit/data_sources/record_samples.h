// What make_records.py has written into tests/unit/data_sources/files, said once more; and samples
// to write.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/sources/records.h"

#include "tests/support/temp_folder.h"

namespace tutti::test {

inline constexpr int64_t kRecords = 23;

inline int64_t label_of(int64_t i) { return i * i - 3; }
inline std::string text_at(int64_t i) { return "δείγμα " + std::to_string(i); }
inline std::string image_at(int64_t i) {
  std::string image;
  for (int64_t k = 0; k <= i; ++k) image += {'\xff', '\xd8', static_cast<char>(i)};
  return image;
}
inline std::vector<float> x_at(int64_t i) {
  std::vector<float> x;
  for (int place = 0; place < 6; ++place)
    x.push_back(static_cast<float>(place) / 4 + static_cast<float>(i));
  return x;
}
inline std::vector<int64_t> ids_at(int64_t i, int64_t more = 0) {
  std::vector<int64_t> ids;
  for (int64_t k = 0; k < i % 4 + more; ++k) ids.push_back(k * 1000);
  return ids;
}

template <class T>
std::vector<T> elements(const Array& array) {
  const auto all = array.as<T>();
  return {all.begin(), all.end()};
}

/// A copy of a file or folder of make_records.py, beside which an index may be kept.
inline std::filesystem::path copied(const TempFolder& folder, const std::string& name) {
  std::filesystem::copy("tests/unit/data_sources/files/" + name, folder / name,
                        std::filesystem::copy_options::recursive);
  return folder / name;
}

/// Columns of every kind that all writers know, and their samples.
inline std::vector<data::Column> written_columns() {
  return {{"x", DType::float32, {2, 3}},
          {"ids", DType::int64, {data::kAnySize}},
          {"image", DType::uint8, {data::kAnySize}},
          {"y", DType::int64, {}}};
}
inline data::Sample written_sample(int64_t i) {
  return {{data::array_of(x_at(i), {2, 3}), data::array_of(ids_at(i, 1), {i % 4 + 1}),
           data::bytes_of(image_at(i)), data::scalar(label_of(i))}};
}
inline data::NextSample written_samples(int64_t count) {
  return [count, i = int64_t{0}]() mutable -> std::optional<data::Sample> {
    if (i == count) return std::nullopt;
    return written_sample(i++);
  };
}

inline void flip_byte(const std::filesystem::path& path, size_t at) {
  std::string bytes = get_bytes(path);
  bytes.at(at) = static_cast<char>(bytes[at] ^ 0x20);
  put_bytes(path, bytes);
}
inline void cut(const std::filesystem::path& path, size_t bytes) {
  put_bytes(path, get_bytes(path).substr(0, bytes));
}

inline bool same(const Array& a, const Array& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(a.data(), b.data(), static_cast<size_t>(a.num_bytes())) == 0;
}

}  // namespace tutti::test
