#include "tutti/ps/values/sparse_batch.h"

#include <cstring>

#include "tutti/ps/values/detail/sparse_index.h"

namespace tutti::ps {
namespace {

template <class T>
void add_row(std::byte* sum, const std::byte* row, int64_t width) {
  T* const to = reinterpret_cast<T*>(sum);
  const T* const from = reinterpret_cast<const T*>(row);
  for (int64_t i = 0; i < width; ++i) to[i] += from[i];
}

}  // namespace

SparseBatch::SparseBatch(std::span<const uint64_t> keys, const SparseTableSpec& table,
                         int num_partitions)
    : width_(table.width), dtype_(table.dtype), keys_(num_partitions) {
  std::vector<detail::KeyNumbers> numbers(num_partitions, detail::KeyNumbers(keys.size()));
  places_.reserve(keys.size());
  for (const uint64_t key : keys) {
    const int partition = server_of_key(key, num_partitions);
    places_.push_back({partition, numbers[partition].add(key)});
  }
  for (int i = 0; i < num_partitions; ++i) keys_[i] = numbers[i].keys();
}

bool SparseBatch::is_of(std::span<const uint64_t> keys) const {
  if (keys.size() != places_.size()) return false;
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys_[places_[i].partition][places_[i].number] != keys[i]) return false;
  return true;
}

Bytes SparseBatch::payload_of_keys(int partition) const {
  return Bytes::copy_of(std::as_bytes(std::span(keys(partition))));
}

void SparseBatch::spread(int partition, const Bytes& rows, std::byte* out) const {
  const int64_t row_bytes = width_ * size_of(dtype_);
  for (size_t i = 0; i < places_.size(); ++i)
    if (places_[i].partition == partition)
      std::memcpy(out + static_cast<int64_t>(i) * row_bytes,
                  rows.span.data() + places_[i].number * row_bytes, static_cast<size_t>(row_bytes));
}

int64_t SparseBatch::payload_bytes(int partition) const {
  return std::ssize(keys(partition)) *
         (static_cast<int64_t>(sizeof(uint64_t)) + width_ * size_of(dtype_));
}

void SparseBatch::gather(int partition, const std::byte* gradients, std::byte* to) const {
  const int64_t row_bytes = width_ * size_of(dtype_);
  const auto& keys = this->keys(partition);
  const size_t key_bytes = keys.size() * sizeof(uint64_t);
  if (keys.empty()) return;
  std::memcpy(to, keys.data(), key_bytes);
  uint32_t known = 0;  // places number keys in the order in which they come
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto [part, number] = places_[i];
    if (part != partition) continue;
    const std::byte* const row = gradients + static_cast<int64_t>(i) * row_bytes;
    std::byte* const sum = to + key_bytes + number * row_bytes;
    if (number == known) {
      std::memcpy(sum, row, static_cast<size_t>(row_bytes));
      ++known;
    } else if (dtype_ == DType::float32) {
      add_row<float>(sum, row, width_);
    } else {
      add_row<double>(sum, row, width_);
    }
  }
}

}  // namespace tutti::ps
