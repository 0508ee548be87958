#include "tutti/data/sources/detail/table_rows.h"

#include <algorithm>
#include <set>

#include "tutti/base/error.h"
#include "tutti/data/sources/detail/source_file.h"

namespace tutti::data::detail {
namespace {

constexpr const char* kTakeExcelsOut =
    "the first line is Excel's, which says what delimits, and names nothing: take it out";

// "sep=;" as names: itself, or what stands before and behind the delimiter.
bool is_excels(const std::vector<std::string>& names) {
  return names[0].starts_with("sep=") && names.size() <= 2;
}

// What to try where a row has more or fewer fields than the first line.
std::string advice_on_fields(const std::vector<std::string>& names,
                             std::span<const std::string_view> fields, char delimiter) {
  if (is_excels(names)) return kTakeExcelsOut;
  if (fields.size() == names.size() + 1)
    return fields.back().empty()
               ? "take the delimiter at the end of each row out, or add one to the first line"
               : "are rows named, as R writes them? Give that column a name in the first line, or "
                 "leave it out (row.names = FALSE); a delimiter within a field needs quotes around "
                 "it";
  return fmt::format("is '{}' what delimits them? One within a field needs quotes around it",
                     delimiter == '\t' ? std::string("\\t") : std::string(1, delimiter));
}

}  // namespace

TableRows::TableRows(std::string_view text, const TableSpec& spec, const std::string& where,
                     std::optional<bool> header, std::string_view may_lack)
    : spec_(spec),
      header_(header.value_or(spec.header)),
      records_(text, {.delimiter = spec.delimiter, .comment = spec.comment}, where) {
  if (spec.decimal != '.' && spec.decimal != ',')
    throw UsageError(fmt::format("{}: decimal '{}'; expected '.' or ','", where, spec.decimal));
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
  first_line_ = first.line();
  if (header_ != spec_.header && spec_.names.empty())
    throw DataError(fmt::format(
        "{}: has {} line of names, the table that was learnt of had {}, and the order of its "
        "fields was not kept\n  give the file as that one was",
        records_.where(), header_ ? "a" : "no", header_ ? "none" : "one"));
  if (header_) records_.next();
  if (header_ && spec_.header) {
    names_.assign(first.fields().begin(), first.fields().end());
    if (is_excels(names_) && first.next() && first.fields().size() == names_.size())
      throw DataError(fmt::format("{}, line {}: got \"{}\", expected the names of the fields\n  {}",
                                  records_.where(), first_line_, names_[0], kTakeExcelsOut));
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
        "{}: got {} fields, expected {}: {}\n  {}", records_.place(), got, names_.size(),
        got < names_.size()
            ? fmt::format("the first missing is \"{}\"", names_[got])
            : fmt::format("{} follows \"{}\"", quoted_words(records_.fields()[names_.size()]),
                          names_.back()),
        advice_on_fields(names_, records_.fields(), spec_.delimiter)));
  return true;
}

std::optional<double> TableRows::number(size_t index) const {
  return finite_number(field(index), spec_.decimal);
}

bool TableRows::is_missing(std::string_view field) const {
  return std::ranges::find(spec_.missing, field) != spec_.missing.end();
}

void TableRows::fail(size_t index, std::string_view expected) const {
  const bool may_be_names = !header_ && line() == first_line_;
  throw DataError(
      fmt::format("{}, column \"{}\": got {}, expected {}{}", records_.place(), names_[index],
                  quoted_words(field(index)), expected,
                  may_be_names ? "\n  is it a line of names? `header` (--header yes)" : ""));
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
