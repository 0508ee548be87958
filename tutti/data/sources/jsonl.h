/// JSON lines: one JSON object a line.
///
///   auto rows = jsonl("reviews.jsonl", {.columns = {{"text", DType::uint8, {kAnySize}},
///                                                   {"stars", DType::int64, {}}}});
///
/// docs/formats/jsonl.md has the kinds.
#pragma once

#include <filesystem>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"

namespace tutti::data {

struct JsonlOptions {
  /// What to take of each object, by key, in this order; other keys are left alone. uint8 [?] takes
  /// strings (their bytes) and arrays; [] numbers; other shapes arrays of numbers, within each
  /// other where there are several dimensions, kAnySize where their size differs from row to row.
  /// Empty: recognised from the first line, all of its keys, in its order: whole numbers are int64,
  /// others float32, true and false bool, strings uint8 [?], arrays of numbers [?].
  std::vector<Column> columns = {};
  FilesHandle files = local_files();
};

/// Opens a file of JSON lines. Blank lines are left out.
///
/// The file is read once here, for an index of where its lines begin (16 bytes a row); its objects
/// are parsed when a sample is read. Numbers must fit in the dtype: a fraction in a column of whole
/// numbers is an error. Throws
///   DataError   no line; the first line's kinds cannot be told. When reading, with the line: no
///               JSON object, a key missing, a value of another kind or shape (got, expected); the
///               file vanished or changed since
///   UsageError  a column of float16 or bfloat16
Dataset jsonl(const std::filesystem::path& path, JsonlOptions options = {});

}  // namespace tutti::data
