/// Source: rows that can be read in any order; what a Dataset draws its batches from.
///
/// Derive from it to bring data of your own: three methods, then Dataset(std::make_shared<Mine>()).
/// Thread rule: all methods are const and are called from many threads at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/data/sample.h"

namespace tutti::data {

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

  /// The same into memory for rows.size() rows of each column; rows have fixed shapes. For sources
  /// that can spare a copy: what is here copies what gather() gives.
  virtual void gather_into(std::span<const int64_t> rows, std::span<const Array> places) const;

  /// One row. Throws DataError for one that is damaged, IoError for one that cannot be read just
  /// now (it is tried again).
  virtual Sample read_row(int64_t row) const;

  /// Names of the classes by label; empty when the label is no class.
  virtual const std::vector<std::string>& classes() const;

  /// Where a row stands, for messages: "ants/1.jpg", "housing.csv, line 12".
  virtual std::string where(int64_t row) const;  // "row 12"

  /// What the rows are and are made of: names, sizes and times of files. Equal ones have the same
  /// rows. Empty: unknown, so that nothing read from it is kept in files.
  virtual std::string fingerprint() const;

  /// Row numbers from which on the rows of a file stand, ascending from 0, one a file; empty: the
  /// rows do not lie in files one after another (auto_shard "file").
  virtual std::vector<int64_t> first_rows_of_files() const;
};

/// A source whose rows are read one by one, and may differ in shape: files, records.
class SampleSource : public Source {
 public:
  Sample read_row(int64_t row) const override = 0;
  /// Rows read and stacked; DataError where their shapes differ.
  Batch gather(std::span<const int64_t> rows) const override;
};

}  // namespace tutti::data
