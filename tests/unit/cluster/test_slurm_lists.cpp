// Slurm's short forms.
#include "tutti/cluster/spec/resolvers/detail/resolver.h"

#include "tests/support/expect.h"

namespace tutti::detail {
namespace {

using Names = std::vector<std::string>;

TEST(SlurmLists, NamesAreWrittenOut) {
  const struct {
    const char* text;
    Names names;
  } cases[] = {
      {"localhost", {"localhost"}},
      {"a,b", {"a", "b"}},
      {"n[1-2],o[3-4,6]", {"n1", "n2", "o3", "o4", "o6"}},
      {"n[08-11]", {"n08", "n09", "n10", "n11"}},
      {"n[7,009]", {"n7", "n009"}},
      {"r[1-2]n[3-4]", {"r1n3", "r1n4", "r2n3", "r2n4"}},
      {"n[1-2]-ib.site", {"n1-ib.site", "n2-ib.site"}},
      {"[1-2]", {"1", "2"}},
  };
  for (const auto& c : cases) EXPECT_EQ(expand_node_list(c.text, "X"), c.names) << c.text;
  EXPECT_EQ(expand_node_list("n[1-100000]", "X").size(), 100'000u);
}

TEST(SlurmLists, DamagedNamesAreRefused) {
  const struct {
    const char* text;
    const char* says;
  } cases[] = {
      {"", "X=\"\": expected a name at character 1"},
      {"a,", "expected a name at character 3"},
      {"a,,b", "expected a name at character 3"},
      {"n[1-2", "expected \"]\" at character 6"},
      {"n[]", "expected a number at character 3"},
      {"n[a]", "expected a number at character 3"},
      {"n[2-1]", "a range from 2 to 1"},
      {"n1]", "a bracket closes that none opened"},
      {"n[1-100001]", "too many names"},
      {"n[1-999]x[1-999]", "too many names"},
      {"n[1-99999999999]", "the number 99999999999 is too large"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT([&] { expand_node_list(c.text, "X"); },
                ThrowsMessage<UsageError>(HasSubstr(c.says)))
        << c.text;
  }
}

TEST(SlurmLists, CountsAreWrittenOut) {
  EXPECT_EQ(expand_task_counts("4", "X"), (std::vector<int>{4}));
  EXPECT_EQ(expand_task_counts("3(x2),2", "X"), (std::vector<int>{3, 3, 2}));
  for (const char* bad : {"", "3(x2", "3(2)", "3(x0)", "x", "3;2", "3(x999999)", "3,"}) {
    EXPECT_THROW(expand_task_counts(bad, "X"), UsageError) << bad;
  }
}

}  // namespace
}  // namespace tutti::detail
