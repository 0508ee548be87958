/// What sources of files have in common.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tutti/data/files.h"

namespace tutti::data::detail {

/// Throws DataError that names the file when it is gone, or has another size or time than `known`:
/// rows read before and after would not belong to one data set.
void require_unchanged(const Files& files, const std::filesystem::path& path,
                       const FileInfo& known);

/// Of ASCII alone, whatever the locale.
void make_lower(std::string& text);

/// Whether a name ends in one of `endings` (lower case) and begins with something else; the name's
/// case does not count.
bool has_ending(std::string_view name, std::span<const std::string> endings);

/// "0", "1", ...: names of classes that have none.
std::vector<std::string> numbered_classes(int64_t count);

/// With which some programs begin a file of UTF-8.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

/// `text` cut to what fits in a message, in quotes.
std::string quoted_words(std::string_view text);

}  // namespace tutti::data::detail
