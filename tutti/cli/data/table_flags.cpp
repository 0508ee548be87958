#include "tutti/cli/data/table_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "tutti/base/error.h"
#include "tutti/cli/arguments.h"
#include "tutti/cli/checks.h"

namespace tutti::cli {

std::optional<bool> TableFlags::has_header() const {
  return header.empty() ? std::nullopt : std::optional(header == "yes");
}

void add_header_flag(Command& command, std::string& header) {
  command.add("--header", "yes|no", &header, one_of("answer", {"yes", "no"}),
              "Tables: whether the first line names the columns: yes or no (default: as it "
              "looks; as the training's where data.json says how that was)");
}

void add_table_flags(Command& command, TableFlags& flags, bool kinds) {
  add_header_flag(command, flags.header);
  command.add("--decimal", "CHARACTER", &flags.decimal, one_of("decimal", {".", ","}),
              "Tables: what begins a fraction, . or , (default: .)");
  if (kinds)
    command
        .add("--categorical", "COLUMNS", &flags.categorical, some_name(),
             "Tables: columns whose numbers are words; a target is a class then")
        .several = Several::commas;
  command
      .add("--missing", "WORDS", &flags.missing, some_name(),
           "Tables: how a missing value is written, besides ?, NA and the like")
      .several = Several::commas;
}

data::Recognised recognise(const std::string& path, const TableFlags& flags) {
  return data::recognise(path, data::local_files(), flags.has_header(), flags.decimal_point());
}

void require_table(const std::string& path, const TableFlags& flags,
                   const data::Recognised& found) {
  if (found.kind == data::DataKind::csv) return;
  const auto refuse = [&](const std::string& flag) {
    throw UsageError(fmt::format("{}: is for tables; {} has {}", flag, path, found.sentence));
  };
  if (!flags.header.empty()) refuse("--header " + flags.header);
  if (!flags.decimal.empty()) refuse("--decimal " + flags.decimal);
  if (!flags.categorical.empty()) refuse("--categorical " + flags.categorical[0]);
  if (!flags.missing.empty()) refuse("--missing " + flags.missing[0]);
}

data::CsvOptions csv_options(const TableFlags& flags) {
  data::CsvOptions options{.categorical = flags.categorical,
                           .decimal = flags.decimal_point(),
                           .header = flags.has_header()};
  std::ranges::copy(flags.missing, std::back_inserter(options.missing));
  return options;
}

namespace {

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 20;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kMost, ", "),
                     names.size() - kMost);
}

}  // namespace

std::string column_words(const data::TableSpec& table) {
  std::vector<std::string> numbers, words, parts;
  for (const data::TableColumn& column : table.features) {
    if (column.kind == data::ColumnKind::number)
      numbers.push_back(column.name);
    else
      words.push_back(fmt::format("{} ({})", column.name, column.vocabulary.size()));
  }
  if (!numbers.empty()) parts.push_back("numbers " + some_of(numbers));
  if (!words.empty()) parts.push_back("words " + some_of(words));
  if (table.target)
    parts.push_back(fmt::format("target {}, {}", table.target->name,
                                table.target->kind == data::ColumnKind::number
                                    ? "a number"
                                    : fmt::format("{} classes", table.target->vocabulary.size())));
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string words_that_repeat_not(const data::TableSpec& table, int64_t rows) {
  constexpr int64_t kFewRows = 20;  // in which each may well be the first of its kind
  const auto repeat_not = [&](const data::TableColumn& column) {
    return rows > kFewRows && 2 * std::ssize(column.vocabulary) > rows;
  };
  std::string words;
  if (table.target && repeat_not(*table.target))
    words = fmt::format(
        "; target \"{}\" has {} classes in {} rows, too few rows of each to learn it by",
        table.target->name, table.target->vocabulary.size(), rows);
  for (const data::TableColumn& column : table.features)
    if (repeat_not(column))
      return words +
             fmt::format(
                 "; column \"{0}\" has {1} words in {2} rows: other rows will have others, which "
                 "are an error; --without \"{0}\" leaves it out",
                 column.name, column.vocabulary.size(), rows);
  return words;
}

}  // namespace tutti::cli
