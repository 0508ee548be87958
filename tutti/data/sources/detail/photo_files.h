/// Which files of folders are photos, and which are left out.
///
/// Thread rule: free functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/files.h"

namespace tutti::data::detail {

/// Whether a file is taken for a photo: by the end of its name where that is one of `endings`. With
/// none the usual ends are, and of other files the first bytes decide.
bool is_photo_file(const Files& files, const std::filesystem::path& folder, const FileInfo& file,
                   const std::vector<std::string>& endings);

/// What is_photo_file() takes by name alone, in words: ".jpg, .jpeg, ...".
std::string usual_photo_endings();

/// Files that are no photos, by the ends of their names.
class LeftOut {
 public:
  void add(const std::string& path);
  bool empty() const noexcept { return by_ending_.empty(); }
  /// "6 files are left out: 4 .tiff (a/30.tiff, ...), 2 .txt (a/notes.txt, ...)"
  std::string to_string() const;

 private:
  struct Files {
    int64_t count = 0;
    std::string first;
  };
  std::map<std::string, Files> by_ending_;
};

}  // namespace tutti::data::detail
