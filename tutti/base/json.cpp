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

/// Throws where `text` opens an array or object more than `most_depth` deep. Whether it is JSON
/// otherwise is not looked at.
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

}  // namespace

template <class Json>
Json parse_json(std::string_view text, int most_depth,
                const typename Json::parser_callback_t& take) {
  require_json_depth(text, most_depth);
  return Json::parse(text, take);
}

bool is_json(std::string_view text) { return nlohmann::json::accept(text); }

template <class Json>
std::string dump_json(const Json& json, int indent) {
  return json.dump(indent);
}

template <class Json>
std::string dump_json_lossy(const Json& json, int indent, bool ascii) {
  return json.dump(indent, ' ', ascii, Json::error_handler_t::replace);
}

template nlohmann::json parse_json<nlohmann::json>(std::string_view, int,
                                                   const nlohmann::json::parser_callback_t&);
template nlohmann::ordered_json parse_json<nlohmann::ordered_json>(
    std::string_view, int, const nlohmann::ordered_json::parser_callback_t&);
template std::string dump_json(const nlohmann::json&, int);
template std::string dump_json(const nlohmann::ordered_json&, int);
template std::string dump_json_lossy(const nlohmann::json&, int, bool);
template std::string dump_json_lossy(const nlohmann::ordered_json&, int, bool);

}  // namespace tutti
