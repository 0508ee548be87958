/// Column, Sample, Batch: what flows through an input pipeline.
///
/// Thread rule: plain values; copies of an Array share its memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/array.h"

namespace tutti::data {

/// A size in Column::shape that differs from row to row: photos as they lie there, texts.
inline constexpr int64_t kAnySize = -1;

/// What one column holds: the dtype and shape of one row.
struct Column {
  std::string name;            ///< "x" (features), "y" (label), ...
  DType dtype = DType::uint8;  ///< as delivered: doodles arrive as float32, whatever the file holds
  /// Of one row, without the batch dimension: {1, 28, 28}; a label: {}; an encoded photo or a
  /// string, uint8: {kAnySize}.
  std::vector<int64_t> shape;

  bool fixed() const noexcept;    ///< all rows have the same shape
  std::string to_string() const;  ///< "x float32 [1, 28, 28]", "bytes uint8 [?]"
  bool operator==(const Column&) const = default;
};

/// "[3, ?, ?]"
std::string shape_words(std::span<const int64_t> shape);

/// One row of every column, in their order. Column c has columns()[c].shape, no batch dimension.
struct Sample {
  std::vector<Array> columns;
};

/// Some rows of every column. Column c has shape [size, columns()[c].shape...].
struct Batch {
  std::vector<Array> columns;  ///< memory of its own, each column from a 64-byte line on
  int64_t size = 0;            ///< rows; may be 0 (the shapes are right then too)
};

/// Memory for `size` rows of a column of fixed shape, from a 64-byte line on, not initialised.
Array make_column(const Column& column, int64_t size);

/// Memory for one value, from a 64-byte line on, not initialised.
Array make_array(DType dtype, std::vector<int64_t> shape);

/// Whether nobody else has this memory, so that it may be changed in place.
bool owned(const Array& array) noexcept;

/// A value of one element: scalar(int64_t{3}) is a label.
template <class T>
Array scalar(T value) {
  Array array = make_array(dtype_of<T>(), {});
  *static_cast<T*>(array.data()) = value;
  return array;
}

/// Bytes as uint8 [n]: strings, encoded photos.
Array bytes_of(std::string_view text);
std::string_view text_of(const Array& bytes);

}  // namespace tutti::data
