/// What lies at a path, told by content and names: for programs that are given nothing but a path.
///
///   const Recognised found = recognise("housing.csv");
///   if (found.kind == DataKind::csv) csv("housing.csv");  // which looks at it in the same way
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/data/files.h"

namespace tutti::data {

enum class DataKind {
  image_folder,  ///< image_folder()
  quickdraw,     ///< quickdraw()
  idx,           ///< idx()
  csv,           ///< csv()
  jsonl,         ///< jsonl()
  text,          ///< text()
  tfrecord,      ///< tfrecord()
  webdataset,    ///< webdataset()
  mds,           ///< mds()
  strokes,       ///< strokes()
  unknown
};

/// "image_folder", "quickdraw", "idx", "csv", "jsonl", "text", "tfrecord", "webdataset", "mds",
/// "strokes", "unknown".
std::string_view name_of(DataKind kind) noexcept;

/// Whether open_records() reads it.
bool is_records(DataKind kind) noexcept;

struct Recognised {
  DataKind kind = DataKind::unknown;
  /// To be said aloud: "photos: a folder of 2 classes (ants, bees) in files .jpg, .jpeg, ...". Of
  /// what is unknown: what was seen, and what may be meant.
  std::string sentence;
  char delimiter = ',';  ///< of a csv
  bool header = true;    ///< of a csv: the first line names the fields
};

/// Looks at a folder's names or a file's first 64 KiB. That it opens is not promised: text that is
/// called .csv or .tsv is a table, some or all of whose rows may be too short or too long. The
/// first line of a table names its fields where it has words over columns of numbers (docs/formats/
/// csv.md: years and the like beside them), or words and years alone that differ and do not come
/// again below; `header` says it instead. What begins fractions, `decimal`, delimits nothing. A
/// folder that may be two kinds is unknown. Throws DataError when there is nothing at the path, and
/// those of Files.
Recognised recognise(const std::filesystem::path& path, const FilesHandle& files = local_files(),
                     std::optional<bool> header = {}, char decimal = '.');

}  // namespace tutti::data
