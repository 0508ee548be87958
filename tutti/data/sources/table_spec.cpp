#include "tutti/data/sources/table_spec.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/suggest.h"

namespace tutti::data {
namespace {

constexpr std::string_view kTableFormat = "tutti table 1";
// Not there in what earlier versions wrote: as it is by default.
constexpr std::string_view kMayLack = "decimal";

// Every member of a value with its name in JSON: what is written is what is read.
template <class Spec, class Action>
void each_member(Spec& spec, Action&& action)
  requires requires { spec.features; }
{
  action("delimiter", spec.delimiter);
  action("decimal", spec.decimal);
  action("header", spec.header);
  action("names", spec.names);
  action("missing", spec.missing);
  action("comment", spec.comment);
  action("one_hot", spec.one_hot);
  action("drop_incomplete", spec.drop_incomplete);
  action("features", spec.features);
  action("target", spec.target);
}

template <class Spec, class Action>
void each_member(Spec& column, Action&& action)
  requires requires { column.vocabulary; }
{
  action("name", column.name);
  action("kind", column.kind);
  action("vocabulary", column.vocabulary);
  action("mean", column.mean);
  action("deviation", column.deviation);
  action("fill", column.fill);
}

// Before the others: what they write values by must not be a char's.
template <class T>
OrderedJson written(const T& value) {
  return value;
}
OrderedJson written(const TableColumn& column);

// null would be read as no number.
OrderedJson written(double value) {
  if (!std::isfinite(value))
    throw DataError(
        fmt::format("table: got {}, expected finite numbers: JSON has no other", value));
  return value;
}
OrderedJson written(char letter) { return letter == '\0' ? std::string() : std::string(1, letter); }
OrderedJson written(ColumnKind kind) { return kind == ColumnKind::number ? "number" : "category"; }
OrderedJson written(const std::vector<TableColumn>& columns) {
  OrderedJson all = OrderedJson::array();
  for (const TableColumn& column : columns) all.push_back(written(column));
  return all;
}
template <class T>
OrderedJson written(const std::optional<T>& value) {
  return value ? written(*value) : OrderedJson();
}
OrderedJson written(const TableColumn& column) {
  OrderedJson json;
  each_member(column, [&](const char* name, const auto& value) { json[name] = written(value); });
  return json;
}

class SpecReader {
 public:
  explicit SpecReader(const std::string& where) : where_(where) {}

  template <class Value>
  void read_members(const OrderedJson& json, const std::string& place, Value& value) const {
    if (!json.is_object()) fail(place, json, "an object");
    std::vector<std::string> known;
    each_member(value, [&](const char* name, auto&) { known.emplace_back(name); });
    if (place.empty()) known.emplace_back("format");
    for (const auto& [key, unused] : json.items())
      if (std::ranges::find(known, key) == known.end())
        throw DataError(fmt::format("{}: {}{}", where_, place, unknown_message("key", key, known)));
    each_member(value, [&](const char* name, auto& member) {
      const std::string inner = place + name;
      if (!json.contains(name) && name == kMayLack) return;
      if (!json.contains(name)) throw DataError(fmt::format("{}: {} is missing", where_, inner));
      read(json[name], inner, member);
    });
  }

  [[noreturn]] void fail(const std::string& place, const OrderedJson& got,
                         std::string_view expected) const {
    throw DataError(
        fmt::format("{}: {}: got {:.60}, expected {}", where_, place, dump_json(got), expected));
  }

