#include "tutti/cli/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/base/standard_streams.h"
#include "tutti/base/suggest.h"
#include "tutti/base/typed.h"
#include "tutti/comm/compression/compression.h"
#include "tutti/device/devices.h"

namespace tutti::cli {
namespace {

template <class Accept>
Check number_check(Accept accept, const std::string& expected) {
  return {[accept, expected](std::string& text) {
    const auto value = number_in<double>(text);
    if (value && accept(*value)) return std::string();
    return fmt::format("got \"{}\"; expected {}", text, expected);
  }};
}

// Becomes the number as it was read: CLI11 would take a leading 0 for octal.
bool is_whole(std::string& text, int64_t low, int64_t high) {
  const auto value = number_in<int64_t>(text);
  if (!value || *value < low || *value > high) return false;
  text = std::to_string(*value);
  return true;
}

bool is_one_of(const std::vector<std::string>& known, const std::string& text) {
  return std::ranges::find(known, text) != known.end();
}

}  // namespace

Check whole_number(int64_t low, int64_t high) {
  return {[low, high](std::string& text) {
    if (is_whole(text, low, high)) return std::string();
    return fmt::format("got \"{}\"; expected a whole number, {} to {}", text, low, high);
  }};
}

Check positive_number(double high) {
  return number_check([high](double value) { return value > 0 && value <= high; },
                      fmt::format("a number above 0, at most {}", high));
}

Check number_between(double low, double high) {
  return number_check([low, high](double value) { return value >= low && value <= high; },
                      fmt::format("a number, {} to {}", low, high));
}

Millis millis_of(double seconds) { return Millis(static_cast<int64_t>(std::ceil(seconds * 1000))); }

Check some_name() {
  return {[](std::string& text) {
    return text.empty() ? std::string("got \"\"; expected a name") : std::string();
  }};
}

Check one_of(std::string what, std::vector<std::string> known, std::vector<std::string> later) {
  return {.answer =
              [what = std::move(what), known, later = std::move(later)](std::string& text) {
                if (is_one_of(known, text)) return std::string();
                if (is_one_of(later, text))
                  return fmt::format("{} \"{}\" is not in this version; it has {}", what, text,
                                     fmt::join(known, ", "));
                return unknown_message(what, text, known);
              },
          .words = known};
}

Check in_range(int64_t low, int64_t high) {
  return {.answer =
              [low, high](std::string& text) {
                if (is_whole(text, low, high)) return std::string();
                return fmt::format("Value {} not in range {} to {}", text, low, high);
              },
          .described = fmt::format("INT in [{} - {}]", low, high)};
}

Check member_of(const std::vector<std::string>& known) {
  const std::string all = fmt::format("{{{}}}", fmt::join(known, ","));
  return {.answer =
              [known, all](std::string& text) {
                return is_one_of(known, text) ? "" : fmt::format("{} not in {}", text, all);
              },
          .described = all};
}

Check renamed_word(std::string flag, std::string word, std::string now, Check check) {
  const auto asked = check.answer;
  check.answer = [flag = std::move(flag), word = std::move(word), now = std::move(now),
                  asked](std::string& text) {
    if (text == word) {
      say_to(stderr, "tutti: {0} {1} is {0} {2} now; {1} goes with the next release\n", flag, word,
             now);
      text = now;
    }
    return asked(text);
  };
  return check;
}

Check compression_word() {
  return {[](std::string& text) {
    try {
      compression_from(text);
      return std::string();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  }};
}

Check device_words() {
  return {
      .answer =
          [](std::string& text) {
            try {
              check_device_words(text);
              return std::string();
            } catch (const UsageError& error) {  // the parser says the flag
              return std::string(error.what()).substr(fmt::format("--device {}: ", text).size());
            }
          },
      .words = {"cpu", "cuda", "auto"}};
}

std::vector<int64_t> parse_sizes(const std::string& flag, const std::string& text) {
  std::vector<int64_t> sizes;
  for (const std::string_view part : parts_of(text, ',')) {
    const auto size = size_in(part);
    if (!size)
      throw UsageError(fmt::format(
          "{}: got \"{}\" in \"{}\"; expected sizes in bytes, as in 8,1K,64M", flag, part, text));
    sizes.push_back(*size);
  }
  return sizes;
}

std::vector<int64_t> parse_numbers(const std::string& flag, const std::string& text, int64_t low,
                                   int64_t high) {
  std::vector<int64_t> numbers;
  for (const std::string_view part : parts_of(text, ',')) {
    const auto number = number_in<int64_t>(part);
    if (!number || *number < low || *number > high)
      throw UsageError(
          fmt::format("{}: got \"{}\" in \"{}\"; expected whole numbers, {} to {}, as in "
                      "1,2,4",
                      flag, part, text, low, high));
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace tutti::cli
