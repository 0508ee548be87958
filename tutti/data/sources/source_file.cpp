#include "tutti/data/sources/detail/source_file.h"

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti::data::detail {

void require_unchanged(const Files& files, const std::filesystem::path& path,
                       const FileInfo& known) {
  FileInfo now;
  try {
    now = files.info(path);
  } catch (const DataError& error) {
    throw DataError(
        fmt::format("{}\n  it was there when the data was opened: put it back, or start "
                    "again without it",
                    error.what()));
  }
  if (now.bytes == known.bytes && now.modified_ns == known.modified_ns) return;
  throw DataError(fmt::format(
      "{}: changed since the data was opened: got {} bytes, modified at {} ns, "
      "expected {} bytes, {} ns\n  leave data alone while it is in use, and start again",
      path.string(), now.bytes, now.modified_ns, known.bytes, known.modified_ns));
}

void make_lower(std::string& text) {
  for (char& letter : text)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
}

bool has_ending(std::string_view name, std::span<const std::string> endings) {
  std::string lower(name);
  make_lower(lower);
  return std::ranges::any_of(endings, [&](const std::string& ending) {
    return lower.size() > ending.size() && lower.ends_with(ending);
  });
}

std::vector<std::string> numbered_classes(int64_t count) {
  std::vector<std::string> names;
  for (int64_t label = 0; label < count; ++label) names.push_back(std::to_string(label));
  return names;
}

std::string quoted_words(std::string_view text) {
  constexpr size_t kMost = 60;
  return text.size() <= kMost ? fmt::format("\"{}\"", text)
                              : fmt::format("\"{}...\"", text.substr(0, kMost));
}

}  // namespace tutti::data::detail
