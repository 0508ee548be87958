// Partitions on their way to a disk that fails or hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <memory>

#include "tutti/ps/snapshot/snapshot_writer.h"

#include "tests/support/failing_open.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/begun_cut.h"
#include "tests/unit/ps/trained_partitions.h"

namespace tutti::ps {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using ::testing::HasSubstr;
using testing::spec_on;
using testing::trained;

// A disk that fails then is a signal to whoever reads through a mapping.
TEST(PsSnapshotWriter, WhatWasWrittenIsNotReadAgain) {
  const TempFolder folder;
  auto states = trained(spec_on(1));
  const test::FailingOpen fails(".safetensors", EIO);
  PartitionCut cut(states[0], 1, folder.path());
  EXPECT_THAT(write_partition(cut, 0), HasSubstr("sha256"));
  EXPECT_EQ(fails.failed(), 0);
}

TEST(PsSnapshotWriter, NobodyWaitsForAWriterWhoseDiskHangs) {
  const TempFolder folder;
  auto states = trained(spec_on(1));
  fs::create_directory(folder / "hung");
  fs::create_directory(folder / "next");
  std::weak_ptr<PartitionCut> forgotten;
  {
    test::HangingOpen hangs("hung");  // the folder is opened, for a file without a name
    {
      SnapshotWriter writer([] {}, Millis{0});
      writer.add(0, std::make_shared<PartitionCut>(states[0], 1, folder / "hung"));
      ASSERT_TRUE(hangs.wait(Deadline(testing::kPatience)));
      auto second = std::make_shared<PartitionCut>(states[0], 2, folder / "next");
      forgotten = second;
      writer.add(0, std::move(second));
      EXPECT_FALSE(forgotten.expired()) << "it waits";
      writer.add(0, std::make_shared<PartitionCut>(states[0], 3, folder / "next"));
      EXPECT_TRUE(forgotten.expired()) << "nobody waits for cut 2 any more";
      EXPECT_TRUE(writer.take_written().empty());
    }  // does not wait for the disk
  }
}

}  // namespace
}  // namespace tutti::ps
