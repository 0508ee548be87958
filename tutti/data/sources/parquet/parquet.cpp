#include "tutti/data/sources/parquet.h"

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/base/file.h"
#include "tutti/base/suggest.h"
#include "tutti/data/sources/detail/file_rows.h"
#include "tutti/data/sources/detail/keyed_cache.h"
#include "tutti/data/sources/detail/record_sources.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 1> kParquetEndings = {".parquet"};

// What Arrow gives, or throws as DataError with the file.
template <class T>
T taken(arrow::Result<T> result, const fs::path& path) {
  if (!result.ok())
    throw DataError(fmt::format("{}: {}", path.string(), result.status().ToString()));
  return std::move(result).ValueUnsafe();
}

std::optional<DType> dtype_of_arrow(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::BOOL: return DType::boolean;
    case arrow::Type::UINT8: return DType::uint8;
    case arrow::Type::INT8: return DType::int8;
    case arrow::Type::UINT16: return DType::uint16;
    case arrow::Type::INT16: return DType::int16;
    case arrow::Type::UINT32: return DType::uint32;
    case arrow::Type::INT32: return DType::int32;
    case arrow::Type::UINT64: return DType::uint64;
    case arrow::Type::INT64: return DType::int64;
    case arrow::Type::HALF_FLOAT: return DType::float16;
    case arrow::Type::FLOAT: return DType::float32;
    case arrow::Type::DOUBLE: return DType::float64;
    default: return std::nullopt;
  }
}

bool is_text(const arrow::DataType& type) {
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::BINARY ||
         type.id() == arrow::Type::LARGE_STRING || type.id() == arrow::Type::LARGE_BINARY ||
         type.id() == arrow::Type::FIXED_SIZE_BINARY;
}

// The element type of a list; null for what is none.
const arrow::DataType* element_of(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST: return type.field(0)->type().get();
    default: return nullptr;
  }
}

Column column_for(const arrow::Field& field, const fs::path& path) {
  const arrow::DataType& type = *field.type();
  const arrow::DataType* element = element_of(type);
  if (is_text(type)) return {field.name(), DType::uint8, {kAnySize}};
  if (const auto dtype = dtype_of_arrow(element != nullptr ? *element : type)) {
    if (element == nullptr) return {field.name(), *dtype, {}};
    if (type.id() != arrow::Type::FIXED_SIZE_LIST) return {field.name(), *dtype, {kAnySize}};
    return {field.name(), *dtype, {static_cast<const arrow::FixedSizeListType&>(type).list_size()}};
  }
  throw UsageError(
      fmt::format("{}: column \"{}\" is {}, which is not read: expected numbers, bool, "
                  "strings or lists of numbers\n  leave it out by naming the columns",
                  path.string(), field.name(), type.ToString()));
}

// Elements [begin, begin + count) of numbers.
Array numbers_at(const arrow::Array& numbers, int64_t begin, int64_t count, DType dtype,
                 std::vector<int64_t> shape) {
  for (int64_t i = begin; i < begin + count; ++i)
    if (numbers.IsNull(i)) throw DataError("is null");
  Array array = make_array(dtype, std::move(shape));
  if (dtype == DType::boolean) {  // a bit each
    const auto& bits = static_cast<const arrow::BooleanArray&>(numbers);
    for (int64_t i = 0; i < count; ++i) static_cast<bool*>(array.data())[i] = bits.Value(begin + i);
  } else if (count > 0) {
    const auto* from = numbers.data()->buffers[1]->data();
    std::memcpy(array.data(), from + (numbers.offset() + begin) * size_of(dtype),
                static_cast<size_t>(count * size_of(dtype)));
  }
  return array;
}

template <class List>
Array list_at(const arrow::Array& lists, int64_t row, const Column& column) {
  const auto& list = static_cast<const List&>(lists);
  const int64_t count = list.value_length(row);
  return numbers_at(*list.values(), list.value_offset(row), count, column.dtype, {count});
}

// One value of a row group. Throws DataError with the reason alone.
Array value_at(const arrow::Array& values, int64_t row, const Column& column) {
  if (values.IsNull(row)) throw DataError("is null");
  const auto text = [&](const auto& strings) { return bytes_of(strings.GetView(row)); };
  switch (values.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY: return text(static_cast<const arrow::BinaryArray&>(values));
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return text(static_cast<const arrow::LargeBinaryArray&>(values));
    case arrow::Type::FIXED_SIZE_BINARY:
      return text(static_cast<const arrow::FixedSizeBinaryArray&>(values));
    case arrow::Type::LIST: return list_at<arrow::ListArray>(values, row, column);
    case arrow::Type::LARGE_LIST: return list_at<arrow::LargeListArray>(values, row, column);
    case arrow::Type::FIXED_SIZE_LIST:
      return list_at<arrow::FixedSizeListArray>(values, row, column);
    default: return numbers_at(values, row, 1, column.dtype, {});
  }
}

// A file, opened once; Arrow's reader is for one thread at a time.
struct ParquetFile {
  fs::path path;
  std::unique_ptr<parquet::arrow::FileReader> reader;
  std::shared_ptr<arrow::Schema> schema;
  std::vector<int64_t> group_ends;  // rows of the row groups 0 to g together
  int64_t first_group = 0;          // among the groups of all files
  std::unique_ptr<std::mutex> turn = std::make_unique<std::mutex>();
};

