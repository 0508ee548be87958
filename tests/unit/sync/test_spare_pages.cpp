// Pages that go from one part of memory to another.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>

#include "tutti/base/error.h"
#include "tutti/sync/sharded/detail/spare_pages.h"

namespace tutti::detail {
namespace {

const int64_t kPage = sysconf(_SC_PAGESIZE);
constexpr int64_t kPages = 64;

// Parts of so many pages each.
struct Parts {
  Array memory = mapped_zeros(3 * kPages * kPage);
  std::span<std::byte> all{static_cast<std::byte*>(memory.data()),
                           static_cast<size_t>(memory.num_bytes())};
  std::span<std::byte> part(int64_t number) const {
    return all.subspan(static_cast<size_t>(number * kPages * kPage),
                       static_cast<size_t>(kPages * kPage));
  }
};

int64_t faults_of_this_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

bool are(std::span<const std::byte> bytes, int value) {
  return std::ranges::all_of(bytes, [&](std::byte each) { return each == std::byte(value); });
}

void take(SparePages& spare, std::span<std::byte> part) {
  spare.take(part.data(), std::ssize(part));
}
void give(SparePages& spare, std::span<std::byte> part) {
  spare.give(part.data(), std::ssize(part));
}

TEST(SparePages, WhatIsTakenReadsAsZerosAndWhatIsBesideItStays) {
  const Parts parts;
  SparePages spare(kPages * kPage);
  for (int round = 0; round < 3; ++round) {  // first what it never gave
    std::ranges::fill(parts.all, std::byte{7});
    spare.take(parts.all.data() + 100, 10 * kPage);  // nine pages whole
    EXPECT_TRUE(are(parts.all.subspan(0, kPage), 7));
    EXPECT_TRUE(are(parts.all.subspan(kPage, 9 * kPage), 0));
    EXPECT_TRUE(are(parts.all.subspan(10 * kPage), 7));
    spare.give(parts.all.data() + 100, 10 * kPage);
  }
}

TEST(SparePages, WhatIsGivenNeedsNoNewPages) {
  const Parts parts;
  SparePages spare(kPages * kPage);
  std::ranges::fill(parts.part(0), std::byte{7});
  give(spare, parts.part(0));
  take(spare, parts.part(0));
  give(spare, parts.part(1));
  const int64_t before = faults_of_this_thread();
  std::ranges::fill(parts.part(1), std::byte{5});
  EXPECT_LT(faults_of_this_thread() - before, kPages / 2);
  EXPECT_TRUE(are(parts.part(0), 0));
  EXPECT_TRUE(are(parts.part(1), 5));
}

/// The file of memory that was made last in this process.
int newest_memory_file() {
  int newest = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string file = std::filesystem::read_symlink(entry.path(), gone).string();
    if (file.starts_with("/memfd:tutti parameters"))
      newest = std::max(newest, std::stoi(entry.path().filename().string()));
  }
  return newest;
}

// The kernel takes the old mapping away before it finds that there is none for the new one: of
// pages of 2 MiB there are none where nobody has set some apart.
TEST(SparePages, AMappingThatFailsLeavesNoHole) {
  constexpr int64_t kHuge = 2 << 20;
  const Array memory = mapped_zeros(2 * kHuge);
  auto* const begin = reinterpret_cast<std::byte*>(
      (reinterpret_cast<uintptr_t>(memory.data()) + kHuge - 1) / kHuge * kHuge);
  const std::span<std::byte> part(begin, static_cast<size_t>(kHuge));
  SparePages spare(kHuge);
  const int file = newest_memory_file();
  const int kept = ::dup(file);
  const int huge = ::memfd_create("huge", MFD_HUGETLB | MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  if (huge < 0) GTEST_SKIP() << "this kernel has no pages of 2 MiB";
  ::dup2(huge, file);
  bool refused = false;
  try {
    give(spare, part);
  } catch (const Error&) {
    refused = true;
  }
  if (!refused) GTEST_SKIP() << "somebody has set pages of 2 MiB apart";
  EXPECT_TRUE(are(part, 0));
  ASSERT_EQ(::ftruncate(kept, kHuge), 0);  // the slot was made in the other file
  ::dup2(kept, file);
  give(spare, part);
  std::ranges::fill(part, std::byte{3});
  EXPECT_TRUE(are(part, 3));
  take(spare, part);
  EXPECT_TRUE(are(part, 0));
  ::close(kept);
  ::close(huge);
}

// In any order, with borders inside pages, as often as you like; nothing is shared.
TEST(SparePages, PartsNeverHaveTheSamePages) {
  const Parts parts;
  SparePages spare(kPages * kPage);
  const auto part = [&](int64_t number) {
    return parts.all.subspan(static_cast<size_t>(number * 50 * kPage + 33 * number),
                             static_cast<size_t>(50 * kPage + 33));
  };
  for (int round = 0; round < 20; ++round) {
    for (int64_t i = 0; i < 3; ++i)
      if ((round + i) % 3 != 0) give(spare, part(i));
    for (int64_t i = 0; i < 3; ++i)
      std::ranges::fill(part(i), static_cast<std::byte>(10 * round + i));
    for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(are(part(i), 10 * round + static_cast<int>(i)));
    for (int64_t i = 2; i >= 0; --i)
      if ((round + i) % 3 != 0) take(spare, part(i));
  }
}

TEST(SparePages, OfLessThanAPageNothingIsTaken) {
  const Parts parts;
  SparePages spare(kPages * kPage);
  std::ranges::fill(parts.all, std::byte{5});
  spare.give(parts.all.data() + 1, kPage);
  spare.take(parts.all.data() + 1, kPage);
  EXPECT_TRUE(are(parts.all, 5));
}

}  // namespace
}  // namespace tutti::detail
