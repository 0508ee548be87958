/// Array: a small, copyable handle on contiguous plain memory with dtype, shape and owner.
///
/// Batches, dataset rows and snapshots travel as Arrays below LibTorch. Copies share the memory;
/// the last one frees it (or lets go of whatever owns it: a mapped file, a tensor, a shared
/// segment). Thread rule: distinct handles may be used from distinct threads; the memory itself is
/// not locked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/dtype.h"

namespace tutti {

/// The bytes of an array of that shape: what whoever reads shapes from a file or a peer asks before
/// anything is taken by them. None where a dimension is below 0, or for more than any memory.
std::optional<int64_t> bytes_of_shape(DType dtype, std::span<const int64_t> shape);

class Array {
 public:
  /// An empty array: no memory, shape {0}, uint8.
  Array() = default;

  /// Zeroed memory that starts on a 64-byte line. Every dimension >= 0.
  static Array zeros(DType dtype, std::vector<int64_t> shape);

  /// A view of memory that `owner` keeps alive (row-major, contiguous).
  static Array view(void* data, DType dtype, std::vector<int64_t> shape,
                    std::shared_ptr<const void> owner);

  DType dtype() const noexcept { return dtype_; }
  const std::vector<int64_t>& shape() const noexcept { return shape_; }
  int64_t num_elements() const noexcept { return num_elements_; }
  int64_t num_bytes() const noexcept { return num_elements_ * size_of(dtype_); }
  void* data() const noexcept { return data_; }
  const std::shared_ptr<const void>& owner() const noexcept { return owner_; }
  MemorySpan span() const noexcept { return {data_, num_elements_, dtype_}; }

  /// Elements as T; throws UsageError when T is not the dtype.
  template <class T>
  std::span<T> as() const {
    require(dtype_of<T>());
    return {static_cast<T*>(data_), static_cast<size_t>(num_elements_)};
  }

  /// Rows [begin, end) of the first dimension, sharing the memory.
  Array rows(int64_t begin, int64_t end) const;

  /// "uint8 [32, 28, 28]".
  std::string to_string() const;

 private:
  void require(DType wanted) const;

  DType dtype_ = DType::uint8;
  std::vector<int64_t> shape_{0};
  int64_t num_elements_ = 0;
  void* data_ = nullptr;
  std::shared_ptr<const void> owner_;
};

}  // namespace tutti
