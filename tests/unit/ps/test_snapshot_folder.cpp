// The folder of a job's snapshots: one job's at a time, and what happens once it is another's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tutti/base/error.h"
#include "tutti/ps/snapshot/snapshot_folder.h"
#include "tutti/ps/snapshot/snapshot_series.h"

#include "tests/support/failing_open.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/begun_cut.h"

namespace tutti::ps {
namespace {

namespace fs = std::filesystem;
using test::get_bytes;
using test::message_of;
using test::put_bytes;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PsSnapshotFolder, OneJobAtATimeWritesIntoAFolder) {
  const TempFolder folder;
  {
    const SnapshotSeries first({.folder = folder.path()});
    EXPECT_THAT(message_of<UsageError>([&] { SnapshotSeries({.folder = folder.path()}); }),
                AllOf(HasSubstr("--snapshots " + folder.path().string()),
                      HasSubstr(fmt::format("another job writes there: process {} on", getpid()))));
  }
  const SnapshotSeries next({.folder = folder.path()});
}

using testing::begin_cut;
using testing::kPatience;

constexpr Millis kTooLong{700'000};

View one_partition() {
  View view{.number = 1};
  view.partitions.resize(1);
  return view;
}

Message whole_partition() {
  return {.kind = Message::Kind::written,
          .partition = 0,
          .sequence = 1,
          .text = R"({"partition":0,"step":3,"tables":[],"files":[],"spec":{}})"};
}

TEST(PsSnapshotFolder, OfACutThatIsGivenUpNothingStays) {
  const TempFolder folder;
  SnapshotSeries series({.folder = folder.path()});
  ASSERT_TRUE(begin_cut(series, one_partition()));
  EXPECT_TRUE(fs::exists(folder / "cut-000001.partial"));
  series.give_up("for a test", Clock::now());
  ASSERT_TRUE(series.settle(Deadline(kPatience)));
  EXPECT_THAT(folder.names(), ElementsAre("snapshots.lock"));
}

// What is called as a snapshot and has no manifest may be somebody's.
TEST(PsSnapshotFolder, WhatIsNoSnapshotStays) {
  const TempFolder folder;
  fs::create_directory(folder / "cut-2024");
  const SnapshotFolder snapshots({.folder = folder.path(), .kept = 1});
  EXPECT_EQ(snapshots.first_number(), 2025);
  snapshots.remove_old();
  EXPECT_THAT(folder.names(), ElementsAre("cut-2024", "snapshots.lock"));
}

// Somebody has removed it under the first, and the second begins its cut 1 there.
TEST(PsSnapshotFolder, ACutOfWhoHasTakenItSinceStays) {
  const TempFolder folder;
  SnapshotSeries first({.folder = folder / "s"});
  fs::remove_all(folder / "s");
  SnapshotSeries second({.folder = folder / "s"});
  ASSERT_TRUE(begin_cut(second, one_partition()));
  put_bytes(folder / "s/cut-000001.partial/part", "theirs");
  EXPECT_FALSE(begin_cut(first, one_partition()));
  EXPECT_FALSE(first.busy());
  EXPECT_EQ(get_bytes(folder / "s/cut-000001.partial/part"), "theirs");
}

// Nor does it make a snapshot of what was given up when it answers at last.
TEST(PsSnapshotFolder, ADiskThatHangsWhileAFolderIsMadeKeepsNobody) {
  const TempFolder folder;
  SnapshotSeries series({.folder = folder / "s"});
  fs::remove_all(folder / "s");  // so that the lock is opened again
  {
    test::HangingOpen hangs("snapshots.lock");
    series.begin(one_partition(), Clock::now());
    ASSERT_TRUE(hangs.wait(Deadline(kPatience)));
    EXPECT_FALSE(series.process());
    EXPECT_TRUE(series.busy());
    series.look_after(Clock::now() + kTooLong);
    EXPECT_FALSE(series.busy()) << "it was given up";
  }
  ASSERT_TRUE(series.settle(Deadline(kPatience)));
  EXPECT_FALSE(series.process()) << "nobody waits for that folder";
  EXPECT_FALSE(fs::exists(folder / "s/cut-000001.partial"));
}

TEST(PsSnapshotFolder, ADiskThatIsDeadAtTheBeginIsNamed) {
  const TempFolder folder;
  test::HangingOpen hangs("snapshots.lock");
  EXPECT_THAT(message_of<Timeout>(
                  [&] { SnapshotSeries({.folder = folder.path(), .disk_limit = Millis{20}}); }),
              AllOf(HasSubstr("--snapshots " + folder.path().string()),
                    HasSubstr("the disk did not answer")));
}

TEST(PsSnapshotFolder, ADiskThatHangsAtAManifestKeepsNobody) {
  const TempFolder folder;
  SnapshotSeries series({.folder = folder.path()});
  ASSERT_TRUE(begin_cut(series, one_partition()));
  {
    test::HangingOpen hangs("cut-000001.partial");
    series.on_written(whole_partition(), Clock::now());
    ASSERT_TRUE(hangs.wait(Deadline(kPatience)));
    EXPECT_TRUE(series.busy());
    series.on_view({.number = 2, .partitions = {{.primary = 1}}}, Clock::now());
    EXPECT_TRUE(series.busy()) << "all of it is on disk";
    series.look_after(Clock::now() + kTooLong);
    EXPECT_FALSE(series.busy()) << "it was given up";
  }
  ASSERT_TRUE(series.settle(Deadline(kPatience)));
  EXPECT_THAT(folder.names(), ElementsAre("snapshots.lock"));
}

// A relative path is that of the folder in which the job began.
TEST(PsSnapshotFolder, NothingIsThrownWhenTheWorkingDirectoryGoes) {
  const fs::path before = fs::current_path();
  {
    const TempFolder folder;
    fs::current_path(folder.path());
    SnapshotSeries series({.folder = "s"});
    EXPECT_TRUE(begin_cut(series, one_partition()));
    fs::remove_all(folder.path());
    series.look_after(Clock::now() + kTooLong);
    EXPECT_FALSE(series.busy()) << "it was given up";
    EXPECT_TRUE(series.settle(Deadline(kPatience)));
    fs::current_path(before);
  }
}

TEST(PsSnapshotFolder, ASnapshotIsThereOnceTheDiskHasIt) {
  const TempFolder folder;
  SnapshotSeries series({.folder = folder.path()});
  ASSERT_TRUE(begin_cut(series, one_partition()));
  series.on_written(whole_partition(), Clock::now());
  ASSERT_TRUE(series.settle(Deadline(kPatience)));
  EXPECT_FALSE(series.busy());
  EXPECT_THAT(folder.names(), ElementsAre("cut-000001", "snapshots.lock"));
}

}  // namespace
}  // namespace tutti::ps
