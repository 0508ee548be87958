// What a dataset's rows hold, as plain vectors, in their order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"

namespace tutti::test {

using data::Batch;
using data::Column;
using data::Dataset;

/// All rows as one batch.
inline Batch all_rows(const Dataset& data) {
  return data.batch(data.num_samples()).epoch({}).batch(0);
}

template <class T>
std::vector<T> values_of(const Array& array) {
  const auto elements = array.as<T>();
  return {elements.begin(), elements.end()};
}

/// One column of all rows.
template <class T>
std::vector<T> values_of(const Dataset& data, size_t column) {
  return values_of<T>(all_rows(data).columns.at(column));
}

/// One row, whose shapes may be any.
inline std::vector<Array> row_of(const Dataset& data, int64_t row) {
  std::vector<Array> columns;
  for (const Array& column : data.skip(row).take(1).padded_batch(1).epoch({}).batch(0).columns)
    columns.push_back(Array::view(column.data(), column.dtype(),
                                  {column.shape().begin() + 1, column.shape().end()},
                                  column.owner()));
  return columns;
}

inline std::vector<std::string> words_of(const std::vector<Column>& columns) {
  std::vector<std::string> words;
  for (const Column& column : columns) words.push_back(column.to_string());
  return words;
}

/// Real data, where it is there: beside the checkout, never shipped.
inline std::filesystem::path shared_data() {
  return std::filesystem::path(TUTTI_SOURCE_DIR).parent_path() / "shared/data";
}

}  // namespace tutti::test
