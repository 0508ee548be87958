/// JSON that came from a file or a peer: 0.5 is no integer here, of which Json itself cuts the
/// fraction off. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"

namespace tutti::ps::detail {

/// `value` for messages, cut off.
inline std::string shown(const Json& value) {
  constexpr size_t kMostShown = 80;
  std::string text = dump_json(value);
  if (text.size() > kMostShown) text.replace(kMostShown, std::string::npos, "...");
  return text;
}

/// An integer from `low` to `high`. Throws Error naming `field`, what was got and expected.
template <class T>
T whole_number(const Json& value, std::string_view field, T low = std::numeric_limits<T>::min(),
               T high = std::numeric_limits<T>::max()) {
  const auto in_range = [&](auto number) {
    return std::cmp_greater_equal(number, low) && std::cmp_less_equal(number, high);
  };
  const bool fits = value.is_number_unsigned()  ? in_range(value.get<uint64_t>())
                    : value.is_number_integer() ? in_range(value.get<int64_t>())
                                                : false;
  if (!fits)
    throw Error(fmt::format("{}: got {}, expected an integer from {} to {}", field, shown(value),
                            low, high));
  return value.get<T>();
}

/// read(JSON of `text`). An Error says that `what` cannot be read where that is no such JSON.
template <class Read>
auto read_json(std::string_view text, std::string_view what, Read&& read) {
  try {
    return read(parse_json(text));
  } catch (const JsonError& error) {
    throw Error(fmt::format("{} cannot be read: {}", what, error.what()));
  }
}

}  // namespace tutti::ps::detail
