/// Memory of which much is read at once, or in no order: parameters and their states, rows of a
/// table and its index.
///
/// A processor has to look up where nearly every page lies; with pages of 2 MiB that is much less
/// to look up. Thread rule: any.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace tutti::detail {

constexpr size_t kLine = 64, kLargePage = size_t{2} << 20;

/// What `bytes` take: whole lines, or large pages.
constexpr size_t rounded_to_pages(size_t bytes) {
  const size_t unit = bytes < kLargePage ? kLine : kLargePage;
  return (bytes + unit - 1) / unit * unit;
}

/// For std::free: not cleared, on a 64-byte line; in large pages where they fit and the system has
/// some. Null: there is no memory.
inline void* allocate_large(size_t bytes) noexcept {
  if (bytes > PTRDIFF_MAX) return nullptr;  // no object is larger; rounded up it could be nothing
  const size_t rounded = rounded_to_pages(bytes);
  const bool large = rounded >= kLargePage;
  void* const memory = std::aligned_alloc(large ? kLargePage : kLine, rounded);
  if (memory != nullptr && large) madvise(memory, rounded, MADV_HUGEPAGE);  // may well be refused
  return memory;
}

/// An allocator of such memory.
template <class T>
struct LargePages {
  using value_type = T;

  LargePages() = default;
  template <class U>
  explicit LargePages(const LargePages<U>&) {}

  T* allocate(size_t count) {
    if (count > PTRDIFF_MAX / sizeof(T)) throw std::bad_array_new_length();
    void* const memory = allocate_large(count * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) noexcept { std::free(memory); }
  bool operator==(const LargePages&) const = default;
};

}  // namespace tutti::detail
