/// What sources of photos give: a file's bytes, and its class.
#pragma once

#include <vector>

#include "tutti/data/sample.h"

namespace tutti::data::detail {

inline const std::vector<Column>& encoded_photo_columns() {
  static const std::vector<Column> kColumns{
      {.name = "x", .dtype = DType::uint8, .shape = {kAnySize}},
      {.name = "y", .dtype = DType::int64, .shape = {}}};
  return kColumns;
}

}  // namespace tutti::data::detail
