/// Files as a whole: mapped for reading, replaced atomically for writing.
///
/// Use write_file_atomically() for everything a run leaves behind (weights, JSON, CSV): a reader
/// sees the old file or the new one, never a part. Thread rule: free functions, no shared state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/base/file_descriptor.h"
#include "tutti/base/sha256.h"

namespace tutti {

/// A file could not be reached or read just now: the disk or the mount answers with an error (EIO,
/// ESTALE), the process has too many open. What is in it may be sound: mend that, try again.
class IoError : public Error {
 public:
  using Error::Error;
};

/// A file could not be written: the disk is full, say. What was there before is untouched.
class WriteError : public Error {
 public:
  using Error::Error;
};

/// The bytes of a file, mapped read-only and private. Cheap to copy; the last copy unmaps.
struct MappedFile {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  ///< keeps `bytes` alive
};

/// Opens a regular file to read from it: what every file that a user names goes through. A pipe, a
/// device, a socket or a folder is an error at once, and nobody waits for a pipe's other end.
/// Throws as map_file() does.
FileDescriptor open_to_read(const std::filesystem::path& path);

/// Maps a regular file. Throws, with path and cause: DataError when it is not there or is no
/// regular file, UsageError when this user may not read it, IoError when it cannot be read just
/// now. If somebody truncates the file later, or the disk fails, touching the missing part ends the
/// process (SIGBUS).
MappedFile map_file(const std::filesystem::path& path);

/// The bytes of a regular file, read at once: for small ones. Throws as map_file() does; a disk
/// that fails on the way is an IoError.
std::string read_file(const std::filesystem::path& path);

/// What another host has made in a folder is sure to be seen through NFS by who opens the folder,
/// and what it has written into a file by who opens that, once it is synced or closed there
/// (close-to-open consistency, and no more): a mere look may be answered from what was known a
/// minute ago. One that is not there is no error.
void open_folder_anew(const std::filesystem::path& folder);

struct FileDigest {
  int64_t bytes = 0;
  std::string sha256;
};

/// Reads a regular file from begin to end. Throws as read_file() does.
FileDigest digest_of_file(const std::filesystem::path& path);

/// What writes past the page cache want of addresses, places and sizes, on any disk of today.
inline constexpr size_t kDirectAlignment = 4096;

/// Replaces `path` by the pieces, one after another, or leaves it as it was.
///
/// The bytes go to a file without a name in the same folder, are synced, get a name, and are
/// renamed to `path`; the folder is synced last. A death on the way leaves nothing (on file systems
/// without O_TMPFILE: a file `.tutti-<random>.tmp`). Links are followed. A device or pipe
/// (/dev/stdout) is written directly. Files of 8 MiB and more go past the page cache where the file
/// system can do that: whoever trains keeps the core; one piece at a multiple of kDirectAlignment
/// is not even copied. `digest` is given the bytes. `turn` is called before each piece of work, a
/// fraction of a millisecond of a core, and may wait. Throws WriteError with path, bytes and cause,
/// and what `turn` throws; an earlier file is then untouched.
void write_file_atomically(const std::filesystem::path& path,
                           std::span<const std::span<const std::byte>> pieces,
                           Sha256* digest = nullptr, const std::function<void()>& turn = {});
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// Checks before work starts that write_file_atomically(path) could make its file; `what` names the
/// flag or use ("--json"). Throws UsageError with path and cause; leaves nothing behind.
void require_writable(const std::filesystem::path& path, std::string_view what);

}  // namespace tutti
