#include "tutti/base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace tutti {
namespace {

class NestedTooDeep final : public nlohmann::json::exception {
 public:
  explicit NestedTooDeep(const std::string& what) : exception(101, what.c_str()) {}
};

[[noreturn]] void fail_depth(std::string_view before, int most_depth) {
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  throw NestedTooDeep(fmt::format(
      "line {}, column {}: arrays and objects are nested deeper than {}",
      std::ranges::count(before, '\n') + 1, before.size() - line_begin + 1, most_depth));
}

}  // namespace

void require_json_depth(std::string_view text, int most_depth) {
  const auto opens = [](char letter) { return letter == '[' || letter == '{'; };
  // Of most texts this is all: a loop that the compiler makes wide.
  if (std::ranges::count_if(text, opens) <= most_depth) return;
  int depth = 0;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char letter = text[at];
    if (quoted) {
      if (letter == '\\') ++at;
      quoted = letter != '"';
    } else if (letter == '"') {
      quoted = true;
    } else if (opens(letter)) {
      if (++depth > most_depth) fail_depth(text.substr(0, at), most_depth);
    } else if (letter == ']' || letter == '}') {
      --depth;
    }
  }
}

}  // namespace tutti
