/// Numbers as people and programs write them that finite_number() does not take, and whole numbers
/// that do not fit where they go: what is said of a column that would silently be something else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data::detail {

enum class NumberWriting {
  none,           ///< a word
  plain,          ///< what finite_number() takes
  decimal_comma,  ///< "14285,71"
  thousands,      ///< "100,000", "1 000", "1'000"
  percent,        ///< "12.5 %"
  exponent_d,     ///< "1.0D+00", as Fortran writes it
  date,           ///< "2019-01-02", "12:30"
  unit            ///< "$100", "12 kg"
};

NumberWriting writing_of(std::string_view word);

/// What is to be said where most of a column's words are numbers in some writing: how the first of
/// these is written, and what to do. Nothing where they are words.
struct NumbersAsWords {
  std::string word;
  const char* writing = "";
  const char* way_out = "";
};
std::optional<NumbersAsWords> numbers_among(const std::vector<std::string>& words);

/// Of the text of a whole number ("16777217", "-7", "7.0"): whether `read` is another one. False
/// for what is no whole number.
bool is_rounded(std::string_view text, double read);

}  // namespace tutti::data::detail
