// NumberedFolder: what is in it is whole, and nobody else's.
#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/store/numbered_folder.h"

#include "tests/support/expect.h"
#include "tests/support/failing_open.h"
#include "tests/support/temp_folder.h"

namespace tutti::store {
namespace {

namespace fs = std::filesystem;

NumberedFolder cuts(const fs::path& folder) {
  return {folder, {.prefix = "cut-", .digits = 6, .lock = "snapshots.lock"}};
}
NumberedFolder steps(const fs::path& folder) {
  return {folder, {.prefix = "step-", .digits = 12, .unfinished = "."}};
}

void make(const NumberedFolder& folder, int64_t number, const std::string& manifest = "{}") {
  folder.begin(number);
  folder.finish(number, manifest, [] {});
}

TEST(NumberedFolder, NamesHaveTheirNumbers) {
  EXPECT_EQ(cuts("f").whole(12), "f/cut-000012");
  EXPECT_EQ(cuts("f").partial(12), "f/cut-000012.partial");
  EXPECT_EQ(cuts("f").whole(1234567), "f/cut-1234567");
  EXPECT_EQ(steps("f").whole(400), "f/step-000000000400");
  EXPECT_EQ(steps("f").partial(400), "f/.step-000000000400.partial");
  struct Case {
    const char* name;
    std::optional<int64_t> number;
  };
  const Case cases[] = {
      {"cut-000012", 12}, {"cut-12", 12},           {"cut-9223372036854775806", INT64_MAX - 1},
      {"cut-", {}},       {"cut-12.partial", {}},   {"cut-9223372036854775807", {}},
      {"cut--1", {}},     {"step-000000000012", {}}};
  for (const Case& c : cases) EXPECT_EQ(cuts("f").number_of(c.name), c.number) << c.name;
}

TEST(NumberedFolder, OneIsThereOnceAllOfItIs) {
  const TempFolder folder;
  const NumberedFolder all = cuts(folder / "in");
  EXPECT_THAT(all.all(), IsEmpty());
  put_bytes(all.begin(7) / "part", "of it");
  EXPECT_THAT(all.all(), IsEmpty());
  all.finish(7, "what it is", [&] {
    EXPECT_EQ(get_bytes(all.partial(7) / kManifest), "what it is");
    EXPECT_THAT(all.all(), IsEmpty());
  });
  EXPECT_THAT(all.all(), ElementsAre(all.whole(7)));
  EXPECT_EQ(get_bytes(all.whole(7) / "part"), "of it");
  make(all, 7, "another");
  EXPECT_EQ(get_bytes(all.whole(7) / kManifest), "another");
  EXPECT_FALSE(fs::exists(all.whole(7) / "part")) << "one of that number from before goes";
}

TEST(NumberedFolder, WhatNobodyWantsAtLastDoesNotAppear) {
  const TempFolder folder;
  const NumberedFolder all = steps(folder.path());
  make(all, 3, "before");
  all.begin(3);
  EXPECT_THAT(message_of<Error>([&] { all.finish(3, "after", [] { throw Error("given up"); }); }),
              HasSubstr("given up"));
  EXPECT_EQ(get_bytes(all.whole(3) / kManifest), "before");
}

TEST(NumberedFolder, ThatOneCannotBeMadeIsSaid) {
  const TempFolder folder;
  put_bytes(folder / "cut-000001.partial", "in the way");
  EXPECT_THAT(message_of<Error>([&] { cuts(folder.path()).begin(1); }),
              HasSubstr("cut-000001.partial: "));
  const NumberedFolder all = cuts(folder.path());
  all.begin(2);
  const auto gone = [&] { fs::remove_all(all.partial(2)); };
  EXPECT_THAT(message_of<Error>([&] { all.finish(2, "{}", gone); }),
              AllOf(HasSubstr("cut-000002.partial cannot become"), HasSubstr("cut-000002: ")));
}

TEST(NumberedFolder, TheyAreInTheOrderOfTheirNumbers) {
  const TempFolder folder;
  const NumberedFolder all = cuts(folder.path());
  for (const int64_t number : {1000000, 2, 999999}) make(all, number);
  fs::create_directory(folder / "cut-of-somebody");
  put_bytes(folder / "cut-000003", "a file");
  EXPECT_THAT(all.all(), ElementsAre(all.whole(2), all.whole(999999), all.whole(1000000)));
  EXPECT_THAT(newest_of(all.all(), 2), ElementsAre(all.whole(999999), all.whole(1000000)));
  EXPECT_EQ(newest_of(all.all(), 9), all.all());
  for (const char* of_somebody : {"cut-2", "cut-2024"}) fs::create_directory(folder / of_somebody);
  EXPECT_THAT(all.all(kManifest), ElementsAre(all.whole(2), all.whole(999999), all.whole(1000000)));
}

// A folder that is taken for empty would be begun anew in, or emptied.
TEST(NumberedFolder, WhatCannotBeListedJustNowIsAnError) {
  const TempFolder folder;
  const NumberedFolder all = cuts(folder / "in");
  make(all, 1);
  for (const int error : {EIO, EMFILE, EACCES}) {
    const FailingOpen failing(folder / "in", error);
    EXPECT_THAT(message_of<Error>([&] { all.all(); }), HasSubstr(errno_words(error)));
  }
  EXPECT_THAT(all.all(), ElementsAre(all.whole(1)));
}

TEST(NumberedFolder, WhatIsGivenUpGoesWhereTheFolderIsStillTheJobs) {
  const TempFolder folder;
  const NumberedFolder all = cuts(folder.path());
  const FolderLock lock = all.take("--snapshots");
  EXPECT_THAT(message_of<UsageError>([&] { all.take("--snapshots"); }),
              HasSubstr("--snapshots " + folder.path().string() + ": another job writes there"));
  all.begin(1);
  EXPECT_FALSE(all.is_of(lock.number() + 1));
  all.give_up(1, lock.number() + 1);
  EXPECT_TRUE(fs::exists(all.partial(1))) << "it is another job's";
  {
    const FailingOpen failing("snapshots.lock", EIO);
    all.give_up(1, lock.number());
    EXPECT_TRUE(fs::exists(all.partial(1))) << "whose it is cannot be said";
  }
  EXPECT_TRUE(all.is_of(lock.number()));
  all.give_up(1, lock.number());
  EXPECT_THAT(folder.names(), ElementsAre("snapshots.lock"));
}

// Checkpoints and snapshots may be in one folder, each under a lock of its own.
TEST(NumberedFolder, WhatADeadJobWasMakingGoesAndNothingElse) {
  const TempFolder folder;
  const NumberedFolder one = cuts(folder.path()), other = steps(folder.path());
  make(one, 1);
  for (const int64_t number : {2, 3}) {
    one.begin(number);
    other.begin(number);
  }
  put_bytes(folder / "of somebody.partial", "x");
  one.remove_unfinished(3);
  EXPECT_THAT(folder.names(),
              ElementsAre(".step-000000000002.partial", ".step-000000000003.partial", "cut-000001",
                          "cut-000003.partial", "of somebody.partial"));
  one.remove_unfinished();
  other.remove_unfinished();
  EXPECT_THAT(folder.names(), ElementsAre("cut-000001", "of somebody.partial"));
}

TEST(NumberedFolder, OnlyTheseAreKept) {
  const TempFolder folder;
  const NumberedFolder all = steps(folder.path());
  for (int64_t number = 1; number <= 5; ++number) make(all, number);
  all.begin(6);
  fs::create_directory(folder / "damaged-step-000000000002");
  all.keep({all.whole(2), all.whole(5)}, all.all());
  EXPECT_THAT(folder.names(), ElementsAre(".step-000000000006.partial", "damaged-step-000000000002",
                                          "step-000000000002", "step-000000000005"));
}

}  // namespace
}  // namespace tutti::store
