#include "tutti/data/sources/detail/example.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "tutti/base/error.h"

namespace tutti::data::detail {
namespace {

using protozero::pbf_reader;
using protozero::pbf_writer;
using View = protozero::data_view;

enum ListKind : uint32_t { kNone = 0, kBytesList = 1, kFloatList = 2, kInt64List = 3 };
constexpr const char* kListWords[] = {"nothing", "bytes", "float32", "int64"};
constexpr protozero::pbf_tag_type kValues = 1;  // of each kind of list

struct List {
  ListKind kind = kNone;
  std::string_view message;
};

using Wire = protozero::pbf_wire_type;

std::string_view text_of_view(View view) { return {view.data(), view.size()}; }

// protozero asserts what it should refuse: a field of another type than its number has.
void require_type(const pbf_reader& reader, Wire type) {
  if (reader.wire_type() != type)
    throw DataError(fmt::format("the record is no tf.train.Example: field {} is of another type",
                                reader.tag()));
}

pbf_reader message_at(pbf_reader& reader) {
  require_type(reader, Wire::length_delimited);
  return reader.get_message();
}

std::string_view string_at(pbf_reader& reader) {
  require_type(reader, Wire::length_delimited);
  return text_of_view(reader.get_view());
}

List list_at(pbf_reader& entry) {
  pbf_reader feature = message_at(entry);
  List list;
  while (feature.next()) {  // of a choice the last counts
    const protozero::pbf_tag_type tag = feature.tag();
    if (tag >= kBytesList && tag <= kInt64List)
      list = {static_cast<ListKind>(tag), string_at(feature)};
    else
      feature.skip();
  }
  return list;
}

// Calls visit(name, value) for each entry of a map by name, the value as take(entry) reads it.
template <class Take, class Visit>
void for_each_entry(pbf_reader map, Take&& take, Visit&& visit) {
  while (map.next(1)) {
    pbf_reader entry = message_at(map);
    std::string_view name;
    decltype(take(entry)) value{};
    while (entry.next()) {
      if (entry.tag() == 1)
        name = string_at(entry);
      else if (entry.tag() == 2)
        value = take(entry);
      else
        entry.skip();
    }
    visit(name, value);
  }
}

// Calls visit(name, list) for each feature of an Example.
template <class Visit>
void for_each_feature(std::string_view record, Visit&& visit) {
  pbf_reader example(record.data(), record.size());
  while (example.next(1)) for_each_entry(message_at(example), list_at, visit);
}

// The same for each of the feature lists of a SequenceExample, with all lists of one.
template <class Visit>
void for_each_feature_list(std::string_view record, Visit&& visit) {
  const auto take = [](pbf_reader& entry) {
    std::vector<List> lists;
    pbf_reader features = message_at(entry);
    while (features.next(1)) lists.push_back(list_at(features));
    return lists;
  };
  pbf_reader example(record.data(), record.size());
  while (example.next(2)) for_each_entry(message_at(example), take, visit);
}

// Calls visit(value) for each number of a list, packed or not.
template <class T, class Visit>
void for_each_number(std::string_view message, Visit&& visit) {
  pbf_reader list(message.data(), message.size());
  while (list.next(kValues)) {
    const bool packed = list.wire_type() == Wire::length_delimited;
    if constexpr (std::is_same_v<T, float>) {
      if (packed) {
        for (const float value : list.get_packed_float()) visit(value);
      } else {
        require_type(list, Wire::fixed32);
        visit(list.get_float());
      }
    } else {
      if (packed) {
        for (const int64_t value : list.get_packed_int64()) visit(value);
      } else {
        require_type(list, Wire::varint);
        visit(list.get_int64());
      }
    }
  }
}

std::vector<std::string_view> strings_of(std::string_view message) {
  std::vector<std::string_view> strings;
  pbf_reader list(message.data(), message.size());
  while (list.next(kValues)) strings.push_back(string_at(list));
  return strings;
}

int64_t count_of(const List& list) {
  int64_t count = 0;
  if (list.kind == kBytesList) count = std::ssize(strings_of(list.message));
  if (list.kind == kFloatList) for_each_number<float>(list.message, [&](float) { ++count; });
  if (list.kind == kInt64List) for_each_number<int64_t>(list.message, [&](int64_t) { ++count; });
  return count;
}

ListKind kind_of(DType dtype) {
  return dtype == DType::uint8 ? kBytesList : dtype == DType::float32 ? kFloatList : kInt64List;
}

// The shape of `count` values. Throws DataError when they do not fit.
std::vector<int64_t> shape_for(const Column& column, int64_t count) {
  std::vector<int64_t> shape = column.shape;
  int64_t fixed = 1;
  for (const int64_t size : shape) fixed *= size == kAnySize ? 1 : size;
  const bool fits = column.fixed() ? count == fixed : fixed > 0 && count % fixed == 0;
  if (!fits)
    throw DataError(
        fmt::format("feature \"{}\" has {} {}, expected {} of {}", column.name, count,
                    column.dtype == DType::uint8 ? "bytes" : "values",
                    column.fixed() ? std::to_string(fixed) : fmt::format("a multiple of {}", fixed),
                    shape_words(shape)));
  if (!column.fixed()) shape[0] = count / fixed;
  return shape;
}

template <class T>
Array numbers_of(const Column& column, const List& list) {
  Array array = make_array(column.dtype, shape_for(column, count_of(list)));
  T* to = static_cast<T*>(array.data());
  for_each_number<T>(list.message, [&](T value) { *to++ = value; });
  return array;
}

Array string_of(const Column& column, const List& list) {
  const std::vector<std::string_view> strings = strings_of(list.message);
  if (strings.size() != 1)
    throw DataError(
        fmt::format("feature \"{}\" has {} strings, expected one", column.name, strings.size()));
  Array array = make_array(DType::uint8, shape_for(column, std::ssize(strings[0])));
  if (!strings[0].empty()) std::memcpy(array.data(), strings[0].data(), strings[0].size());
  return array;
}

double number_of(const Feature& feature) {
  const auto* whole = std::get_if<int64_t>(&feature.missing);
  return whole != nullptr ? static_cast<double>(*whole) : std::get<double>(feature.missing);
}

// The value for an Example without the feature.
Array missing_value(const Feature& feature) {
  if (const auto* text = std::get_if<std::string>(&feature.missing)) return bytes_of(*text);
  std::vector<int64_t> shape = feature.shape;
  std::ranges::replace(shape, kAnySize, int64_t{1});
  Array array = make_array(feature.dtype, std::move(shape));
  if (feature.dtype == DType::float32)
    std::ranges::fill(array.as<float>(), static_cast<float>(number_of(feature)));
  else if (feature.dtype == DType::int64)
    std::ranges::fill(array.as<int64_t>(), std::get<int64_t>(feature.missing));
  else
    std::ranges::fill(array.as<uint8_t>(),
                      static_cast<uint8_t>(std::get<int64_t>(feature.missing)));
  return array;
}

void require_sound_missing(const Feature& feature) {
  const auto& missing = feature.missing;
  if (std::holds_alternative<std::monostate>(missing)) return;
  const bool any = std::ranges::find(feature.shape, kAnySize) != feature.shape.end();
  const auto* whole = std::get_if<int64_t>(&missing);
  const bool text = std::holds_alternative<std::string>(missing);
  const bool sound = feature.dtype == DType::float32 ? !text
                     : feature.dtype == DType::int64 ? whole != nullptr
                     : any && feature.shape.size() == 1
                         ? text
                         : whole != nullptr && *whole >= 0 && *whole <= 255;
  if (!sound)
    throw UsageError(
        fmt::format("feature \"{}\": what stands for a missing one is of another kind than {} {}",
                    feature.name, name_of(feature.dtype), shape_words(feature.shape)));
}

void require_sound(const Feature& feature) {
  if (feature.dtype != DType::int64 && feature.dtype != DType::float32 &&
      feature.dtype != DType::uint8)
    throw UsageError(
        fmt::format("feature \"{}\": got dtype {}, expected int64, float32, or uint8 for the bytes "
                    "of a string\n"
                    "  map() makes others of it",
                    feature.name, name_of(feature.dtype)));
  for (size_t i = 0; i < feature.shape.size(); ++i)
    if (feature.shape[i] < 0 && (i > 0 || feature.shape[i] != kAnySize))
      throw UsageError(
          fmt::format("feature \"{}\": got shape {}, expected sizes >= 0; only the first "
                      "may be kAnySize",
                      feature.name, shape_words(feature.shape)));
  if (feature.dtype == DType::uint8 && feature.shape.empty())
    throw UsageError(
        fmt::format("feature \"{}\": a string has shape {{kAnySize}}, got {{}}", feature.name));
  require_sound_missing(feature);
}

// What was looked for and is not there: the names that are, for a typing error.
[[noreturn]] void fail_missing(std::string_view name, std::string_view record) {
  std::vector<std::string> there;
  for_each_feature(record, [&](std::string_view other, const List& list) {
    if (list.kind != kNone) there.emplace_back(other);
  });
  throw DataError(
      fmt::format("there is no feature \"{}\"; there are: {}\n  Feature::missing says "
                  "what then stands for it",
                  name, there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", "))));
}

}  // namespace

