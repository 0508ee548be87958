/// Text in UTF-8 (RFC 3629), and what it may be in where it is not.
/// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tutti {

struct CodePoint {
  char32_t value = 0;
  size_t bytes = 0;
};

/// The character at the front of `text`, which is not empty; none where that is no UTF-8: cut off,
/// longer than need be, half of a surrogate pair, or beyond U+10FFFF.
std::optional<CodePoint> first_character(std::string_view text);

/// Where `text` is no UTF-8 first; its size where all of it is.
size_t first_wrong_byte(std::string_view text);

/// "byte e9, which is no UTF-8 there; in Latin-1 it is "é": iconv -f latin1 -t utf-8 FILE > NEW"
std::string wrong_byte_words(char byte);

/// Whether it begins with the mark of byte order of UTF-16.
bool is_utf16(std::string_view text);
inline constexpr std::string_view kUtf16Words =
    "text in UTF-16, expected UTF-8: iconv -f utf-16 -t utf-8 FILE > NEW";

}  // namespace tutti
