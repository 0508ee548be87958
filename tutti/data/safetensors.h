/// The safetensors format: named arrays and text metadata in one file, readable from any language.
///
/// Models are saved in it. docs/formats/safetensors.md describes the layout.
/// Thread rule: free functions without shared state; two writers of one path: the last one wins.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/base/sha256.h"

namespace tutti::data {

struct NamedArray {
  std::string name;  ///< UTF-8, unique in its file, not "__metadata__"
  Array array;
};

struct Safetensors {
  std::vector<NamedArray> arrays;               ///< in the order of their bytes in the file
  std::map<std::string, std::string> metadata;  ///< free text by key; the format's __metadata__

  /// The array of that name, or nullptr.
  const Array* find(const std::string& name) const noexcept;
};

/// Writes a file atomically: until everything is on disk, an earlier file of that name stays as it
/// was, and nothing else is left behind (see tutti/base/file.h).
///
/// The arrays are laid out by falling element size, then by name, so each is aligned for its dtype
/// and equal content gives equal bytes. Throws UsageError for a name that is empty, there twice or
/// "__metadata__"; Error with path and cause when the file cannot be written (disk full, ...).
/// `digest` is given the bytes of the file.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedArray>& arrays,
                       const std::map<std::string, std::string>& metadata = {},
                       Sha256* digest = nullptr);

/// Reads a file; its arrays are read-only views of a mapping that they keep alive (copies where the
/// file does not align them for their dtype).
///
/// Throws DataError, with what was got and expected, when the file is missing, unreadable or
/// truncated; when the header is no valid JSON, has a key twice or one that is unknown; when a
/// dtype has no counterpart (F8_E4M3, ...), or shapes and offsets disagree, overlap or leave bytes
/// over.
Safetensors read_safetensors(const std::filesystem::path& path);

}  // namespace tutti::data
