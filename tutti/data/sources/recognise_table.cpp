#include "tutti/data/sources/detail/recognise_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/typed.h"
#include "tutti/data/sources/detail/csv_records.h"
#include "tutti/data/sources/detail/number_words.h"
#include "tutti/data/sources/detail/source_file.h"
#include "tutti/data/sources/table_spec.h"

namespace tutti::data::detail {
namespace {

constexpr size_t kLookRows = 50;

struct Table {
  size_t fields = 0;
  bool header = false;
  bool decimal_commas = false;  // in all that follows the first row
};

using Rows = std::vector<std::vector<std::string>>;

bool is_missing(const std::string& field) {
  return std::ranges::find(usual_missing(), field) != usual_missing().end();
}

bool is_number(const std::string& field) {
  return finite_number(field) || finite_number(field, ',');
}

bool looks_like_number(const std::string& field) {
  return writing_of(field) != NumberWriting::none;
}

// Below the first row, which may name the fields.
bool has_column_of_numbers(const Rows& rows) {
  const auto looked_at = std::span(rows).first(std::min(rows.size(), kLookRows)).subspan(1);
  for (size_t field = 0; field < rows[0].size(); ++field)
    if (std::ranges::all_of(looked_at, [&](const auto& row) {
          return is_missing(row[field]) || is_number(row[field]);
        }))
      return true;
  return false;
}

bool repeats(const Rows& rows, size_t field) {
  return std::any_of(rows.begin() + 1, rows.end(), [&](const auto& row) {
    return row != rows[0] && row[field] == rows[0][field];
  });
}

// Whether the first row has a word where most of the others that have a value have numbers, as
// csv() takes the column then; or a date, a unit, a percentage ("2020-01-22", "100m") where these
// have plain numbers.
bool names_numbers(const Rows& rows, size_t field) {
  int64_t plain = 0, written = 0, words = 0;
  for (size_t row = 1; row < rows.size(); ++row) {
    const std::string& value = rows[row][field];
    if (is_missing(value) || rows[row] == rows[0]) continue;
    ++(is_number(value) ? plain : looks_like_number(value) ? written : words);
  }
  const std::string& name = rows[0][field];
  if (is_missing(name) || is_number(name) || repeats(rows, field)) return false;
  const int64_t numbers = looks_like_number(name) ? plain : plain + written;
  return numbers > 0 && numbers >= words + (looks_like_number(name) ? written : 0);
}

bool is_year(const std::string& field) {
  const auto year = number_in<int>(field);
  return field.size() == 4 && year && *year >= 1800 && *year < 2200;
}

bool is_year_over_others(const Rows& rows, size_t field) {
  const auto below = std::span(rows).subspan(1);
  const auto years =
      std::ranges::count_if(below, [&](const auto& row) { return is_year(row[field]); });
  return is_year(rows[0][field]) && 2 * years < std::ssize(below);
}

// Whether the numbers in the first row can be names: years over what are none, and whole numbers
// that count up, three or more ("0,1,2", as tables without names are written by some).
bool numbers_can_be_names(const Rows& rows) {
  std::vector<int64_t> counted;
  for (size_t field = 0; field < rows[0].size(); ++field) {
    if (!is_number(rows[0][field]) || is_year_over_others(rows, field)) continue;
    const auto whole = number_in<int64_t>(rows[0][field]);
    if (!whole || (!counted.empty() && *whole != counted.back() + 1)) return false;
    counted.push_back(*whole);
  }
  return counted.empty() || counted.size() >= 3;
}

// Whether the first row names the fields: words over numbers, beside which numbers may be names
// too; or words and years, of these two or more, all different and none in its column again. A
// field without a name is none of them, but for the first, where an index stands.
bool first_row_names(const Rows& rows) {
  const std::vector<std::string>& first = rows[0];
  bool over_numbers = false, words = true;
  int years = 0;
  for (size_t field = 0; field < first.size(); ++field) {
    over_numbers = over_numbers || names_numbers(rows, field);
    if (is_year_over_others(rows, field)) {
      ++years;
      continue;
    }
    words = words && !looks_like_number(first[field]) &&
            (!is_missing(first[field]) || (field == 0 && first[0].empty()));
  }
  if (over_numbers) return numbers_can_be_names(rows);
  if (!words || years == 1 || std::set(first.begin(), first.end()).size() != first.size())
    return false;
  for (size_t row = 1; row < rows.size(); ++row)
    for (size_t field = 0; field < first.size(); ++field)
      if (!first[field].empty() && rows[row][field] == first[field]) return false;
  return true;
}

// The rows at the front of a text: those of as many fields as the first, and how many others there
// are among the first kLookRows.
struct Front {
  Rows rows;
  size_t others = 0;
  std::map<size_t, size_t> lengths;  // rows by their number of fields
  bool damaged = false;              // among those, too

