/// AgreedLines: what several processes must have been asked for alike, a line each, and the first
/// in which two of them differ.
/// Thread rule: plain values and pure functions.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <string_view>

namespace tutti {

class AgreedLines {
 public:
  /// "what: value"; what fmt can write, made printable(). A line break in it becomes \n.
  template <class Value>
  void add(std::string_view what, const Value& value) {
    add_line(fmt::format("{}: {}", what, value));
  }
  void add_line(std::string_view line);

  /// All of them, each with a newline behind it.
  const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

struct LineDifference {
  std::string first;  ///< line of the one; "nothing more" where it has ended
  std::string other;
};

/// The first line in which two texts differ; none: they are equal.
std::optional<LineDifference> first_difference(std::string_view one, std::string_view other);

}  // namespace tutti
