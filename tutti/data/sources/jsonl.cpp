#include "tutti/data/sources/jsonl.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/sha256.h"
#include "tutti/base/suggest.h"
#include "tutti/data/sources/detail/source_file.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kIndexPieceBytes = 8 << 20;

struct Line {
  int64_t begin = 0;   // byte offset
  int64_t number = 0;  // 1-based
};

// Where the lines begin that are not blank. The file is read piece by piece.
std::vector<Line> index_lines(const Files& files, const fs::path& path, int64_t file_bytes) {
  std::vector<Line> lines;
  Line line{0, 1};
  bool blank = true;
  for (int64_t offset = 0; offset < file_bytes; offset += kIndexPieceBytes) {
    const Array piece = files.read(path, offset, std::min(kIndexPieceBytes, file_bytes - offset));
    const std::string_view text = text_of(piece);
    size_t at = 0;
    if (offset == 0 && text.starts_with(detail::kByteOrderMark))
      line.begin = static_cast<int64_t>(at = detail::kByteOrderMark.size());
    while (at < text.size()) {
      if (!blank) {  // nothing more is to be seen in this line
        at = text.find('\n', at);
        if (at == std::string_view::npos) break;
      }
      const char letter = text[at++];
      if (letter == '\n') {
        line = {offset + static_cast<int64_t>(at), line.number + 1};
        blank = true;
      } else if (blank && letter != ' ' && letter != '\t' && letter != '\r') {
        lines.push_back(line);
        blank = false;
      }
    }
  }
  return lines;
}

OrderedJson parse_line(std::string_view text, const std::string& place) {
  OrderedJson object;
  try {
    object = parse_json<OrderedJson>(text);
  } catch (const JsonError& error) {
    throw DataError(fmt::format("{}: no JSON: {}", place, error.what()));
  }
  if (!object.is_object())
    throw DataError(fmt::format("{}: got {}, expected an object: {{\"key\": value, ...}}", place,
                                object.type_name()));
  return object;
}

std::vector<std::string> keys_of(const OrderedJson& object) {
  std::vector<std::string> keys;
  for (const auto& [key, unused] : object.items()) keys.push_back(key);
  return keys;
}

// The column that a value of the first line stands for.
Column column_of(const std::string& key, const OrderedJson& value, const std::string& place) {
  if (value.is_string()) return {key, DType::uint8, {kAnySize}};
  if (value.is_boolean()) return {key, DType::boolean, {}};
  if (value.is_number()) return {key, value.is_number_float() ? DType::float32 : DType::int64, {}};
  const auto number = [](const OrderedJson& element) { return element.is_number(); };
  if (value.is_array() && !value.empty() && std::ranges::all_of(value, number)) {
    const bool whole = std::ranges::none_of(
        value, [](const OrderedJson& element) { return element.is_number_float(); });
    return {key, whole ? DType::int64 : DType::float32, {kAnySize}};
  }
  throw DataError(fmt::format(
      "{}: \"{}\": what it holds cannot be told from {}\n  name the columns to read, with dtypes "
      "and shapes: .columns = {{{{\"{}\", DType::float32, {{kAnySize}}}}, ...}}",
      place, key, detail::quoted_words(dump_json(value)), key));
}

// Writes numbers of one column's value into its array.
class ValueReader {
 public:
  ValueReader(const Column& column, const std::string& place) : column_(column), place_(place) {}

  Array read(const OrderedJson& value) {
    if (value.is_string() && column_.dtype == DType::uint8 && column_.shape.size() == 1)
      return read_string(value.text());
    shape_ = column_.shape;
    const OrderedJson* within = &value;
    for (int64_t& size : shape_) {
      if (!within->is_array()) fail(value);
      if (size == kAnySize) size = std::ssize(*within);
      if (within->empty()) {  // so is every array within it
        std::ranges::replace(shape_, kAnySize, int64_t{0});
        break;
      }
      within = &within->front();
    }
    require_shape(value, value, 0);
    Array array = make_array(column_.dtype, shape_);
    at_ = 0;
    write(value, value, array, 0);
    return array;
  }

 private:
  [[noreturn]] void fail(const OrderedJson& value) const {
    throw DataError(fmt::format("{}: \"{}\": got {}, expected {} {}", place_, column_.name,
                                detail::quoted_words(dump_json(value)), name_of(column_.dtype),
                                shape_words(column_.shape)));
  }

  Array read_string(const std::string& text) const {
    Array bytes = bytes_of(text);
    if (column_.fixed() && column_.shape != bytes.shape()) fail(text);
    return bytes;
  }

  void require_shape(const OrderedJson& whole, const OrderedJson& part, size_t dimension) const {
    if (dimension == shape_.size()) return;
    if (!part.is_array() || std::ssize(part) != shape_[dimension]) fail(whole);
    for (const OrderedJson& element : part) require_shape(whole, element, dimension + 1);
  }

