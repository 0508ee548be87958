// Ranks by host, then by core.
#include <gtest/gtest.h>

#include "tutti/cluster/join/rank_order.h"

namespace tutti {
namespace {

TEST(RankOrder, IsByHostThenCore) {
  const struct {
    const char* why;
    std::vector<RosterEntry> roster;
    std::vector<int> order;
  } cases[] = {
      {"nobody", {}, {}},
      {"hosts stay together", {{"b"}, {"a"}, {"b"}, {"a"}}, {1, 3, 0, 2}},
      {"names as people count", {{"n10"}, {"n9"}, {"n010"}}, {1, 2, 0}},
      {"cores of a host", {{"a", 6}, {"a", 0}, {"a", 2}}, {1, 2, 0}},
      {"the launcher's first host comes first",
       {{"a", -1, 2}, {"a", -1, 3}, {"b", -1, 0}, {"b", -1, 1}},
       {2, 3, 0, 1}},
      {"cores before the launcher's numbers", {{"a", 4, 0}, {"a", 0, 1}}, {1, 0}},
      {"the launcher's numbers where cores are the same", {{"a", 0, 1}, {"a", 0, 0}}, {1, 0}},
      {"those not bound to cores come last", {{"a", -1, 0}, {"a", 3, 1}}, {1, 0}},
      {"round robin over hosts is put in order",
       {{"a", 0, 0}, {"b", 0, 1}, {"a", 1, 2}, {"b", 1, 3}},
       {0, 2, 1, 3}},
      {"hosts without numbers after those with", {{"a"}, {"z", -1, 5}}, {1, 0}},
  };
  for (const auto& c : cases) EXPECT_EQ(rank_order(c.roster), c.order) << c.why;
}

}  // namespace
}  // namespace tutti
