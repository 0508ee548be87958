#include "tutti/sync/sharded/detail/spare_pages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "tutti/base/error.h"

namespace tutti::detail {
namespace {

constexpr size_t kKeptSlots = 1;  // what one part gives up, the next one wants

uintptr_t page_bytes() {
  static const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

[[noreturn]] void refuse(int64_t num_bytes) {
  const int error = errno;
  throw Error(
      fmt::format("no memory for {} bytes of parameters: {}{}", num_bytes, errno_words(error),
                  error == ENOMEM ? "; vm.max_map_count limits how many parts there are" : ""));
}

constexpr int kZeros = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* map(void* where, int64_t num_bytes, int flags, int file, int64_t offset) {
  return mmap(where, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE, flags, file, offset);
}

// A mapping in the place of another. The kernel may have taken that away before it fails, and what
// anybody maps next would lie in the hole, inside our memory: zeros close it. Where even they
// cannot be had, nothing in this process can be relied upon.
void map_over(std::byte* begin, int64_t num_bytes, int flags, int file, int64_t offset) {
  if (map(begin, num_bytes, flags | MAP_FIXED, file, offset) != MAP_FAILED) return;
  const int error = errno;
  if (map(begin, num_bytes, kZeros | MAP_FIXED, -1, 0) == MAP_FAILED) std::abort();
  errno = error;
  refuse(num_bytes);
}

void* zeros(int64_t num_bytes) {
  void* const begin = map(nullptr, num_bytes, kZeros, -1, 0);
  if (begin == MAP_FAILED) refuse(num_bytes);
  return begin;
}

struct Pages {
  std::byte* begin;
  int64_t bytes;
};

// Those that lie in there alone.
Pages pages_in(std::byte* begin, int64_t num_bytes) {
  const auto page = static_cast<int64_t>(page_bytes());
  const auto before = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % page_bytes());
  const int64_t skipped = before == 0 ? 0 : page - before;
  return {begin + skipped, std::max<int64_t>(0, (num_bytes - skipped) / page * page)};
}

}  // namespace

Array mapped_zeros(int64_t num_bytes) {
  const int64_t size = std::max<int64_t>(num_bytes, 1);
  const std::shared_ptr<void> memory(
      zeros(size), [size](void* begin) { munmap(begin, static_cast<size_t>(size)); });
  return Array::view(memory.get(), DType::uint8, {num_bytes}, memory);
}

SparePages::SparePages(int64_t num_bytes)
    : slot_bytes_(pages_in(nullptr, num_bytes).bytes),
      file_(memfd_create("tutti parameters", MFD_CLOEXEC)) {
  if (file_ < 0) refuse(num_bytes);
}

// What is mapped stays so.
SparePages::~SparePages() { close(file_); }

int64_t SparePages::free_slot() {
  for (std::vector<int64_t>* slots : {&kept_, &empty_}) {
    if (slots->empty()) continue;
    const int64_t slot = slots->back();
    slots->pop_back();
    return slot;
  }
  if (ftruncate(file_, (slots_ + 1) * slot_bytes_) != 0) refuse(slot_bytes_);
  return slots_++;
}

void SparePages::take(std::byte* begin, int64_t num_bytes) {
  const auto [first, bytes] = pages_in(begin, num_bytes);
  if (bytes == 0) return;
  map_over(first, bytes, kZeros, -1, 0);
  const auto given = given_.find(first);
  if (given == given_.end()) return;
  const int64_t slot = given->second;
  given_.erase(given);
  if (kept_.size() < kKeptSlots) return kept_.push_back(slot);
  empty_.push_back(slot);
  if (fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, slot * slot_bytes_,
                slot_bytes_) != 0)
    refuse(slot_bytes_);
}

void SparePages::give(std::byte* begin, int64_t num_bytes) {
  const auto [first, bytes] = pages_in(begin, num_bytes);
  if (bytes == 0) return;
  const int64_t slot = free_slot();
  try {
    map_over(first, bytes, MAP_SHARED | MAP_POPULATE, file_, slot * slot_bytes_);
  } catch (const Error&) {
    empty_.push_back(slot);
    throw;
  }
  given_[first] = slot;
}

}  // namespace tutti::detail