ExampleReader::ExampleReader(std::vector<Feature> features) : features_(std::move(features)) {
  std::set<std::string> names;
  for (const Feature& feature : features_) {
    require_sound(feature);
    if (!names.insert(feature.name).second)
      throw UsageError(fmt::format("feature \"{}\" is named twice", feature.name));
    columns_.push_back({feature.name, feature.dtype, feature.shape});
  }
}

Sample ExampleReader::read(std::string_view record) const try {
  std::vector<List> lists(features_.size());
  for_each_feature(record, [&](std::string_view name, const List& list) {
    const auto wanted = std::ranges::find(features_, name, &Feature::name);
    if (wanted != features_.end()) lists[static_cast<size_t>(wanted - features_.begin())] = list;
  });
  Sample sample;
  for (size_t i = 0; i < lists.size(); ++i) {
    const Column& column = columns_[i];
    const ListKind expected = kind_of(column.dtype);
    if (lists[i].kind == kNone) {
      if (std::holds_alternative<std::monostate>(features_[i].missing))
        fail_missing(column.name, record);
      sample.columns.push_back(missing_value(features_[i]));
    } else if (lists[i].kind != expected) {
      throw DataError(fmt::format("feature \"{}\" is a list of {}, expected {}", column.name,
                                  kListWords[lists[i].kind], kListWords[expected]));
    } else if (expected == kBytesList) {
      sample.columns.push_back(string_of(column, lists[i]));
    } else if (expected == kFloatList) {
      sample.columns.push_back(numbers_of<float>(column, lists[i]));
    } else {
      sample.columns.push_back(numbers_of<int64_t>(column, lists[i]));
    }
  }
  return sample;
} catch (const protozero::exception& error) {
  throw DataError(fmt::format("the record is no tf.train.Example: {}", error.what()));
}

