// verify_csv(): all that is wrong with a table, where csv() stops at the first.
#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/data/sources/csv.h"
#include "tutti/data/sources/detail/source_file.h"
#include "tutti/data/sources/detail/table_rows.h"
#include "tutti/data/sources/detail/table_text.h"

namespace tutti::data {
namespace {

struct Counts {
  int64_t numbers = 0, words = 0;
  bool of_numbers() const { return numbers > 0 && numbers >= words; }
};

class Verifier {
 public:
  Verifier(std::string_view text, std::string where, const CsvOptions& options)
      : text_(text),
        where_(std::move(where)),
        options_(options),
        spec_(detail::written_as(text, where_, options)) {}

  std::vector<std::string> findings() {
    std::vector<Counts> columns;
    for_each_row([&](const detail::TableRows& rows) { count(rows, columns); }, nullptr);
    std::vector<std::string> found;
    for_each_row([&](const detail::TableRows& rows) { look_at(rows, columns, found); }, &found);
    if (columns.empty() && found.empty())
      throw DataError(fmt::format("{}: got no row, expected one or more", where_));
    return found;
  }

 private:
  template <class Row>
  void for_each_row(const Row& row, std::vector<std::string>* damaged) const {
    detail::TableRows rows(text_, spec_, where_);
    for (;;) {
      try {
        if (!rows.next()) return;
      } catch (const DataError& error) {
        if (damaged != nullptr) damaged->emplace_back(error.what());
        continue;
      }
      row(rows);
    }
  }

  bool is_number(const detail::TableRows& rows, size_t column) const {
    return rows.is_missing(rows.field(column)) || rows.number(column).has_value();
  }

  void count(const detail::TableRows& rows, std::vector<Counts>& columns) const {
    columns.resize(rows.names().size());
    for (size_t i = 0; i < columns.size(); ++i)
      if (!rows.is_missing(rows.field(i)))
        ++(is_number(rows, i) ? columns[i].numbers : columns[i].words);
  }

  void look_at(const detail::TableRows& rows, const std::vector<Counts>& columns,
               std::vector<std::string>& found) const {
    for (size_t i = 0; i < columns.size(); ++i) {
      const std::string& name = rows.names()[i];
      const bool words =
          std::ranges::find(options_.categorical, name) != options_.categorical.end();
      if (words || !columns[i].of_numbers() || is_number(rows, i)) continue;
      found.push_back(fmt::format(
          "{}, line {}, column \"{}\": got {}, expected a number, as {} of {} values are", where_,
          rows.line(), name, detail::quoted_words(rows.field(i)), columns[i].numbers,
          columns[i].numbers + columns[i].words));
    }
  }

  std::string_view text_;
  const std::string where_;
  const CsvOptions& options_;
  const TableSpec spec_;
};

}  // namespace

std::vector<std::string> verify_csv(const std::filesystem::path& path, const CsvOptions& options) {
  const Array file = options.files->read(path);
  return Verifier(text_of(file), path.string(), options).findings();
}

}  // namespace tutti::data
