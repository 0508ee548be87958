// table_spec(): what the columns of a table are, from its rows.
#include <algorithm>
#include <cmath>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/data/sources/csv.h"
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
  double mean = 0;
  double squares = 0;  // of differences from the mean

  // Running mean and squares: Welford 1962, doi:10.1080/00401706.1962.10490022
  void see_number(double value) {
    const double before = value - mean;
    mean += before / static_cast<double>(++numbers);
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
    const double variance = numbers > 0 ? squares / static_cast<double>(numbers) : 0;
    return variance > 0 ? std::sqrt(variance) : 1;
  }
};

class Surveyor {
 public:
  Surveyor(std::string_view text, const std::string& where, const CsvOptions& options)
      : text_(text), where_(where), options_(options) {
    spec_.delimiter = options.delimiter;
    spec_.header = options.header;
    spec_.names = options.names;
    spec_.missing = options.missing;
    spec_.comment = options.comment;
    spec_.one_hot = options.one_hot;
    spec_.drop_incomplete = options.missing_numbers == MissingNumbers::drop;
    if (options.header && !options.names.empty())
      throw UsageError(fmt::format("{}: names are for files without header, got both", where));
  }

  TableSpec survey() {
    choose_columns();
    look_at_rows();
    for (const Survey& column : surveys_) add_column(column);
    collect_vocabularies();
    detail::require_vocabularies(spec_, where_);
    return std::move(spec_);
  }

 private:
  size_t require_column(const detail::TableRows& rows, const std::string& name) const {
    const size_t field = rows.index_of(name);
    if (field == rows.names().size())
      throw UsageError(
          fmt::format("{}: {}", where_, unknown_message("column", name, rows.names())));
    return field;
  }

  void choose_columns() {
    const detail::TableRows rows(text_, spec_, where_);
    if (!spec_.header) spec_.names = rows.names();
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
    names_ = rows.names();
  }

  void look_at_rows() {
    detail::TableRows rows(text_, spec_, where_);
    int64_t kept = 0;
    while (rows.next()) {
      if (drops(rows)) continue;
      ++kept;
      for (Survey& column : surveys_) {
        const std::string_view field = rows.field(column.field);
        if (rows.is_missing(field))
          column.see_missing(rows.line());
        else if (const auto number = detail::finite_number(field))
          column.see_number(*number);
        else
          column.see_word(field, rows.line());
      }
    }
    if (kept == 0)
      throw DataError(fmt::format("{}: got no row{}, expected one or more", where_,
                                  spec_.drop_incomplete ? " without a missing value" : ""));
  }

  bool drops(const detail::TableRows& rows) const {
    return spec_.drop_incomplete && std::ranges::any_of(surveys_, [&](const Survey& column) {
             return rows.is_missing(rows.field(column.field));
           });
  }

  void add_column(const Survey& survey) {
    const std::string& name = names_[survey.field];
    TableColumn column{.name = name};
    if (survey.is_category()) {
      column.kind = ColumnKind::category;
    } else {
      require_numbers(survey, name);
      if (survey.target ? options_.standardise_target : options_.standardise) {
        column.mean = survey.mean;
        column.deviation = survey.deviation();
      }
      if (!survey.target && options_.missing_numbers == MissingNumbers::mean)
        column.fill = survey.mean;
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
    if (survey.numbers == 0)
      throw DataError(fmt::format(
          "{}: column \"{}\" has no value\n  leave it out: `without` (--without)", where_, name));
    if (survey.words > 0)
      throw DataError(
          fmt::format("{}: got {}, expected a number, as {} of {} values of this column are\n"
                      "  mend the line; or list it in `missing` (--missing) if it marks a missing "
                      "value, or the "
                      "column in `categorical` (--categorical) if its values are words",
                      place(survey.first_word_line), detail::quoted_words(survey.first_word),
                      survey.numbers, survey.numbers + survey.words));
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

  void collect_vocabularies() {
    std::vector<std::pair<size_t, TableColumn*>> categories;  // with their place in a row
    for (size_t i = 0; i < surveys_.size(); ++i) {
      TableColumn& column = surveys_[i].target ? *spec_.target : spec_.features[i];
      if (column.kind == ColumnKind::category) categories.emplace_back(surveys_[i].field, &column);
    }
    if (categories.empty()) return;
    std::vector<std::set<std::string, std::less<>>> words(categories.size());
    detail::TableRows rows(text_, spec_, where_);
    while (rows.next()) {
      if (drops(rows)) continue;
      for (size_t i = 0; i < categories.size(); ++i) {
        const std::string_view field = rows.field(categories[i].first);
        if (!words[i].contains(field)) words[i].emplace(field);
      }
    }
    for (size_t i = 0; i < categories.size(); ++i)
      categories[i].second->vocabulary.assign(words[i].begin(), words[i].end());
  }

  std::string_view text_;
  const std::string& where_;
  const CsvOptions& options_;
  TableSpec spec_;
  std::vector<std::string> names_;  // of all fields
  std::vector<Survey> surveys_;     // features in order, then the target
};

}  // namespace

TableSpec detail::spec_of_text(std::string_view text, const std::string& where,
                               const CsvOptions& options) {
  return Surveyor(text, where, options).survey();
}

TableSpec table_spec(const std::filesystem::path& path, const CsvOptions& options) {
  const Array file = options.files->read(path);
  return detail::spec_of_text(text_of(file), path.string(), options);
}

}  // namespace tutti::data
