/// DrawingFile: where the drawings of one file lie, and what they are of.
///
/// Thread rule: plain values, and functions of their arguments.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/files.h"
#include "tutti/data/sources/detail/drawing.h"

namespace tutti::data::detail {

struct DrawingFile {
  std::filesystem::path path;
  FileInfo info;
  std::optional<Array> kept{};  ///< all its bytes, where they are in memory
  DrawingFormat format = DrawingFormat::ndjson;
  DrawingFields fields;              ///< of a csv
  std::vector<int64_t> begins;       ///< byte of each drawing
  std::vector<int64_t> other_lines;  ///< numbers of the lines without a drawing, ascending
  std::vector<std::string> words;    ///< what was to be drawn, each once
  /// Of each drawing, an index of `words`; -1: damaged, so that none can be told. Empty: all are 0.
  std::vector<int32_t> word_of_row;

  int64_t num_rows() const noexcept { return std::ssize(begins); }
  int64_t end_of(int64_t row) const noexcept {
    return row + 1 < num_rows() ? begins[static_cast<size_t>(row) + 1] : info.bytes;
  }
  /// The bytes of one drawing, and blank lines behind it. Throws as Files::read() does, and
  /// DataError for a file that has changed.
  Array bytes_of_row(int64_t row, const Files& files) const;
  int32_t word_at(int64_t row) const noexcept {
    return word_of_row.empty() ? 0 : word_of_row[static_cast<size_t>(row)];
  }
  bool labelled() const noexcept { return format != DrawingFormat::csv || fields.word >= 0; }
  /// "line 12", "drawing 3 (byte 512)"
  std::string place_of(int64_t row) const;
};

/// The files that strokes(path) reads, each with its drawings found, one file a core, and kept
/// where they have at most `keep_bytes` together. Throws DataError, and UsageError for a folder of
/// several kinds.
std::vector<DrawingFile> drawing_files(const std::filesystem::path& path, const Files& files,
                                       int64_t keep_bytes = 0);

/// Whether all of them are labelled(): the first lines of tables are read alone.
bool drawings_are_labelled(const std::filesystem::path& path, const Files& files);

}  // namespace tutti::data::detail
