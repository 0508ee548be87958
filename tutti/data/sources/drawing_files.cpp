// Finds the drawings of files.
#include "tutti/data/sources/detail/drawing_files.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/detail/in_parallel.h"
#include "tutti/data/sources/detail/file_window.h"
#include "tutti/data/sources/detail/source_file.h"

namespace tutti::data::detail {
namespace {

constexpr int64_t kPieceOfDrawingsBytes = 8 << 20;
constexpr int64_t kFrontOfDrawingsBytes = 64 << 10;

constexpr std::pair<std::string_view, DrawingFormat> kDrawingEndings[] = {
    {".ndjson", DrawingFormat::ndjson},
    {".bin", DrawingFormat::binary},
    {".csv", DrawingFormat::csv}};

std::optional<DrawingFormat> format_by_ending(std::string_view name) {
  for (const auto& [ending, format] : kDrawingEndings)
    if (name.ends_with(ending) && name.size() > ending.size()) return format;
  return std::nullopt;
}

bool is_blank_line(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// Calls visit(byte, number, line) for each line, which is read piece by piece.
template <class Visit>
void for_each_line(const Files& files, const DrawingFile& file, Visit&& visit) {
  int64_t piece_bytes = kPieceOfDrawingsBytes, number = 0;
  for (int64_t offset = 0; offset < file.info.bytes;) {
    const Array piece =
        files.read(file.path, offset, std::min(piece_bytes, file.info.bytes - offset));
    const std::string_view text = text_of(piece);
    const bool last = offset + std::ssize(text) == file.info.bytes;
    size_t at = 0;
    while (at < text.size()) {
      const size_t end = text.find('\n', at);
      if (end == std::string_view::npos && !last) break;
      visit(offset + static_cast<int64_t>(at), ++number, text.substr(at, end - at));
      at = std::min(end, text.size() - 1) + 1;
    }
    offset += static_cast<int64_t>(at);
    if (at > 0) continue;
    if (piece_bytes >= kMostDrawingBytes)
      throw DataError(fmt::format("{}, line {}: got more than {} bytes, expected a drawing a line",
                                  file.path.string(), number + 1, kMostDrawingBytes));
    piece_bytes *= 2;
  }
}

void index_drawing_lines(const Files& files, DrawingFile& file) {
  std::map<std::string, int32_t, std::less<>> numbers;
  bool header = file.format == DrawingFormat::csv;
  for_each_line(files, file, [&](int64_t byte, int64_t number, std::string_view line) {
    if (byte == 0 && line.starts_with(kByteOrderMark)) {
      line.remove_prefix(kByteOrderMark.size());
      byte += std::ssize(kByteOrderMark);
    }
    if (is_blank_line(line)) return file.other_lines.push_back(number);
    if (std::exchange(header, false)) {
      file.other_lines.push_back(number);
      file.fields = drawing_fields(line, fmt::format("{}, line {}", file.path.string(), number));
      return;
    }
    const auto word = file.format == DrawingFormat::csv ? word_of_drawing_row(line, file.fields)
                                                        : word_of_drawing_line(line);
    int32_t index = -1;
    if (word && !word->empty()) {
      const auto [known, is_new] = numbers.emplace(*word, std::ssize(file.words));
      if (is_new) file.words.push_back(*word);
      index = known->second;
    }
    if (index != 0 && file.word_of_row.empty()) file.word_of_row.resize(file.begins.size());
    file.begins.push_back(byte);
    if (index != 0 || !file.word_of_row.empty()) file.word_of_row.push_back(index);
  });
}

void index_drawing_records(const Files& files, DrawingFile& file) {
  file.words = {file.path.stem().string()};
  FileWindow window(files, file.path);
  for (int64_t byte = 0; byte < file.info.bytes;) {
    const int64_t left = file.info.bytes - byte;
    const int64_t most = std::min(left, kMostDrawingBytes);
    std::optional<int64_t> bytes;
    for (int64_t look = 4096;; look *= 8) {  // a drawing has some hundred bytes
      bytes = drawing_record_bytes(window.at(byte, std::min(look, most)));
      if (bytes || look >= most) break;
    }
    if (!bytes && most < left)
      throw DataError(
          fmt::format("{}, drawing {} (byte {}): got more than {} bytes, expected fewer: a number "
                      "of strokes or points is damaged, or this is no file of Quick, Draw!",
                      file.path.string(), file.begins.size() + 1, byte, most));
    if (!bytes)
      throw DataError(
          fmt::format("{}, drawing {} (byte {}): got {} bytes, expected more: the drawing is cut "
                      "off, or this is no file of Quick, Draw!\n  fetch the file again",
                      file.path.string(), file.begins.size() + 1, byte, left));
    file.begins.push_back(byte);
    byte += *bytes;
  }
}

DrawingFormat format_of_file(const std::filesystem::path& path, const Files& files) {
  const FileInfo info = files.info(path);
  if (const auto format = format_by_ending(info.name)) return *format;
  const Array front = files.read(path, 0, std::min(info.bytes, kFrontOfDrawingsBytes));
  if (const auto format = drawing_format(text_of(front), info.name)) return *format;
  throw DataError(fmt::format("{}: got no drawings, expected Quick, Draw!'s .ndjson, .bin or .csv",
                              path.string()));
}

std::vector<DrawingFile> files_of_folder(const std::filesystem::path& folder, const Files& files) {
  std::vector<DrawingFile> found;
  for (const FileInfo& info : files.list(folder)) {
    const auto format = format_by_ending(info.name);
    if (info.folder || !format) continue;
    if (!found.empty() && found[0].format != *format)
      throw UsageError(fmt::format(
          "{}: a folder of drawings in several formats: {} and {}\n  give a folder with one of "
          "them, or a single file",
          folder.string(), found[0].path.filename().string(), info.name));
    found.push_back({.path = folder / info.name, .format = *format});
  }
  if (found.empty())
    throw DataError(fmt::format("{}: got no file of drawings, expected .ndjson, .bin or .csv",
                                folder.string()));
  return found;
}

std::vector<DrawingFile> files_at(const std::filesystem::path& path, const Files& files) {
  if (files.info(path).folder) return files_of_folder(path, files);
  return {{.path = path, .format = format_of_file(path, files)}};
}

// Of the first line that is not blank.
DrawingFields fields_in(const DrawingFile& file, const Files& files) {
  const int64_t bytes = std::min(files.info(file.path).bytes, kFrontOfDrawingsBytes);
  const Array front = files.read(file.path, 0, bytes);
  std::string_view text = text_of(front);
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (!is_blank_line(line))
      return drawing_fields(line, fmt::format("{}, line {}", file.path.string(), number));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  throw DataError(fmt::format("{}: got no line of names, expected one", file.path.string()));
}

}  // namespace

std::string DrawingFile::place_of(int64_t row) const {
  if (format == DrawingFormat::binary)
    return fmt::format("drawing {} (byte {})", row + 1, begins[static_cast<size_t>(row)]);
  // In front of the other line at place k there are other_lines[k] - 1 - k drawings.
  int64_t low = 0, high = std::ssize(other_lines);  // how many of the others are before the row
  while (low < high) {
    const int64_t k = low + (high - low) / 2;
    if (other_lines[static_cast<size_t>(k)] - 1 - k <= row)
      low = k + 1;
    else
      high = k;
  }
  return fmt::format("line {}", row + 1 + low);
}

Array DrawingFile::bytes_of_row(int64_t row, const Files& files) const {
  const int64_t begin = begins[static_cast<size_t>(row)];
  const int64_t end = std::min(end_of(row), begin + kMostDrawingBytes);
  if (kept) return kept->rows(begin, end);
  require_unchanged(files, path, info);
  return files.read(path, begin, end - begin);
}

std::vector<DrawingFile> drawing_files(const std::filesystem::path& path, const Files& files,
                                       int64_t keep_bytes) {
  std::vector<DrawingFile> found = files_at(path, files);
  std::atomic<int64_t> all_bytes = 0;
  in_parallel(std::ssize(found), [&](int64_t i) {
    DrawingFile& file = found[static_cast<size_t>(i)];
    file.info = files.info(file.path);
    all_bytes += file.info.bytes;
    if (file.format == DrawingFormat::binary)
      index_drawing_records(files, file);
    else
      index_drawing_lines(files, file);
    if (file.begins.empty())
      throw DataError(fmt::format("{}: got no drawing ({} bytes), expected one or more",
                                  file.path.string(), file.info.bytes));
  });
  if (all_bytes <= keep_bytes)
    for (DrawingFile& file : found) {
      file.kept = files.read(file.path, 0, file.info.bytes);
      require_unchanged(files, file.path, file.info);
    }
  return found;
}

bool drawings_are_labelled(const std::filesystem::path& path, const Files& files) {
  return std::ranges::all_of(files_at(path, files), [&](const DrawingFile& file) {
    return file.format != DrawingFormat::csv || fields_in(file, files).word >= 0;
  });
}

}  // namespace tutti::data::detail
