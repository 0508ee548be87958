/// Whether text is a table: what delimits its fields, and whether its first line names them.
/// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "tutti/data/sources/recognise.h"

namespace tutti::data::detail {

/// What whoever asks knows of it.
struct ToldOfTable {
  std::optional<bool> header;
  char decimal = '.';
};

/// The table that `text`, whole lines of it, is; nothing where it is none. Of what is called one,
/// by its name, some rows may have another number of fields: they are found damaged when it is
/// read.
std::optional<Recognised> recognise_table(std::string_view text, bool is_called_one,
                                          const ToldOfTable& told);

/// The same of what is called a table and does not look like one: whoever reads it finds the line
/// that is not as it should be.
Recognised called_table(std::string_view text, char usual_delimiter, const ToldOfTable& told);

}  // namespace tutti::data::detail
