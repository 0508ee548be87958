// What a person has set is checked where nothing of it is needed, too.
#include <cstdlib>
#include <string>

#include "tutti/cluster/join/environment_check.h"
#include "tutti/net/token.h"

#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {
namespace {

class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  ~Environment() { unsetenv(name_); }

 private:
  const char* const name_;
};

TEST(EnvironmentCheck, EachMistakeNamesItsVariable) {
  const struct {
    const char* name;
    const char* value;
    const char* why;
  } cases[] = {
      {"TUTTI_TLS", "/nope", "/nope/ca.pem: No such file"},
      {"TUTTI_TOKEN_FILE", "/nope", "/nope: No such file"},
      {"TUTTI_TOKEN", "12345", "expected 64 hex digits"},
      {"TUTTI_INTERFACE", "eth99", "it has lo"},
  };
  for (const auto& c : cases) {
    const Environment wrong(c.name, c.value);
    EXPECT_THAT(message_of<UsageError>(check_environment),
                AllOf(HasSubstr(c.name), HasSubstr(c.why)));
  }
}

TEST(EnvironmentCheck, WhatIsRightOrEmptyPasses) {
  const TempFolder folder;
  write_token_file(folder / "token", Token::random());
  const Environment token("TUTTI_TOKEN_FILE", folder / "token"), interface("TUTTI_INTERFACE", "lo");
  const Environment tls("TUTTI_TLS", "");
  EXPECT_NO_THROW(check_environment());
}

}  // namespace
}  // namespace tutti::test
