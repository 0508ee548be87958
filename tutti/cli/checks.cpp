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
CLI::Validator number_check(Accept accept, const std::string& expected) {
  return CLI::Validator(
      [accept, expected](std::string& text) {
        const auto value = number_in<double>(text);
        if (value && accept(*value)) return std::string();
        return fmt::format("got \"{}\"; expected {}", text, expected);
      },
      "");
}

}  // namespace

CLI::Validator whole_number(int64_t low, int64_t high) {
  return CLI::Validator(
      [low, high](std::string& text) {
        const auto value = number_in<int64_t>(text);
        if (value && *value >= low && *value <= high) return std::string();
        return fmt::format("got \"{}\"; expected a whole number, {} to {}", text, low, high);
      },
      "");
}

CLI::Validator positive_number(double high) {
  return number_check([high](double value) { return value > 0 && value <= high; },
                      fmt::format("a number above 0, at most {}", high));
}

CLI::Validator number_between(double low, double high) {
  return number_check([low, high](double value) { return value >= low && value <= high; },
                      fmt::format("a number, {} to {}", low, high));
}

Millis millis_of(double seconds) { return Millis(static_cast<int64_t>(std::ceil(seconds * 1000))); }

CLI::Validator some_name() {
  return CLI::Validator(
      [](std::string& text) {
        return text.empty() ? std::string("got \"\"; expected a name") : std::string();
      },
      "");
}

CLI::Validator one_of(std::string what, std::vector<std::string> known,
                      std::vector<std::string> later) {
  std::string words = fmt::format("{}", fmt::join(known, " "));  // for completion_of()
  CLI::Validator validator(
      [what = std::move(what), known = std::move(known),
       later = std::move(later)](std::string& text) {
        if (std::find(known.begin(), known.end(), text) != known.end()) return std::string();
        if (std::find(later.begin(), later.end(), text) != later.end())
          return fmt::format("{} \"{}\" is not in this version; it has {}", what, text,
                             fmt::join(known, ", "));
        return unknown_message(what, text, known);
      },
      "");
  return validator.name(std::move(words));
}

CLI::Validator renamed_word(std::string flag, std::string word, std::string now) {
  return CLI::Validator(
      [flag = std::move(flag), word = std::move(word), now = std::move(now)](std::string& text) {
        if (text != word) return std::string();
        say_to(stderr, "tutti: {0} {1} is {0} {2} now; {1} goes with the next release\n", flag,
               word, now);
        text = now;
        return std::string();
      },
      "");
}

CLI::Validator compression_word() {
  return CLI::Validator(
      [](std::string& text) {
        try {
          compression_from(text);
          return std::string();
        } catch (const UsageError& error) {
          return std::string(error.what());
        }
      },
      "");
}

CLI::Validator device_words() {
  CLI::Validator validator(
      [](std::string& text) {
        try {
          check_device_words(text);
          return std::string();
        } catch (const UsageError& error) {  // CLI11 says the flag
          return std::string(error.what()).substr(fmt::format("--device {}: ", text).size());
        }
      },
      "");
  return validator.name("cpu cuda auto");  // for completion_of()
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
