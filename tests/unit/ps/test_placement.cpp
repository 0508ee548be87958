#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/ps/spec/placement.h"

namespace tutti::ps {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using How = PlacementOptions::How;

Variable variable(const std::string& name, std::vector<int64_t> shape,
                  DType dtype = DType::float32) {
  return {name, std::move(shape), dtype};
}

TEST(SplitRows, FirstPartsAreOneLonger) {
  EXPECT_THAT(split_rows(13, 5), ElementsAre(RowRange{0, 3}, RowRange{3, 6}, RowRange{6, 9},
                                             RowRange{9, 11}, RowRange{11, 13}));
  EXPECT_THAT(split_rows(4, 1), ElementsAre(RowRange{0, 4}));
  EXPECT_THAT(split_rows(3, 3), ElementsAre(RowRange{0, 1}, RowRange{1, 2}, RowRange{2, 3}));
  for (int64_t rows = 1; rows < 60; ++rows) {
    for (int64_t parts = 1; parts <= rows; ++parts) {
      const auto ranges = split_rows(rows, parts);
      ASSERT_EQ(ranges.size(), static_cast<size_t>(parts));
      int64_t next = 0;
      for (const RowRange& range : ranges) {
        ASSERT_EQ(range.begin, next);
        ASSERT_GE(range.count(), rows / parts);
        ASSERT_LE(range.count(), rows / parts + 1);
        next = range.end;
      }
      ASSERT_EQ(next, rows);
    }
  }
  EXPECT_THROW(split_rows(3, 4), UsageError);
  EXPECT_THROW(split_rows(3, 0), UsageError);
}

TEST(Partitioners, AreReadFromWhatPeopleType) {
  const auto words = [](const char* text) {
    return Partitioner::parse(text, "--partition").words();
  };
  EXPECT_EQ(words("whole"), Partitioner().words());
  EXPECT_EQ(words("fixed:4"), Partitioner::fixed(4).words());
  EXPECT_EQ(words("min:256K:8"), Partitioner::min_part(256 << 10, 8).words());
  EXPECT_EQ(words("max:4M"), Partitioner::max_part(4 << 20).words());
  for (const char* wrong : {"", "fixed", "fixed:", "fixed:4:4", "min:4K", "max:x", "thirds:3"})
    EXPECT_THAT([&] { words(wrong); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("--partition"), HasSubstr("fixed:4"))))
        << wrong;
  EXPECT_THAT(
      [&] { words("fixed:0"); },
      ThrowsMessage<UsageError>(HasSubstr("--partition fixed:0: the number of parts is 0")));
  EXPECT_EQ(PlacementOptions::how_from("greedy", "--placement"), How::greedy);
  EXPECT_THROW(PlacementOptions::how_from("Greedy", "--placement"), UsageError);
}

TEST(Partitioners, CountParts) {
  const Variable table = variable("table", {10, 64});    // 256 bytes a row
  const Variable wide = variable("wide", {3, 1 << 20});  // 4 MiB a row
  const Variable scalar = variable("scalar", {});
  const Variable none = variable("none", {0, 8});
  const struct {
    const char* name;
    Partitioner partitioner;
    const Variable& of;
    int64_t parts;
  } cases[] = {
      {"whole", {}, table, 1},
      {"fixed", Partitioner::fixed(4), table, 4},
      {"fixed, more than rows", Partitioner::fixed(40), table, 10},
      {"fixed, scalar", Partitioner::fixed(4), scalar, 1},
      {"fixed, no rows", Partitioner::fixed(4), none, 1},
      {"min, default keeps whole", Partitioner::min_part(), table, 1},
      {"min, as many as fit", Partitioner::min_part(512, 100), table, 5},
      {"min, the smallest part counts", Partitioner::min_part(3 * 256, 100), table, 3},
      {"min, at most", Partitioner::min_part(1, 7), table, 7},
      {"min, larger than all", Partitioner::min_part(1 << 20, 7), table, 1},
      {"max, as few as fit", Partitioner::max_part(4 * 256), table, 3},
      {"max, exact", Partitioner::max_part(5 * 256), table, 2},
      {"max, all fit", Partitioner::max_part(1 << 20), table, 1},
      {"max, at most", Partitioner::max_part(256, 4), table, 4},
      {"max, a row is never cut", Partitioner::max_part(1000), wide, 3},
      {"max, scalar", Partitioner::max_part(1), scalar, 1},
      {"max, no rows", Partitioner::max_part(1), none, 1},
  };
  for (const auto& c : cases) EXPECT_EQ(c.partitioner.parts_of(c.of), c.parts) << c.name;
  EXPECT_THROW(Partitioner::fixed(0), UsageError);
  EXPECT_THROW(Partitioner::min_part(0), UsageError);
  EXPECT_THROW(Partitioner::min_part(1, 0), UsageError);
  EXPECT_THROW(Partitioner::max_part(-5), UsageError);
  EXPECT_THROW(Partitioner::max_part(5, 0), UsageError);
  EXPECT_EQ(Partitioner().words(), "whole");
  EXPECT_EQ(Partitioner::fixed(4).words(), "fixed 4");
  EXPECT_EQ(Partitioner::min_part(256 << 10, 8).words(), "parts of 256.0 KiB or more, 8 at most");
  EXPECT_EQ(Partitioner::max_part(1 << 20).words(), "parts of 1.0 MiB or less");
}

