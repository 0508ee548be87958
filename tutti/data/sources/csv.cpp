#include "tutti/data/sources/csv.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/sha256.h"
#include "tutti/base/suggest.h"
#include "tutti/base/utf8.h"
#include "tutti/data/detail/source_in_memory.h"
#include "tutti/data/sources/detail/number_words.h"
#include "tutti/data/sources/detail/table_rows.h"
#include "tutti/data/sources/detail/table_text.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

// The values of a table, row by row: features in order, then the target, where it is read.
struct TableValues {
  std::vector<float> values;  // a category: its index in the vocabulary
  std::vector<int64_t> lines;
};

class TableSource final : public detail::SourceInMemory {
 public:
  TableSource(TableSpec spec, bool labelled, TableValues table, std::string where,
              std::string fingerprint)
      : spec_(std::move(spec)),
        labelled_(labelled && spec_.target),
        table_(std::move(table)),
        where_(std::move(where)),
        fingerprint_(std::move(fingerprint)),
        columns_(spec_.columns(labelled)),
        width_(spec_.width()),
        stored_(spec_.features.size() + (labelled_ ? 1 : 0)) {}

  int64_t num_rows() const override { return std::ssize(table_.lines); }
  const std::vector<Column>& columns() const override { return columns_; }
  const std::vector<std::string>& classes() const override {
    return labelled_ ? spec_.target->vocabulary : Source::classes();
  }
  std::string where(int64_t row) const override {
    return fmt::format("{}, line {}", where_, table_.lines[static_cast<size_t>(row)]);
  }
  std::string fingerprint() const override { return fingerprint_; }
  std::vector<int64_t> first_rows_of_files() const override { return {0}; }

  void gather_into(std::span<const int64_t> rows, std::span<const Array> places) const override {
    size_t place = 0;
    if (width_ > 0) fill_features(rows, static_cast<float*>(places[place++].data()));
    if (!spec_.one_hot)
      for (size_t i = 0; i < spec_.features.size(); ++i)
        if (spec_.features[i].kind == ColumnKind::category)
          fill_stored<int64_t>(rows, i, places[place++]);
    if (!labelled_) return;
    if (spec_.target->kind == ColumnKind::category)
      fill_stored<int64_t>(rows, stored_ - 1, places[place]);
    else
      fill_stored<float>(rows, stored_ - 1, places[place]);
  }

 private:
  const float* row_of(int64_t row) const {
    return table_.values.data() + static_cast<size_t>(row) * stored_;
  }

  void fill_features(std::span<const int64_t> rows, float* x) const {
    for (int64_t row : rows) {
      const float* value = row_of(row);
      for (const TableColumn& column : spec_.features) {
        if (column.kind == ColumnKind::number) {
          *x++ = *value;
        } else if (spec_.one_hot) {
          std::fill_n(x, column.vocabulary.size(), 0.0f);
          x[static_cast<size_t>(*value)] = 1;
          x += column.vocabulary.size();
        }
        ++value;
      }
    }
  }

  template <class T>
  void fill_stored(std::span<const int64_t> rows, size_t index, const Array& place) const {
    auto* to = static_cast<T*>(place.data());
    for (int64_t row : rows) *to++ = static_cast<T>(row_of(row)[index]);
  }

  TableSpec spec_;
  bool labelled_;
  TableValues table_;
  std::string where_;
  std::string fingerprint_;
  std::vector<Column> columns_;
  int64_t width_;
  size_t stored_;  // values of a row in memory
};

// Reads the values of a file as a spec says.
class TableReader {
 public:
  TableReader(std::string_view text, const TableSpec& spec, const CsvReading& reading,
              const std::string& where)
      : spec_(spec),
        where_(where),
        rows_(text, spec, where, reading.header,
              !reading.labelled && spec.target ? std::string_view(spec.target->name) : "") {
    for (const TableColumn& column : spec.features) add(column, false);
    if (reading.labelled && spec.target) add(*spec.target, true);
    // Lines are rows, but for a few: memory is taken once.
    const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
    table_.lines.reserve(lines);
    table_.values.reserve(lines * columns_.size());
  }

  TableValues read() {
    while (rows_.next()) {
      if (spec_.drop_incomplete && lacks_a_value()) {
        ++dropped_;
        continue;
      }
      table_.lines.push_back(rows_.line());
      for (Field& field : columns_)
        table_.values.push_back(field.column->kind == ColumnKind::number ? number(field)
                                                                         : index(field));
    }
    if (table_.lines.empty())
      throw DataError(fmt::format("{}: got no row, expected one or more", where_));
    say_what_was_missing();
    say_what_was_rounded();
    return std::move(table_);
  }

 private:
  struct Field {
    const TableColumn* column = nullptr;
    size_t place = 0;  // in a row
    bool target = false;
    std::unordered_map<std::string_view, float> indices;
    int64_t filled = 0;
    int64_t rounded = 0;
    std::string first_rounded;  // what is said of it
  };

  void add(const TableColumn& column, bool target) {
    const size_t place = rows_.index_of(column.name);
    if (place == rows_.names().size())
      throw DataError(
          fmt::format("{}: {}{}", where_, unknown_message("column", column.name, rows_.names()),
                      spec_.header ? "\n  has it no line of names? `header` (--header no)" : ""));
    Field field{.column = &column, .place = place, .target = target};
    for (const std::string& word : column.vocabulary)
      field.indices.emplace(word, static_cast<float>(field.indices.size()));
    columns_.push_back(std::move(field));
  }

  bool lacks_a_value() const {
    return std::ranges::any_of(
        columns_, [&](const Field& field) { return rows_.is_missing(rows_.field(field.place)); });
  }

