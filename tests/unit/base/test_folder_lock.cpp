// FolderLock: one job a folder, whatever is in the lock's place, and whatever becomes of the
// folder.
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <csignal>
#include <optional>
#include <thread>

#include "tutti/base/deadline.h"
#include "tutti/base/folder_lock.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

std::string refusal(const fs::path& folder) {
  return message_of<UsageError>([&] { const FolderLock lock(folder, "--out"); });
}

std::string host() {
  char name[256] = {};
  EXPECT_EQ(gethostname(name, sizeof name), 0);
  return name;
}

// Of a process that was, and that nobody sees any more.
pid_t pid_of_the_past() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return child;
}

TEST(FolderLock, TheSecondIsToldWhoHasIt) {
  const TempFolder folder;
  const fs::path place = folder / "made/of/it";
  std::optional<FolderLock> first(std::in_place, place, "--snapshots");
  EXPECT_EQ(FolderLock::number_in(place), first->number());
  EXPECT_THAT(refusal(place),
              AllOf(HasSubstr("--out " + place.string()), HasSubstr("another job writes there"),
                    HasSubstr(fmt::format("process {} on {};", getpid(), host()))));
  const int64_t number = first->number();
  EXPECT_EQ(FolderLock::number_in(place), number);  // the refused one has written nothing
  first.reset();
  EXPECT_NE(FolderLock(place, "--out").number(), number);
}

// A killed process keeps its locks until its last thread is gone: a restart may come before that.
TEST(FolderLock, OfAProcessThatIsEndingIsWaitedFor) {
  const TempFolder folder;
  put_bytes(folder / "lock", "");
  const FileDescriptor opened(::inotify_init1(IN_CLOEXEC));
  int has_it[2], may_go[2];
  ASSERT_EQ(::pipe(has_it) | ::pipe(may_go), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const FolderLock lock(folder.path(), "--out");
    std::thread([&] {
      char byte = 0;
      (void)!::read(may_go[0], &byte, 1);
      ::_exit(0);
    }).detach();
    (void)!::write(has_it[1], "1", 1);
    ::syscall(SYS_exit, 0);  // from now on the process is a zombie of which a thread still runs
  }
  char byte = 0;
  ASSERT_EQ(::read(has_it[0], &byte, 1), 1);
  const auto state = [&] { return get_bytes(fmt::format("/proc/{}/stat", holder)); };
  while (state().find(") Z") == std::string::npos) std::this_thread::yield();
  ASSERT_GE(::inotify_add_watch(opened.get(), (folder / "lock").c_str(), IN_OPEN), 0);
  std::thread ends_it([&] {
    char event[sizeof(inotify_event) + NAME_MAX + 1];
    (void)!::read(opened.get(), event, sizeof event);  // somebody looks at the lock
    (void)!::write(may_go[1], "1", 1);
  });
  EXPECT_NO_THROW(FolderLock(folder.path(), "--out"));
  ends_it.join();
  for (const int fd : {has_it[0], has_it[1], may_go[0], may_go[1]}) ::close(fd);
  int status = 0;
  EXPECT_EQ(::waitpid(holder, &status, 0), holder);
}

