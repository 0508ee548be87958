// Pages that go from one part of memory to another.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "tutti/sync/detail/spare_pages.h"

namespace tutti::detail {
namespace {

const int64_t kPage = sysconf(_SC_PAGESIZE);
constexpr int64_t kPages = 64;

// Of two parts of so many pages each.
struct Parts {
  Array memory = mapped_zeros(2 * kPages * kPage);
  std::span<std::byte> all{static_cast<std::byte*>(memory.data()),
                           static_cast<size_t>(memory.num_bytes())};
  std::byte* one = all.data();
  std::byte* other = all.data() + kPages * kPage;
};

int64_t faults_of_this_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

bool are(std::span<const std::byte> bytes, int value) {
  return std::ranges::all_of(bytes, [&](std::byte each) { return each == std::byte(value); });
}

TEST(SparePages, WhatIsTakenReadsAsZerosAndWhatIsBesideItStays) {
  const Parts parts;
  for (const int64_t kept : {int64_t{0}, int64_t{3}, kPages}) {
    SparePages spare(kept * kPage);
    std::ranges::fill(parts.all, std::byte{7});
    spare.take(parts.one + 100, 10 * kPage);  // nine of them whole
    EXPECT_TRUE(are(parts.all.subspan(0, kPage), 7));
    EXPECT_TRUE(are(parts.all.subspan(kPage, 9 * kPage), 0));
    EXPECT_TRUE(are(parts.all.subspan(10 * kPage), 7));
  }
}

TEST(SparePages, WhatIsGivenNeedsNoNewPages) {
  const Parts parts;
  SparePages spare(kPages * kPage);
  std::fill_n(parts.one, kPages * kPage, std::byte{7});
  spare.take(parts.one, kPages * kPage);
  spare.give(parts.other, kPages * kPage);
  const int64_t before = faults_of_this_thread();
  std::fill_n(parts.other, kPages * kPage, std::byte{5});
  EXPECT_LT(faults_of_this_thread() - before, kPages / 2);
  EXPECT_TRUE(are(parts.all.first(kPages * kPage), 0));
  EXPECT_TRUE(are(parts.all.last(kPages * kPage), 5));
}

// More than it has, and less than a page.
TEST(SparePages, WhatItHasNotComesFromTheKernel) {
  const Parts parts;
  SparePages spare(3 * kPage);
  std::fill_n(parts.one, kPages * kPage, std::byte{7});
  spare.take(parts.one, kPages * kPage);
  spare.give(parts.other, kPages * kPage);
  spare.give(parts.other + 1, kPage);
  std::ranges::fill(parts.all, std::byte{5});
  EXPECT_TRUE(are(parts.all, 5));
}

}  // namespace
}  // namespace tutti::detail