std::vector<Feature> features_in(std::string_view record) try {
  std::map<std::string, List> lists;
  for_each_feature(
      record, [&](std::string_view name, const List& list) { lists[std::string(name)] = list; });
  std::vector<Feature> features;
  for (const auto& [name, list] : lists) {
    if (list.kind == kNone) continue;
    const int64_t count = count_of(list);
    if (list.kind == kBytesList)
      features.push_back({.name = name, .dtype = DType::uint8, .shape = {kAnySize}});
    else
      features.push_back({.name = name,
                          .dtype = list.kind == kFloatList ? DType::float32 : DType::int64,
                          .shape = count == 1 ? std::vector<int64_t>{} : std::vector{count}});
  }
  return features;
} catch (const protozero::exception& error) {
  throw DataError(fmt::format("the record is no tf.train.Example: {}", error.what()));
}

namespace {

// Read to its last value, which count_of() does.
ExampleValue value_of(std::string_view name, const List& list, bool in_lists) {
  ExampleValue value{
      .name = std::string(name), .kind = kListWords[list.kind], .in_lists = in_lists};
  count_of(list);
  if (list.kind == kBytesList) {
    value.strings = strings_of(list.message);
    value.kind = "string";  // however many: lists of numbers vary in length, too
  }
  return value;
}

}  // namespace

std::vector<ExampleValue> values_in(std::string_view record) try {
  std::vector<ExampleValue> values;
  for_each_feature(record, [&](std::string_view name, const List& list) {
    if (list.kind != kNone) values.push_back(value_of(name, list, false));
  });
  for_each_feature_list(record, [&](std::string_view name, const std::vector<List>& lists) {
    for (const List& list : lists) values.push_back(value_of(name, list, true));
    if (lists.empty()) values.push_back(value_of(name, {}, true));
  });
  return values;
} catch (const protozero::exception& error) {
  throw DataError(fmt::format("the record is no tf.train.Example: {}", error.what()));
}

namespace {

template <class T>
void append_integers(pbf_writer& list, const Array& array) {
  protozero::packed_field_int64 values(list, kValues);
  const T* from = static_cast<const T*>(array.data());
  for (int64_t i = 0; i < array.num_elements(); ++i)
    values.add_element(static_cast<int64_t>(from[i]));
}

void append_values(pbf_writer& feature, const Array& array) {
  // One number of 8 bits is a number; a row of them is a string.
  const bool number = array.dtype() == DType::uint8 && array.shape().empty();
  pbf_writer list(feature, number ? kInt64List : kind_of(array.dtype()));
  if (number) return append_integers<uint8_t>(list, array);
  switch (array.dtype()) {
    case DType::uint8: list.add_bytes(kValues, text_of(array).data(), text_of(array).size()); break;
    case DType::float32: {
      const auto values = array.as<float>();
      list.add_packed_float(kValues, values.begin(), values.end());
      break;
    }
    case DType::boolean: append_integers<uint8_t>(list, array); break;
    case DType::int8: append_integers<int8_t>(list, array); break;
    case DType::uint16: append_integers<uint16_t>(list, array); break;
    case DType::int16: append_integers<int16_t>(list, array); break;
    case DType::uint32: append_integers<uint32_t>(list, array); break;
    case DType::int32: append_integers<int32_t>(list, array); break;
    default: append_integers<int64_t>(list, array);
  }
}

}  // namespace

std::string encode_example(const std::vector<Column>& columns, const Sample& sample) {
  std::string bytes;
  pbf_writer example(bytes);
  pbf_writer features(example, 1);
  for (size_t c = 0; c < columns.size(); ++c) {
    pbf_writer entry(features, 1);
    entry.add_string(1, columns[c].name);
    pbf_writer feature(entry, 2);
    append_values(feature, sample.columns[c]);
  }
  features.commit();
  return bytes;
}

}  // namespace tutti::data::detail