  size_t same() const { return lengths.contains(rows[0].size()) ? lengths.at(rows[0].size()) : 0; }
  size_t usual_length() const {
    const auto most = std::ranges::max_element(
        lengths, {}, [](const auto& length) { return std::pair(length.second, length.first); });
    return most == lengths.end() ? 0 : most->first;
  }
};

Front front_of(std::string_view text, CsvFormat format) {
  Front front;
  size_t seen = 0;
  try {
    CsvRecords records(text, format, "table");
    for (; records.next(); ++seen) {
      const auto fields = records.fields();
      const bool same = front.rows.empty() || fields.size() == front.rows[0].size();
      if (same) front.rows.emplace_back(fields.begin(), fields.end());
      if (seen >= kLookRows) continue;  // looked at for what names repeat
      ++front.lengths[fields.size()];
      if (!same) ++front.others;
    }
  } catch (const DataError&) {
    front.damaged = seen < kLookRows;
  }
  return front;
}

// The table that `text` is when that character delimits: two rows or more of as many fields, two
// or more; of what is called one, most rows, so that the others are found damaged when it is read.
std::optional<Table> table_in(std::string_view text, CsvFormat format, bool is_called_one) {
  const char delimiter = format.delimiter;
  const Front front = front_of(text, format);
  const Rows& rows = front.rows;
  if (front.damaged && !is_called_one) return std::nullopt;
  if (rows.size() < 2 || rows[0].size() < 2) return std::nullopt;
  if (front.others >= front.same() || (front.others > 0 && !is_called_one)) return std::nullopt;
  const bool framed = rows[0][0].empty();  // as text is, and its tables, by bars
  if ((delimiter == ' ' && !has_column_of_numbers(rows)) || (delimiter == '|' && framed))
    return std::nullopt;
  const bool decimal_commas = std::ranges::all_of(std::span(rows).subspan(1), [](const auto& row) {
    return std::ranges::all_of(row, [](const auto& field) { return is_number(field); });
  });
  return Table{.fields = rows[0].size(),
               .header = first_row_names(rows),
               .decimal_commas = decimal_commas && delimiter == ';'};
}

constexpr std::pair<char, const char*> kDelimiters[] = {
    {',', "commas"}, {';', "semicolons"}, {'\t', "tabs"}, {'|', "bars"}, {' ', "blanks"}};

Recognised table_of(const Table& table, char delimiter) {
  const auto* const found =
      std::ranges::find(kDelimiters, delimiter, &std::pair<char, const char*>::first);
  return {
      .kind = DataKind::csv,
      .sentence = fmt::format("a table: {} column{}, delimited by {}, {}", table.fields,
                              table.fields == 1 ? "" : "s", found->second,
                              table.header ? "named by its first line" : "without a line of names"),
      .delimiter = delimiter,
      .header = table.header};
}

// Commas begin fractions where all that stands between semicolons is numbers then ("7,4;0,7").
std::optional<Recognised> table_by_content(std::string_view lines, bool is_called_one,
                                           const ToldOfTable& told) {
  std::optional<Recognised> found;
  size_t most = 0;
  for (const auto& [delimiter, words] : kDelimiters) {
    // Blanks are within fields, too: they count where there is nothing else, or a lone tab.
    if (most > 2 && delimiter == ' ') break;
    if (delimiter == told.decimal || delimiter == told.comment) continue;
    auto table = table_in(lines, {.delimiter = delimiter, .comment = told.comment}, is_called_one);
    if (!table || (table->fields <= most && !table->decimal_commas)) continue;
    most = table->fields;
    table->header = told.header.value_or(table->header);
    found = table_of(*table, delimiter);
  }
  return found;
}

bool is_named(const Front& front) { return front.rows.size() < 2 || first_row_names(front.rows); }

const std::vector<std::string> kTables = {".csv", ".tsv"}, kTablesOfTabs = {".tsv"};

// Of what is called a table and does not look like one: whoever reads it finds the line that is not
// as it should be.
Recognised table_by_name(std::string_view lines, std::string_view name, const ToldOfTable& told) {
  const char usual = has_ending(name, kTablesOfTabs) ? '\t' : ',';
  char delimiter = usual == told.decimal ? ';' : usual;
  Front front = front_of(lines, {.delimiter = delimiter, .comment = told.comment});
  for (const char other : {',', ';', '\t', '|'}) {
    if (other == told.decimal || other == told.comment) continue;
    Front by_other = front_of(lines, {.delimiter = other, .comment = told.comment});
    if (by_other.usual_length() <= front.usual_length()) continue;
    delimiter = other;
    front = std::move(by_other);
  }
  return table_of({.fields = std::max<size_t>(1, front.usual_length()),
                   .header = told.header.value_or(is_named(front))},
                  delimiter);
}

}  // namespace

std::string_view whole_lines(std::string_view text, bool whole) {
  const size_t end = text.rfind('\n');
  return whole || end == std::string_view::npos ? text : text.substr(0, end + 1);
}

std::optional<Recognised> recognise_table(std::string_view lines, std::string_view name,
                                          const ToldOfTable& told) {
  const bool called = has_ending(name, kTables);
  auto table = table_by_content(lines, called, told);
  return table || !called ? table : table_by_name(lines, name, told);
}

TableLook how_written(std::string_view text, const std::string& where,
                      std::optional<char> delimiter, const ToldOfTable& told) {
  const CsvFormat format{.delimiter = delimiter.value_or(','), .comment = told.comment};
  static_cast<void>(CsvRecords(text, format, where));  // throws for characters that cannot be one
  const std::string_view lines =
      whole_lines(text.substr(0, static_cast<size_t>(kLookBytes)), std::ssize(text) <= kLookBytes);
  if (delimiter)
    return {.delimiter = *delimiter,
            .header = told.header ? *told.header : is_named(front_of(lines, format))};
  auto table = recognise_table(lines, where, told);
  if (!table) table = table_by_name(lines, where, told);
  log_once("csv written " + where, LogLevel::info, "{}: {}", where, table->sentence);
  return {.delimiter = table->delimiter, .header = table->header};
}

}  // namespace tutti::data::detail
