/// Whether text is a table: what delimits its fields, and whether its first line names them.
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/data/sources/recognise.h"

namespace tutti::data::detail {

/// What whoever asks knows of it.
struct ToldOfTable {
  std::optional<bool> header = {};
  char decimal = '.';
  char comment = '\0';
};

/// So much of a file is looked at.
inline constexpr int64_t kLookBytes = 64 << 10;

/// Without its last line, which may be cut off where more follows.
std::string_view whole_lines(std::string_view text, bool whole);

/// The table that `lines` of a file are; nothing where they are none. Of what is called one, by a
/// name in .csv or .tsv, some or all rows may have another number of fields: they are found damaged
/// when it is read.
std::optional<Recognised> recognise_table(std::string_view lines, std::string_view name,
                                          const ToldOfTable& told);

/// How a file is written that is known to be a table.
struct TableLook {
  char delimiter = ',';
  bool header = true;
};

/// As recognise() finds it, where it is not told. Throws UsageError for a delimiter or comment that
/// cannot be one.
TableLook how_written(std::string_view text, const std::string& where,
                      std::optional<char> delimiter, const ToldOfTable& told);

}  // namespace tutti::data::detail
