#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "tutti/base/error.h"
#include "tutti/net/arena.h"

namespace tutti {
namespace {

TEST(SharedFile, MemoryIsZeroedSharedAndOutlivesItsDescriptor) {
  Mapping first, second;
  {
    SharedFile file = SharedFile::create("test");
    ASSERT_TRUE(file.reserve(0, 3 * kPageBytes));
    EXPECT_EQ(file.size_bytes(), 3 * kPageBytes);
    first = Mapping(file, 0, 3 * kPageBytes);
    second = Mapping(SharedFile::duplicate(file.descriptor()), kPageBytes, kPageBytes);
  }
  EXPECT_EQ(static_cast<int>(first.data()[kPageBytes]), 0);
  std::memset(first.data() + kPageBytes, 7, 10);
  EXPECT_EQ(static_cast<int>(second.data()[9]), 7);
}

TEST(SharedFile, DescriptorsCloseOnExec) {
  const SharedFile file = SharedFile::create("test");
  EXPECT_NE(fcntl(file.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(fcntl(file.reopen().descriptor(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_THROW(SharedFile::duplicate(-1), UsageError);
}

TEST(SharedFile, MemoryGivenBackReadsAsZero) {
  const SharedFile file = SharedFile::create("test");
  ASSERT_TRUE(file.reserve(0, 2 * kPageBytes));
  const Mapping memory(file, 0, 2 * kPageBytes);
  std::memset(memory.data(), 1, 2 * kPageBytes);
  file.give_back(kPageBytes, kPageBytes);
  EXPECT_EQ(static_cast<int>(memory.data()[0]), 1);
  EXPECT_EQ(static_cast<int>(memory.data()[kPageBytes]), 0);
}

TEST(SharedFile, CannotBeCutUnderAMapping) {
  const SharedFile file = SharedFile::create("test");
  ASSERT_TRUE(file.reserve(0, kPageBytes));
  EXPECT_NE(ftruncate(file.descriptor(), 0), 0);
}

TEST(SharedFile, LocksShowWhetherTheirHolderLives) {
  const SharedFile file = SharedFile::create("test");
  {
    const SharedFile holder = file.reopen();
    holder.lock_byte(3);
    EXPECT_TRUE(file.byte_is_locked(3));
    EXPECT_FALSE(file.byte_is_locked(2));
    holder.lock_byte(2);
    holder.unlock_byte(2);
    EXPECT_FALSE(file.byte_is_locked(2));
  }
  EXPECT_FALSE(file.byte_is_locked(3)) << "the description is closed, as at a death";
}

TEST(Mapping, TranslatesPointersAndOffsets) {
  const SharedFile file = SharedFile::create("test");
  ASSERT_TRUE(file.reserve(0, 4 * kPageBytes));
  const Mapping memory(file, kPageBytes, 2 * kPageBytes);
  const std::byte* end = memory.data() + 2 * kPageBytes;
  EXPECT_TRUE(memory.contains(memory.data(), 2 * kPageBytes));
  EXPECT_TRUE(memory.contains(end, 0));
  EXPECT_FALSE(memory.contains(memory.data(), 2 * kPageBytes + 1));
  EXPECT_FALSE(memory.contains(end - 8, 9));
  EXPECT_FALSE(memory.contains(memory.data() - 1, 1));
  EXPECT_EQ(memory.offset_of(memory.data() + 5), kPageBytes + 5);
  EXPECT_EQ(memory.at(kPageBytes + 5), memory.data() + 5);
}

}  // namespace
}  // namespace tutti
