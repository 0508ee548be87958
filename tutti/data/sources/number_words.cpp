#include "tutti/data/sources/detail/number_words.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tutti/data/sources/detail/csv_records.h"

namespace tutti::data::detail {
namespace {

constexpr size_t kWritings = static_cast<size_t>(NumberWriting::unit) + 1;

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

std::string_view without_sign(std::string_view word) {
  if (!word.empty() && (word[0] == '-' || word[0] == '+')) word.remove_prefix(1);
  return word;
}

size_t digits_at_front(std::string_view word) {
  return static_cast<size_t>(std::ranges::find_if_not(word, is_digit) - word.begin());
}

// Groups of three behind one to three digits, "1.234.567,89" too; "0,370" is none.
bool has_thousands(std::string_view word) {
  word = without_sign(word);
  const size_t first = digits_at_front(word);
  if (first < 1 || first > 3 || first == word.size() || word[0] == '0') return false;
  const char separator = word[first];
  if (std::string_view(",. '_").find(separator) == std::string_view::npos) return false;
  word.remove_prefix(first);
  while (word.size() >= 4 && word[0] == separator && digits_at_front(word.substr(1)) == 3)
    word.remove_prefix(4);
  const bool fraction = word.size() > 1 && (word[0] == '.' || word[0] == ',') &&
                        word[0] != separator && digits_at_front(word.substr(1)) + 1 == word.size();
  return word.empty() || fraction;
}

bool is_percent(std::string_view word) {
  if (!word.ends_with('%')) return false;
  word.remove_suffix(1);
  while (word.ends_with(' ')) word.remove_suffix(1);
  return finite_number(word) || finite_number(word, ',');
}

bool has_exponent_d(std::string_view word) {
  std::string with_e(word);
  const size_t at = with_e.find_first_of("dD");
  if (at == std::string::npos) return false;
  with_e[at] = 'e';
  return finite_number(with_e).has_value();
}

// Digits in three groups or more, or around a colon; "10-19" is a range.
bool is_date(std::string_view word) {
  if (word.empty() || !is_digit(word[0])) return false;
  if (word.find_first_not_of("0123456789-/.: TZ+") != std::string_view::npos) return false;
  const auto separators = std::ranges::count_if(word, [](char c) { return !is_digit(c); });
  return separators >= 2 || word.find(':') != std::string_view::npos;
}

// Digits, behind a sign of currency ($, or one beyond ASCII) at most, that a blank follows or that
// are more than the other characters: "12 kg", "$100", not "10th".
bool has_unit(std::string_view word) {
  if (word.find('-', 1) != std::string_view::npos) return false;  // a range
  word = without_sign(word);
  while (!word.empty() && (word[0] == '$' || word[0] == ' ' || static_cast<uint8_t>(word[0]) > 127))
    word.remove_prefix(1);
  if (word.empty() || !is_digit(word[0])) return false;
  const size_t end = word.find_first_not_of("0123456789.,'");
  const auto digits = std::ranges::count_if(word, is_digit);
  return (end != std::string_view::npos && word[end] == ' ') || 2 * digits > std::ssize(word);
}

struct Advice {
  const char* writing;
  const char* way_out;
};

Advice advice_on(NumberWriting writing) {
  constexpr const char* kRewrite = "write it as a number: digits, a point, an exponent after e";
  switch (writing) {
    case NumberWriting::plain:
      return {"is a number",
              "list the words beside them in `missing` (--missing) if they mark what lacks"};
    case NumberWriting::decimal_comma:
      return {"has a decimal comma", "`decimal` (--decimal ,) reads it"};
    case NumberWriting::thousands:
      return {"has its thousands apart", "take what stands between digits out"};
    case NumberWriting::percent: return {"is a percentage", "take the % out"};
    case NumberWriting::exponent_d: return {"has the exponent of Fortran", kRewrite};
    case NumberWriting::date:
      return {"is a date or a time", "make numbers of it: year, month, seconds"};
    default: return {"is a number with something beside it", kRewrite};
  }
}

}  // namespace

NumberWriting writing_of(std::string_view word) {
  if (finite_number(word)) return NumberWriting::plain;
  if (has_thousands(word)) return NumberWriting::thousands;
  if (finite_number(word, ',')) return NumberWriting::decimal_comma;
  if (is_percent(word)) return NumberWriting::percent;
  if (has_exponent_d(word)) return NumberWriting::exponent_d;
  if (is_date(word)) return NumberWriting::date;
  return has_unit(word) ? NumberWriting::unit : NumberWriting::none;
}

std::optional<NumbersAsWords> numbers_among(const std::vector<std::string>& words) {
  std::array<size_t, kWritings> counts{};
  std::array<const std::string*, kWritings> first{};
  for (const std::string& word : words) {
    const auto writing = static_cast<size_t>(writing_of(word));
    if (counts[writing]++ == 0) first[writing] = &word;
  }
  if (2 * counts[0] >= words.size()) return std::nullopt;
  // "1,626" beside "0,370" is no thousand.
  const auto comma = static_cast<size_t>(NumberWriting::decimal_comma);
  counts[0] = 0;
  counts[static_cast<size_t>(NumberWriting::plain)] = 0;
  auto most = static_cast<size_t>(std::ranges::max_element(counts) - counts.begin());
  if (most == static_cast<size_t>(NumberWriting::thousands) && counts[comma] > 0) most = comma;
  if (counts[most] == 0) most = static_cast<size_t>(NumberWriting::plain);
  const Advice advice = advice_on(static_cast<NumberWriting>(most));
  return NumbersAsWords{*first[most], advice.writing, advice.way_out};
}

bool is_rounded(std::string_view text, double read) {
  text = without_sign(text);
  const std::string_view number = text.substr(0, digits_at_front(text));
  const std::string_view rest = text.substr(number.size());
  const bool whole =
      rest.empty() || (rest[0] == '.' && rest.find_first_not_of('0', 1) == std::string_view::npos);
  if (number.empty() || !whole) return false;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  constexpr double kBeyond = 18446744073709551616.0;  // 2^64
  const double size = std::abs(read);
  if (error != std::errc() || size >= kBeyond) return true;
  // Those of float64 are whole from 2^53 on; before, what undoes a scaling is off by less than
  // half.
  return static_cast<uint64_t>(std::round(size)) != value;
}

}  // namespace tutti::data::detail
