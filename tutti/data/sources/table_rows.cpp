#include "tutti/data/sources/detail/table_rows.h"

#include <algorithm>
#include <set>

#include "tutti/base/error.h"
#include "tutti/data/sources/detail/source_file.h"

namespace tutti::data::detail {

TableRows::TableRows(std::string_view text, const TableSpec& spec, const std::string& where,
                     std::string_view may_lack)
    : spec_(spec), records_(text, {.delimiter = spec.delimiter, .comment = spec.comment}, where) {
  name_fields(text, may_lack);
  std::set<std::string_view> seen;
  for (const std::string& name : names_)
    if (!seen.insert(name).second)
      throw DataError(fmt::format("{}: column \"{}\" is there twice", where, name));
}

void TableRows::name_fields(std::string_view text, std::string_view may_lack) {
  // A look at the first record, which is a row where there is no header.
  CsvRecords first(text, {.delimiter = spec_.delimiter, .comment = spec_.comment},
                   records_.where());
  if (!first.next())
    throw DataError(fmt::format("{}: got no row, expected a table", records_.where()));
  if (spec_.header) {
    records_.next();
    names_.assign(first.fields().begin(), first.fields().end());
  } else if (!spec_.names.empty()) {
    names_ = spec_.names;
    if (!may_lack.empty() && first.fields().size() + 1 == names_.size())
      std::erase(names_, may_lack);
  } else {
    names_.resize(first.fields().size());
  }
  for (size_t i = 0; i < names_.size(); ++i)
    if (names_[i].empty()) names_[i] = fmt::format("column{}", i);
}

size_t TableRows::index_of(std::string_view name) const {
  return static_cast<size_t>(std::ranges::find(names_, name) - names_.begin());
}

bool TableRows::next() {
  if (!records_.next()) return false;
  const size_t got = records_.fields().size();
  if (got != names_.size())
    throw DataError(fmt::format(
        "{}: got {} fields, expected {}: {}\n  is '{}' what delimits them? One within a field "
        "needs quotes around it",
        records_.place(), got, names_.size(),
        got < names_.size()
            ? fmt::format("the first missing is \"{}\"", names_[got])
            : fmt::format("{} follows \"{}\"", quoted_words(records_.fields()[names_.size()]),
                          names_.back()),
        spec_.delimiter == '\t' ? std::string("\\t") : std::string(1, spec_.delimiter)));
  return true;
}

bool TableRows::is_missing(std::string_view field) const {
  return std::ranges::find(spec_.missing, field) != spec_.missing.end();
}

void TableRows::fail(size_t index, std::string_view expected) const {
  throw DataError(fmt::format("{}, column \"{}\": got {}, expected {}", records_.place(),
                              names_[index], quoted_words(field(index)), expected));
}

void require_vocabularies(const TableSpec& spec, const std::string& where) {
  // One-hot, a number in memory each; else whole numbers that a float32 has without rounding.
  constexpr int64_t kMostOneHot = 1000;
  constexpr int64_t kMostWords = 1 << 24;
  const auto require = [&](const TableColumn& column, int64_t most, const char* way_out) {
    if (std::ssize(column.vocabulary) > most)
      throw UsageError(
          fmt::format("{}: column \"{}\" has {} different words, expected at most {}\n"
                      "  {}",
                      where, column.name, column.vocabulary.size(), most, way_out));
  };
  for (const TableColumn& column : spec.features)
    require(column, spec.one_hot ? kMostOneHot : kMostWords,
            spec.one_hot ? "leave it out: `without` (--without); or, in a program, make it a "
                           "column for an embedding: one_hot = false"
                         : "leave it out: `without` (--without)");
  if (spec.target) require(*spec.target, kMostWords, "is it the right target?");
}

}  // namespace tutti::data::detail
