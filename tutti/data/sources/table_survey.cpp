// table_spec(): what the columns of a table are, from its rows.
#include <algorithm>
#include <cmath>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/suggest.h"
#include "tutti/base/utf8.h"
#include "tutti/data/sources/csv.h"
#include "tutti/data/sources/detail/number_words.h"
#include "tutti/data/sources/detail/recognise_table.h"
#include "tutti/data/sources/detail/source_file.h"
#include "tutti/data/sources/detail/table_rows.h"
#include "tutti/data/sources/detail/table_text.h"

namespace tutti::data {
namespace {

// What one column of a file holds.
struct Survey {
  size_t field = 0;   // its place in a row
  bool told = false;  // that it is a category
  bool target = false;
  int64_t numbers = 0;
  int64_t words = 0;
  int64_t missing = 0;
  int64_t first_word_line = 0;
  int64_t first_missing_line = 0;
  std::string first_word;
  std::set<std::string, std::less<>> vocabulary;  // where it is a category
  int64_t learnt = 0;                             // numbers that mean and squares are of
  // The squares of what a double holds go beyond it.
  long double mean = 0;
  long double squares = 0;  // of differences from the mean

  // Running mean and squares: Welford 1962, doi:10.1080/00401706.1962.10490022
  void learn(double value) {
    const long double before = value - mean;
    mean += before / static_cast<long double>(++learnt);
    squares += before * (value - mean);
  }
  void see_word(std::string_view word, int64_t line) {
    if (words++ > 0) return;
    first_word = word;
    first_word_line = line;
  }
  void see_missing(int64_t line) {
    if (missing++ == 0) first_missing_line = line;
  }
  bool is_category() const { return told || words > numbers; }
  double deviation() const {
    const auto deviation =
        static_cast<double>(std::sqrt(squares / static_cast<long double>(learnt)));
    return deviation > 0 ? deviation : 1;
  }
};

class Surveyor {
 public:
  Surveyor(std::string_view text, const std::string& where, const CsvOptions& options,
           const detail::ChooseRows& choose)
      : text_(text),
        where_(where),
        options_(options),
        choose_(choose),
        spec_(detail::written_as(text, where, options)) {
    spec_.one_hot = options.one_hot;
    spec_.drop_incomplete = options.missing_numbers == MissingNumbers::drop;
    if (spec_.header && !options.names.empty())
      throw UsageError(fmt::format("{}: names are for files without header, {}", where,
                                   options.header.has_value()
                                       ? "got both"
                                       : "and its first line looks like one\n  if it is a row: "
                                         "header = false"));
  }

  TableSpec survey() {
    choose_columns();
    const int64_t rows = look_at_rows();
    learn(choose_ ? choose_(rows) : std::vector<bool>(static_cast<size_t>(rows), true));
    for (Survey& column : surveys_) add_column(column);
    detail::require_vocabularies(spec_, where_);
    return std::move(spec_);
  }

 private:
  size_t require_column(const detail::TableRows& rows, const std::string& name) const {
    const size_t field = rows.index_of(name);
    if (field == rows.names().size())
      throw UsageError(fmt::format(
          "{}: {}{}", where_, unknown_message("column", name, rows.names()),
          spec_.header ? "" : "\n  does its first line name them? `header` (--header yes)"));
    return field;
  }

  // Of a feature that was asked for by name.
  void require_one_use(const std::string& name) const {
    const auto refuse = [&](const char* why) {
      throw UsageError(
          fmt::format("{}: column \"{}\" of `columns` (--columns) {}", where_, name, why));
    };
    if (std::ranges::count(options_.columns, name) > 1) refuse("is named twice there");
    if (name == options_.target) refuse("is the target (--target), which is no feature");
    if (std::ranges::count(options_.without, name) > 0)
      refuse("is in `without` (--without) too: take it out of one of them");
  }

  // As the JSON of the table has to be.
  void require_utf8(std::string_view text, int64_t line, const std::string& which) const {
    const size_t wrong = first_wrong_byte(text);
    if (wrong < text.size())
      throw DataError(fmt::format("{}, line {}, {}: got {}", where_, line, which,
                                  wrong_byte_words(text[wrong])));
  }

  void choose_columns() {
    const detail::TableRows rows(text_, spec_, where_);
    spec_.names = rows.names();
    for (const std::string& name : options_.columns) require_one_use(name);
    if (options_.header)
      for (size_t i = 0; i < spec_.names.size(); ++i)
        require_utf8(spec_.names[i], rows.line(), fmt::format("name {}", i + 1));
    for (const std::string& name : options_.without) require_column(rows, name);
    for (const std::string& name : options_.categorical) require_column(rows, name);
    const auto among = [](const std::vector<std::string>& all, const std::string& name) {
      return std::ranges::find(all, name) != all.end();
    };
    const auto add = [&](const std::string& name, bool target) {
      surveys_.push_back({.field = require_column(rows, name),
                          .told = among(options_.categorical, name),
                          .target = target});
    };
    for (const std::string& name : options_.columns.empty() ? rows.names() : options_.columns)
      if (name != options_.target && !among(options_.without, name)) add(name, false);
    if (surveys_.empty())
      throw UsageError(fmt::format("{}: no column is left as a feature", where_));
    if (!options_.target.empty()) add(options_.target, true);
  }

  // The first pass: what kind each column is of. Returns the number of rows.
  int64_t look_at_rows() {
    detail::TableRows rows(text_, spec_, where_);
    int64_t kept = 0;
    while (rows.next()) {
      if (drops(rows)) continue;
      ++kept;
      for (Survey& column : surveys_) {
        const std::string_view field = rows.field(column.field);
        if (rows.is_missing(field))
          column.see_missing(rows.line());
        else if (rows.number(column.field))
          ++column.numbers;
        else
          column.see_word(field, rows.line());
      }
    }
    if (kept == 0)
      throw DataError(fmt::format("{}: got no row{}, expected one or more", where_,
                                  spec_.drop_incomplete ? " without a missing value" : ""));
    return kept;
  }

