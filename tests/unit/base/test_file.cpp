#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/base/folder_lock.h"
#include "tutti/base/folders.h"

#include "tests/support/expect.h"
#include "tests/support/failing_open.h"
#include "tests/support/full_disk.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

TEST(WriteFileAtomically, WritesAllPiecesInOrder) {
  const TempFolder folder;
  const std::string first = "one, ", empty, last(100'000, 'z');
  const std::array pieces{std::as_bytes(std::span(first)), std::as_bytes(std::span(empty)),
                          std::as_bytes(std::span(last))};
  write_file_atomically(folder / "a", pieces);
  EXPECT_EQ(get_bytes(folder / "a"), first + last);
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

// No two blocks of it are equal, and none divides its length.
std::string large_text() {
  std::string text(20'000'001, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2'654'435'761 >> 13);
  return text;
}

// In `memory`, so many bytes past a multiple of kDirectAlignment.
std::span<const std::byte> placed(const std::string& text, size_t past,
                                  std::vector<std::byte>& memory) {
  memory.resize(text.size() + past + kDirectAlignment);
  const auto first = reinterpret_cast<uintptr_t>(memory.data());
  std::byte* to = memory.data() + (kDirectAlignment - first % kDirectAlignment) + past;
  std::memcpy(to, text.data(), text.size());
  return {to, text.size()};
}

TEST(WriteFileAtomically, WritesLargeFilesAndTheirDigest) {
  const std::string text = large_text();
  std::vector<std::byte> memory;
  // /dev/shm is another kind of file system, which may not write past the page cache.
  for (const fs::path& where : {fs::temp_directory_path(), fs::path("/dev/shm")}) {
    const TempFolder folder(where);
    for (const size_t past : {size_t{0}, size_t{8}}) {
      const auto bytes = placed(text, past, memory);
      for (const size_t cut : {size_t{0}, size_t{1}, size_t{4096}, size_t{8'388'608},
                               size_t{8'388'609}, text.size()}) {
        SCOPED_TRACE(fmt::format("{}, cut at {}, {} past", where.string(), cut, past));
        const std::array pieces{bytes.first(cut), bytes.subspan(cut)};
        Sha256 digest;
        write_file_atomically(folder / "a", pieces, &digest);
        EXPECT_TRUE(get_bytes(folder / "a") == text);
        EXPECT_EQ(digest.hex(), sha256_hex(text));
      }
    }
  }
}

// So that whoever writes can stop between any two for as long as others need the core.
TEST(WriteFileAtomically, WorksInTurnsAndMayBeStoppedInOne) {
  const TempFolder folder;
  const std::string text = large_text();
  const std::array pieces{std::as_bytes(std::span(text))};
  int turns = 0;
  Sha256 digest;
  write_file_atomically(folder / "a", pieces, &digest, [&] { ++turns; });
  EXPECT_GE(turns, static_cast<int>(text.size() >> 18)) << "one for each 256 KiB";
  EXPECT_TRUE(get_bytes(folder / "a") == text);
  const auto stop = [left = 3]() mutable {
    if (--left == 0) throw Error("enough");
  };
  EXPECT_EQ(message_of<Error>([&] { write_file_atomically(folder / "b", pieces, nullptr, stop); }),
            "enough");
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST(WriteFileAtomically, ADiskThatFillsUpInALargeFileLeavesTheOldOne) {
  const TempFolder folder;
  put_bytes(folder / "a", "old");
  const std::string text = large_text();
  std::vector<std::byte> memory;
  for (const size_t past : {size_t{0}, size_t{8}}) {
    const std::array pieces{placed(text, past, memory)};
    std::string message;
    {
      const FullDisk full(9'000'001);
      message = message_of<Error>([&] { write_file_atomically(folder / "a", pieces); });
    }
    EXPECT_THAT(message, HasSubstr("after 9000001 of 20000001 bytes")) << past;
    EXPECT_EQ(get_bytes(folder / "a"), "old");
    EXPECT_THAT(folder.names(), ElementsAre("a"));
  }
}

TEST(WriteFileAtomically, ReplacesAndObeysTheUmask) {
  const TempFolder folder;
  put_bytes(folder / "a", "a longer text than the new one");
  const mode_t before = ::umask(027);
  write_file_atomically(folder / "a", "new");
  ::umask(before);
  EXPECT_EQ(get_bytes(folder / "a"), "new");
  struct stat status{};
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(WriteFileAtomically, WorksInTheCurrentFolder) {
  const TempFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  write_file_atomically("bare_name", "x");
  fs::current_path(before);
  EXPECT_EQ(get_bytes(folder / "bare_name"), "x");
}

TEST(WriteFileAtomically, TakesTheLongestName) {
  const TempFolder folder;
  const std::string name(255, 'a');
  require_writable(folder / name, "--json");
  write_file_atomically(folder / name, "x");
  EXPECT_EQ(get_bytes(folder / name), "x");
  EXPECT_THAT(folder.names(), ElementsAre(name));
}

TEST(WriteFileAtomically, FollowsALink) {
  const TempFolder folder;
  put_bytes(folder / "target", "old");
  fs::create_symlink("target", folder / "link");
  write_file_atomically(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(get_bytes(folder / "target"), "new");
}

TEST(WriteFileAtomically, AFullDiskLeavesTheOldFileAndNothingElse) {
  const TempFolder folder;
  put_bytes(folder / "a", "old");
  const std::string large(10'000, 'x');
  std::string message;
  {
    const FullDisk full(4096);
    message = message_of<Error>([&] { write_file_atomically(folder / "a", large); });
  }
  EXPECT_THAT(message, HasSubstr((folder / "a").string()));
  EXPECT_THAT(message, HasSubstr("after 4096 of 10000 bytes"));
  EXPECT_THAT(message, HasSubstr("File too large (errno 27)"));
  EXPECT_EQ(get_bytes(folder / "a"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST(WriteFileAtomically, SaysWhyItCannot) {
  const TempFolder folder;
  EXPECT_THAT(message_of<Error>([&] { write_file_atomically(folder / "no/such/a", "x"); }),
              HasSubstr("No such file or directory (errno 2)"));
  fs::create_directory(folder / "sub");
  EXPECT_THAT(message_of<Error>([&] { write_file_atomically(folder / "sub", "x"); }),
              HasSubstr("Is a directory"));
  EXPECT_THAT(folder.names(), ElementsAre("sub"));
  // No nameless files there, and no named ones either.
  EXPECT_THAT(message_of<Error>([&] { write_file_atomically("/proc/a", "x"); }),
              HasSubstr("/proc/.tutti-"));
}

TEST(WriteFileAtomically, WritesIntoADeviceInsteadOfReplacingIt) {
  write_file_atomically("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THAT(message_of<Error>([&] { write_file_atomically("/dev/full", "x"); }),
              HasSubstr("No space left on device"));
}

TEST(WriteFileAtomically, AReaderSeesOneWholeFileOfSeveralWriters) {
  const TempFolder folder;
  put_bytes(folder / "a", std::string(5000, '0'));
  std::vector<std::thread> writers;
  for (char letter : {'1', '2', '3'})
    writers.emplace_back([&, letter] {
      for (int i = 0; i < 10; ++i) write_file_atomically(folder / "a", std::string(5000, letter));
    });
  for (int i = 0; i < 50; ++i) {
    const std::string seen = get_bytes(folder / "a");
    EXPECT_EQ(seen, std::string(5000, seen.empty() ? '?' : seen[0]));
  }
  for (auto& writer : writers) writer.join();
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST(RequireWritable, LeavesNothingAndNamesTheFlag) {
  const TempFolder folder;
  put_bytes(folder / "old", "old");
  require_writable(folder / "new", "--json");
  require_writable(folder / "old", "--json");
  require_writable("/dev/null", "--json");
  EXPECT_EQ(get_bytes(folder / "old"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("old"));

  const auto why = [&](const fs::path& path) {
    return message_of<UsageError>([&] { require_writable(path, "--json"); });
  };
  EXPECT_THAT(why(folder / "none/a"),
              HasSubstr("there is no folder " + (folder / "none").string()));
  EXPECT_THAT(why(folder / "none/a"), HasSubstr("--json"));
  EXPECT_THAT(why(folder.path()), HasSubstr("is a folder"));
  EXPECT_THAT(why(""), HasSubstr("empty"));
  EXPECT_THAT(why("/proc/a"), HasSubstr("cannot be written"));
  EXPECT_THAT(why(folder / std::string(256, 'a')), HasSubstr("File name too long"));
  EXPECT_THAT(folder.names(), ElementsAre("old"));
}

TEST(MapFile, KeepsTheBytesUntilTheLastOwnerGoes) {
  const TempFolder folder;
  put_bytes(folder / "a", "hello");
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
  {
    MappedFile file = map_file(folder / "a");
    owner = file.owner;
    bytes = file.bytes;
  }
  fs::remove(folder / "a");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), "hello");
}

TEST(MapFile, NamesWhatIsWrong) {
  const TempFolder folder;
  put_bytes(folder / "empty", "");
  EXPECT_TRUE(map_file(folder / "empty").bytes.empty());
  EXPECT_THAT(message_of<DataError>([&] { map_file(folder / "none"); }),
              HasSubstr("No such file or directory"));
  EXPECT_THAT(message_of<DataError>([&] { map_file(folder.path()); }), HasSubstr("a folder"));
  EXPECT_THAT(message_of<DataError>([&] { map_file("/dev/null"); }), HasSubstr("device"));
}

// A pipe without a writer would be waited for, for ever.
TEST(OpenToRead, WhatIsNoFileIsAnErrorAtOnce) {
  const TempFolder folder;
  const fs::path pipe = folder / "pipe", bound = folder / "socket";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(bound.string().size(), sizeof address.sun_path);
  std::strcpy(address.sun_path, bound.c_str());
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::pair<fs::path, const char*> wrong[] = {{pipe, "got a pipe, expected a regular file"},
                                                    {bound, "No such device"},
                                                    {folder.path(), "got a folder"},
                                                    {"/dev/zero", "got a device"}};
  for (const auto& [path, words] : wrong) {
    EXPECT_THAT(message_of<DataError>([&] { open_to_read(path); }), HasSubstr(words));
    EXPECT_THAT(message_of<DataError>([&] { map_file(path); }), HasSubstr(words));
    EXPECT_THAT(message_of<DataError>([&] { read_file(path); }), HasSubstr(words));
    EXPECT_THAT(message_of<DataError>([&] { digest_of_file(path); }), HasSubstr(words));
  }
}

TEST(ReadFile, IsWhatWasWritten) {
  const TempFolder folder;
  const std::string text = large_text();
  for (const std::string& bytes : {std::string(), std::string("hello"), text}) {
    put_bytes(folder / "a", bytes);
    EXPECT_EQ(read_file(folder / "a"), bytes);
    const FileDigest digest = digest_of_file(folder / "a");
    EXPECT_EQ(digest.bytes, std::ssize(bytes));
    EXPECT_EQ(digest.sha256, sha256_hex(bytes));
  }
  EXPECT_THAT(message_of<DataError>([&] { read_file(folder / "none"); }),
              HasSubstr("No such file or directory"));
  EXPECT_THAT(message_of<DataError>([&] { digest_of_file(folder.path()); }), HasSubstr("a folder"));
}

// What cannot be read just now is no damage, whoever reads it.
TEST(ReadFile, AnErrorOfTheDiskIsNoDamage) {
  const TempFolder folder;
  put_bytes(folder / "a", "hello");
  const std::vector<void (*)(const fs::path&)> readers = {
      [](const fs::path& path) { map_file(path); }, [](const fs::path& path) { read_file(path); },
      [](const fs::path& path) { digest_of_file(path); }};
  for (const auto& read : readers) {
    for (const int error : {EIO, ESTALE, EMFILE, ENFILE, ENOMEM, ETIMEDOUT}) {
      const FailingOpen failing(folder / "a", error);
      EXPECT_THAT(message_of<IoError>([&] { read(folder / "a"); }),
                  AllOf(HasSubstr((folder / "a").string()), HasSubstr(errno_words(error)),
                        HasSubstr("may be sound")));
    }
    const FailingOpen forbidden(folder / "a", EACCES);
    EXPECT_THAT(message_of<UsageError>([&] { read(folder / "a"); }),
                HasSubstr("Permission denied"));
  }
}

TEST(ReadFile, AFileThatAnotherHostHasReplacedIsOpenedAgain) {
  const TempFolder folder;
  put_bytes(folder / "a", "hello");
  const FailingOpen stale(folder / "a", ESTALE, 2);
  EXPECT_EQ(read_file(folder / "a"), "hello");
  EXPECT_EQ(stale.failed(), 2);
}

// Nor is it an empty folder, or one that is not there.
TEST(Folders, OneThatCannotBeListedJustNowIsNotEmpty) {
  const TempFolder folder;
  put_bytes(folder / "a", "hello");
  EXPECT_EQ(entries_of(folder.path()), std::vector<fs::path>{folder / "a"});
  EXPECT_TRUE(entries_of(folder / "none").empty());
  EXPECT_TRUE(entries_of(folder / "a").empty());
  for (const int error : {EIO, ESTALE, EMFILE, ENFILE, ENOMEM}) {
    const FailingOpen failing(folder.path(), error);
    EXPECT_THAT(message_of<IoError>([&] { entries_of(folder.path()); }),
                AllOf(HasSubstr(folder.path().string()), HasSubstr(errno_words(error))));
  }
  const FailingOpen forbidden(folder.path(), EACCES);
  EXPECT_THAT(message_of<UsageError>([&] { entries_of(folder.path()); }),
              HasSubstr("Permission denied"));
}

TEST(Folders, WhatCannotBeLookedAtIsNotAbsent) {
  const TempFolder folder;
  EXPECT_TRUE(is_folder(folder.path()));
  EXPECT_FALSE(is_folder(folder / "none"));
  EXPECT_FALSE(is_there(folder / "none"));
  fs::create_symlink("round", folder / "round");
  EXPECT_THROW(is_folder(folder / "round"), IoError);
  EXPECT_THROW(is_there(folder / "round"), IoError);
}

TEST(Folders, ALockThatCannotBeReadJustNowIsNotGone) {
  const TempFolder folder;
  EXPECT_EQ(FolderLock::number_in(folder.path()), 0);
  const FolderLock lock(folder.path(), "--out");
  for (const int error : {EIO, EMFILE, ESTALE}) {
    const FailingOpen failing(folder / "lock", error);
    EXPECT_THAT(message_of<IoError>([&] { FolderLock::number_in(folder.path()); }),
                AllOf(HasSubstr((folder / "lock").string()), HasSubstr(errno_words(error))));
  }
  const FailingOpen stale(folder / "lock", ESTALE, 2);
  EXPECT_EQ(FolderLock::number_in(folder.path()), lock.number());
  EXPECT_EQ(stale.failed(), 2);
}

// A file of the kernel's has a size, and cannot be mapped: ENODEV.
TEST(ReadFile, AMappingThatFailsIsNoDamage) {
  EXPECT_THAT(message_of<IoError>([] { map_file("/sys/devices/system/cpu/online"); }),
              HasSubstr(errno_words(ENODEV)));
}

// The first page of a process's memory is a part of a file that cannot be read: EIO.
TEST(ReadFile, ADiskThatFailsOnTheWayIsAnError) {
  EXPECT_THAT(message_of<IoError>([] { read_file("/proc/self/mem"); }),
              HasSubstr("Input/output error"));
}

}  // namespace
}  // namespace tutti
