/// The safetensors format: named arrays and text metadata in one file, readable from any language.
///
/// Models are saved in it. docs/formats/safetensors.md describes the layout.
/// Thread rule: free functions without shared state; two writers of one path: the last one wins.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/base/sha256.h"

namespace tutti {
struct MappedFile;
}

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
/// `digest` is given the bytes of the file. Returns how many they are.
int64_t write_safetensors(const std::filesystem::path& path, const std::vector<NamedArray>& arrays,
                          const std::map<std::string, std::string>& metadata = {},
                          Sha256* digest = nullptr);

/// A file as write_safetensors() lays it out, in memory and at a multiple of kDirectAlignment
/// (tutti/base/file.h), so that write_file_atomically() can write a large one without a copy more:
/// for arrays that change meanwhile. Thread rule: one thread at a time per object.
class SafetensorsImage {
 public:
  /// Lays out names, dtypes and shapes of `arrays`, whose elements are not looked at. Returns where
  /// those go, in the order of `arrays`; the caller fills them. Keeps the memory of the layout
  /// before where that is enough: pages that are new cost more than a copy, so views of that one
  /// are the same bytes. Throws UsageError for names as write_safetensors() does.
  std::vector<Array> lay_out(const std::vector<NamedArray>& arrays,
                             const std::map<std::string, std::string>& metadata = {});

  /// The file; empty before the first layout.
  std::span<const std::byte> bytes() const noexcept { return {memory_.get(), size_}; }

 private:
  void make_room(size_t bytes);

  std::shared_ptr<std::byte> memory_;
  size_t size_ = 0, room_ = 0;
};

/// Reads a file; its arrays are read-only views of a mapping that they keep alive (copies where the
/// file does not align them for their dtype).
///
/// Throws DataError, with what was got and expected, when the file is missing, unreadable or
/// truncated; when the header is no valid JSON, has a key twice or one that is unknown; when a
/// dtype has no counterpart (F8_E4M3, ...), or shapes and offsets disagree, overlap or leave bytes
/// over.
Safetensors read_safetensors(const std::filesystem::path& path);

/// The same of a file that is in memory; `path` is what errors name.
Safetensors parse_safetensors(MappedFile file, const std::filesystem::path& path);

}  // namespace tutti::data
