/// Numbers, sizes and lists in text: that people type, and of files and messages. Thread rule: pure
/// functions.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace tutti {

/// All of `text` as a number; nothing when it is none, or not one of that type. "nan" and "inf" are
/// none: where a word means either, it is asked for by itself.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::floating_point<Number>)
    if (!std::isfinite(value)) return std::nullopt;
  return value;
}

/// Whether float32, in which parameters are, keeps `value`: it is 0, or not so small that digits of
/// it are lost, nor infinite or NaN.
constexpr bool fits_float32(double value) {
  const double size = value < 0 ? -value : value;
  return value == 0 ||
         (size >= std::numeric_limits<float>::min() && size <= std::numeric_limits<float>::max());
}

/// That, in words for errors.
inline constexpr std::string_view kFloat32Range = "a number that float32 keeps, 1.2e-38 to 3.4e38";

/// Bytes, with K, M, G for powers of 1024: "8", "1K", "64M"; from 0 to 1 TiB.
std::optional<int64_t> size_in(std::string_view text);

/// What stands between separators: "a,,b" is "a", "" and "b".
std::vector<std::string_view> parts_of(std::string_view text, char separator);

}  // namespace tutti
