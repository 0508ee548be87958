// Standard streams that are closed, broken or full, as a process of its own meets them.
#include <fcntl.h>
#include <stdio_ext.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>
#include <system_error>

#include "tutti/base/log.h"
#include "tutti/base/standard_streams.h"

#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/full_disk.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

bool is_null_device(int descriptor) {
  struct stat facts{}, null{};
  return fstat(descriptor, &facts) == 0 && stat("/dev/null", &null) == 0 &&
         facts.st_rdev == null.st_rdev;
}

/// arguments: a file. What it opens first, before it calls anything of this library, is no stream.
RANK_PROGRAM(open_the_first_file) {
  const int file = open(rank.arguments.at(0).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  std::printf("words of the program\n");
  std::fflush(stdout);
  say("words of the library\n");
  std::fprintf(stderr, "and to stderr\n");
  const std::string held = std::to_string(file) + "\n";
  if (write(file, held.data(), held.size()) < 0) std::_Exit(3);
}

// Every subset of the three, as daemons and `2>&-` close them.
TEST(StandardStreams, ClosedOnesAreNoOtherFiles) {
  const TempFolder folder;
  const std::string file = folder / "file";
  for (int closed = 0; closed < 8; ++closed) {
    std::string closes;
    for (int stream = 0; stream < 3; ++stream)
      if ((closed >> stream & 1) != 0) closes += " " + std::to_string(stream) + ">&-";
    const CommandResult own = run_command(
        {"sh", "-c", "exec \"$PROGRAM\"" + closes},
        {"PROGRAM=" + std::filesystem::read_symlink("/proc/self/exe").string(),
         "TUTTI_TEST_PROGRAM=open_the_first_file", "TUTTI_TEST_ARGUMENTS=" + file + "\n"});
    EXPECT_EQ(own.exit_code, 0) << closes << own.err;
    const std::string held = get_bytes(file);
    EXPECT_THAT(held, MatchesRegex("[3-9]\n")) << closes;
    const bool has_stdout = (closed & 2) == 0;
    EXPECT_EQ(own.out, has_stdout ? "words of the program\nwords of the library\n" : "") << closes;
  }
}

TEST(StandardStreams, MissingOnesBecomeTheNullDevice) {
  EXPECT_EXIT(
      {
        close(STDIN_FILENO);
        close(STDOUT_FILENO);
        open_missing_streams();
        std::_Exit(is_null_device(STDIN_FILENO) && is_null_device(STDOUT_FILENO) ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(FailedWrites, AreErrorsUnlessTheProgramHasAHandler) {
  void (*const own)(int) = [](int) {};
  const auto before_pipe = std::signal(SIGPIPE, SIG_DFL);
  const auto before_size = std::signal(SIGXFSZ, own);
  make_failed_writes_errors();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  EXPECT_EQ(write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  close(ends[1]);
  EXPECT_EQ(run_command({"sh", "-c", "kill -PIPE $$; exit 0"}).exit_code, 128 + SIGPIPE)
      << "what this process starts dies as ever";
  EXPECT_EQ(std::signal(SIGXFSZ, before_size), own);
  std::signal(SIGPIPE, before_pipe);
}

/// stdout of a test, for a while.
class OtherStdout {
 public:
  explicit OtherStdout(int descriptor) : kept_((std::fflush(stdout), dup(STDOUT_FILENO))) {
    dup2(descriptor, STDOUT_FILENO);
    close(descriptor);
  }
  ~OtherStdout() {
    dup2(kept_, STDOUT_FILENO);
    close(kept_);
  }
  OtherStdout(const OtherStdout&) = delete;

 private:
  const int kept_;
};

TEST(Say, AReaderThatHasGoneIsNoError) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  testing::internal::CaptureStderr();
  {
    const OtherStdout broken(ends[1]);
    say("{} words\n", 3);
    EXPECT_NO_THROW(flush_results()) << "nothing is left of words that nobody takes";
    std::fputs("a result", stdout);
    try {
      flush_results();
      ADD_FAILURE() << "a result was lost";
    } catch (const std::system_error& error) {
      EXPECT_EQ(error.code(), std::errc::broken_pipe);
    }
    __fpurge(stdout);
    std::clearerr(stdout);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  std::signal(SIGPIPE, before);
}

TEST(Say, AFullDiskIsAWarning) {
  const TempFolder folder;
  const int file = open((folder / "log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  testing::internal::CaptureStderr();
  {
    const OtherStdout log(file);
    const FullDisk full(4096);
    say("{}\n", std::string(5000, 'x'));
    say("more\n");
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("stdout cannot be written: File too large (errno 27)"));
  EXPECT_EQ(said.find("cannot"), said.rfind("cannot")) << "once";
}

}  // namespace
}  // namespace tutti
