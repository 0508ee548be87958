#include "tutti/base/array.h"

#include <cstdlib>
#include <cstring>

#include "tutti/base/detail/check.h"

namespace tutti {
namespace {

constexpr size_t kLineBytes = 64;

int64_t known_bytes(DType dtype, const std::vector<int64_t>& shape) {
  const auto bytes = bytes_of_shape(dtype, shape);
  TUTTI_CHECK(bytes, "an array of {} [{}]", name_of(dtype), fmt::join(shape, ", "));
  return *bytes;
}

}  // namespace

std::optional<int64_t> bytes_of_shape(DType dtype, std::span<const int64_t> shape) {
  int64_t bytes = size_of(dtype);
  for (const int64_t dimension : shape)
    if (dimension < 0 || __builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  return bytes;
}

Array Array::zeros(DType dtype, std::vector<int64_t> shape) {
  const int64_t bytes = known_bytes(dtype, shape);
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
  array.num_elements_ = known_bytes(dtype, shape) / size_of(dtype);
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
