/// JSON that others wrote: in files, in the environment, between processes. All of it is read by
/// parse_json().
///
/// nlohmann's reader takes any depth, but its dump(), copies and comparisons go as deep as the text
/// says, and so does what walks over a value: a line of 100,000 brackets would end the process by
/// the overflow of its stack. Thread rule: pure functions.
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

namespace tutti {

/// Arrays and objects within one another, unless a format says fewer.
inline constexpr int kMostJsonDepth = 256;

/// Throws nlohmann::json::exception, with line and column, where `text` opens an array or object
/// more than `most_depth` deep. Whether it is JSON otherwise is not looked at.
void require_json_depth(std::string_view text, int most_depth);

/// The value that `text` is; `take` is nlohmann's callback. Throws nlohmann::json::exception, with
/// line and column, for what is no JSON or nested deeper than `most_depth`.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, int most_depth = kMostJsonDepth,
                const typename Json::parser_callback_t& take = nullptr) {
  require_json_depth(text, most_depth);
  return Json::parse(text, take);
}

}  // namespace tutti
