#include "tutti/data/sources/csv_columns.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/typed.h"
#include "tutti/data/sources/detail/csv_records.h"
#include "tutti/data/sources/detail/number_words.h"
#include "tutti/data/sources/detail/recognise_table.h"

namespace tutti::data {
namespace {

// Whole numbers up to here are float32 each.
constexpr int64_t kMostExact = int64_t{1} << 24;

// One field of all rows: what it may be, and its values as that.
struct Field {
  std::string name;
  char decimal = '.';
  bool whole = true, number = true;
  bool exact = true;         // whole numbers that float32 holds
  int64_t missing_line = 0;  // the first that lacks it; 0: none
  bool any = false;
  std::string rounded, beyond;  // what is said of the first that float32 does not hold
  std::vector<int64_t> wholes;
  std::vector<float> numbers;
  std::string texts;
  std::vector<size_t> ends;  // of each text

  void look_at(std::string_view text, bool missing, int64_t line) {
    if (missing) {
      if (missing_line == 0) missing_line = line;
      return;
    }
    any = true;
    const auto value = number_in<int64_t>(text);
    whole = whole && value;
    exact = exact && value && std::abs(*value) <= kMostExact;
    const auto read = number_in_field(text);
    number = number && read;
    if (read) look_at_float(text, *read, line);
  }

  // What the number would be in a column of float32.
  void look_at_float(std::string_view text, double read, int64_t line) {
    if (std::abs(read) > std::numeric_limits<float>::max()) {
      if (beyond.empty()) beyond = fmt::format("line {}, column {}: got {}", line, name, text);
      return;
    }
    const auto stored = static_cast<float>(read);
    if (rounded.empty() && detail::is_rounded(text, static_cast<double>(stored)))
      rounded = fmt::format("line {}, column {}: {} becomes {:.0f}", line, name, text, stored);
  }

  // Once all were looked at.
  void decide(const std::string& where) {
    number = number && any;
    whole = whole && any;
    if (!whole && number && !beyond.empty())
      throw DataError(
          fmt::format("{}, {}, expected a number that float32 can hold", where, beyond));
    if (!whole && number && !rounded.empty())
      log_once(fmt::format("csv_columns {} {}", where, name), LogLevel::warning,
               "{}, {}, as the column is float32; one of whole numbers alone is int64", where,
               rounded);
    if (!whole || missing_line == 0) return;
    if (!exact)
      throw DataError(
          fmt::format("{}, line {}, column {}: is missing, and its whole numbers are "
                      "too large for float32, in which NaN stands for that\n  give "
                      "every row one, or leave the column out",
                      where, missing_line, name));
    whole = false;
  }

  void add(std::string_view text, bool missing) {
    if (whole) {
      wholes.push_back(*number_in<int64_t>(text));
    } else if (number) {
      numbers.push_back(missing ? std::numeric_limits<float>::quiet_NaN()
                                : static_cast<float>(*number_in_field(text)));
    } else {
      texts += text;
      ends.push_back(texts.size());
    }
  }

  std::optional<double> number_in_field(std::string_view text) const {
    return detail::finite_number(text, decimal);
  }

  Column column() const {
    if (whole) return {name, DType::int64, {}};
    return number ? Column{name, DType::float32, {}} : Column{name, DType::uint8, {kAnySize}};
  }

  Array value(size_t row) const {
    if (whole) return scalar(wholes[row]);
    if (number) return scalar(numbers[row]);
    const size_t begin = row == 0 ? 0 : ends[row - 1];
    return data::bytes_of(std::string_view(texts).substr(begin, ends[row] - begin));
  }
};

class CsvColumnsSource final : public SampleSource {
 public:
  CsvColumnsSource(const std::filesystem::path& path, const CsvColumnsOptions& options)
      : options_(options), where_(path.string()), info_(options.files->info(path)) {
    const Array bytes = options.files->read(path);
    written_ = detail::how_written(text_of(bytes), where_, options.delimiter,
                                   {.header = options.header, .decimal = options.decimal});
    for_each_row(text_of(bytes), [&](Field& field, std::string_view text, bool missing,
                                     int64_t line) { field.look_at(text, missing, line); });
    if (lines_.empty()) throw DataError(fmt::format("{}: there is no row", where_));
    for (Field& field : fields_) {
      field.decide(where_);
      columns_.push_back(field.column());
    }
    lines_.clear();
    for_each_row(text_of(bytes), [](Field& field, std::string_view text, bool missing, int64_t) {
      field.add(text, missing);
    });
  }

  int64_t num_rows() const override { return std::ssize(lines_); }
  const std::vector<Column>& columns() const override { return columns_; }
  Sample read_row(int64_t row) const override {
    Sample sample;
    for (const Field& field : fields_)
      sample.columns.push_back(field.value(static_cast<size_t>(row)));
    return sample;
  }
  std::string where(int64_t row) const override {
    return fmt::format("{}, line {}", where_, lines_[static_cast<size_t>(row)]);
  }
  std::string fingerprint() const override { return fingerprint_of({info_}); }

 private:
  // Calls visit(field, its text, whether it is missing, line) row by row; lines go to lines_.
  template <class Visit>
  void for_each_row(std::string_view text, Visit visit) {
    detail::CsvRecords records(text, {.delimiter = written_.delimiter}, where_);
    for (bool first = true; records.next(); first = false) {
      const auto fields = records.fields();
      if (first && fields_.empty()) name_fields(fields);
      if (first && written_.header) continue;
      if (fields.size() != fields_.size())
        throw DataError(fmt::format("{}: got {} fields, expected {}", records.place(),
                                    fields.size(), fields_.size()));
      lines_.push_back(records.line());
      for (size_t f = 0; f < fields.size(); ++f)
        visit(fields_[f], fields[f],
              std::ranges::find(options_.missing, fields[f]) != options_.missing.end(),
              records.line());
    }
  }

  void name_fields(std::span<const std::string_view> first) {
    std::set<std::string> seen;
    for (size_t f = 0; f < first.size(); ++f) {
      Field field;
      field.decimal = options_.decimal;
      field.name = written_.header ? std::string(first[f]) : fmt::format("column{}", f);
      if (field.name.empty() || !seen.insert(field.name).second)
        throw DataError(
            fmt::format("{}: the first line names field {} \"{}\", expected a name of "
                        "its own for each",
                        where_, f + 1, field.name));
      fields_.push_back(std::move(field));
    }
  }

  CsvColumnsOptions options_;
  detail::TableLook written_;
  std::string where_;
  FileInfo info_;
  std::vector<Field> fields_;
  std::vector<Column> columns_;
  std::vector<int64_t> lines_;  // of each row
};

}  // namespace

Dataset csv_columns(const std::filesystem::path& path, const CsvColumnsOptions& options) {
  return Dataset(std::make_shared<CsvColumnsSource>(path, options));
}

}  // namespace tutti::data
