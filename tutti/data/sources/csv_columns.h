/// A table as it stands: each of its fields a column of its own, nothing filled, scaled or
/// numbered.
///
///   auto rows = csv_columns("housing.csv");  // to write them as records, say
///
/// To train on a table, see csv.h. Thread rule: a free function.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"
#include "tutti/data/sources/table_spec.h"

namespace tutti::data {

struct CsvColumnsOptions {
  std::optional<char> delimiter = {};  ///< ' ': runs of blanks and tabs; unset: as it looks
  char decimal = '.';                  ///< of numbers; ',': "14285,71"
  /// The first line names the fields; else column0, column1, ... Unset: as it looks.
  std::optional<bool> header = {};
  std::vector<std::string> missing = usual_missing();  ///< how a missing number is written
  FilesHandle files = local_files();
};

/// The rows of a table. A field is
///   int64 []    where all its values are whole numbers,
///   float32 []  where all are numbers, or some are missing (NaN),
///   uint8 [?]   else: the text.
/// The table stays in memory; a column of float32 whose whole numbers that rounds is logged. Throws
/// DataError, with line and column: too few or too many fields, names there twice, no row; some
/// missing among whole numbers that float32 cannot hold.
Dataset csv_columns(const std::filesystem::path& path, const CsvColumnsOptions& options = {});

}  // namespace tutti::data
