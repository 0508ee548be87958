/// FileFacts: what a manifest says of a file beside it, and whether the file is still so.
/// Thread rule: free functions; damage_of() waits for the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tutti::store {

struct FileFacts {
  std::string name;  ///< in the manifest's folder
  int64_t bytes = 0;
  std::string sha256;
};

/// 64 hex digits, as files and manifests have them.
bool is_sha256(std::string_view text) noexcept;

/// "has 40 bytes, 50 were written", or the same of its sha256; "" where all of it is as it was
/// written. Throws as digest_of_file() does.
std::string damage_of(const FileFacts& facts, const std::filesystem::path& folder);

}  // namespace tutti::store
