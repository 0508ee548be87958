/// The rows of a table with named fields: what learning a table and reading it have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/sources/detail/csv_records.h"
#include "tutti/data/sources/table_spec.h"

namespace tutti::data::detail {

class TableRows {
 public:
  /// spec      delimiter, decimal, header, names, missing and comment are used; a file without
  ///           header whose names are not given gets column0, column1, ...
  /// header    of this file, unset: the spec's; where that is another, fields stand as in `names`
  /// may_lack  the last but for this field, files without header may end before; empty: none
  /// spec and `text` must outlive this. Throws as CsvRecords, and DataError for an empty file, for
  /// names that are there twice, and where fields stand in an order that is not known.
  TableRows(std::string_view text, const TableSpec& spec, const std::string& where,
            std::optional<bool> header = {}, std::string_view may_lack = {});

  const std::vector<std::string>& names() const { return names_; }
  /// Where a column stands among the fields; `names` has names().size() when there is none.
  size_t index_of(std::string_view name) const;

  /// Goes on to the next row; DataError, with its line, when it has more or fewer fields, after
  /// which it may be called again.
  bool next();
  std::string_view field(size_t index) const { return records_.fields()[index]; }
  bool is_missing(std::string_view field) const;
  std::optional<double> number(size_t index) const;
  int64_t line() const { return records_.line(); }

  /// "housing.csv, line 12, column "age": got "abc", expected ..."
  [[noreturn]] void fail(size_t index, std::string_view expected) const;

 private:
  void name_fields(std::string_view text, std::string_view may_lack);

  const TableSpec& spec_;
  const bool header_;
  CsvRecords records_;
  std::vector<std::string> names_;
  int64_t first_line_ = 0;  // of the first record
};

/// Throws UsageError where a vocabulary is larger than what it becomes can hold.
void require_vocabularies(const TableSpec& spec, const std::string& where);

}  // namespace tutti::data::detail
