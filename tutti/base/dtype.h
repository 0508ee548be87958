/// Element types of plain memory, and spans of them. The whole library below LibTorch speaks these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tutti/base/stream.h"

namespace tutti {

enum class DType : uint8_t {
  boolean, uint8, int8, uint16, int16, uint32, int32, uint64, int64,
  float16, bfloat16, float32, float64,
};

/// Bytes of one element: 1, 2, 4 or 8.
constexpr int64_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::boolean: case DType::uint8: case DType::int8: return 1;
    case DType::uint16: case DType::int16: case DType::float16: case DType::bfloat16: return 2;
    case DType::uint32: case DType::int32: case DType::float32: return 4;
    default: return 8;
  }
}

constexpr bool is_floating(DType dtype) noexcept { return dtype >= DType::float16; }

/// "float32", "bfloat16", "bool", ...: the names NumPy and LibTorch use.
std::string_view name_of(DType dtype) noexcept;

/// What stands in DType for a C++ type; float, double and the fixed-width integers.
template <class T> constexpr DType dtype_of() noexcept;
template <> constexpr DType dtype_of<bool>() noexcept { return DType::boolean; }
template <> constexpr DType dtype_of<uint8_t>() noexcept { return DType::uint8; }
template <> constexpr DType dtype_of<int8_t>() noexcept { return DType::int8; }
template <> constexpr DType dtype_of<uint16_t>() noexcept { return DType::uint16; }
template <> constexpr DType dtype_of<int16_t>() noexcept { return DType::int16; }
template <> constexpr DType dtype_of<uint32_t>() noexcept { return DType::uint32; }
template <> constexpr DType dtype_of<int32_t>() noexcept { return DType::int32; }
template <> constexpr DType dtype_of<uint64_t>() noexcept { return DType::uint64; }
template <> constexpr DType dtype_of<int64_t>() noexcept { return DType::int64; }
template <> constexpr DType dtype_of<float>() noexcept { return DType::float32; }
template <> constexpr DType dtype_of<double>() noexcept { return DType::float64; }

/// Contiguous elements that somebody else owns, in host memory unless `place` says otherwise.
/// The owner keeps them alive and untouched while an operation on them is in flight.
struct MemorySpan {
  void* data = nullptr;
  int64_t num_elements = 0;  ///< >= 0
  DType dtype = DType::float32;
  Place place{};

  int64_t num_bytes() const noexcept { return num_elements * size_of(dtype); }
};

/// The span of a contiguous C++ range: span_of(std::span(vector)).
template <class T>
MemorySpan span_of(std::span<T> elements) noexcept {
  return {elements.data(), static_cast<int64_t>(elements.size()), dtype_of<T>()};
}

}  // namespace tutti
