#include "tutti/data/sources/records.h"

#include <fnmatch.h>

#include "tutti/base/error.h"
#include "tutti/base/sha256.h"
#include "tutti/data/sources/detail/file_rows.h"

namespace tutti::data {
namespace {

// "shard-{000..146}.tar" counted out; `path` itself where nothing is to be counted.
std::vector<std::string> counted_out(const std::string& path) {
  const size_t open = path.find('{'), dots = path.find("..", open), close = path.find('}', open);
  if (open == std::string::npos || dots == std::string::npos || close == std::string::npos ||
      dots > close)
    return {path};
  const std::string first = path.substr(open + 1, dots - open - 1);
  const std::string last = path.substr(dots + 2, close - dots - 2);
  const auto digits = [](const std::string& text) {
    return !text.empty() && text.size() <= 9 &&
           text.find_first_not_of("0123456789") == std::string::npos;
  };
  if (!digits(first) || !digits(last) || std::stol(first) > std::stol(last))
    throw UsageError(
        fmt::format("{}: expected {{first..last}} with two rising numbers, as {{000..146}}", path));
  std::vector<std::string> all;
  for (long i = std::stol(first); i <= std::stol(last); ++i)
    for (const std::string& rest : counted_out(path.substr(close + 1)))
      all.push_back(fmt::format("{}{:0{}}{}", path.substr(0, open), i, first.size(), rest));
  return all;
}

}  // namespace

std::string Finding::to_string() const {
  std::string words = file.string();
  if (record >= 0) words += fmt::format(", record {}", record);
  if (byte >= 0)
    words += record >= 0 ? fmt::format(" (byte {})", byte) : fmt::format(", byte {}", byte);
  return words + ": " + what;
}

std::string_view photo_format(std::string_view bytes) noexcept {
  if (bytes.starts_with("\xff\xd8\xff")) return "jpg";
  if (bytes.starts_with("\x89PNG")) return "png";
  if (bytes.starts_with("RIFF") && bytes.substr(0, 12).ends_with("WEBP")) return "webp";
  // "BM" begins words, too: a BMP has four bytes of zeros where nothing is kept.
  return bytes.starts_with("BM") && bytes.substr(6, 4) == std::string_view("\0\0\0\0", 4) ? "bmp"
                                                                                          : "";
}

namespace detail {

bool is_numbered(std::string_view name) {
  return ::fnmatch("*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]",
                   std::string(name).c_str(), 0) == 0;
}

std::vector<std::filesystem::path> record_files(const Files& files, const Paths& paths,
                                                std::span<const std::string_view> endings,
                                                bool numbered) {
  std::vector<std::filesystem::path> found;
  const auto add_matching = [&](const std::filesystem::path& folder, const auto& matches,
                                const std::string& looked_for) {
    const size_t before = found.size();
    for (const FileInfo& file : files.list(folder))
      if (!file.folder && matches(file.name)) found.push_back(folder / file.name);
    if (found.size() == before)
      throw UsageError(fmt::format("{}: no file there is named {}", folder.string(), looked_for));
  };
  for (const std::filesystem::path& given : paths.list)
    for (const std::filesystem::path path : counted_out(given.string())) {
      const std::string pattern = path.filename().string();
      if (pattern.find_first_of("*?[") != std::string::npos) {
        const auto matches = [&](const std::string& name) {
          return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0 &&
                 !name.ends_with(".tutti-index");
        };
        add_matching(path.has_parent_path() ? path.parent_path() : ".", matches, pattern);
      } else if (files.info(path).folder) {
        const auto matches = [&](const std::string& name) {
          return (numbered && is_numbered(name)) ||
                 std::ranges::any_of(endings, [&](auto ending) { return name.ends_with(ending); });
        };
        add_matching(path, matches,
                     fmt::format("*{}\n  name the files by a pattern", fmt::join(endings, ", *")));
      } else {
        found.push_back(path);
      }
    }
  if (found.empty()) throw UsageError("expected a file, a pattern or a folder; got no path");
  return found;
}

std::string FileRows::fingerprint(const std::vector<Column>& columns, std::string_view how) const {
  Sha256 digest;
  digest.update(fingerprint_of(infos_));
  for (const Column& column : columns) digest.update("\n" + column.to_string());
  digest.update(how);
  return digest.hex();
}

}  // namespace detail
}  // namespace tutti::data
