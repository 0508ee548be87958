// Where a token comes from, who may read it, and that messages never contain it.
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <type_traits>

#include "tutti/net/detail/secret_file.h"
#include "tutti/net/token.h"

#include "tests/support/command.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

static_assert(!fmt::is_formattable<Token>::value, "a secret is not printed by accident");

const std::string kHex = "00112233445566778899aabbccddeeff0123456789abcdefFEDCBA9876543210";

TEST(Token, ReadsHexDigits) {
  const Token token = Token::parse("  " + kHex + "\r\n", "test");
  EXPECT_EQ(token.secret_hex().substr(48), "fedcba9876543210");
  EXPECT_EQ(token.secret()[1], 0x11);
  EXPECT_TRUE(token == Token::parse(token.secret_hex(), "test"));
  EXPECT_FALSE(token == Token::random());
  EXPECT_FALSE(Token::random() == Token::random());
}

TEST(Token, SaysWhatIsWrongAndNeverWhatItGot) {
  for (const std::string& bad :
       {kHex.substr(1), kHex + "0", std::string(), "g" + kHex.substr(1),
        kHex.substr(0, 30) + " \n" + kHex.substr(32), std::string(64, '\0')}) {
    const std::string message = message_of<UsageError>([&] { Token::parse(bad, "TUTTI_TOKEN"); });
    EXPECT_THAT(message, AllOf(HasSubstr("TUTTI_TOKEN"), HasSubstr("64 hex digits"),
                               HasSubstr("openssl rand -hex 32"), Not(HasSubstr("112233"))));
  }
}

class TokenFile : public testing::Test {
 protected:
  void put(const std::string& text, mode_t mode) {
    std::ofstream(path_) << text;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }

  TempFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "token";
};

TEST_F(TokenFile, IsWrittenForItsOwnerAlone) {
  const Token token = Token::random();
  write_token_file(path_, token);
  struct stat facts{};
  ASSERT_EQ(stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0600U);
  EXPECT_TRUE(read_token_file(path_) == token);
  EXPECT_THAT(message_of<UsageError>([&] { write_token_file(path_, token); }),
              HasSubstr("there is one already"));
}

TEST_F(TokenFile, OfEverybodyIsRefusedWithTheCure) {
  for (const mode_t mode : {0644, 0604, 0602}) {
    put(kHex, mode);
    EXPECT_THAT(message_of<UsageError>([&] { read_token_file(path_); }),
                AllOf(HasSubstr("everybody"), HasSubstr("chmod 600 " + path_.string()),
                      Not(HasSubstr("112233"))));
  }
  put(kHex, 0640);
  EXPECT_TRUE(read_token_file(path_) == Token::parse(kHex, "")) << "a group's is only warned about";
}

// Of owner, mode and user: refused in words, warned of, or taken.
TEST(SecretFile, IsOfItsUserOrOfRoot) {
  const auto answer = [](uid_t owner, mode_t mode, uid_t self) {
    struct stat facts{};
    facts.st_uid = owner;
    facts.st_mode = S_IFREG | mode;
    const std::filesystem::path path = fmt::format("/f{}-{:o}-{}", owner, mode, self);
    testing::internal::CaptureStderr();
    const std::string refused =
        refusal_of<UsageError>([&] { detail::require_private(facts, self, path, "token file"); });
    return refused + testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(answer(1000, 0600, 1000), "");
  EXPECT_EQ(answer(0, 0400, 1000), "") << "as clusters mount them";
  EXPECT_THAT(answer(1001, 0600, 1000),
              AllOf(HasSubstr("belongs to user 1001, and this process is user 1000"),
                    HasSubstr("chmod 600")));
  EXPECT_THAT(answer(1001, 0600, 0), AllOf(HasSubstr("warning"), HasSubstr("user 1001")));
  EXPECT_THAT(answer(1000, 0640, 1000), AllOf(HasSubstr("warning"), HasSubstr("its group")));
  EXPECT_THAT(answer(1000, 0604, 1000), HasSubstr("everybody on this machine"));
}

TEST_F(TokenFile, ThatIsNoneIsNamed) {
  EXPECT_THAT(message_of<UsageError>([&] { read_token_file(path_); }),
              AllOf(HasSubstr(path_.string()), HasSubstr("No such file")));
  put(std::string(100'000, '0'), 0600);
  EXPECT_THAT(message_of<UsageError>([&] { read_token_file(path_); }), HasSubstr("holds no token"));
  EXPECT_THROW(read_token_file(folder_.path()), UsageError);
  const auto pipe = folder_.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(message_of<UsageError>([&] { read_token_file(pipe); }), HasSubstr("no regular file"));
}

class TokenEnvironment : public TokenFile {
 protected:
  void TearDown() override {
    unsetenv(kTokenVariable);
    unsetenv(kTokenFileVariable);
  }
};

TEST_F(TokenEnvironment, ComesFromFileOrVariable) {
  EXPECT_FALSE(token_from_environment());
  setenv(kTokenVariable, "", 1);
  EXPECT_FALSE(token_from_environment()) << "empty is unset";
  setenv(kTokenVariable, kHex.c_str(), 1);
  EXPECT_TRUE(token_from_environment() == Token::parse(kHex, ""));
  put(kHex, 0600);
  setenv(kTokenFileVariable, path_.c_str(), 1);
  EXPECT_TRUE(token_from_environment() == Token::parse(kHex, "")) << "the same from both";
  put(std::string(64, '1'), 0600);
  EXPECT_THAT(
      message_of<UsageError>([&] { token_from_environment(); }),
      AllOf(HasSubstr("TUTTI_TOKEN_FILE"), HasSubstr("different tokens"), Not(HasSubstr("1111"))));
}

/// arguments: a token. In a process of its own, which has it for good.
RANK_PROGRAM(take_the_token) {
  setenv(kTokenVariable, "too short", 1);
  EXPECT_THROW(take_token_out_of_environment(), UsageError);
  const Token token = Token::parse(rank.arguments.at(0), "");
  setenv(kTokenVariable, rank.arguments.at(0).c_str(), 1);
  take_token_out_of_environment();
  EXPECT_EQ(run_command({"sh", "-c", "echo \"$TUTTI_TOKEN\""}).out, "\n");
  EXPECT_TRUE(token_from_environment() == token) << "this process still has it";
  take_token_out_of_environment();
  EXPECT_TRUE(token_from_environment() == token) << "a second time";
  const Token later = Token::random();
  setenv(kTokenVariable, later.secret_hex().c_str(), 1);
  EXPECT_TRUE(token_from_environment() == later);
  std::_Exit(testing::Test::HasFailure() ? 1 : 0);
}

TEST(TokenEnvironments, AreWithoutItForWhatAProcessStarts) {
  const auto out = run_ranks(1, "take_the_token", {.arguments = {kHex}}).at(0);
  EXPECT_EQ(out.exit_code, 0) << out.log;
}

}  // namespace
}  // namespace tutti