// A process of another PID namespace is not seen, and may work on: who comes is told soon.
TEST(FolderLock, WhoIsNotSeenIsWaitedForForAMomentAlone) {
  using namespace detail;
  const pid_t killed = ::fork();
  if (killed == 0)
    while (true) pause();
  EXPECT_EQ(lock_holder(killed), LockHolder::works);
  ::kill(killed, SIGKILL);
  const Deadline deadline(Millis{60'000});
  while (lock_holder(killed) != LockHolder::is_ending && !deadline.passed())
    std::this_thread::yield();
  EXPECT_EQ(lock_holder(killed), LockHolder::is_ending);
  int status = 0;
  EXPECT_EQ(::waitpid(killed, &status, 0), killed);
  EXPECT_EQ(lock_holder(killed), LockHolder::is_not_seen);
  EXPECT_EQ(patience_with(LockHolder::works), Millis{0});
  EXPECT_EQ(patience_with(LockHolder::is_ending), Millis{60'000});
  EXPECT_EQ(patience_with(LockHolder::is_not_seen), Millis{2'000});
}

TEST(FolderLock, ThePatienceWithEachIsItsOwn) {
  using namespace detail;
  Patience usual = Patience::usual(), none = Patience::none();
  EXPECT_FALSE(usual.lasts_with(LockHolder::works));
  EXPECT_TRUE(usual.lasts_with(LockHolder::is_ending));
  EXPECT_FALSE(usual.lasts_with(LockHolder::works));
  for (const auto holder : {LockHolder::works, LockHolder::is_ending, LockHolder::is_not_seen})
    EXPECT_FALSE(none.lasts_with(holder));
}

TEST(FolderLock, OfAnotherNameIsAnotherRight) {
  const TempFolder folder;
  const FolderLock one(folder.path(), "--snapshots");
  const FolderLock other(folder.path(), "--out", ".lock");
  EXPECT_EQ(FolderLock::number_in(folder.path(), ".lock"), other.number());
}

TEST(FolderLock, OfManyAtOnceOneHasIt) {
  const TempFolder folder;
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> there = 0, had = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        std::optional<FolderLock> lock;
        try {
          lock.emplace(folder.path(), "--out");
          ++had;
        } catch (const UsageError&) {
        }
        ++there;
        while (there < 4) std::this_thread::yield();  // nobody lets go before all have tried
      });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(had, 1);
  }
}

// The lock goes with its process, also one that is killed.
TEST(FolderLock, OfADeadProcessIsFree) {
  const TempFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(folder.path(), "child");
    while (true) pause();
  }
  const Deadline deadline(Millis{60'000});
  while (FolderLock::number_in(folder.path()) == 0 && !deadline.passed()) std::this_thread::yield();
  EXPECT_THAT(refusal(folder.path()), HasSubstr(fmt::format("process {} on ", child)));
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_NO_THROW(FolderLock(folder.path(), "--out"));
}

// ---- what may be in its place ----

TEST(FolderLock, WhatALinkLeadsToIsNotTouched) {
  const TempFolder folder;
  put_bytes(folder / "treasure", "of somebody");
  fs::create_directory(folder / "out");
  fs::create_symlink(folder / "treasure", folder / "out/lock");
  EXPECT_THAT(refusal(folder / "out"), AllOf(HasSubstr("out/lock"), HasSubstr("symbolic link")));
  EXPECT_EQ(FolderLock::number_in(folder / "out"), 0);
  fs::remove(folder / "out/lock");
  fs::create_symlink(folder / "not there", folder / "out/lock");
  EXPECT_THAT(refusal(folder / "out"), HasSubstr("symbolic link"));
  EXPECT_FALSE(fs::exists(folder / "not there"));
  fs::remove(folder / "out/lock");
  fs::create_hard_link(folder / "treasure", folder / "out/lock");
  EXPECT_THAT(refusal(folder / "out"), HasSubstr("a file of several names"));
  EXPECT_EQ(get_bytes(folder / "treasure"), "of somebody");
}

TEST(FolderLock, AFileOfSomebodyElsesIsNotTouched) {
  const TempFolder folder;
  for (const std::string& theirs : {std::string("my key\n"), std::string(10'000, '7'),
                                    std::string("12 x host"), std::string("-3 4 host\n")}) {
    put_bytes(folder / "lock", theirs);
    EXPECT_THAT(refusal(folder.path()), HasSubstr("somebody else's")) << theirs.substr(0, 20);
    EXPECT_EQ(get_bytes(folder / "lock"), theirs);
  }
}

TEST(FolderLock, WhatIsNoFileIsNamed) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo((folder / "lock").c_str(), 0600), 0);
  EXPECT_THAT(refusal(folder.path()), HasSubstr("is no file"));
  fs::remove(folder / "lock");
  fs::create_directory(folder / "lock");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("directory"));
  put_bytes(folder / "file", "x");
  EXPECT_THAT(refusal(folder / "file/in"), HasSubstr("cannot be made"));
}

// One that its writer's death has left without words.
TEST(FolderLock, AnEmptyFileIsTaken) {
  const TempFolder folder;
  put_bytes(folder / "lock", "");
  const FolderLock lock(folder.path(), "--out");
  EXPECT_EQ(FolderLock::number_in(folder.path()), lock.number());
}

TEST(FolderLock, WhoHasItWithoutWordsIsOneThatBegins) {
  const TempFolder folder;
  put_bytes(folder / "lock", "");
  const FileDescriptor other(::open((folder / "lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  EXPECT_THAT(refusal(folder.path()), HasSubstr("another job writes there: one that begins"));
}

// ---- a folder that is removed ----

TEST(FolderLock, ARemovedFolderComesAgainWithItsLock) {
  const TempFolder folder;
  const fs::path place = folder / "out";
  FolderLock lock(place, "--out");
  EXPECT_FALSE(lock.keep());
  for (const fs::path& removed : {place, place / "lock"}) {
    fs::remove_all(removed);
    testing::internal::CaptureStderr();
    EXPECT_TRUE(lock.keep());
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr(place.string()), HasSubstr("removed"), HasSubstr("made again")));
    EXPECT_EQ(FolderLock::number_in(place), lock.number());
    EXPECT_THAT(refusal(place), HasSubstr("another job writes there"));
    EXPECT_FALSE(lock.keep());
  }
}

TEST(FolderLock, AFolderThatAnotherHasTakenSinceIsTheirs) {
  const TempFolder folder;
  const fs::path place = folder / "out";
  FolderLock lock(place, "--out");
  fs::remove_all(place);
  const FolderLock other(place, "--out");
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(message_of<UsageError>([&] { lock.keep(); }),
                AllOf(HasSubstr(place.string()), HasSubstr("another job writes there")));
  EXPECT_EQ(FolderLock::number_in(place), other.number());
}

// Who has taken it since is gone, and lets go as soon as somebody looks at it again and again.
TEST(FolderLock, NobodyIsWaitedForOnTheWay) {
  const TempFolder folder;
  FolderLock lock(folder.path(), "--out");
  fs::remove(folder / "lock");
  put_bytes(folder / "lock", fmt::format("77 {} {}\n", pid_of_the_past(), host()));
  FileDescriptor theirs(::open((folder / "lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(theirs.get(), LOCK_EX), 0);
  const FileDescriptor looks(::inotify_init1(IN_CLOEXEC));
  ASSERT_GE(::inotify_add_watch(looks.get(), (folder / "lock").c_str(), IN_ACCESS | IN_ATTRIB), 0);
  std::thread lets_go([&] {
    inotify_event event{};  // of a file: without a name, so one at a time
    for (int looked = 0; looked < 5; ++looked)
      if (::read(looks.get(), &event, sizeof event) != sizeof event || event.mask == IN_ATTRIB)
        return;
    theirs = FileDescriptor();
  });
  EXPECT_THAT(message_of<UsageError>([&] { lock.keep(); }), HasSubstr("another job writes there"));
  EXPECT_EQ(::chmod((folder / "lock").c_str(), 0600), 0);  // ends the thread
  lets_go.join();
  theirs = FileDescriptor();
  EXPECT_TRUE(lock.keep());
}

}  // namespace
}  // namespace tutti