ParquetFile open_parquet(const fs::path& path) {
  open_to_read(path);  // Arrow would wait for the other end of a pipe
  ParquetFile file{.path = path};
  const auto input = taken(arrow::io::ReadableFile::Open(path.string()), path);
  file.reader = taken(parquet::arrow::OpenFile(input, arrow::default_memory_pool()), path);
  file.reader->set_use_threads(false);
  const arrow::Status status = file.reader->GetSchema(&file.schema);
  if (!status.ok()) throw DataError(fmt::format("{}: {}", path.string(), status.ToString()));
  const auto metadata = file.reader->parquet_reader()->metadata();
  int64_t rows = 0;
  for (int group = 0; group < metadata->num_row_groups(); ++group)
    file.group_ends.push_back(rows += metadata->RowGroup(group)->num_rows());
  return file;
}

class ParquetSource final : public SampleSource {
 public:
  ParquetSource(const Paths& paths, const ParquetOptions& options) : groups_(options.cache_bytes) {
    const FilesHandle local = local_files();
    int64_t groups = 0;
    for (const fs::path& path : detail::record_files(*local, paths, kParquetEndings)) {
      files_.push_back(open_parquet(path));
      files_.back().first_group = groups;
      groups += std::ssize(files_.back().group_ends);
      rows_.add(local->info(path),
                files_.back().group_ends.empty() ? 0 : files_.back().group_ends.back());
      choose(files_.back(), options.columns);
    }
    if (num_rows() == 0)
      throw DataError(
          fmt::format("{}: there is no row in {} files", files_[0].path.string(), files_.size()));
  }

  int64_t num_rows() const override { return rows_.num_rows(); }
  const std::vector<Column>& columns() const override { return columns_; }

  Sample read_row(int64_t row) const override {
    const auto [f, in_file] = rows_.find(row);
    const ParquetFile& file = files_[f];
    const auto end = std::ranges::upper_bound(file.group_ends, in_file);
    const auto group = static_cast<int>(end - file.group_ends.begin());
    const int64_t in_group = in_file - (group == 0 ? 0 : *(end - 1));
    const auto table =
        groups_.get(file.first_group + group, [&] { return read_group(file, group); });
    Sample sample;
    for (size_t c = 0; c < columns_.size(); ++c) {
      try {
        const auto& chunks = table->GetColumnByName(columns_[c].name);
        sample.columns.push_back(value_at(*chunks->chunk(0), in_group, columns_[c]));
      } catch (const DataError& error) {
        throw DataError(
            fmt::format("{}: column \"{}\" {}", where(row), columns_[c].name, error.what()));
      }
    }
    return sample;
  }

  std::string where(int64_t row) const override {
    const auto [file, in_file] = rows_.find(row);
    return fmt::format("{}, row {}", files_[file].path.string(), in_file);
  }
  std::string fingerprint() const override { return rows_.fingerprint(columns_); }
  std::vector<int64_t> first_rows_of_files() const override { return rows_.first_rows(); }

 private:
  // The columns of the first file; the others must have the same.
  void choose(const ParquetFile& file, const std::vector<std::string>& names) {
    const std::vector<std::string> known = file.schema->field_names();
    std::vector<Column> columns;
    for (const std::string& name : names.empty() ? known : names) {
      const auto field = file.schema->GetFieldByName(name);
      if (field == nullptr)
        throw UsageError(
            fmt::format("{}: {}", file.path.string(), unknown_message("column", name, known)));
      columns.push_back(column_for(*field, file.path));
    }
    if (files_.size() == 1) columns_ = columns;
    for (size_t c = 0; c < columns_.size(); ++c)
      if (c >= columns.size() || columns[c] != columns_[c])
        throw DataError(fmt::format("{}: has not column {} of {}", file.path.string(),
                                    columns_[c].to_string(), files_[0].path.string()));
  }

  // The chosen columns of a row group, each in one piece.
  std::pair<std::shared_ptr<const arrow::Table>, int64_t> read_group(const ParquetFile& file,
                                                                     int group) const {
    const std::lock_guard lock(*file.turn);
    std::vector<int> leaves;
    const auto& schema = *file.reader->parquet_reader()->metadata()->schema();
    for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
      const std::string& top = schema.GetColumnRoot(leaf)->name();
      if (std::ranges::find(columns_, top, &Column::name) != columns_.end()) leaves.push_back(leaf);
    }
    auto table = taken(file.reader->ReadRowGroup(group, leaves), file.path);
    table = taken(table->CombineChunks(), file.path);
    int64_t bytes = 1;
    for (const auto& column : table->columns())
      for (const auto& chunk : column->chunks()) {
        for (const auto& buffer : chunk->data()->buffers) bytes += buffer ? buffer->size() : 0;
        for (const auto& child : chunk->data()->child_data)
          for (const auto& buffer : child->buffers) bytes += buffer ? buffer->size() : 0;
      }
    return {std::move(table), bytes};
  }

  std::vector<ParquetFile> files_;
  detail::FileRows rows_;
  std::vector<Column> columns_;
  mutable detail::KeyedCache<arrow::Table> groups_;
};

}  // namespace

bool parquet_available() noexcept { return true; }

namespace detail {

std::shared_ptr<const Source> parquet_source(const Paths& paths, ParquetOptions options) {
  try {
    return std::make_shared<ParquetSource>(paths, options);
  } catch (const ::parquet::ParquetException& error) {
    throw DataError(error.what());
  }
}

}  // namespace detail

Dataset parquet(const Paths& paths, ParquetOptions options) {
  return Dataset(detail::parquet_source(paths, std::move(options)));
}

}  // namespace tutti::data
