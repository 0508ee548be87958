/// Files of doodles, as quickdraw() and `tutti predict` read them. Thread rule: a pure function.
#pragma once

#include <filesystem>

#include "tutti/base/array.h"

namespace tutti::data::detail {

/// The doodles of a .npy or .npy.gz file, as uint8 [rows, 784]: what it has as [rows, 784],
/// [rows, 28, 28], or either with an axis of 1, which are the same bytes. Throws DataError for
/// other dtypes and shapes, and as read_npy() does.
Array read_doodles(const std::filesystem::path& path);

}  // namespace tutti::data::detail