  float number(Field& field) {
    const TableColumn& column = *field.column;
    const std::string_view text = rows_.field(field.place);
    const bool missing = rows_.is_missing(text);
    std::optional<double> value;
    if (missing) {
      value = field.target ? std::nullopt : column.fill;
      ++field.filled;
    } else {
      value = rows_.number(field.place);
    }
    if (!value) rows_.fail(field.place, "a number");
    const double scaled = (*value - column.mean) / column.deviation;
    if (std::abs(scaled) > std::numeric_limits<float>::max())
      rows_.fail(field.place, "a number that float32 can hold");
    const auto stored = static_cast<float>(scaled);
    if (!missing) look_at_rounding(field, text, *value, column.original(stored));
    return stored;
  }

  void look_at_rounding(Field& field, std::string_view text, double value, double read) const {
    constexpr double kMostExact = 9007199254740992.0;  // 2^53: beyond, `value` may be rounded too
    if (std::abs(read - value) < 0.5 && std::abs(value) < kMostExact) return;
    if (!detail::is_rounded(text, read) || field.rounded++ > 0) return;
    field.first_rounded = fmt::format("line {}, column \"{}\": {} is read as {:.0f}", rows_.line(),
                                      field.column->name, text, read);
  }

  float index(const Field& field) const {
    const std::string_view word = rows_.field(field.place);
    const auto found = field.indices.find(word);
    if (found == field.indices.end()) fail_word(field, word);
    return found->second;
  }

  [[noreturn]] void fail_word(const Field& field, std::string_view word) const {
    const std::vector<std::string>& known = field.column->vocabulary;
    std::string expected = fmt::format("one of the {} words of this column", known.size());
    const std::string alike = look_alike(word, known), near = nearest(word, known);
    const size_t wrong = first_wrong_byte(word);
    if (wrong < word.size())
      expected += "; it has " + wrong_byte_words(word[wrong]);
    else if (!alike.empty())
      expected += "; " + alike;
    else if (!near.empty())
      expected += fmt::format("; the nearest is \"{}\"", near);
    rows_.fail(field.place, expected);
  }

  void say_what_was_missing() const {
    const auto rows = std::ssize(table_.lines);
    for (const Field& field : columns_)
      if (field.filled > 0)
        log_once(fmt::format("csv {} {}", where_, field.column->name), LogLevel::warning,
                 "{}: {} of {} rows lack \"{}\": taken as {:.6g}", where_, field.filled, rows,
                 field.column->name, *field.column->fill);
    if (dropped_ > 0)
      log_once("csv " + where_, LogLevel::warning, "{}: {} of {} rows lack a value: left out",
               where_, dropped_, rows + dropped_);
  }

  void say_what_was_rounded() const {
    for (const Field& field : columns_)
      if (field.rounded > 0)
        log_once(fmt::format("csv rounded {} {}", where_, field.column->name), LogLevel::warning,
                 "{}, {}: float32 rounds {} whole numbers of this column{}", where_,
                 field.first_rounded, field.rounded,
                 field.target ? ", the target: write them in a larger unit"
                              : "; where they are names, not amounts, leave it out (`without`, "
                                "--without) or make words of them (`categorical`, --categorical)");
  }

  const TableSpec& spec_;
  const std::string& where_;
  detail::TableRows rows_;
  std::vector<Field> columns_;
  TableValues table_;
  int64_t dropped_ = 0;
};

Dataset open_table(const fs::path& path, std::string_view text, const TableSpec& spec,
                   const CsvReading& reading) {
  const std::string where = path.string();
  detail::require_vocabularies(spec, where);
  TableValues table = TableReader(text, spec, reading, where).read();
  const std::string key =
      fmt::format("csv {} {} {} {}", reading.labelled, reading.header.value_or(spec.header),
                  spec.to_json(), fingerprint_of({reading.files->info(path)}));
  return Dataset(std::make_shared<TableSource>(spec, reading.labelled, std::move(table),
                                               path.filename().string(), sha256_hex(key)));
}

// Which of so many rows hold_out() leaves to train on.
std::vector<bool> trained_on(int64_t rows, HoldOutOptions held_out) {
  std::vector<bool> chosen(static_cast<size_t>(rows));
  const Dataset train =
      hold_out(from_arrays({array_of(std::vector<uint8_t>(chosen.size()), {rows})}), held_out)
          .train;
  const Epoch epoch = train.batch(train.num_samples()).epoch({});
  for (const int64_t row : epoch.rows(0)) chosen[static_cast<size_t>(row)] = true;
  return chosen;
}

}  // namespace

Dataset csv(const fs::path& path, const CsvOptions& options) {
  const Array file = options.files->read(path);
  const TableSpec spec = detail::spec_of_text(text_of(file), path.string(), options);
  return open_table(path, text_of(file), spec, {.files = options.files});
}

TableHalves csv_halves(const fs::path& path, const CsvOptions& options, HoldOutOptions held_out) {
  const Array file = options.files->read(path);
  const TableSpec spec =
      detail::spec_of_text(text_of(file), path.string(), options,
                           [&](int64_t rows) { return trained_on(rows, held_out); });
  Halves halves =
      hold_out(open_table(path, text_of(file), spec, {.files = options.files}), held_out);
  return {spec, std::move(halves.train), std::move(halves.held_out)};
}

Dataset csv(const fs::path& path, const TableSpec& spec, const CsvReading& reading) {
  const Array file = reading.files->read(path);
  return open_table(path, text_of(file), spec, reading);
}

}  // namespace tutti::data
