/// Numbers, sizes and lists in text that people type. Thread rule: pure functions.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tutti {

/// All of `text` as a number; nothing when it is none, or not one of that type.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Bytes, with K, M, G for powers of 1024: "8", "1K", "64M"; from 0 to 1 TiB.
std::optional<int64_t> size_in(std::string_view text);

/// What stands between separators: "a,,b" is "a", "" and "b".
std::vector<std::string_view> parts_of(std::string_view text, char separator);

}  // namespace tutti
