// The choice of an algorithm: tables with reasons, and the file that replaces the built-in one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/comm/schedule/schedule_choice.h"

#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace tutti {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMiB = 1 << 20;

TEST(Choice, BuiltInTable) {
  struct Case {
    const char* why;
    Question question;
    Algorithm expected;
  };
  const Case cases[] = {
      {"two ranks, small: one latency", {.num_bytes = 8}, Algorithm::direct},
      {"two ranks, middling", {.num_bytes = 256 << 10}, Algorithm::halving_doubling},
      {"sums go back while they are in cache", {.num_bytes = 64 * kMiB}, Algorithm::pairwise},
      {"fewest bytes, few messages",
       {.num_bytes = 64 * kMiB, .ranks = 8},
       Algorithm::halving_doubling},
      {"log n latencies", {.num_bytes = 8, .ranks = 64}, Algorithm::doubling},
      {"no power of two", {.num_bytes = 64 * kMiB, .ranks = 6}, Algorithm::pairwise},
      {"many, small, no power of two", {.num_bytes = 8, .ranks = 100}, Algorithm::tree},
      {"the tree of 3+1 is not that of 4",
       {.num_bytes = kMiB, .ranks = 4, .flat_shape = false},
       Algorithm::pairwise},
      {"16-bit sums are rounded once",
       {.num_bytes = kMiB, .ranks = 4, .partials = false},
       Algorithm::pairwise},
      {"a free order: the ring",
       {.num_bytes = 64 * kMiB, .ranks = 6, .order = Order::any},
       Algorithm::ring},
      {"nothing to move", {.num_bytes = 0, .ranks = 4}, Algorithm::dissemination},
      {"",
       {.collective = Collective::broadcast, .num_bytes = kMiB, .ranks = 3},
       Algorithm::scatter_ring},
      {"",
       {.collective = Collective::broadcast, .num_bytes = 100, .ranks = 3},
       Algorithm::binomial},
      {"",
       {.collective = Collective::barrier, .num_bytes = 0, .ranks = 3},
       Algorithm::dissemination},
  };
  for (const Case& row : cases)
    EXPECT_EQ(choose(row.question, built_in_table()), row.expected)
        << row.why << ": " << name_of(choose(row.question, built_in_table()));
}

TEST(Choice, FixedOrderNeverGetsAnOrderOfItsOwn) {
  for (int ranks = 2; ranks < 40; ++ranks)
    for (bool partials : {false, true})
      for (bool flat : {false, true}) {
        const Question question{.ranks = ranks, .partials = partials, .flat_shape = flat};
        EXPECT_THAT(candidates(question), Not(Contains(Algorithm::ring)));
        EXPECT_THAT(candidates(question), Not(Contains(Algorithm::double_tree)));
        EXPECT_EQ(candidates(question)[0], Algorithm::direct);
      }
}

TEST(Choice, ARowThatIsNotPossibleIsPassedOver) {
  const AlgorithmTable table{{{.algorithm = Algorithm::ring},
                              {.algorithm = Algorithm::doubling},
                              {.algorithm = Algorithm::tree}}};
  EXPECT_EQ(choose({.num_bytes = 8, .ranks = 6}, table), Algorithm::tree);
  EXPECT_EQ(choose({.num_bytes = 8, .ranks = 4}, table), Algorithm::doubling);
  EXPECT_EQ(choose({.num_bytes = 8, .ranks = 4, .order = Order::any}, table), Algorithm::direct);
}

TEST(Choice, TableSurvivesItsFile) {
  const test::TempFolder folder;
  save_table(built_in_table(), folder.path() / "table.json");
  EXPECT_EQ(load_table(folder.path() / "table.json"), built_in_table());
}

TEST(Choice, BadTablesAreRefusedWithThePlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "expected a JSON object"},
      {"{", "expected a JSON object"},
      {R"({"rows": []})", "tutti_algorithms is null; expected 1"},
      {R"({"tutti_algorithms": 2, "rows": []})", "tutti_algorithms is 2; expected 1"},
      {R"({"tutti_algorithms": 1})", "rows: expected a list"},
      {R"({"tutti_algorithms": 1, "row": []})", "did you mean \"rows\""},
      {R"({"tutti_algorithms": 1, "rows": [3]})", "row 0: expected an object"},
      {R"({"tutti_algorithms": 1, "rows": [{"collective": "all_reduce", "order": "fixed"}]})",
       "\"algorithm\" is missing"},
      {R"({"tutti_algorithms": 1, "rows": [{"collective": "all_reduce", "order": "fixed",
          "algorithm": "rng"}]})",
       "did you mean \"ring\""},
      {R"({"tutti_algorithms": 1, "rows": [{"collective": "all_reduce", "order": "fixed",
          "algorithm": "ring", "max_ranks": -1}]})",
       "max_ranks is -1; expected a whole number"},
      {R"({"tutti_algorithms": 1, "rows": [{"collective": "all_reduce", "order": "fixed",
          "algorithm": "ring", "max_rank": 1}]})",
       "did you mean \"max_ranks\""},
  };
  for (const auto& [json, words] : cases)
    EXPECT_THAT(test::message_of<DataError>([&] { parse_table(json, "t.json"); }),
                testing::AllOf(HasSubstr("t.json"), HasSubstr(words)))
        << json;
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_THAT(test::message_of<DataError>(
                  [&] { parse_table(R"({"tutti_algorithms": )" + deep + "}", "t.json"); }),
              HasSubstr("nested deeper than 256"));
}

}  // namespace
}  // namespace tutti
