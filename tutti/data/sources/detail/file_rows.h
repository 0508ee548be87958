/// FileRows: rows that lie in files one after another, and which files those are.
///
/// Thread rule: immutable.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/files.h"
#include "tutti/data/sources/records.h"

namespace tutti::data::detail {

/// Whether a name ends as "train-00001-of-00008" does.
bool is_numbered(std::string_view name);

/// The files that `paths` stand for, in order. A folder stands for its files with a name that ends
/// in one of `endings`, or, with `numbered`, looks like "train-00001-of-00008". Throws UsageError,
/// with what was looked for, where they stand for none; DataError for a folder that is not there.
std::vector<std::filesystem::path> record_files(const Files& files, const Paths& paths,
                                                std::span<const std::string_view> endings,
                                                bool numbered = false);

class FileRows {
 public:
  struct Place {
    size_t file = 0;
    int64_t row = 0;  ///< in its file
  };

  void add(const FileInfo& info, int64_t rows) {
    infos_.push_back(info);
    ends_.push_back(num_rows() + rows);
  }

  int64_t num_rows() const noexcept { return ends_.empty() ? 0 : ends_.back(); }
  Place find(int64_t row) const noexcept {
    const auto file = static_cast<size_t>(std::ranges::upper_bound(ends_, row) - ends_.begin());
    return {.file = file, .row = row - (file == 0 ? 0 : ends_[file - 1])};
  }
  std::vector<int64_t> first_rows() const {
    std::vector<int64_t> first{0};
    first.insert(first.end(), ends_.begin(), ends_.end());
    first.pop_back();
    return first;
  }
  /// Of the files, and of what is made of them: `columns`, and what else `how` says.
  std::string fingerprint(const std::vector<Column>& columns, std::string_view how = {}) const;

 private:
  std::vector<FileInfo> infos_;
  std::vector<int64_t> ends_;  // ends_[f]: rows of the files 0 to f together
};

}  // namespace tutti::data::detail
