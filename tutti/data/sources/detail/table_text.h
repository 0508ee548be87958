/// table_spec() of a file that is in memory already.
#pragma once

#include <string>
#include <string_view>

#include "tutti/data/sources/csv.h"

namespace tutti::data::detail {

/// where  the file's name, for messages
TableSpec spec_of_text(std::string_view text, const std::string& where, const CsvOptions& options);

}  // namespace tutti::data::detail
