/// Element types of plain memory, and spans of them. The whole library below LibTorch speaks these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "tutti/base/stream.h"

namespace tutti {

/// In the order of size and kind; floating types come last.
// clang-format off
enum class DType : uint8_t {
  boolean, uint8, int8, uint16, int16, uint32, int32, uint64, int64,
  float16, bfloat16, float32, float64,
};
// clang-format on

/// Bytes of one element: 1, 2, 4 or 8.
constexpr int64_t size_of(DType dtype) noexcept {
  constexpr uint8_t kBytes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
  return kBytes[static_cast<size_t>(dtype)];
}

/// float16, bfloat16, float32, float64.
constexpr bool is_floating(DType dtype) noexcept { return dtype >= DType::float16; }

/// "float32", "bfloat16", "bool", ...: the names NumPy and LibTorch use.
std::string_view name_of(DType dtype) noexcept;

/// What stands in DType for a C++ type: bool, a fixed-width integer, float or double. The 16-bit
/// floating types have no C++ type here: they travel as spans of bits.
template <class T>
constexpr DType dtype_of() noexcept {
  if constexpr (std::is_same_v<T, bool>) {
    return DType::boolean;
  } else if constexpr (std::is_floating_point_v<T>) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    return sizeof(T) == 4 ? DType::float32 : DType::float64;
  } else {
    static_assert(std::is_integral_v<T>);
    // Per width: unsigned, then signed.
    constexpr int kWidth = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return static_cast<DType>(1 + 2 * kWidth + (std::is_signed_v<T> ? 1 : 0));
  }
}

/// Contiguous elements that somebody else owns, in host memory unless `place` says otherwise.
/// The owner keeps them alive and untouched while an operation on them is in flight.
struct MemorySpan {
  void* data = nullptr;
  int64_t num_elements = 0;  ///< >= 0
  DType dtype = DType::float32;
  Place place{};

  int64_t num_bytes() const noexcept { return num_elements * size_of(dtype); }
};

/// The span of elements in memory: span_of(std::span(vector)), span_of(std::span(array)).
template <class T, size_t N>
MemorySpan span_of(std::span<T, N> elements) noexcept {
  return {elements.data(), static_cast<int64_t>(elements.size()), dtype_of<T>()};
}

}  // namespace tutti
