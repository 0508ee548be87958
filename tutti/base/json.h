/// JSON that others wrote or read: in files, in the environment, between processes. All of it is
/// read by parse_json() and written by dump_json(), for nlohmann::json and nlohmann::ordered_json:
/// what a compiler makes of nlohmann's reader and writer costs two seconds, once here, not in every
/// source.
///
/// nlohmann's reader takes any depth, but its dump(), copies and comparisons go as deep as the text
/// says, and so does what walks over a value: a line of 100,000 brackets would end the process by
/// the overflow of its stack. Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tutti {

/// Arrays and objects within one another, unless a format says fewer.
inline constexpr int kMostJsonDepth = 256;

/// The value that `text` is; `take` is nlohmann's callback. Throws nlohmann::json::exception, with
/// line and column, for what is no JSON or nested deeper than `most_depth`.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, int most_depth = kMostJsonDepth,
                const typename Json::parser_callback_t& take = nullptr);

/// Whether `text` is JSON, however deep.
bool is_json(std::string_view text);

/// `json` as text: on one line, or with `indent` spaces a level on lines of their own. Throws
/// nlohmann::json::exception for a string that is not UTF-8.
template <class Json>
std::string dump_json(const Json& json, int indent = -1);

/// The same with U+FFFD for what is not UTF-8; `ascii`: with escapes for all that is not ASCII.
template <class Json>
std::string dump_json_lossy(const Json& json, int indent = -1, bool ascii = false);

}  // namespace tutti
