/// Files as a whole: mapped for reading, replaced atomically for writing.
///
/// Use write_file_atomically() for everything a run leaves behind (weights, JSON, CSV): a reader
/// sees the old file or the new one, never a part. Thread rule: free functions, no shared state.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "tutti/base/sha256.h"

namespace tutti {

/// The bytes of a file, mapped read-only and private. Cheap to copy; the last copy unmaps.
struct MappedFile {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  ///< keeps `bytes` alive
};

/// Maps a regular file. Throws DataError with path and cause when that cannot be done.
/// If somebody truncates the file later, touching the missing part ends the process (SIGBUS).
MappedFile map_file(const std::filesystem::path& path);

/// What writes past the page cache want of addresses, places and sizes, on any disk of today.
inline constexpr size_t kDirectAlignment = 4096;

/// Replaces `path` by the pieces, one after another, or leaves it as it was.
///
/// The bytes go to a file without a name in the same folder, are synced, get a name, and are
/// renamed to `path`; the folder is synced last. A death on the way leaves nothing (on file systems
/// without O_TMPFILE: a file `.tutti-<random>.tmp`). Links are followed. A device or pipe
/// (/dev/stdout) is written directly. Files of 8 MiB and more go past the page cache where the file
/// system can do that: whoever trains keeps the core; one piece at a multiple of kDirectAlignment
/// is not even copied. `digest` is given the bytes. Throws Error with path, bytes and cause; an
/// earlier file is then untouched.
void write_file_atomically(const std::filesystem::path& path,
                           std::span<const std::span<const std::byte>> pieces,
                           Sha256* digest = nullptr);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Checks before work starts that write_file_atomically(path) could make its file; `what` names the
/// flag or use ("--json"). Throws UsageError with path and cause; leaves nothing behind.
void require_writable(const std::filesystem::path& path, std::string_view what);

}  // namespace tutti
