#include "tutti/store/file_facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/file.h"

namespace tutti::store {

bool is_sha256(std::string_view text) noexcept {
  constexpr size_t kDigits = 64;
  return text.size() == kDigits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string damage_of(const FileFacts& facts, const std::filesystem::path& folder) {
  const FileDigest now = digest_of_file(folder / facts.name);  // a disk that fails is no signal
  if (now.bytes != facts.bytes)
    return fmt::format("has {} bytes, {} were written", now.bytes, facts.bytes);
  if (now.sha256 != facts.sha256)
    return fmt::format("has sha256 {}, {} was written", now.sha256, facts.sha256);
  return {};
}

}  // namespace tutti::store
