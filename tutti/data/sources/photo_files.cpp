#include "tutti/data/sources/detail/photo_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/data/sample.h"
#include "tutti/data/sources/detail/source_file.h"
#include "tutti/data/sources/records.h"

namespace tutti::data::detail {
namespace {

const std::vector<std::string>& usual_endings() {
  static const std::vector<std::string> kEndings = {".jpg", ".jpeg", ".jpe", ".jfif",
                                                    ".png", ".webp", ".bmp"};
  return kEndings;
}

}  // namespace

bool is_photo_file(const Files& files, const std::filesystem::path& folder, const FileInfo& file,
                   const std::vector<std::string>& endings) {
  if (file.folder) return false;
  if (!endings.empty()) return has_ending(file.name, endings);
  if (has_ending(file.name, usual_endings())) return true;
  constexpr int64_t kMagicBytes = 16;
  try {
    const Array front = files.read(folder / file.name, 0, std::min(kMagicBytes, file.bytes));
    return !photo_format(text_of(front)).empty();
  } catch (const UsageError&) {  // nobody may read it: left out, and said
    return false;
  } catch (const DataError&) {  // no regular file
    return false;
  }
}

std::string usual_photo_endings() { return fmt::format("{}", fmt::join(usual_endings(), ", ")); }

void LeftOut::add(const std::string& path) {
  Files& files = by_ending_[std::filesystem::path(path).extension().string()];
  if (files.count++ == 0) files.first = path;
}

std::string LeftOut::to_string() const {
  std::vector<std::pair<std::string, Files>> kinds(by_ending_.begin(), by_ending_.end());
  std::ranges::stable_sort(kinds, std::greater<>(),
                           [](const auto& kind) { return kind.second.count; });
  constexpr size_t kMostKinds = 5;
  int64_t all = 0;
  std::vector<std::string> words;
  for (const auto& [ending, files] : kinds) {
    all += files.count;
    if (words.size() < kMostKinds)
      words.push_back(fmt::format("{} {} ({}{})", files.count,
                                  ending.empty() ? "without an ending" : ending, files.first,
                                  files.count > 1 ? ", ..." : ""));
  }
  return fmt::format("{} file{} left out: {}{}", all, all == 1 ? " is" : "s are",
                     fmt::join(words, ", "), kinds.size() > kMostKinds ? ", ..." : "");
}

}  // namespace tutti::data::detail
