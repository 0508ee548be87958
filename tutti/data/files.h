/// Files: where the bytes of sources lie. Local disks here; object stores fit behind it.
///
/// Thread rule: methods are const and are called from many threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tutti/base/array.h"

namespace tutti::data {

struct FileInfo {
  std::string name;  ///< without its folder
  int64_t bytes = 0;
  int64_t modified_ns = 0;  ///< since 1970
  bool folder = false;
};

class Files {
 public:
  virtual ~Files() = default;

  /// What lies in a folder, sorted by the bytes of names: the same order under every locale. What
  /// begins with a dot is left out. Throws DataError when it is not there or is no folder, IoError.
  virtual std::vector<FileInfo> list(const std::filesystem::path& folder) const = 0;

  /// Follows links. Throws DataError when it is not there, IoError.
  virtual FileInfo info(const std::filesystem::path& path) const = 0;

  /// Bytes [offset, offset + bytes) as uint8 [bytes], in memory of their own; bytes < 0: to the
  /// end. Throws DataError when the file is not there or ends before, with both sizes; UsageError
  /// when this user may not read it; IoError when it cannot be read just now.
  virtual Array read(const std::filesystem::path& path, int64_t offset = 0,
                     int64_t bytes = -1) const = 0;
};

using FilesHandle = std::shared_ptr<const Files>;

FilesHandle local_files();

/// "name bytes modified" of some files, as one SHA-256: a fingerprint that a change of any changes.
std::string fingerprint_of(const std::vector<FileInfo>& files);

}  // namespace tutti::data
