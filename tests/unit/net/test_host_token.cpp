// The token that processes of one host draw for themselves: one for all, and nobody else's.
#include <sys/stat.h>
#include <unistd.h>

#include <barrier>
#include <fstream>
#include <iterator>
#include <thread>

#include "tutti/net/host_token.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

mode_t mode_of(const std::filesystem::path& path) {
  struct stat facts{};
  EXPECT_EQ(lstat(path.c_str(), &facts), 0) << path;
  return facts.st_mode & 0777U;
}

class HostToken : public testing::Test {
 protected:
  Token draw(const std::string& job = "job-1") { return token_of_host(job, folder_); }
  std::string refusal() {
    return message_of<UsageError>([&] { draw(); });
  }
  /// That of job-1, which has been drawn already.
  std::filesystem::path file() { return std::filesystem::directory_iterator(folder_)->path(); }

  TempFolder place_;
  const std::filesystem::path folder_ = place_ / "tokens";
};

TEST_F(HostToken, IsOneForAllWhoAskAtOnce) {
  constexpr int kAtOnce = 8;
  std::vector<std::string> drawn(kAtOnce);
  std::barrier begin(kAtOnce);
  std::vector<std::thread> threads;
  for (std::string& mine : drawn)
    threads.emplace_back([&] {
      begin.arrive_and_wait();
      mine = draw().secret_hex();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(drawn, Each(drawn[0]));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1)
      << "nothing else is left in the folder";
  EXPECT_EQ(mode_of(folder_), 0700U);
  EXPECT_EQ(mode_of(file()), 0600U);
}

TEST_F(HostToken, IsThatOfItsJobAndStays) {
  const Token first = draw();
  EXPECT_TRUE(draw() == first);
  EXPECT_FALSE(draw("job-2") == first);
  EXPECT_FALSE(draw("../job-1") == first) << "whatever a job is called";
}

TEST_F(HostToken, OfAFileThatOthersMayUseIsNotBelieved) {
  draw();
  for (const mode_t mode : {0640, 0604, 0620, 0700}) {
    ASSERT_EQ(chmod(file().c_str(), mode), 0);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(file().string()), HasSubstr(fmt::format("{:o}", mode)),
                                 HasSubstr("export TUTTI_TOKEN=")));
  }
}

TEST_F(HostToken, IsNoLinkAndNoPipe) {
  draw();
  const std::filesystem::path name = file(), elsewhere = place_ / "elsewhere";
  std::filesystem::rename(name, elsewhere);
  std::filesystem::create_symlink(elsewhere, name);
  EXPECT_THAT(refusal(), HasSubstr(name.string()));
  std::filesystem::remove(name);
  ASSERT_EQ(mkfifo(name.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("no regular file"));
  std::filesystem::remove(name);
  std::ofstream(name) << "half of a token";
  ASSERT_EQ(chmod(name.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("holds no token"));
}

TEST_F(HostToken, IsNotDrawnInAFolderThatOthersMayUse) {
  ASSERT_EQ(mkdir(folder_.c_str(), 0700), 0);
  for (const mode_t mode : {0755, 0770, 0701}) {
    ASSERT_EQ(chmod(folder_.c_str(), mode), 0);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(folder_.string()),
                                 HasSubstr(fmt::format("mode {:o}, expected 700", mode))));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  std::filesystem::remove(folder_);
  ASSERT_EQ(mkdir((place_ / "other").c_str(), 0700), 0);
  std::filesystem::create_symlink(place_ / "other", folder_);
  EXPECT_THAT(refusal(), HasSubstr(folder_.string())) << "a link, to a folder of this user's";
  std::filesystem::remove(folder_);
  std::ofstream(folder_) << "a file";
  EXPECT_THAT(refusal(), HasSubstr(folder_.string()));
}

// Also of one with the right mode, and by root, who may read everything.
TEST_F(HostToken, OfAnotherUserIsNotBelieved) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give files away";
  constexpr uid_t kOther = 12'345;
  draw();
  ASSERT_EQ(chown(file().c_str(), kOther, 0), 0);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(file().string()), HasSubstr("belongs to user 12345")));
  ASSERT_EQ(chown(file().c_str(), 0, 0), 0);
  draw();
  ASSERT_EQ(chown(folder_.c_str(), kOther, 0), 0);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(folder_.string() + ": it belongs to user 12345"),
                               HasSubstr("this process is user 0")));
}

TEST_F(HostToken, HasAFolderForEachUser) {
  EXPECT_EQ(folder_of_host_tokens(), fmt::format("/tmp/tutti-tokens-{}", geteuid()));
}

}  // namespace
}  // namespace tutti
