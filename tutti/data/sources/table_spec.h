/// TableSpec: how a table is read, and what its columns become; saved beside the weights, so that
/// training, validation and predictions read alike.
///
///   TableSpec spec = table_spec("train.csv", {.target = "price", .standardise = true});
///   auto train = csv("train.csv", spec), held_out = csv("held_out.csv", spec);
///
/// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/sample.h"

namespace tutti::data {

/// How a missing value is written, unless told: not at all, "?", "NA", "N/A", "NaN", "nan", "null"
/// or "NULL".
const std::vector<std::string>& usual_missing();

enum class ColumnKind {
  number,   ///< becomes (value - mean) / deviation
  category  ///< words of a vocabulary; what lacks is a word, too, as it is written
};

struct TableColumn {
  std::string name;
  ColumnKind kind = ColumnKind::number;
  std::vector<std::string> vocabulary = {};  ///< of a category, by index
  double mean = 0;
  double deviation = 1;  ///< > 0
  /// A missing number is taken as this one, before it is scaled; unset: it is an error. Never of a
  /// target.
  std::optional<double> fill = {};

  /// What column y or a number of x stands for: undoes the scaling.
  double original(double scaled) const noexcept { return scaled * deviation + mean; }
  bool operator==(const TableColumn&) const = default;
};

struct TableSpec {
  TableSpec() = default;  // so that {.target = ...} is a CsvOptions and nothing else

  char delimiter = ',';  ///< ' ': runs of blanks and tabs
  char decimal = '.';    ///< of numbers; ',': "14285,71"
  bool header = true;    ///< the first line names the fields
  /// Of all fields of the file that was learnt of, in its order, which a file without header keeps;
  /// a header may have them in any order, and others besides.
  std::vector<std::string> names;
  std::vector<std::string> missing;  ///< how a missing value is written
  char comment = '\0';               ///< lines that begin with it are left out; 0: none

  std::vector<TableColumn> features;
  std::optional<TableColumn> target;
  bool one_hot = true;           ///< categories are in x; else columns of their own
  bool drop_incomplete = false;  ///< rows that lack a value of these columns are left out

  /// Features as numbers: one a number, one a word of each category where one_hot.
  int64_t width() const;

  /// What a row becomes: x float32 [width()]: the features in order (no column when width() is 0);
  /// without one_hot a column <name> int64 [] a category; and where `labelled` and there is a
  /// target, y: int64 [] for a category, else float32 [1].
  std::vector<Column> columns(bool labelled = true) const;

  /// One sentence: "8 numbers and 1 category (ocean_proximity: 5 words) make x float32 [13], ..."
  std::string to_string() const;

  std::string to_json() const;
  /// Throws DataError, with `where`, for what is no such JSON: unknown keys are named with the
  /// nearest one, values of the wrong kind with what was expected.
  static TableSpec from_json(std::string_view text, const std::string& where);

  bool operator==(const TableSpec&) const = default;
};

}  // namespace tutti::data
