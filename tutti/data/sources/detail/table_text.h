/// table_spec() of a file that is in memory already.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/sources/csv.h"

namespace tutti::data::detail {

/// Given the number of rows, of which of them means and deviations are learnt.
using ChooseRows = std::function<std::vector<bool>(int64_t rows)>;

/// where   the file's name, for messages
/// choose  unset: of all rows
TableSpec spec_of_text(std::string_view text, const std::string& where, const CsvOptions& options,
                       const ChooseRows& choose = {});

/// The part of a spec that says how the file is written: what TableRows uses. Throws UsageError for
/// a delimiter or comment that cannot be one.
TableSpec written_as(std::string_view text, const std::string& where, const CsvOptions& options);

}  // namespace tutti::data::detail
