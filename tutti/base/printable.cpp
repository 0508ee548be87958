#include "tutti/base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "tutti/base/utf8.h"

namespace tutti {
namespace {

constexpr std::string_view kIndent = "  ";

bool is_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xc0U) == 0x80; }

/// Bytes of the character at the begin of `text`; 0 where that is no UTF-8, or a control character:
/// U+0000 to U+001F, U+007F to U+009F.
size_t character_bytes(std::string_view text) {
  const auto character = first_character(text);
  if (!character || character->value < 0x20) return 0;
  return character->value >= 0x7f && character->value < 0xa0 ? 0 : character->bytes;
}

std::string without_its_middle(const std::string& text, size_t most_bytes) {
  constexpr size_t kWords = 64;  // more than what stands in its place
  const size_t kept = most_bytes - std::min(most_bytes, kWords);
  size_t head = kept / 4 * 3;
  size_t tail = text.size() - kept / 4;
  while (head > 0 && is_continuation(text[head])) --head;
  while (tail < text.size() && is_continuation(text[tail])) ++tail;
  return fmt::format("{} ... ({} bytes left out) ... {}", std::string_view(text).substr(0, head),
                     tail - head, std::string_view(text).substr(tail));
}

}  // namespace

std::string printable(std::string_view text, size_t most_bytes) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    size_t taken = text[0] == '\n' || text[0] == '\t' ? 1 : character_bytes(text);
    if (taken > 0) {
      out += text.substr(0, taken);
    } else {
      taken = 1;
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[0]));
    }
    const bool ended_a_line = text[0] == '\n';
    text.remove_prefix(taken);
    const bool more = !text.empty() && text[0] != '\n';
    if (ended_a_line && more && !text.starts_with(kIndent)) out += kIndent;
  }
  return out.size() > most_bytes ? without_its_middle(out, most_bytes) : out;
}

}  // namespace tutti
