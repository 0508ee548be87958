/// The flags of commands that read tables: how a table is written, the same whoever reads it.
/// Without LibTorch. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/sources/csv.h"
#include "tutti/data/sources/recognise.h"

namespace tutti::cli {

struct Command;

/// What was typed; unset is empty.
struct TableFlags {
  std::string header;   ///< "yes", "no"
  std::string decimal;  ///< ".", ","
  std::vector<std::string> missing, categorical;

  std::optional<bool> has_header() const;
  char decimal_point() const { return decimal == "," ? ',' : '.'; }
};

/// --header alone, for commands that read a table as another one was read.
void add_header_flag(Command& command, std::string& header);
/// How it is written, with --header, and, where `kinds`, --categorical.
void add_table_flags(Command& command, TableFlags& flags, bool kinds = true);

/// What is at a path, a table with its header as the flags say.
data::Recognised recognise(const std::string& path, const TableFlags& flags);

/// Throws UsageError where a flag of tables was typed and `found` is none.
void require_table(const std::string& path, const TableFlags& flags, const data::Recognised& found);

/// How to read a table: as the flags say; what they leave open is as it looks.
data::CsvOptions csv_options(const TableFlags& flags);

/// Each column with its kind: "numbers rooms, area; words view (2); target price, a number". Of
/// many columns of a kind the first.
std::string column_words(const data::TableSpec& table);

/// "; column "name" has 150 words in 150 rows, ..."; empty: no column is like that.
std::string words_that_repeat_not(const data::TableSpec& table, int64_t rows);

}  // namespace tutti::cli
