#include "tutti/data/sources/detail/csv_records.h"

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/base/utf8.h"

namespace tutti::data::detail {

CsvRecords::CsvRecords(std::string_view text, CsvFormat format, std::string where)
    : delimiter_(format.delimiter),
      other_delimiter_(format.delimiter == ' ' ? '\t' : format.delimiter),
      runs_(format.delimiter == ' '),
      comment_(format.comment),
      where_(std::move(where)) {
  constexpr std::string_view kNever("\"\n\r\0", 4);
  if (kNever.find(delimiter_) != std::string_view::npos || delimiter_ == comment_ ||
      (comment_ != '\0' && kNever.find(comment_) != std::string_view::npos))
    throw UsageError(
        fmt::format("{}: delimiter 0x{:02x}, comment 0x{:02x}: expected two different characters, "
                    "neither a quote nor the end of a line",
                    where_, static_cast<uint8_t>(delimiter_), static_cast<uint8_t>(comment_)));
  if (is_utf16(text)) throw DataError(fmt::format("{}: got {}", where_, kUtf16Words));
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  at_ = line_begin_ = text.data();
  end_ = at_ + text.size();
}

std::string CsvRecords::place() const { return fmt::format("{}, line {}", where_, record_line_); }

bool CsvRecords::next() {
  while (at_ != end_ && skip_empty_line()) {
  }
  if (at_ == end_) return false;
  record_line_ = line_;
  try {
    read_record();
  } catch (const DataError&) {  // the next call goes on with the next line
    at_ = std::find(at_, end_, '\n');
    end_line();
    throw;
  }
  return true;
}

bool CsvRecords::is_blank(char letter) const {
  return letter == ' ' || letter == '\r' || (letter == '\t' && delimiter_ != '\t');
}

void CsvRecords::skip_blanks() {
  while (at_ != end_ && is_blank(*at_)) ++at_;
}

void CsvRecords::end_line() {
  if (at_ != end_) ++at_;
  line_begin_ = at_;
  ++line_;
}

// True when there was one: blank, or a comment.
bool CsvRecords::skip_empty_line() {
  const char* const begin = at_;
  skip_blanks();
  const bool comment = at_ != end_ && comment_ != '\0' && *at_ == comment_;
  if (at_ != end_ && *at_ != '\n' && !comment) {
    at_ = begin;
    return false;
  }
  at_ = std::find(at_, end_, '\n');
  end_line();
  return true;
}

void CsvRecords::read_record() {
  fields_.clear();
  unescaped_.clear();
  while (true) {
    skip_blanks();
    fields_.push_back(at_ != end_ && *at_ == '"' ? read_quoted() : read_plain());
    if (runs_) skip_blanks();
    if (at_ == end_ || *at_ == '\n') break;
    if (!runs_) ++at_;  // the delimiter
  }
  end_line();
}

std::string_view CsvRecords::read_plain() {
  const char* const begin = at_;
  while (at_ != end_ && *at_ != '\n' && !delimits(*at_)) ++at_;
  const char* last = at_;
  while (last != begin && is_blank(last[-1])) --last;
  require_no_lone_return(begin, last);
  return {begin, last};
}

// Blanks at the end of a field are left out, so that one that ends a line stands within.
void CsvRecords::require_no_lone_return(const char* begin, const char* end) const {
  const char* const lone = std::find(begin, end, '\r');
  if (lone != end)
    fail(line_, line_begin_, lone,
         "got a line that ends in CR alone, expected LF or CRLF\n  convert it: tr '\\r' '\\n'");
}

// From the opening quote to behind the closing one, and the blanks that follow it. Invariant: what
// was read before `begin` is in `*joined`, if that is there.
std::string_view CsvRecords::read_quoted() {
  const char* const opening = at_;
  const char* const opening_line = line_begin_;
  const int64_t opened_in = line_;
  std::string* joined = nullptr;
  const char* begin = ++at_;
  while (true) {
    const char* const quote = std::find(at_, end_, '"');
    if (quote == end_) fail(opened_in, opening_line, opening, "got a quote that is never closed");
    for (const char* ends = at_; (ends = std::find(ends, quote, '\n')) != quote;) {
      line_begin_ = ++ends;
      ++line_;
    }
    at_ = quote + 1;
    const bool doubled = at_ != end_ && *at_ == '"';
    if (doubled && joined == nullptr) joined = &unescaped_.emplace_back();
    if (joined != nullptr) joined->append(begin, doubled ? at_ : quote);
    if (!doubled) {
      const std::string_view whole =
          joined != nullptr ? std::string_view(*joined) : std::string_view(begin, quote);
      skip_blanks();
      // Where runs of blanks delimit, skip_blanks() has gone over one.
      const bool delimited =
          at_ == end_ || *at_ == '\n' || (runs_ ? at_ != quote + 1 : delimits(*at_));
      if (!delimited)
        fail(line_, line_begin_, at_,
             fmt::format("got '{}' behind a closing quote, expected the delimiter or the end of "
                         "the line (a quote within quotes is written twice)",
                         *at_));
      return whole;
    }
    begin = ++at_;
  }
}

void CsvRecords::fail(int64_t line, const char* line_begin, const char* at,
                      const std::string& words) const {
  throw DataError(
      fmt::format("{}, line {}, character {}: {}", where_, line, at - line_begin + 1, words));
}

std::optional<double> finite_number(std::string_view field, char decimal) {
  std::string with_point;
  if (decimal != '.') {
    if (field.find('.') != std::string_view::npos) return std::nullopt;
    with_point = field;
    std::ranges::replace(with_point, decimal, '.');
    field = with_point;
  }
  if (field.size() > 1 && field[0] == '+' && field[1] != '-') field.remove_prefix(1);
  return number_in<double>(field);
}

}  // namespace tutti::data::detail
