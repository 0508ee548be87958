#include "tutti/parallel/tensor/detail/block_memory.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstring>
#include <numeric>

#include "tutti/parallel/tensor/detail/tree_sum.h"
#include "tutti/sync/before_use.h"

namespace tutti::parallel::detail {
namespace {

constexpr size_t kCacheLine = 64;
// A second-level cache: what is larger does not wait there for who reads it next.
constexpr size_t kLargeBytes = size_t{1} << 20;

/// [outer, elements, inner], cut along the middle; in bytes.
struct Strides {
  Strides(const at::Tensor& whole, const BlockCut& cut)
      : outer(cut.axis == 0 ? cut.stacked : whole.size(0)),
        element(whole.nbytes() / static_cast<size_t>(outer * total(cut))) {}

  static int64_t total(const BlockCut& cut) {
    return std::accumulate(cut.sizes.begin(), cut.sizes.end(), int64_t{0});
  }
  size_t bytes(int64_t elements) const { return static_cast<size_t>(elements) * element; }

  int64_t outer;
  size_t element;
};

at::Tensor empty_part(const at::Tensor& whole, const BlockCut& cut, size_t block) {
  auto shape = whole.sizes().vec();
  shape[static_cast<size_t>(cut.axis)] = cut.stacked * cut.sizes[block];
  return at::empty(shape, whole.options());
}

bool on_a_line(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kCacheLine == 0; }

#if defined(__x86_64__)
// Whole lines, which the processor then need not read before it writes them. All stores of one
// stand together: mixed with those of the next, half of them would leave the buffer as parts of a
// line.
void stream(std::byte* to, const std::byte* from, size_t bytes) {
  const auto load = [&](size_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
  };
  const auto store = [&](size_t i, __m128i x) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), x);
  };
  for (size_t i = 0; i < bytes; i += kCacheLine) {
    const __m128i a = load(i), b = load(i + 16), c = load(i + 32), d = load(i + 48);
    store(i, a), store(i + 16, b), store(i + 32, c), store(i + 48, d);
  }
}
void end_of_stream() { _mm_sfence(); }
#else
void stream(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }
void end_of_stream() {}
#endif

}  // namespace

Blocks taken_apart(const at::Tensor& whole, const BlockCut& cut) {
  if (cut.axis == 0 && cut.stacked == 1) return aligned_parts(whole, cut.sizes, 0);
  require_ready(whole);
  const Strides strides(whole, cut);
  Blocks parts;
  std::vector<std::byte*> to;
  for (size_t block = 0; block < cut.sizes.size(); ++block) {
    parts.push_back(empty_part(whole, cut, block));
    to.push_back(static_cast<std::byte*>(parts.back().mutable_data_ptr()));
  }
  const auto* from = static_cast<const std::byte*>(whole.const_data_ptr());
  for (int64_t row = 0; row < strides.outer; ++row)
    for (size_t block = 0; block < to.size(); ++block) {
      const size_t bytes = strides.bytes(cut.sizes[block]);
      std::memcpy(to[block], from, bytes);
      to[block] += bytes;
      from += bytes;
    }
  return parts;
}

void put_part(const at::Tensor& whole, const BlockCut& cut, size_t block, const at::Tensor& part) {
  const Strides strides(whole, cut);
  const auto first = cut.sizes.begin();
  const size_t bytes = strides.bytes(cut.sizes[block]);
  const size_t row = strides.bytes(Strides::total(cut));
  const auto* from = static_cast<const std::byte*>(part.const_data_ptr());
  auto* to =
      static_cast<std::byte*>(whole.mutable_data_ptr()) +
      strides.bytes(std::accumulate(first, first + static_cast<ptrdiff_t>(block), int64_t{0}));
  const bool streams = whole.nbytes() >= kLargeBytes && bytes % kCacheLine == 0 &&
                       row % kCacheLine == 0 && on_a_line(to);
  for (int64_t i = 0; i < strides.outer; ++i, to += row, from += bytes)
    streams ? stream(to, from, bytes) : static_cast<void>(std::memcpy(to, from, bytes));
  if (streams) end_of_stream();
}

}  // namespace tutti::parallel::detail
