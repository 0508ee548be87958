#include "tutti/sync/detail/spare_pages.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

uintptr_t page_bytes() {
  static const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::byte* map(void* where, size_t num_bytes, int flags) {
  void* const begin = mmap(where, num_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  if (begin == MAP_FAILED)
    throw Error(fmt::format("no memory for {} bytes: {}", num_bytes, errno_words(errno)));
  return static_cast<std::byte*>(begin);
}

struct Pages {
  std::byte* begin;
  int64_t bytes;
};

// Those that lie in there alone.
Pages pages_in(std::byte* begin, int64_t num_bytes) {
  const uintptr_t page = page_bytes();
  const auto first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const auto last = reinterpret_cast<uintptr_t>(begin + num_bytes) / page * page;
  return {reinterpret_cast<std::byte*>(first),
          first < last ? static_cast<int64_t>(last - first) : 0};
}

// Both stay mapped; `from` has no pages then. False: as if `to` had none.
bool move(std::byte* from, int64_t num_bytes, std::byte* to) {
  const auto size = static_cast<size_t>(num_bytes);
  if (mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != MAP_FAILED)
    return true;
  map(to, size, MAP_FIXED);  // it may have been unmapped before that failed
  return false;
}

}  // namespace

Array mapped_zeros(int64_t num_bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(num_bytes, 1));
  const std::shared_ptr<void> memory(map(nullptr, size, 0),
                                     [size](void* begin) { munmap(begin, size); });
  return Array::view(memory.get(), DType::uint8, {num_bytes}, memory);
}

SparePages::SparePages(int64_t num_bytes)
    : memory_(mapped_zeros(pages_in(nullptr, num_bytes).bytes)) {}

void SparePages::take(std::byte* begin, int64_t num_bytes) {
  auto [first, bytes] = pages_in(begin, num_bytes);
  const int64_t kept = std::min(bytes, memory_.num_bytes() - used_);
  if (kept > 0 && move(first, kept, this->begin() + used_)) {
    used_ += kept;
    first += kept;
    bytes -= kept;
  }
  // Where this fails the memory stays, and nothing else.
  if (bytes > 0) madvise(first, static_cast<size_t>(bytes), MADV_DONTNEED);
}

void SparePages::give(std::byte* begin, int64_t num_bytes) {
  const auto [first, bytes] = pages_in(begin, num_bytes);
  const int64_t given = std::min(bytes, used_);
  if (given > 0 && move(this->begin() + used_ - given, given, first)) used_ -= given;
}

}  // namespace tutti::detail
