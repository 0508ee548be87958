/// Tables as text: comma-separated values and their kin.
///
///   auto [spec, train, held_out] = csv_halves("housing.csv", {.target = "median_house_value"});
///
/// What delimits the fields of a file, and whether its first line names them, is told by its first
/// 64 KiB, as recognise() does and `tutti train`; missing numbers are taken as the mean. An option
/// that is set is followed instead.
/// docs/formats/csv.md says what is read how.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"
#include "tutti/data/hold_out.h"
#include "tutti/data/sources/table_spec.h"

namespace tutti::data {

enum class MissingNumbers {
  error,  ///< the first one ends it, with its line and column
  mean,   ///< of the column, without what is missing; logged once
  drop,   ///< leaves out the row; also where a word or the target is missing
  value   ///< CsvOptions::fill
};

struct CsvOptions {
  std::string target = {};                ///< the column to predict; empty: there is no y
  std::vector<std::string> columns = {};  ///< features, in this order; empty: all but the target
  std::vector<std::string> without = {};  ///< columns that are no features
  /// Columns whose values are words even where they look like numbers; the target too, which is a
  /// class then. Others are recognised: numbers where at least half of the values are.
  std::vector<std::string> categorical = {};

  std::optional<char> delimiter = {};   ///< ' ': runs of blanks and tabs; unset: as it looks
  char decimal = '.';                   ///< of numbers; ',': "14285,71"
  std::optional<bool> header = {};      ///< the first line names the fields; unset: as it looks
  std::vector<std::string> names = {};  ///< without header; empty: column0, column1, ...
  std::vector<std::string> missing = usual_missing();     ///< how a missing value is written
  char comment = '\0';                                    ///< '#': such lines are left out
  MissingNumbers missing_numbers = MissingNumbers::mean;  ///< of features
  double fill = 0;                                        ///< for MissingNumbers::value

  bool one_hot = true;              ///< else an int64 [] column a category, for embeddings
  bool standardise = false;         ///< features that are numbers: mean 0, deviation 1
  bool standardise_target = false;  ///< the target too, where it is a number
  FilesHandle files = local_files();
};

/// Reads a file to learn its columns: kinds, vocabularies (sorted by bytes), means and deviations
/// (of all its rows; a constant column has deviation 1). A column of words of which most look like
/// numbers is warned of, unless `categorical` names it. Throws
///   DataError   with line and column, got and expected: too few or too many fields, a quote that
///               is not closed, text behind one, a string in a column of numbers, a missing number;
///               names there twice, no row, a column without values
///   UsageError  a column that is not there (the nearest is named), one that `columns` has twice or
///               that is the target or in `without` too, more than 1,000 words where one_hot, a
///               delimiter or comment that cannot be one
TableSpec table_spec(const std::filesystem::path& path, const CsvOptions& options = {});

/// csv(path, table_spec(path, options)), of one reading.
Dataset csv(const std::filesystem::path& path, const CsvOptions& options = {});

/// A table with a share of its rows held out.
struct TableHalves {
  TableSpec spec;
  Dataset train, held_out;
};

/// Holds rows out as hold_out() does. Means, deviations and what fills gaps are learnt of the rows
/// to train on alone; kinds and vocabularies of all, so that no word is unknown when it is tested
/// on. Throws as table_spec(), csv() and hold_out().
TableHalves csv_halves(const std::filesystem::path& path, const CsvOptions& options = {},
                       HoldOutOptions held_out = {});

struct CsvReading {
  bool labelled = true;  ///< false: the target is not read and need not be there: no y
  /// Whether the first line of this file names the fields; unset: as the spec says. Where only one
  /// of the two files has names, fields stand in the same order in both.
  std::optional<bool> header = {};
  FilesHandle files = local_files();
};

/// Opens a table as another one was read.
///
/// Samples are TableSpec::columns(). The values are parsed here, once, into 4 bytes each: float32,
/// categories as indices; they are made one-hot when a batch is read. Rows keep their order. What
/// is filled or dropped is counted and logged once, and so is each column whose whole numbers
/// float32 rounds. Throws DataError as table_spec(), and for
/// columns that are missing and words outside the vocabulary (the nearest is named).
Dataset csv(const std::filesystem::path& path, const TableSpec& spec,
            const CsvReading& reading = {});

/// What csv() would stop at, all of it: rows with too few or too many fields, quotes that do not
/// end, words in columns of numbers; each with line and column, in the order of the lines. Missing
/// values are none of it. Throws as csv() for what is no table at all.
std::vector<std::string> verify_csv(const std::filesystem::path& path,
                                    const CsvOptions& options = {});

}  // namespace tutti::data
