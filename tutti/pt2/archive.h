/// The archive of a .pt2 file: records of bytes by name.
///
/// A .pt2, as torch.export.save writes it, is a zip whose records are stored as they are, in one
/// root folder. Of zip this reads that and no more: what is compressed, encrypted, overlaps or
/// lies beyond the end of the file is refused when it is opened, so a small file cannot become
/// large. docs/formats/pt2.md has the layout. Nothing in a record is run or unpickled.
/// Thread rule: a value; records may be read from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "tutti/base/file.h"

namespace tutti::pt2 {

struct ArchiveRecord {
  std::span<const std::byte> bytes;  ///< of the mapped file
  uint32_t crc32 = 0;                ///< as the central directory has it
};

class Archive {
 public:
  /// Maps the file and reads its directory. Throws what map_file() throws; DataError, with what was
  /// got and expected, for what is no such zip, is cut off, has a record twice, or records in
  /// several root folders; for another format than "pt2", another version than 0, and bytes of a
  /// big-endian machine.
  explicit Archive(const std::filesystem::path& path);
  /// The same of a file in memory; `path` is what errors name.
  Archive(MappedFile file, const std::filesystem::path& path);

  /// Names are without the root folder: "models/model.json".
  bool has(std::string_view name) const { return records_.contains(name); }
  const std::map<std::string, ArchiveRecord, std::less<>>& records() const { return records_; }

  /// The bytes of a record, whose CRC-32 is computed by each call; they live as long as file().
  /// DataError when there is none of that name, or the checksum is another.
  std::span<const std::byte> read(std::string_view name) const;
  /// The same as text.
  std::string_view text(std::string_view name) const;

  const std::filesystem::path& path() const { return path_; }
  const MappedFile& file() const { return file_; }

 private:
  void require_pt2() const;

  std::filesystem::path path_;
  MappedFile file_;
  std::map<std::string, ArchiveRecord, std::less<>> records_;
};

}  // namespace tutti::pt2
