/// Tar archives (POSIX ustar and pax, GNU's long names): headers read and written.
///
/// Ours and not libarchive's: rows are read by the offset of a member's bytes, and libarchive tells
/// that of its first header alone, before those that hold a long name.
/// Thread rule: free functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tutti/data/sources/detail/file_window.h"

namespace tutti::data::detail {

inline constexpr int64_t kTarBlock = 512;

struct TarHeader {
  std::string name;
  int64_t bytes = 0;
  char type =
      '0';  ///< '0', '\0', '7': a file; '5' a folder; 'x', 'g', 'L', ...: about what follows
};

/// A header of 512 bytes, with its checksum. Throws DataError with the reason alone.
TarHeader parse_tar_header(std::string_view block);

/// Calls visit(name, offset of its bytes, their number) for each file in an archive; folders and
/// links are passed over. Throws DataError, with file and byte, for an archive that is damaged or
/// cut off, UsageError for a packed one.
void for_each_member(
    FileWindow& file,
    const std::function<void(const std::string& name, int64_t offset, int64_t bytes)>& visit);

/// Appends a member: a ustar header (GNU's long name before it for one of more than 100 bytes) and
/// the data, padded.
void append_tar_member(std::string& archive, std::string_view name, std::string_view data);

/// Bytes that append_tar_member() appends.
int64_t tar_member_bytes(std::string_view name, int64_t bytes);

/// What ends an archive: two blocks of zeros.
std::string tar_end();

}  // namespace tutti::data::detail
