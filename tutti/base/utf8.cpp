#include "tutti/base/utf8.h"

#include <fmt/format.h>

namespace tutti {

std::optional<CodePoint> first_character(std::string_view text) {
  const auto octet = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = octet(0);
  if (lead < 0x80) return CodePoint{lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return std::nullopt;
  char32_t value = lead & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((octet(i) & 0xC0) != 0x80) return std::nullopt;
    value = value << 6 | (octet(i) & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  if (value < kLeast[bytes] || surrogate || value > 0x10FFFF) return std::nullopt;
  return CodePoint{value, bytes};
}

size_t first_wrong_byte(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto character = first_character(text.substr(at));
    if (!character) break;
    at += character->bytes;
  }
  return at;
}

std::string wrong_byte_words(char byte) {
  const auto value = static_cast<uint8_t>(byte);
  const std::string seen = fmt::format("byte {:02x}, which is no UTF-8 there", value);
  // From a0 on Latin-1 has the numbers of Unicode, before that nothing which is written.
  if (value < 0xA0) return seen + "; of Windows-1252? iconv -f cp1252 -t utf-8 FILE > NEW";
  const char letter[] = {static_cast<char>(0xC0 | value >> 6),
                         static_cast<char>(0x80 | (value & 0x3F))};
  return seen + fmt::format("; in Latin-1 it is \"{}\": iconv -f latin1 -t utf-8 FILE > NEW",
                            std::string_view(letter, sizeof letter));
}

bool is_utf16(std::string_view text) {
  return text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
}

}  // namespace tutti
