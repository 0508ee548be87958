/// Source: rows that can be read in any order; what a Dataset draws its batches from.
///
/// Derive from it to bring data of your own: three methods, then Dataset(std::make_shared<Mine>()).
/// Thread rule: all methods are const and are called from many threads at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/array.h"

namespace tutti::data {

/// What one column holds: the dtype and shape of one row, as gather() delivers it.
struct Column {
  std::string name;            ///< "x" (features), "y" (label), ...
  DType dtype = DType::uint8;  ///< as delivered: doodles arrive as float32, whatever the file holds
  std::vector<int64_t>
      shape;  ///< of one row, without the batch dimension: {1, 28, 28}; a label: {}
};

/// Some rows of every column. Column c has shape [size, columns()[c].shape...].
struct Batch {
  std::vector<Array> columns;  ///< memory of its own, each column from a 64-byte line on
  int64_t size = 0;            ///< rows; may be 0 (the shapes are right then too)
};

class Source {
 public:
  virtual ~Source() = default;

  /// Rows there are; constant for the life of the source.
  virtual int64_t num_rows() const = 0;

  /// The columns, features first, label last; constant for the life of the source.
  virtual const std::vector<Column>& columns() const = 0;

  /// Copies the rows named into fresh memory, in the order given (repeats allowed).
  ///
  /// rows  each in [0, num_rows()); the caller (Epoch) has checked that
  virtual Batch gather(std::span<const int64_t> rows) const = 0;

  /// Names of the classes by label; empty when the label is no class.
  virtual const std::vector<std::string>& classes() const;
};

/// Memory for `size` rows of `column`, from a 64-byte line on. The contents are not initialised.
Array make_column(const Column& column, int64_t size);

}  // namespace tutti::data
