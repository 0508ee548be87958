#include "tutti/extras/mds/detail/mds_format.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/typed.h"

namespace tutti::data::detail {
namespace {

// Numbers by name and, in an ndarray that says its own dtype, by code.
struct MdsNumber {
  std::string_view name;
  DType dtype;
  uint8_t code;
};
constexpr MdsNumber kMdsNumbers[] = {
    {"uint8", DType::uint8, 8},  {"int8", DType::int8, 9},        {"uint16", DType::uint16, 16},
    {"int16", DType::int16, 17}, {"float16", DType::float16, 18}, {"uint32", DType::uint32, 32},
    {"int32", DType::int32, 33}, {"float32", DType::float32, 34}, {"uint64", DType::uint64, 64},
    {"int64", DType::int64, 65}, {"float64", DType::float64, 66},
};
constexpr std::string_view kMdsBytes[] = {"bytes", "str", "str_decimal", "json", "jpeg", "png"};
constexpr int64_t kMostSizes = 63;  // six bits say how many

const MdsNumber* mds_number(std::string_view name) {
  const auto* found = std::ranges::find(kMdsNumbers, name, &MdsNumber::name);
  return found == std::end(kMdsNumbers) ? nullptr : found;
}

std::vector<int64_t> parse_sizes(std::string_view text, const std::string& encoding) {
  std::vector<int64_t> sizes;
  for (const std::string_view part : parts_of(text, ',')) {
    sizes.push_back(number_in<int64_t>(part).value_or(0));
    if (sizes.back() < 1)
      throw DataError(
          fmt::format("encoding \"{}\": expected sizes >= 1 as in ndarray:float32:3,4", encoding));
  }
  return sizes;
}

MdsColumn ndarray_column(MdsColumn column, std::string_view settings) {
  column.kind = MdsKind::ndarray;
  if (settings.empty()) return column;
  const size_t colon = settings.find(':');
  const MdsNumber* number = mds_number(settings.substr(0, colon));
  if (number == nullptr)
    throw DataError(
        fmt::format("column \"{}\": encoding \"{}\" names no dtype", column.name, column.encoding));
  column.dtype = number->dtype;
  if (colon == std::string_view::npos) return column;
  column.shape = parse_sizes(settings.substr(colon + 1), column.encoding);
  column.bytes = bytes_of_shape(*column.dtype, *column.shape).value_or(-1);
  if (column.bytes < 0)
    throw DataError(fmt::format("column \"{}\": encoding \"{}\" is larger than any memory",
                                column.name, column.encoding));
  return column;
}

MdsFile file_of(const Json& said) {
  MdsFile file{.name = said.at("basename"), .bytes = said.at("bytes"), .hashes = {}};
  const std::filesystem::path path(file.name);
  if (file.name.empty() || path.is_absolute() || std::ranges::find(path, "..") != path.end())
    throw DataError(fmt::format("shard \"{}\" lies outside of the folder", file.name));
  if (file.bytes < 0) throw DataError(fmt::format("shard \"{}\" has a size below 0", file.name));
  if (said.contains("hashes"))
    file.hashes = said["hashes"].get<std::map<std::string, std::string>>();
  return file;
}

std::vector<MdsColumn> columns_of(const Json& said) {
  const auto names = said.at("column_names").get<std::vector<std::string>>();
  const auto encodings = said.at("column_encodings").get<std::vector<std::string>>();
  const auto sizes = said.at("column_sizes").get<std::vector<Json>>();
  if (names.size() != encodings.size() || names.size() != sizes.size() || names.empty())
    throw DataError(fmt::format("{} names, {} encodings and {} sizes of columns", names.size(),
                                encodings.size(), sizes.size()));
  std::vector<MdsColumn> columns;
  for (size_t c = 0; c < names.size(); ++c) {
    columns.push_back(mds_column(names[c], encodings[c]));
    const int64_t size = sizes[c].is_null() ? -1 : sizes[c].get<int64_t>();
    if (size != columns.back().bytes)
      throw DataError(fmt::format("column \"{}\" has values of {} bytes, expected {} of \"{}\"",
                                  names[c], dump_json(sizes[c]),
                                  columns[c].bytes < 0 ? "null" : std::to_string(columns[c].bytes),
                                  encodings[c]));
  }
  return columns;
}

MdsShard shard_of(const Json& said, MdsIndex& index) {
  const auto format = said.at("format").get<std::string>();
  if (format != "mds" || said.at("version") != 2)
    throw UsageError(
        fmt::format("a shard of format \"{}\", version {}; expected \"mds\", version 2", format,
                    dump_json(said.at("version"))));
  std::vector<MdsColumn> columns = columns_of(said);
  if (index.columns.empty())
    index.columns = std::move(columns);
  else if (index.columns != columns)
    throw DataError("its shards have different columns");
  MdsShard shard{.samples = said.at("samples"), .raw = file_of(said.at("raw_data"))};
  if (shard.raw.bytes > std::numeric_limits<uint32_t>::max())
    throw DataError(fmt::format("shard \"{}\" has {} bytes, but its offsets have 32 bits",
                                shard.raw.name, shard.raw.bytes));
  if (shard.samples < 0 || shard.samples > std::numeric_limits<uint32_t>::max())
    throw DataError(fmt::format("shard \"{}\" has {} samples", shard.raw.name, shard.samples));
  if (said.contains("zip_data") && !said["zip_data"].is_null())
    shard.packed = file_of(said["zip_data"]);
  if (said.contains("compression") && !said["compression"].is_null())
    shard.compression = said["compression"];
  return shard;
}

uint32_t mds_uint32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <class T>
Array decimal_of(const MdsColumn& column, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw DataError(fmt::format("column \"{}\": got \"{}\", expected a number as {}", column.name,
                                text.substr(0, 40), column.encoding));
  return scalar(value);
}

uint8_t take_byte(const MdsColumn& column, std::string_view& value) {
  if (value.empty())
    throw DataError(fmt::format("column \"{}\": an ndarray is cut off", column.name));
  const auto byte = static_cast<uint8_t>(value[0]);
  value.remove_prefix(1);
  return byte;
}

// dtype code, unless the encoding says it | number of sizes << 2 | log2 of the bytes of a size |
// sizes, unless it says them | elements.
Array ndarray_of(const MdsColumn& column, std::string_view value) {
  DType dtype = column.dtype.value_or(DType::uint8);
  if (!column.dtype) {
    const uint8_t code = take_byte(column, value);
    const auto* number = std::ranges::find(kMdsNumbers, code, &MdsNumber::code);
    if (number == std::end(kMdsNumbers))
      throw DataError(
          fmt::format("column \"{}\": an ndarray of unknown dtype {}", column.name, code));
    dtype = number->dtype;
  }
  std::vector<int64_t> shape = column.shape.value_or(std::vector<int64_t>{});
  if (!column.shape) {
    const uint8_t said = take_byte(column, value);
    const size_t size_bytes = size_t{1} << (said & 3);
    for (int i = 0; i < said >> 2; ++i) {
      uint64_t size = 0;
      if (value.size() < size_bytes)
        throw DataError(fmt::format("column \"{}\": an ndarray is cut off", column.name));
      std::memcpy(&size, value.data(), size_bytes);
      value.remove_prefix(size_bytes);
      shape.push_back(size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
                          ? -1
                          : static_cast<int64_t>(size));
    }
  }
  const auto bytes = bytes_of_shape(dtype, shape);
  if (bytes != std::ssize(value))
    throw DataError(
        fmt::format("column \"{}\": an ndarray has {} bytes of elements, expected {} {}",
                    column.name, value.size(), name_of(dtype), shape_words(shape)));
  Array array = make_array(dtype, std::move(shape));
  if (!value.empty()) std::memcpy(array.data(), value.data(), value.size());
  return array;
}

}  // namespace

MdsColumn mds_column(std::string name, std::string encoding) {
  MdsColumn column{.name = std::move(name), .encoding = std::move(encoding)};
  const std::string_view text = column.encoding;
  const std::string_view kind = text.substr(0, text.find(':'));
  const std::string_view settings = kind.size() == text.size() ? "" : text.substr(kind.size() + 1);
  const MdsNumber* number = mds_number(kind == "int" ? "int64" : kind);
  if (number != nullptr) {
    column.kind = MdsKind::number;
    column.dtype = number->dtype;
    column.bytes = size_of(number->dtype);
  } else if (kind == "ndarray") {
    return ndarray_column(std::move(column), settings);
  } else if (kind == "str_int" || kind == "str_float") {
    column.kind = MdsKind::decimal;
    column.dtype = kind == "str_int" ? DType::int64 : DType::float64;
  } else if (std::ranges::find(kMdsBytes, kind) != std::end(kMdsBytes)) {
    column.dtype = DType::uint8;
  } else {
    throw UsageError(
        fmt::format("column \"{}\" has encoding \"{}\", which is not read (pkl holds "
                    "Python, pil its library's memory)\n  write it as bytes, jpeg, png, "
                    "json or ndarray",
                    column.name, column.encoding));
  }
  return column;
}

MdsIndex parse_mds_index(const std::string& text) try {
  const Json said = parse_json(text);
  if (said.at("version") != 2)
    throw UsageError(fmt::format("version {}, expected 2", dump_json(said.at("version"))));
  MdsIndex index;
  for (const Json& shard : said.at("shards")) index.shards.push_back(shard_of(shard, index));
  if (index.shards.empty()) throw DataError("it names no shard");
  return index;
} catch (const JsonError& error) {
  throw DataError(fmt::format("it is no index of MDS: {}", error.what()));
}

std::vector<uint32_t> parse_mds_table(std::string_view begin, int64_t samples,
                                      int64_t shard_bytes) {
  const int64_t table_bytes = (samples + 2) * int64_t{sizeof(uint32_t)};
  if (std::ssize(begin) < table_bytes)
    throw DataError(fmt::format("the shard has {} bytes, expected {} for a table of {} samples",
                                shard_bytes, table_bytes, samples));
  if (const uint32_t said = mds_uint32(begin, 0); said != samples)
    throw DataError(
        fmt::format("the shard says that it has {} samples, index.json says {}", said, samples));
  std::vector<uint32_t> offsets(static_cast<size_t>(samples) + 1);
  std::memcpy(offsets.data(), begin.data() + sizeof(uint32_t), offsets.size() * sizeof(uint32_t));
  for (size_t i = 0; i < offsets.size(); ++i)
    if (offsets[i] < table_bytes || offsets[i] > shard_bytes ||
        (i > 0 && offsets[i] < offsets[i - 1]))
      throw DataError(
          fmt::format("offset {} of the table (byte {}) is {}, expected one that rises, "
                      "from {} to {}",
                      i, (i + 1) * sizeof(uint32_t), offsets[i], table_bytes, shard_bytes));
  return offsets;
}

std::vector<std::string_view> split_mds_sample(const std::vector<MdsColumn>& columns,
                                               std::string_view sample) {
  std::vector<std::string_view> values;
  size_t lengths = 0;
  for (const MdsColumn& column : columns) lengths += column.bytes < 0 ? sizeof(uint32_t) : 0;
  const auto fail = [&](uint64_t needed) {
    throw DataError(fmt::format("a sample of {} bytes, expected {}", sample.size(), needed));
  };
  if (sample.size() < lengths) fail(lengths);
  uint64_t end = lengths;
  size_t at = 0;
  for (const MdsColumn& column : columns) {
    uint64_t bytes = static_cast<uint64_t>(column.bytes);
    if (column.bytes < 0) {
      bytes = mds_uint32(sample, at);
      at += sizeof(uint32_t);
    }
    if (bytes > sample.size() - end) fail(end + bytes);
    values.push_back(sample.substr(end, bytes));
    end += bytes;
  }
  if (end != sample.size()) fail(end);
  return values;
}

Array decode_mds(const MdsColumn& column, std::string_view value) {
  switch (column.kind) {
    case MdsKind::bytes: return bytes_of(value);
    case MdsKind::ndarray: return ndarray_of(column, value);
    case MdsKind::decimal:
      return column.dtype == DType::int64 ? decimal_of<int64_t>(column, value)
                                          : decimal_of<double>(column, value);
    case MdsKind::number: break;
  }
  Array array = make_array(*column.dtype, {});
  std::memcpy(array.data(), value.data(), value.size());
  return array;
}

std::string mds_encoding_of(const Column& column) {
  const DType dtype = column.dtype == DType::boolean ? DType::uint8 : column.dtype;
  const auto* number = std::ranges::find(kMdsNumbers, dtype, &MdsNumber::dtype);
  if (number == std::end(kMdsNumbers))
    throw UsageError(fmt::format("column \"{}\": MDS has no {}\n  map() makes another of it",
                                 column.name, name_of(dtype)));
  if (column.shape.empty()) return std::string(number->name);
  if (column.dtype == DType::uint8 && column.shape == std::vector{kAnySize}) return "bytes";
  if (!column.fixed()) return fmt::format("ndarray:{}", number->name);
  return fmt::format("ndarray:{}:{}", number->name, fmt::join(column.shape, ","));
}

std::string encode_mds(const MdsColumn& column, const Array& array) {
  std::string bytes;
  if (column.kind == MdsKind::ndarray && array.num_elements() == 0)
    throw DataError(fmt::format("column \"{}\": MDS holds no empty array", column.name));
  if (column.kind == MdsKind::ndarray && !column.shape) {
    const int64_t largest = std::ranges::max(array.shape());
    const int log2_bytes = largest < 1 << 8     ? 0
                           : largest < 1 << 16  ? 1
                           : largest >> 32 == 0 ? 2
                                                : 3;
    if (std::ssize(array.shape()) > kMostSizes)
      throw DataError(fmt::format("column \"{}\": more than {} sizes", column.name, kMostSizes));
    bytes.push_back(static_cast<char>(array.shape().size() << 2 | static_cast<size_t>(log2_bytes)));
    for (const int64_t size : array.shape())
      bytes.append(reinterpret_cast<const char*>(&size), size_t{1} << log2_bytes);
  }
  bytes.append(static_cast<const char*>(array.data()), static_cast<size_t>(array.num_bytes()));
  return bytes;
}

}  // namespace tutti::data::detail
