#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "tutti/base/detail/large_pages.h"
#include "tutti/base/resident.h"

namespace tutti::detail {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(LargePages, RoundToLinesAndFromTwoMebibytesToPages) {
  EXPECT_EQ(rounded_to_pages(1), 64u);
  EXPECT_EQ(rounded_to_pages(64), 64u);
  EXPECT_EQ(rounded_to_pages(2 * kMiB - 1), 2 * kMiB);
  EXPECT_EQ(rounded_to_pages(2 * kMiB), 2 * kMiB);
  EXPECT_EQ(rounded_to_pages(2 * kMiB + 1), 4 * kMiB);
}

TEST(LargePages, BeginAtOneAndAreAllOurs) {
  for (const size_t bytes : {size_t{1}, 2 * kMiB - 64, 2 * kMiB, 5 * kMiB + 3}) {
    const std::unique_ptr<void, decltype(&std::free)> memory(allocate_large(bytes), &std::free);
    ASSERT_NE(memory, nullptr) << bytes;
    const size_t unit = bytes < 2 * kMiB - 63 ? 64 : 2 * kMiB;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % unit, 0u) << bytes;
    std::memset(memory.get(), 1, bytes);
  }
}

TEST(LargePages, OfMoreThanThereCanBeAreRefused) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 2 * kMiB, size_t{PTRDIFF_MAX} + 1})
    EXPECT_EQ(allocate_large(bytes), nullptr) << bytes;
  EXPECT_THROW(LargePages<double>().allocate(SIZE_MAX / sizeof(double) + 2),
               std::bad_array_new_length);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // theirs ends the process
  EXPECT_EQ(allocate_large(size_t{1} << 62), nullptr) << "more than any memory";
#endif
}

TEST(Resident, GrowsWithWhatIsTouchedAndKeepsThePeak) {
  constexpr size_t kTouched = 64 * kMiB;
  forget_peak_resident();
  const int64_t before = resident_bytes();
  ASSERT_GT(before, 0);
  {
    const std::vector<std::byte> touched(kTouched, std::byte{1});
  }
  EXPECT_GE(peak_resident_bytes() - before, static_cast<int64_t>(kTouched * 9 / 10));
}

}  // namespace
}  // namespace tutti::detail
