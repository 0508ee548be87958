#include "tutti/base/typed.h"

namespace tutti {

std::optional<int64_t> size_in(std::string_view text) {
  constexpr int64_t kMost = int64_t{1} << 40;
  int64_t unit = 1;
  if (!text.empty()) {
    const size_t letter = std::string_view("KMG").find(text.back());
    if (letter != std::string_view::npos) {
      unit = int64_t{1} << (10 * (letter + 1));
      text.remove_suffix(1);
    }
  }
  const auto number = number_in<int64_t>(text);
  if (!number || *number < 0 || *number > kMost / unit) return std::nullopt;
  return *number * unit;
}

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace tutti
