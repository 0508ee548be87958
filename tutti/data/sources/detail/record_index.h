/// Index files: where the records of a file lie that has no table of its own.
///
/// An index is made by one pass over its file, several files at once, and kept as
/// <file>.tutti-index (docs/formats/record_index.md). It counts while size and time of the file are
/// those that it was made of; one that is older or damaged is made again, which is said aloud.
/// Thread rule: free functions; several processes may make the same index at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/files.h"
#include "tutti/data/sources/detail/file_window.h"
#include "tutti/data/sources/records.h"

namespace tutti::data::detail {

/// Where the data of each record begins, and its length; of members of a tar their names, too.
struct RecordIndex {
  std::vector<int64_t> offsets;
  std::vector<int64_t> bytes;
  std::string names;  ///< one after another
  std::vector<int64_t> name_ends;

  int64_t size() const noexcept { return static_cast<int64_t>(offsets.size()); }
  std::string_view name(int64_t record) const;
  void add(int64_t offset, int64_t num_bytes) {
    offsets.push_back(offset);
    bytes.push_back(num_bytes);
  }
  void add(int64_t offset, int64_t num_bytes, std::string_view name);
  bool operator==(const RecordIndex&) const = default;
};

struct IndexPlan {
  std::string format;  ///< "tfrecord 1": an index of another is made again
  /// Reads a file from front to back. Throws DataError for one that is damaged.
  std::function<RecordIndex(FileWindow&)> scan;
  FilesHandle files;
  std::filesystem::path folder;  ///< of the indexes; empty: beside their files
};

struct IndexedFile {
  std::filesystem::path path;
  FileInfo info;
  RecordIndex index;
};

/// The indexes of files, in their order: read where they are, made and kept where not. Throws what
/// `scan` and Files throw, that of the first file for which it does.
std::vector<IndexedFile> indexed_files(const std::vector<std::filesystem::path>& paths,
                                       const IndexPlan& plan);

/// What is kept for a file.
struct KeptIndex {
  IndexState state = IndexState::missing;
  std::string why;    ///< where it is there and does not count
  RecordIndex index;  ///< where it is up to date
};
KeptIndex kept_index(const std::filesystem::path& file, const FileInfo& info,
                     const IndexPlan& plan);

/// index_NAME() of files.
std::vector<IndexReport> make_indexes(const std::vector<std::filesystem::path>& paths,
                                      const IndexPlan& plan, const IndexOptions& options);

/// Where the index of a file is kept. In a folder for several, a name says its file's whole path.
std::filesystem::path index_path(const std::filesystem::path& file,
                                 const std::filesystem::path& folder);

/// An index as bytes, and back: DataError for what is damaged or of another format, with the reason
/// alone. `made_of` is what the index says of its file: size and time.
std::string encode_index(const RecordIndex& index, const FileInfo& info, std::string_view format);
RecordIndex decode_index(std::string_view bytes, std::string_view format, FileInfo& made_of);

}  // namespace tutti::data::detail
