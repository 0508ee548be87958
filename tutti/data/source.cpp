#include "tutti/data/source.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/dataset.h"
#include "tutti/data/detail/content.h"
#include "tutti/data/detail/source_in_memory.h"

namespace tutti::data {

namespace detail {

void require_elements(const Array& array, int64_t num_elements) {
  if (array.num_elements() != num_elements)
    throw UsageError(
        fmt::format("array_of: got {} elements for {}", num_elements, array.to_string()));
}

}  // namespace detail

namespace {

Array value_of(const Array& column, int64_t row) {
  const Array one = column.rows(row, row + 1);
  return Array::view(one.data(), one.dtype(), {one.shape().begin() + 1, one.shape().end()},
                     one.owner());
}

void copy_column(const Array& from, const Array& to, const Column& column) {
  if (from.dtype() != to.dtype() || from.shape() != to.shape())
    throw DataError(fmt::format("column \"{}\" is {}, expected {}", column.name, from.to_string(),
                                to.to_string()));
  if (from.num_bytes() > 0)
    std::memcpy(to.data(), from.data(), static_cast<size_t>(from.num_bytes()));
}

// Rows of arrays in memory, copied as they are.
class ArraySource final : public detail::SourceInMemory {
 public:
  explicit ArraySource(std::vector<Array> arrays) : arrays_(std::move(arrays)) {
    if (arrays_.empty()) throw UsageError("from_arrays: expected one array or more, got none");
    for (const Array& array : arrays_) {
      if (array.shape().empty() || array.shape()[0] != arrays_[0].shape()[0])
        throw UsageError(fmt::format(
            "from_arrays: column {} is {}, column 0 is {}: all need the same first dimension",
            columns_.size(), array.to_string(), arrays_[0].to_string()));
      const char* const names[] = {"x", "y"};
      columns_.push_back(
          {columns_.size() < 2 ? names[columns_.size()] : fmt::format("column{}", columns_.size()),
           array.dtype(),
           {array.shape().begin() + 1, array.shape().end()}});
    }
  }

  int64_t num_rows() const override { return arrays_[0].shape()[0]; }
  const std::vector<Column>& columns() const override { return columns_; }

  void gather_into(std::span<const int64_t> rows, std::span<const Array> places) const override {
    for (size_t c = 0; c < arrays_.size(); ++c) {
      const auto row_bytes = static_cast<size_t>(
          rows.empty() ? 0 : places[c].num_bytes() / static_cast<int64_t>(rows.size()));
      const char* from = static_cast<const char*>(arrays_[c].data());
      char* to = static_cast<char*>(places[c].data());
      for (int64_t row : rows) {
        if (row_bytes != 0) std::memcpy(to, from + static_cast<size_t>(row) * row_bytes, row_bytes);
        to += row_bytes;
      }
    }
  }

  Sample read_row(int64_t row) const override {
    Sample sample;
    for (const Array& array : arrays_) sample.columns.push_back(value_of(array, row));
    return sample;
  }

 private:
  std::vector<Array> arrays_;
  std::vector<Column> columns_;
};

}  // namespace

void Source::gather_into(std::span<const int64_t> rows, std::span<const Array> places) const {
  const Batch batch = gather(rows);
  detail::require_gathered(*this, batch, rows);
  for (size_t c = 0; c < places.size(); ++c) copy_column(batch.columns[c], places[c], columns()[c]);
}

Sample Source::read_row(int64_t row) const {
  const std::span one(&row, 1);
  const Batch batch = gather(one);
  detail::require_gathered(*this, batch, one);
  Sample sample;
  for (const Array& column : batch.columns) sample.columns.push_back(value_of(column, 0));
  return sample;
}

const std::vector<std::string>& Source::classes() const {
  static const std::vector<std::string> kNone;
  return kNone;
}

std::string Source::where(int64_t row) const { return fmt::format("row {}", row); }

std::string Source::fingerprint() const { return {}; }

std::vector<int64_t> Source::first_rows_of_files() const { return {}; }

Batch SampleSource::gather(std::span<const int64_t> rows) const {
  Batch batch{.columns = {}, .size = static_cast<int64_t>(rows.size())};
  for (const Column& column : columns()) {
    Column shaped = column;
    if (rows.empty()) std::ranges::replace(shaped.shape, kAnySize, int64_t{0});
    if (shaped.fixed()) batch.columns.push_back(make_column(shaped, batch.size));
  }
  if (rows.empty()) return batch;
  if (batch.columns.size() != columns().size())
    throw DataError("gather: rows of this source differ in shape; read() them");
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sample sample = read_row(rows[i]);
    if (sample.columns.size() != columns().size())
      throw DataError(fmt::format("{} has {} columns, expected {}", where(rows[i]),
                                  sample.columns.size(), columns().size()));
    for (size_t c = 0; c < batch.columns.size(); ++c)
      copy_column(sample.columns[c], value_of(batch.columns[c], static_cast<int64_t>(i)),
                  columns()[c]);
  }
  return batch;
}

Dataset from_arrays(std::vector<Array> columns) {
  return Dataset(std::make_shared<ArraySource>(std::move(columns)));
}

}  // namespace tutti::data
