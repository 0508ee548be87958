#include "tutti/base/agreed_lines.h"

#include <algorithm>
#include <limits>

#include "tutti/base/printable.h"

namespace tutti {

void AgreedLines::add_line(std::string_view line) {
  std::string one;
  for (const char c : line) c == '\n' ? one += "\\n" : one += c;
  text_ += printable(one, std::numeric_limits<size_t>::max()) + '\n';
}

std::optional<LineDifference> first_difference(std::string_view one, std::string_view other) {
  const auto take_line = [](std::string_view& text) {
    if (text.empty()) return std::string("nothing more");
    const std::string line(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    return line;
  };
  while (!one.empty() || !other.empty()) {
    LineDifference lines{take_line(one), take_line(other)};
    if (lines.first != lines.other) return lines;
  }
  return std::nullopt;
}

}  // namespace tutti
