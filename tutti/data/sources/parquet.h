/// Parquet files: tables by column, as Arrow, pandas and Spark write them.
///
///   auto train = parquet("train/*.parquet", {.columns = {"pixels", "label"}});
///
/// Needs Arrow's C++ library: a build with -DTUTTI_WITH_PARQUET=ON (docs/formats/parquet.md says
/// where it is found). Without, parquet() throws. Thread rule: free functions; the Dataset may be
/// read by any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/sources/records.h"

namespace tutti::data {

struct ParquetOptions {
  std::vector<std::string> columns;  ///< by name, in this order; empty: all
  /// Row groups are unpacked as a whole and kept up to so many bytes, one at least.
  int64_t cache_bytes = 512 << 20;
};

/// Whether this build reads Parquet.
bool parquet_available() noexcept;

/// The rows of files, in the order of files and of rows in them.
///
/// paths  on local disks; a folder stands for its *.parquet
///
/// Columns of numbers and bool are as such, []; strings and binary uint8 [?]; lists of numbers [?],
/// of fixed length [n]. All files have the same columns.
///
/// Throws UsageError in a build without Arrow, for a column that is not there or of another kind
/// (nested, dates, decimals); DataError for files that are damaged or differ in columns. Reading a
/// row throws DataError, with file and row, for a value that is null.
Dataset parquet(const Paths& paths, ParquetOptions options = {});

}  // namespace tutti::data