const std::vector<Variable>& small_model() {
  static const std::vector<Variable> all = {
      variable("embedding", {8, 4}),  // 128 bytes
      variable("dense/weight", {4, 4}), variable("dense/bias", {4}),
      variable("head/weight", {2, 4}, DType::float64), variable("scale", {})};
  return all;
}

std::vector<int> servers_of(const Placement& placement) {
  std::vector<int> servers;
  for (const Shard& shard : placement.shards) servers.push_back(shard.server);
  return servers;
}

TEST(Place, RoundRobinGoesByOrder) {
  const Placement placement = place(small_model(), {.num_servers = 2, .how = How::round_robin});
  EXPECT_THAT(servers_of(placement), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(placement.bytes_per_server(), ElementsAre(128 + 16 + 4, 64 + 64));
  for (size_t i = 0; i < placement.shards.size(); ++i) {
    EXPECT_EQ(placement.shards[i].name, small_model()[i].name);
    EXPECT_EQ(placement.shards[i].variable, static_cast<int>(i));
  }
  EXPECT_EQ(placement.shards[0].rows, (RowRange{0, 8}));
  EXPECT_EQ(placement.shards[4].rows, (RowRange{0, 1}));
}

TEST(Place, GreedyTakesTheLargestFirst) {
  const Placement placement = place(small_model(), {.num_servers = 3});
  // 128 | 64 | 64, then 16 to server 1, 4 to server 2.
  EXPECT_THAT(servers_of(placement), ElementsAre(0, 1, 1, 2, 2));
  EXPECT_THAT(placement.bytes_per_server(), ElementsAre(128, 80, 68));
}

TEST(Place, GreedyFollowsWeights) {
  std::vector<Variable> many;
  for (int i = 0; i < 400; ++i) many.push_back(variable("v" + std::to_string(i), {25}));
  const Placement placement = place(many, {.num_servers = 3, .weights = {1, 1, 2}});
  EXPECT_THAT(placement.bytes_per_server(), ElementsAre(10'000, 10'000, 20'000));
}

TEST(Place, PartsAreNamedAndCoverTheVariable) {
  const Placement placement =
      place(small_model(),
            {.num_servers = 2, .how = How::round_robin, .partitioner = Partitioner::fixed(3)});
  const auto& shards = placement.shards;
  EXPECT_EQ(shards[0].name, "embedding/part_0");
  EXPECT_EQ(shards[2].name, "embedding/part_2");
  EXPECT_EQ(shards[2].rows, (RowRange{6, 8}));
  EXPECT_EQ(shards[2].bytes, 2 * 4 * 4);
  EXPECT_EQ(shards.back().name, "scale");
  std::vector<int64_t> bytes(small_model().size());
  for (const Shard& shard : shards) bytes[static_cast<size_t>(shard.variable)] += shard.bytes;
  for (size_t v = 0; v < bytes.size(); ++v) EXPECT_EQ(bytes[v], small_model()[v].num_bytes());
}

TEST(Place, RulesNameServers) {
  const Placement placement =
      place(small_model(), {.num_servers = 2,
                            .partitioner = Partitioner::fixed(4),
                            .rules = {{"dense/*", 1}, {"?cale", 1}, {"*", 0}}});
  EXPECT_THAT(servers_of(placement), ElementsAre(0, 1, 1, 0, 1));
  EXPECT_EQ(placement.shards.size(), small_model().size()) << "what a rule names stays whole";
}

TEST(Place, IsTheSameForEverybody) {
  const PlacementOptions options{.num_servers = 3, .partitioner = Partitioner::fixed(2)};
  const Placement one = place(small_model(), options);
  const Placement other = place(small_model(), options);
  EXPECT_EQ(servers_of(one), servers_of(other));
  EXPECT_EQ(place({}, options).shards.size(), 0U);
}

TEST(Place, BadInputIsNamed) {
  const auto& model = small_model();
  const auto words = [&](const PlacementOptions& options) {
    return [&model, options] { place(model, options); };
  };
  EXPECT_THAT(words({.num_servers = 0}), ThrowsMessage<UsageError>(HasSubstr("0 servers")));
  EXPECT_THAT(words({.num_servers = 2, .rules = {{"dense/*", 2}}}),
              ThrowsMessage<UsageError>(AllOf(HasSubstr("dense/*"), HasSubstr("server 2"))));
  EXPECT_THAT(words({.rules = {{"densse/*", 0}}}),
              ThrowsMessage<UsageError>(AllOf(HasSubstr("densse/*"), HasSubstr("matches none"))));
  EXPECT_THAT(words({.num_servers = 2, .weights = {1}}),
              ThrowsMessage<UsageError>(HasSubstr("1 weights for 2 servers")));
  EXPECT_THAT(words({.num_servers = 2, .weights = {1, -1}}),
              ThrowsMessage<UsageError>(HasSubstr("-1")));
  EXPECT_THAT(words({.partitioner = Partitioner::fixed(9)}),
              ThrowsMessage<UsageError>(
                  AllOf(HasSubstr("into 9 parts"), HasSubstr("\"embedding\", has 8"))));
  EXPECT_NO_THROW(words({.partitioner = Partitioner::fixed(8)})()) << "others are cut by rows";
  EXPECT_NO_THROW(words({.partitioner = Partitioner::max_part(1)})());
  EXPECT_THAT(words({.partitioner = Partitioner::fixed(8), .rules = {{"embedding", 0}}}),
              ThrowsMessage<UsageError>(HasSubstr("\"dense/weight\", has 4")));
  EXPECT_THAT([] { place({variable("a", {1}), variable("a", {2})}, {}); },
              ThrowsMessage<UsageError>(HasSubstr("\"a\"")));
  EXPECT_THAT([] { place({variable("a", {2, -1})}, {}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("\"a\""), HasSubstr("-1"))));
}

TEST(Place, TableShowsBytesAndShares) {
  const Placement placement =
      place(small_model(),
            {.num_servers = 2, .how = How::round_robin, .partitioner = Partitioner::max_part(64)});
  const std::string table = placement.to_table(small_model());
  EXPECT_THAT(table, AllOf(HasSubstr("embedding/part_1"), HasSubstr("4 to 8"), HasSubstr("64 B"),
                           HasSubstr("server 0"), HasSubstr("server 1"), HasSubstr("%")));
}

TEST(BalancedWeights, AreThoseOfBytePs) {
  for (int workers = 2; workers <= 16; ++workers) {
    for (int dedicated = 0; dedicated <= workers; ++dedicated) {
      const auto weights = balanced_weights(workers, dedicated);
      ASSERT_EQ(weights.size(), static_cast<size_t>(workers + dedicated));
      EXPECT_THAT(std::accumulate(weights.begin(), weights.end(), 0.0), DoubleNear(1, 1e-12));
    }
  }
  EXPECT_THAT(balanced_weights(4, 0), Each(DoubleNear(0.25, 1e-12)));
  const auto apart = balanced_weights(2, 2);  // workers serve nothing
  EXPECT_THAT(apart, ElementsAre(0, 0, DoubleNear(0.5, 1e-12), DoubleNear(0.5, 1e-12)));
  EXPECT_THROW(balanced_weights(1, 0), UsageError);
  EXPECT_THROW(balanced_weights(3, 4), UsageError);
}

TEST(BalancedWeights, ServersOfAHostShareItsPart) {
  EXPECT_THAT(weights_of_servers(1, 2, 1), ::testing::IsEmpty());
  EXPECT_THAT(weights_of_servers(4, 2, 0), ::testing::IsEmpty());
  EXPECT_THAT(weights_of_servers(4, 0, 2), ::testing::IsEmpty());
  // n = 3, k = 1: (n - k) / 10 a host, 2 (n - 1) / 10 for the dedicated one.
  const auto weights = weights_of_servers(3, 2, 1);
  EXPECT_THAT(std::span(weights).first(6), Each(DoubleNear(0.1, 1e-12)));
  EXPECT_NEAR(weights.back(), 0.4, 1e-12);
  EXPECT_THAT(weights_of_servers(2, 1, 4), ElementsAre(0, 0, 0.25, 0.25, 0.25, 0.25));
}

}  // namespace
}  // namespace tutti::ps