 private:
  void read(const OrderedJson& json, const std::string& place, bool& value) const {
    if (!json.is_boolean()) fail(place, json, "true or false");
    value = json.get<bool>();
  }
  void read(const OrderedJson& json, const std::string& place, double& value) const {
    if (!json.is_number() || !std::isfinite(json.get<double>())) fail(place, json, "a number");
    value = json.get<double>();
  }
  void read(const OrderedJson& json, const std::string& place, std::string& value) const {
    if (!json.is_string()) fail(place, json, "a string");
    value = json.get<std::string>();
  }
  void read(const OrderedJson& json, const std::string& place, char& value) const {
    if (!json.is_string() || json.get<std::string>().size() > 1) fail(place, json, "a character");
    const auto text = json.get<std::string>();
    value = text.empty() ? '\0' : text[0];
  }
  void read(const OrderedJson& json, const std::string& place, ColumnKind& value) const {
    if (json == written(ColumnKind::number))
      value = ColumnKind::number;
    else if (json == written(ColumnKind::category))
      value = ColumnKind::category;
    else
      fail(place, json, "\"number\" or \"category\"");
  }
  void read(const OrderedJson& json, const std::string& place, TableColumn& value) const {
    read_members(json, place + ".", value);
    const std::set<std::string> words(value.vocabulary.begin(), value.vocabulary.end());
    if (words.size() != value.vocabulary.size() ||
        words.empty() != (value.kind == ColumnKind::number))
      fail(place + ".vocabulary", json["vocabulary"],
           "different words of a category, none of a number");
    if (value.deviation <= 0) fail(place + ".deviation", json["deviation"], "a number above 0");
  }
  template <class T>
  void read(const OrderedJson& json, const std::string& place, std::vector<T>& values) const {
    if (!json.is_array()) fail(place, json, "a list");
    values.resize(json.size());
    for (size_t i = 0; i < json.size(); ++i)
      read(json[i], fmt::format("{}[{}]", place, i), values[i]);
  }
  template <class T>
  void read(const OrderedJson& json, const std::string& place, std::optional<T>& value) const {
    if (!json.is_null()) read(json, place, value.emplace());
  }

  const std::string& where_;
};

}  // namespace

const std::vector<std::string>& usual_missing() {
  static const std::vector<std::string> words{"", "?", "NA", "N/A", "NaN", "nan", "null", "NULL"};
  return words;
}

int64_t TableSpec::width() const {
  int64_t numbers = 0;
  for (const TableColumn& column : features)
    numbers += column.kind == ColumnKind::number ? 1 : one_hot ? std::ssize(column.vocabulary) : 0;
  return numbers;
}

std::vector<Column> TableSpec::columns(bool labelled) const {
  std::vector<Column> all;
  if (width() > 0) all.push_back({"x", DType::float32, {width()}});
  for (const TableColumn& column : features)
    if (column.kind == ColumnKind::category && !one_hot)
      all.push_back({column.name, DType::int64, {}});
  if (!labelled || !target) return all;
  if (target->kind == ColumnKind::category)
    all.push_back({"y", DType::int64, {}});
  else
    all.push_back({"y", DType::float32, {1}});
  return all;
}

std::string TableSpec::to_string() const {
  int64_t numbers = 0;
  std::vector<std::string> categories;
  for (const TableColumn& column : features) {
    if (column.kind == ColumnKind::number)
      ++numbers;
    else
      categories.push_back(fmt::format("{}: {} words", column.name, column.vocabulary.size()));
  }
  std::vector<std::string> made;
  for (const Column& column : columns()) made.push_back(column.to_string());
  std::string words = fmt::format("{} number{}", numbers, numbers == 1 ? "" : "s");
  if (!categories.empty())
    words += fmt::format(" and {} categor{} ({})", categories.size(),
                         categories.size() == 1 ? "y" : "ies", fmt::join(categories, ", "));
  return fmt::format("{} {}make {}", words,
                     target ? fmt::format("and the target {} ", target->name) : "",
                     fmt::join(made, ", "));
}

std::string TableSpec::to_json() const {
  OrderedJson json{{"format", kTableFormat}};
  each_member(*this, [&](const char* name, const auto& value) { json[name] = written(value); });
  try {
    return dump_json(json, 1) + "\n";
  } catch (const JsonError& error) {
    throw DataError(fmt::format(
        "table: a name or a word is no UTF-8: {}\n  convert the table to UTF-8", error.what()));
  }
}

TableSpec TableSpec::from_json(std::string_view text, const std::string& where) {
  OrderedJson json;
  try {
    json = parse_json<OrderedJson>(text);
  } catch (const JsonError& error) {
    throw DataError(fmt::format("{}: no JSON: {}", where, error.what()));
  }
  const SpecReader reader(where);
  if (!json.is_object() || !json.contains("format") || json["format"] != kTableFormat)
    throw DataError(fmt::format("{}: expected the columns of a table: {{\"format\": \"{}\", ...}}",
                                where, kTableFormat));
  TableSpec spec;
  reader.read_members(json, "", spec);
  return spec;
}

}  // namespace tutti::data
