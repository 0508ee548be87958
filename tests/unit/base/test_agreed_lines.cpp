#include <gmock/gmock.h>

#include "tutti/base/agreed_lines.h"

namespace tutti {
namespace {

std::string lines(const std::vector<std::pair<std::string, std::string>>& all) {
  AgreedLines lines;
  for (const auto& [what, value] : all) lines.add(what, value);
  return lines.text();
}

TEST(AgreedLines, AreOneEachWhateverStandsInThem) {
  EXPECT_EQ(lines({{"seed", "7"}, {"class 0", "\n"}}), "seed: 7\nclass 0: \\n\n");
  EXPECT_EQ(lines({{"class", "caf\xe9"}}), "class: caf\\xe9\n");  // no UTF-8, which JSON needs
  EXPECT_EQ(lines({{"long", std::string(10'000, 'x')}}).size(), 10'007U);
}

TEST(AgreedLines, TheFirstThatDiffersIsFound) {
  const struct {
    std::string one, other;
    std::pair<std::string, std::string> first;
  } cases[] = {
      {"a\nb\nc\n", "a\nx\ny\n", {"b", "x"}},   {"a\n", "a\nb\n", {"nothing more", "b"}},
      {"a\nb\n", "a\n", {"b", "nothing more"}}, {"", "a\n", {"nothing more", "a"}},
      {"\nb\n", "\nc\n", {"b", "c"}},
  };
  for (const auto& c : cases) {
    const auto found = first_difference(c.one, c.other);
    ASSERT_TRUE(found) << c.one << c.other;
    EXPECT_EQ(std::pair(found->first, found->other), c.first);
  }
  EXPECT_FALSE(first_difference("a\nb\n", "a\nb\n"));
  EXPECT_FALSE(first_difference("", ""));
}

}  // namespace
}  // namespace tutti
