#include "tutti/data/source.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/dataset.h"
#include "tutti/data/detail/memory.h"

namespace tutti::data {

namespace detail {

Array uninitialized(DType dtype, std::vector<int64_t> shape) {
  constexpr size_t kLineBytes = 64;
  int64_t bytes = size_of(dtype);
  for (int64_t dimension : shape) bytes *= dimension;
  const size_t rounded = (static_cast<size_t>(bytes) / kLineBytes + 1) * kLineBytes;
  std::shared_ptr<void> memory(std::aligned_alloc(kLineBytes, rounded), std::free);
  if (!memory) throw Error(fmt::format("no memory for {} bytes of data", bytes));
  return Array::view(memory.get(), dtype, std::move(shape), memory);
}

void require_elements(const Array& array, int64_t num_elements) {
  if (array.num_elements() != num_elements)
    throw UsageError(
        fmt::format("array_of: got {} elements for {}", num_elements, array.to_string()));
}

}  // namespace detail

namespace {

// Rows of arrays in memory, copied as they are.
class ArraySource final : public Source {
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

  Batch gather(std::span<const int64_t> rows) const override {
    Batch batch;
    batch.size = static_cast<int64_t>(rows.size());
    for (size_t c = 0; c < arrays_.size(); ++c) {
      Array column = make_column(columns_[c], batch.size);
      const auto row_bytes =
          rows.empty() ? size_t{0} : static_cast<size_t>(column.num_bytes() / batch.size);
      const char* from = static_cast<const char*>(arrays_[c].data());
      char* to = static_cast<char*>(column.data());
      for (int64_t row : rows) {
        if (row_bytes != 0) std::memcpy(to, from + static_cast<size_t>(row) * row_bytes, row_bytes);
        to += row_bytes;
      }
      batch.columns.push_back(std::move(column));
    }
    return batch;
  }

 private:
  std::vector<Array> arrays_;
  std::vector<Column> columns_;
};

}  // namespace

const std::vector<std::string>& Source::classes() const {
  static const std::vector<std::string> kNone;
  return kNone;
}

Array make_column(const Column& column, int64_t size) {
  std::vector<int64_t> shape{size};
  shape.insert(shape.end(), column.shape.begin(), column.shape.end());
  return detail::uninitialized(column.dtype, std::move(shape));
}

Dataset from_arrays(std::vector<Array> columns) {
  return Dataset(std::make_shared<ArraySource>(std::move(columns)));
}

}  // namespace tutti::data
