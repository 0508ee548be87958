/// FileWindow: a file read from front to back in large pieces, whoever asks in small ones.
///
/// Thread rule: one thread at a time per object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

#include "tutti/data/files.h"
#include "tutti/data/sample.h"

namespace tutti::data::detail {

class FileWindow {
 public:
  FileWindow(const Files& files, std::filesystem::path path)
      : files_(files), path_(std::move(path)), file_bytes_(files_.info(path_).bytes) {}

  const std::filesystem::path& path() const noexcept { return path_; }
  int64_t file_bytes() const noexcept { return file_bytes_; }

  /// Whether bytes [offset, offset + bytes) are in the file.
  bool holds(int64_t offset, uint64_t bytes) const noexcept {
    return offset <= file_bytes_ && bytes <= static_cast<uint64_t>(file_bytes_ - offset);
  }

  /// These bytes, which holds(); valid until the next call. Throws as Files::read() does.
  std::string_view at(int64_t offset, int64_t bytes) {
    if (offset < begin_ || offset + bytes > begin_ + piece_.num_bytes()) {
      piece_ =
          files_.read(path_, offset, std::min(std::max(bytes, kPieceBytes), file_bytes_ - offset));
      begin_ = offset;
    }
    return text_of(piece_).substr(static_cast<size_t>(offset - begin_), static_cast<size_t>(bytes));
  }

 private:
  // What is skipped over is not read: records of megabytes cost their heads alone.
  static constexpr int64_t kPieceBytes = 1 << 20;

  const Files& files_;
  std::filesystem::path path_;
  int64_t file_bytes_;
  int64_t begin_ = 0;
  Array piece_;
};

}  // namespace tutti::data::detail
