/// Takes the text of a table apart: records, fields, numbers.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data::detail {

struct CsvFormat {
  char delimiter = ',';  ///< ' ': runs of blanks and tabs
  char comment = '\0';
};

/// Records after RFC 4180, one by one. More is taken than it allows: lines may end in \n alone,
/// blanks around a field are left out (not those in quotes), a quote within a field that does not
/// begin with one is a character, blank lines and comments are left out, a mark of byte order too.
/// Ends of lines that are \r alone are an error: one record would be the whole file.
class CsvRecords {
 public:
  /// text   must outlive this
  /// where  the file's name, for messages
  /// Throws UsageError for a delimiter or comment that cannot be one, DataError for UTF-16.
  CsvRecords(std::string_view text, CsvFormat format, std::string where);

  /// Goes on to the next record; false when there is none. Throws DataError, with line and
  /// character: a quote that is not closed, text between a closing quote and the delimiter, a line
  /// that ends in \r alone; may be called again, to go on with the next line.
  bool next();

  /// Of this record; valid until next().
  std::span<const std::string_view> fields() const { return fields_; }
  int64_t line() const { return record_line_; }  ///< where this record begins, from 1 on
  const std::string& where() const { return where_; }
  /// "housing.csv, line 12"
  std::string place() const;

 private:
  bool delimits(char letter) const { return letter == delimiter_ || letter == other_delimiter_; }
  bool is_blank(char letter) const;
  bool skip_empty_line();
  void skip_blanks();
  void read_record();
  std::string_view read_plain();
  void require_no_lone_return(const char* begin, const char* end) const;
  std::string_view read_quoted();
  void end_line();
  [[noreturn]] void fail(int64_t line, const char* line_begin, const char* at,
                         const std::string& words) const;

  const char* at_;
  const char* end_;
  const char* line_begin_;
  char delimiter_;
  char other_delimiter_;  // the tab, where runs of blanks delimit; else delimiter_
  bool runs_;
  char comment_;
  std::string where_;
  int64_t line_ = 1;
  int64_t record_line_ = 0;
  std::vector<std::string_view> fields_;
  std::deque<std::string> unescaped_;  // fields with doubled quotes, as they are meant
};

/// A whole field as a finite number: sign, digits, decimal point, exponent. None when it is no
/// such.
std::optional<double> finite_number(std::string_view field, char decimal = '.');

}  // namespace tutti::data::detail