  // The second: words of all rows, means and deviations of those that are chosen.
  void learn(const std::vector<bool>& chosen) {
    detail::TableRows rows(text_, spec_, where_);
    for (size_t row = 0; rows.next();) {
      if (drops(rows)) continue;
      for (Survey& column : surveys_) {
        const std::string_view field = rows.field(column.field);
        if (column.is_category()) {
          if (column.vocabulary.contains(field)) continue;
          require_utf8(field, rows.line(), fmt::format("column \"{}\"", spec_.names[column.field]));
          column.vocabulary.emplace(field);
        } else if (const auto number = rows.number(column.field);
                   number && chosen[row] && !rows.is_missing(field)) {
          column.learn(*number);
        }
      }
      ++row;
    }
  }

  bool drops(const detail::TableRows& rows) const {
    return spec_.drop_incomplete && std::ranges::any_of(surveys_, [&](const Survey& column) {
             return rows.is_missing(rows.field(column.field));
           });
  }

  void add_column(const Survey& survey) {
    const std::string& name = spec_.names[survey.field];
    TableColumn column{.name = name};
    if (survey.is_category()) {
      column.kind = ColumnKind::category;
      column.vocabulary.assign(survey.vocabulary.begin(), survey.vocabulary.end());
      if (!survey.told) warn_of_numbers(column, survey.target);
    } else {
      require_numbers(survey, name);
      if (survey.target ? options_.standardise_target : options_.standardise) {
        column.mean = static_cast<double>(survey.mean);
        column.deviation = survey.deviation();
      }
      if (!survey.target && options_.missing_numbers == MissingNumbers::mean)
        column.fill = static_cast<double>(survey.mean);
      if (!survey.target && options_.missing_numbers == MissingNumbers::value)
        column.fill = options_.fill;
    }
    if (survey.target)
      spec_.target = std::move(column);
    else
      spec_.features.push_back(std::move(column));
  }

  void require_numbers(const Survey& survey, const std::string& name) const {
    const auto place = [&](int64_t line) {
      return fmt::format("{}, line {}, column \"{}\"", where_, line, name);
    };
    if (survey.learnt == 0)
      throw DataError(
          fmt::format("{}: column \"{}\" has no value{}\n  leave it out: `without` "
                      "(--without)",
                      where_, name, survey.numbers > 0 ? " in the rows that are trained on" : ""));
    if (survey.words > 0)
      throw DataError(
          fmt::format("{}: got {}, expected a number, as {} of {} values of this column are\n"
                      "  mend the line; or list it in `missing` (--missing) if it marks a missing "
                      "value, or the "
                      "column in `categorical` (--categorical) if its values are words{}",
                      place(survey.first_word_line), detail::quoted_words(survey.first_word),
                      survey.numbers, survey.numbers + survey.words, numbers_advice(survey)));
    const bool filled = !survey.target && (options_.missing_numbers == MissingNumbers::mean ||
                                           options_.missing_numbers == MissingNumbers::value);
    if (survey.missing > 0 && !filled)
      throw DataError(
          fmt::format("{}: the value is missing, as {} of this column are; expected a number\n  {}",
                      place(survey.first_missing_line), survey.missing,
                      survey.target ? "take such rows out, or have missing_numbers drop them"
                                    : "missing_numbers says what to do: take the mean, or a value "
                                      "of yours, or drop the row"));
  }

  static std::string numbers_advice(const Survey& survey) {
    const auto numbers = detail::numbers_among({survey.first_word});
    return numbers ? fmt::format("; it {}: {}", numbers->writing, numbers->way_out) : "";
  }

  // Words that look like numbers: the training would be another one than was meant.
  void warn_of_numbers(const TableColumn& column, bool target) const {
    std::vector<std::string> words = column.vocabulary;
    std::erase_if(words, [&](const std::string& word) {
      return std::ranges::find(spec_.missing, word) != spec_.missing.end();
    });
    const auto numbers = detail::numbers_among(words);
    if (!numbers) return;
    log_once(fmt::format("csv words {} {}", where_, column.name), LogLevel::warning,
             "{}: column \"{}\" is taken for {} {}, as {} {}: {}; if they are words, name it in "
             "`categorical`, --categorical {}",
             where_, column.name, column.vocabulary.size(), target ? "classes" : "words",
             detail::quoted_words(numbers->word), numbers->writing, numbers->way_out, column.name);
  }

  std::string_view text_;
  const std::string& where_;
  const CsvOptions& options_;
  const detail::ChooseRows& choose_;
  TableSpec spec_;
  std::vector<Survey> surveys_;  // features in order, then the target
};

}  // namespace

TableSpec detail::written_as(std::string_view text, const std::string& where,
                             const CsvOptions& options) {
  const TableLook written = how_written(
      text, where, options.delimiter,
      {.header = options.header, .decimal = options.decimal, .comment = options.comment});
  TableSpec spec;
  spec.delimiter = written.delimiter;
  spec.decimal = options.decimal;
  spec.header = written.header;
  spec.names = options.names;
  spec.missing = options.missing;
  spec.comment = options.comment;
  return spec;
}

TableSpec detail::spec_of_text(std::string_view text, const std::string& where,
                               const CsvOptions& options, const ChooseRows& choose) {
  return Surveyor(text, where, options, choose).survey();
}

TableSpec table_spec(const std::filesystem::path& path, const CsvOptions& options) {
  const Array file = options.files->read(path);
  return detail::spec_of_text(text_of(file), path.string(), options);
}

}  // namespace tutti::data
