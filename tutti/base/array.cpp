#include "tutti/base/array.h"

#include <cstdlib>
#include <cstring>

#include "tutti/base/detail/check.h"

namespace tutti {
namespace {

constexpr size_t kLineBytes = 64;

int64_t product(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t dimension : shape) {
    TUTTI_CHECK(dimension >= 0, "dimension {}", dimension);
    count *= dimension;
  }
  return count;
}

}  // namespace

Array Array::zeros(DType dtype, std::vector<int64_t> shape) {
  const int64_t bytes = product(shape) * size_of(dtype);
  const size_t rounded = (static_cast<size_t>(bytes) + kLineBytes) / kLineBytes * kLineBytes;
  std::shared_ptr<void> memory(std::aligned_alloc(kLineBytes, rounded), std::free);
  if (!memory) throw Error(fmt::format("no memory for an array of {} bytes", bytes));
  std::memset(memory.get(), 0, rounded);
  return view(memory.get(), dtype, std::move(shape), memory);
}

Array Array::view(void* data, DType dtype, std::vector<int64_t> shape,
                  std::shared_ptr<const void> owner) {
  Array array;
  array.dtype_ = dtype;
  array.num_elements_ = product(shape);
  array.shape_ = std::move(shape);
  array.data_ = data;
  array.owner_ = std::move(owner);
  return array;
}

Array Array::rows(int64_t begin, int64_t end) const {
  TUTTI_CHECK(!shape_.empty() && 0 <= begin && begin <= end && end <= shape_[0],
              "rows [{}, {}) of {}", begin, end, to_string());
  const int64_t row_bytes = shape_[0] == 0 ? 0 : num_bytes() / shape_[0];
  auto shape = shape_;
  shape[0] = end - begin;
  return view(static_cast<char*>(data_) + begin * row_bytes, dtype_, std::move(shape), owner_);
}

std::string Array::to_string() const {
  return fmt::format("{} [{}]", name_of(dtype_), fmt::join(shape_, ", "));
}

void Array::require(DType wanted) const {
  if (wanted != dtype_)
    throw UsageError(fmt::format("array {} read as {}", to_string(), name_of(wanted)));
}

}  // namespace tutti
