// The folder of a job's snapshots: one job's at a time, and what happens once it is another's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tutti/base/error.h"
#include "tutti/ps/snapshot_series.h"

#include "tests/support/failing_open.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

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

TEST(PsSnapshotFolder, ALockIsNoLinkToWhatSomebodyElseHas) {
  const TempFolder folder;
  put_bytes(folder / "theirs", "precious");
  fs::create_directory(folder / "snapshots");
  fs::create_symlink(folder / "theirs", folder / "snapshots" / "snapshots.lock");
  EXPECT_THAT(message_of<UsageError>([&] { SnapshotSeries({.folder = folder / "snapshots"}); }),
              AllOf(HasSubstr("--snapshots"), HasSubstr("symbolic link")));
  EXPECT_EQ(get_bytes(folder / "theirs"), "precious");
}

View one_partition() {
  View view{.number = 1};
  view.partitions.resize(1);
  return view;
}

TEST(PsSnapshotFolder, OfACutThatIsGivenUpNothingStays) {
  const TempFolder folder;
  SnapshotSeries series({.folder = folder.path()});
  ASSERT_TRUE(series.begin(one_partition(), Clock::now()));
  EXPECT_TRUE(fs::exists(folder / "cut-000001.partial"));
  series.give_up("for a test", Clock::now());
  EXPECT_THAT(folder.names(), ElementsAre("snapshots.lock"));
}

// Somebody has removed it under the first, and the second begins its cut 1 there.
TEST(PsSnapshotFolder, ACutOfWhoHasTakenItSinceStays) {
  const TempFolder folder;
  SnapshotSeries first({.folder = folder / "s"});
  fs::remove_all(folder / "s");
  SnapshotSeries second({.folder = folder / "s"});
  ASSERT_TRUE(second.begin(one_partition(), Clock::now()));
  put_bytes(folder / "s/cut-000001.partial/part", "theirs");
  EXPECT_FALSE(first.begin(one_partition(), Clock::now()));
  EXPECT_EQ(get_bytes(folder / "s/cut-000001.partial/part"), "theirs");
}

// Whose it is cannot be said then.
TEST(PsSnapshotFolder, ACutStaysWhereTheLockCannotBeReadJustNow) {
  const TempFolder folder;
  SnapshotSeries series({.folder = folder.path()});
  ASSERT_TRUE(series.begin(one_partition(), Clock::now()));
  const test::FailingOpen failing("snapshots.lock", EIO);
  series.give_up("for a test", Clock::now());
  EXPECT_TRUE(fs::exists(folder / "cut-000001.partial"));
}

}  // namespace
}  // namespace tutti::ps
