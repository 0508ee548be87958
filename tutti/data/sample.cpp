#include "tutti/data/sample.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tutti/base/error.h"

namespace tutti::data {

bool Column::fixed() const noexcept { return std::ranges::find(shape, kAnySize) == shape.end(); }

std::string Column::to_string() const {
  return fmt::format("{} {} {}", name, name_of(dtype), shape_words(shape));
}

std::string shape_words(std::span<const int64_t> shape) {
  std::string words;
  for (int64_t size : shape)
    words += (words.empty() ? "" : ", ") + (size == kAnySize ? "?" : std::to_string(size));
  return "[" + words + "]";
}

Array make_array(DType dtype, std::vector<int64_t> shape) {
  constexpr size_t kLineBytes = 64;
  const auto bytes = bytes_of_shape(dtype, shape);
  if (!bytes)
    throw DataError(fmt::format("no memory for {} {} of data", name_of(dtype), shape_words(shape)));
  const size_t rounded = (static_cast<size_t>(*bytes) / kLineBytes + 1) * kLineBytes;
  std::shared_ptr<void> memory(std::aligned_alloc(kLineBytes, rounded), std::free);
  if (!memory) throw Error(fmt::format("no memory for {} bytes of data", *bytes));
  return Array::view(memory.get(), dtype, std::move(shape), memory);
}

Array make_column(const Column& column, int64_t size) {
  std::vector<int64_t> shape{size};
  shape.insert(shape.end(), column.shape.begin(), column.shape.end());
  return make_array(column.dtype, std::move(shape));
}

bool owned(const Array& array) noexcept { return array.owner().use_count() == 1; }

Array bytes_of(std::string_view text) {
  Array array = make_array(DType::uint8, {static_cast<int64_t>(text.size())});
  std::memcpy(array.data(), text.data(), text.size());
  return array;
}

std::string_view text_of(const Array& bytes) {
  return {static_cast<const char*>(bytes.data()), static_cast<size_t>(bytes.num_bytes())};
}

}  // namespace tutti::data