  void write(const OrderedJson& whole, const OrderedJson& part, Array& array, size_t dimension) {
    if (dimension < shape_.size()) {
      for (const OrderedJson& element : part) write(whole, element, array, dimension + 1);
      return;
    }
    switch (array.dtype()) {
      case DType::boolean: return put_boolean(whole, part, array);
      case DType::uint8: return put_whole<uint8_t>(whole, part, array);
      case DType::int8: return put_whole<int8_t>(whole, part, array);
      case DType::uint16: return put_whole<uint16_t>(whole, part, array);
      case DType::int16: return put_whole<int16_t>(whole, part, array);
      case DType::uint32: return put_whole<uint32_t>(whole, part, array);
      case DType::int32: return put_whole<int32_t>(whole, part, array);
      case DType::uint64: return put_whole<uint64_t>(whole, part, array);
      case DType::int64: return put_whole<int64_t>(whole, part, array);
      case DType::float32: return put_real<float>(whole, part, array);
      case DType::float64: return put_real<double>(whole, part, array);
      default: check_failed(__FILE__, __LINE__, "a dtype that jsonl() takes", column_.to_string());
    }
  }

  void put_boolean(const OrderedJson& whole, const OrderedJson& part, Array& array) {
    if (!part.is_boolean()) fail(whole);
    array.as<bool>()[at_++] = part.get<bool>();
  }

  template <class T>
  void put_whole(const OrderedJson& whole, const OrderedJson& part, Array& array) {
    const bool fits = part.is_number_unsigned()
                          ? std::in_range<T>(part.get<uint64_t>())
                          : part.is_number_integer() && std::in_range<T>(part.get<int64_t>());
    if (!fits) fail(whole);
    array.as<T>()[at_++] = part.get<T>();
  }

  template <class T>
  void put_real(const OrderedJson& whole, const OrderedJson& part, Array& array) {
    if (!part.is_number() || std::abs(part.get<double>()) > std::numeric_limits<T>::max())
      fail(whole);
    array.as<T>()[at_++] = part.get<T>();
  }

  const Column& column_;
  const std::string& place_;
  std::vector<int64_t> shape_;
  size_t at_ = 0;  // elements written
};

class JsonlSource final : public SampleSource {
 public:
  JsonlSource(fs::path path, FileInfo file, std::vector<Line> lines, JsonlOptions options)
      : path_(std::move(path)),
        file_(std::move(file)),
        lines_(std::move(lines)),
        files_(std::move(options.files)),
        columns_(std::move(options.columns)) {
    if (columns_.empty()) recognise_columns();
  }

  int64_t num_rows() const override { return std::ssize(lines_); }
  const std::vector<Column>& columns() const override { return columns_; }
  std::vector<int64_t> first_rows_of_files() const override { return {0}; }
  std::string where(int64_t row) const override {
    return fmt::format("{}, line {}", file_.name, line_of(row).number);
  }
  std::string fingerprint() const override {
    std::string key = "jsonl " + fingerprint_of({file_});
    for (const Column& column : columns_) key += "\n" + column.to_string();
    return sha256_hex(key);
  }

  Sample read_row(int64_t row) const override {
    detail::require_unchanged(*files_, path_, file_);
    const std::string place = place_of(row);
    const OrderedJson object = object_at(row);
    Sample sample;
    for (const Column& column : columns_) {
      const auto value = object.find(column.name);
      if (value == object.end())
        throw DataError(
            fmt::format("{}: {}", place, unknown_message("key", column.name, keys_of(object))));
      sample.columns.push_back(ValueReader(column, place).read(*value));
    }
    return sample;
  }

 private:
  const Line& line_of(int64_t row) const { return lines_[static_cast<size_t>(row)]; }
  std::string place_of(int64_t row) const {
    return fmt::format("{}, line {}", path_.string(), line_of(row).number);
  }

  OrderedJson object_at(int64_t row) const {
    const int64_t begin = line_of(row).begin;
    const int64_t end = row + 1 < num_rows() ? line_of(row + 1).begin : file_.bytes;
    const Array bytes = files_->read(path_, begin, end - begin);
    return parse_line(text_of(bytes), place_of(row));
  }

  void recognise_columns() {
    const OrderedJson object = object_at(0);
    for (const auto& [key, value] : object.items())
      columns_.push_back(column_of(key, value, place_of(0)));
    if (columns_.empty())
      throw DataError(fmt::format("{}: got an object without keys", place_of(0)));
  }

  fs::path path_;
  FileInfo file_;
  std::vector<Line> lines_;
  FilesHandle files_;
  std::vector<Column> columns_;
};

}  // namespace

Dataset jsonl(const fs::path& path, JsonlOptions options) {
  for (const Column& column : options.columns)
    if (column.dtype == DType::float16 || column.dtype == DType::bfloat16)
      throw UsageError(fmt::format(
          "jsonl: column {}: expected float32 or float64, or whole numbers", column.to_string()));
  FileInfo file = options.files->info(path);
  std::vector<Line> lines = index_lines(*options.files, path, file.bytes);
  if (lines.empty())
    throw DataError(fmt::format("{}: got no line ({} bytes), expected one JSON object a line",
                                path.string(), file.bytes));
  return Dataset(
      std::make_shared<JsonlSource>(path, std::move(file), std::move(lines), std::move(options)));
}

}  // namespace tutti::data
