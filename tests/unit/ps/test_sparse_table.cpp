#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/ps/server/parallel.h"
#include "tutti/ps/values/sparse_table.h"

#include "tests/unit/ps/sparse_oracle.h"

namespace tutti::ps::sparse {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(SparseTable, HasTheBitsOfTheOracle) {
  const Rule rules[] = {optim::sgd(),
                        optim::sgd({.momentum = 0.9, .nesterov = true, .weight_decay = 0.01}),
                        optim::adam(),
                        optim::adamw(),
                        optim::adamw({.beta2 = 0.5, .amsgrad = true}),
                        optim::adagrad({.initial_accumulator = 0.1}),
                        optim::ftrl({.l1 = 0.01})};
  const SparseTableSpec specs[] = {
      {.width = 5},
      {.width = 16, .initializer = NormalRows{}, .seed = 3, .most_rows = 30},
      {.width = 1, .initializer = ZeroRows{}, .idle_pushes = 4},
      {.width = 700, .most_rows = 45, .idle_pushes = 9}};
  uint64_t seed = 0;
  for (const Rule& rule : rules)
    for (SparseTableSpec spec : specs) {
      spec.name = "user";
      SCOPED_TRACE(fmt::format("{}, {}, seed {}", rule.name(), spec.words(), seed));
      compare_with_oracle<float>(rule, spec, ++seed);
      compare_with_oracle<double>(rule, spec, ++seed);
    }
}

// The index grows and shrinks, and places are used again.
TEST(SparseTable, ManyRowsComeAndGo) {
  const SparseTableSpec spec{.name = "churn", .width = 2, .most_rows = 3000};
  SparseTable table(spec, optim::sgd());
  Oracle<float> oracle{.spec = spec, .rule = optim::sgd()};
  RandomStream random(1);
  std::set<uint64_t> seen;
  int64_t bytes = 0;
  for (int push = 0; push < 40; ++push) {
    std::set<uint64_t> drawn;
    while (drawn.size() < 1000) drawn.insert(random.below(20'000) << (push % 3 * 20));
    const std::vector<uint64_t> keys(drawn.begin(), drawn.end());
    const std::vector<float> gradients(2000, 0.5F);
    ASSERT_EQ(table.push(keys, memory(gradients), kRate), oracle.push(keys, gradients, kRate));
    seen.insert(keys.begin(), keys.end());
    if (push == 10) bytes = table.num_bytes();
  }
  EXPECT_TRUE(same(read_all(table.snapshot()), oracle.read()));
  const std::vector<uint64_t> all(seen.begin(), seen.end());
  EXPECT_TRUE(same(pulled<float>(table, all), oracle.pull(all)));
  EXPECT_EQ(table.num_bytes(), bytes) << "evicted rows leave their places to new ones";
  EXPECT_GT(bytes, 3000 * 2 * 4);
}

// Rows come, go and are held by snapshots meanwhile.
TEST(SparseTable, HasTheBitsOfOneThreadWithSeveral) {
  ParallelFor threads(4);
  Compute compute = Compute::plain();
  compute.for_each = std::ref(threads);
  const SparseTableSpec spec{.name = "t", .width = 24, .most_rows = 2000};
  SparseTable one(spec, optim::adam()), several(spec, optim::adam(), compute);
  RandomStream random(5);
  std::vector<std::pair<SparseSnapshot, SparseRows>> kept;
  for (int push = 0; push < 30; ++push) {
    std::set<uint64_t> drawn;
    while (drawn.size() < 700) drawn.insert(random.below(3000));
    const std::vector<uint64_t> keys(drawn.begin(), drawn.end());
    std::vector<float> gradients, out(keys.size() * 24);
    for (size_t i = 0; i < out.size(); ++i)
      gradients.push_back(static_cast<float>(random.uniform()) - 0.5F);
    const SparsePush counts = several.push_pull(keys, memory(gradients), kRate, memory(out));
    ASSERT_EQ(counts, one.push(keys, memory(gradients), kRate));
    ASSERT_TRUE(same(out, pulled<float>(one, keys))) << "push " << push;
    ASSERT_TRUE(same(out, pulled<float>(several, keys))) << "push " << push;
    if (push % 4 == 0) kept.emplace_back(several.snapshot(), read_all(one.snapshot()));
    if (push % 9 == 8) kept.clear();
  }
  for (const auto& [snapshot, then] : kept) EXPECT_TRUE(same(read_all(snapshot), then));
  EXPECT_TRUE(same(read_all(several.snapshot()), read_all(one.snapshot())));
}

// All memory of rows, also what only a snapshot holds, until the last of it goes.
TEST(SparseTable, ChargesItsMemory) {
  constexpr int64_t kLimit = 8 << 20;
  std::atomic<int64_t> charged = 0;
  Compute compute = Compute::plain();
  compute.charge = [&](int64_t bytes) {
    if (charged + bytes > kLimit) throw Error("no room");
    charged += bytes;
  };
  const SparseTableSpec spec{.name = "t", .width = 256};
  std::optional<SparseTable> table(std::in_place, spec, optim::sgd(), compute);
  int64_t rows = 0;
  const auto push = [&](uint64_t first) {
    std::vector<uint64_t> keys(64);
    std::iota(keys.begin(), keys.end(), first);
    pushed(*table, keys);
    rows = table->num_rows();
  };
  push(0);
  EXPECT_GE(charged, 64 * 256 * 4);
  EXPECT_LT(charged, 2 * 64 * 256 * 4) << "a small table stays small";
  std::optional<SparseSnapshot> held = table->snapshot();
  push(0);
  EXPECT_GE(charged, 2 * 64 * 256 * 4) << "the snapshot's and the table's";
  const int64_t both = charged;
  held.reset();
  held = table->snapshot();
  push(0);
  EXPECT_EQ(charged, both) << "memory of a snapshot that is gone serves again";
  EXPECT_THROW(for (uint64_t first = 64;; first += 64) push(first), Error);
  EXPECT_GT(rows * 256 * 4, kLimit / 2) << "most of it can be used";
  table.reset();
  EXPECT_GT(charged, 0) << "a snapshot is left";
  held.reset();
  EXPECT_EQ(charged, 0);
}

TEST(SparseTable, PullNeverMakesARow) {
  SparseTable table({.name = "t", .width = 3}, optim::adam());
  const auto first = pulled<float>(table, {7, ~uint64_t{0}, 7});
  EXPECT_EQ(table.num_rows(), 0);
  EXPECT_TRUE(same(first.data(), first.data() + 6, 12)) << "the same key twice";
  EXPECT_FALSE(same(first.data(), first.data() + 3, 12));
  pushed(table, {1, 2});
  EXPECT_TRUE(same(pulled<float>(table, {7, ~uint64_t{0}, 7}), first));
  EXPECT_EQ(table.num_rows(), 2);
  std::vector<std::byte> bytes(13);
  table.pull(std::vector<uint64_t>{7}, {bytes.data() + 1, 3, DType::float32});
  EXPECT_TRUE(same(bytes.data() + 1, first.data(), 12)) << "any alignment";
}

TEST(SparseTable, RefusedPushChangesNothing) {
  SparseTable table({.name = "user", .width = 2, .idle_pushes = 2}, optim::ftrl());
  pushed(table, {1, 2});
  const SparseRows before = read_all(table.snapshot());
  EXPECT_THAT([&] { pushed(table, {5, 1, 77, 3, 77}); },
              ThrowsMessage<Error>(AllOf(HasSubstr("\"user\""), HasSubstr("key 77 comes twice"))));
  const std::vector<uint64_t> key = {9};
  const std::vector<float> right(2), shorter(1);
  const std::vector<double> wide(2);
  EXPECT_THAT([&] { table.push(key, memory(shorter), kRate); },
              ThrowsMessage<UsageError>(HasSubstr("got 1 float32; expected 2 float32")));
  EXPECT_THAT([&] { table.push(key, memory(wide), kRate); },
              ThrowsMessage<UsageError>(HasSubstr("got 2 float64; expected 2 float32")));
  EXPECT_THROW(table.push(key, memory(right), NAN), UsageError);
  EXPECT_THROW(table.push(key, memory(right), 0.0), UsageError);
  EXPECT_THROW(table.pull(key, memory(shorter)), UsageError);
  EXPECT_THROW(table.pull(key, memory(wide)), UsageError);
  EXPECT_TRUE(same(read_all(table.snapshot()), before));
}

TEST(SparseTable, PushPullIsPushThenPull) {
  for (const int64_t most_rows : {0, 3, 20}) {
    const SparseTableSpec spec{.name = "t", .width = 3, .most_rows = most_rows};
    SparseTable table(spec, optim::adam()), other(spec, optim::adam());
    RandomStream random(2);
    for (int push = 0; push < 30; ++push) {
      const auto keys = drawn_keys(random, 8, true);
      std::vector<float> gradients(keys.size() * 3, 0.5F), out(keys.size() * 3);
      const SparsePush counts = table.push_pull(keys, memory(gradients), kRate, memory(out));
      EXPECT_EQ(counts, other.push(keys, memory(gradients), kRate));
      EXPECT_TRUE(same(out, pulled<float>(other, keys))) << most_rows << " rows, push " << push;
    }
    EXPECT_TRUE(same(read_all(table.snapshot()), read_all(other.snapshot())));
    std::vector<float> shorter(2);
    EXPECT_THROW(table.push_pull({}, memory(std::vector<float>()), kRate, memory(shorter)),
                 UsageError);
  }
}

TEST(SparseTable, EvictsByAgeThenByCount) {
  const struct {
    std::string name;
    int64_t most_rows, idle_pushes;
    std::vector<std::vector<uint64_t>> pushes;
    SparsePush last;
    std::vector<uint64_t> left;
  } cases[] = {
      {"no eviction", 0, 0, {{1}, {}, {}, {2}}, {1, 0}, {1, 2}},
      {"age 1 keeps the last push", 0, 1, {{1, 2}, {2, 3}}, {1, 1}, {2, 3}},
      {"age 2", 0, 2, {{1}, {2}, {3}}, {1, 1}, {2, 3}},
      {"an empty push ages", 0, 2, {{1}, {2}, {}}, {0, 1}, {2}},
      {"touched in time", 0, 2, {{1}, {2}, {1}}, {0, 0}, {1, 2}},
      {"oldest first", 2, 0, {{9}, {5}, {7}}, {1, 1}, {5, 7}},
      {"a touch makes it young", 2, 0, {{9}, {5}, {9}, {7}}, {1, 1}, {7, 9}},
      {"ties by key", 2, 0, {{9, 3, 6}}, {3, 1}, {6, 9}},
      {"ties by key, unsigned", 1, 0, {{~uint64_t{0}, 0}}, {2, 1}, {~uint64_t{0}}},
      {"rest of a push that was ordered", 3, 0, {{4, 8, 2}, {5}, {8}, {1}}, {1, 1}, {1, 5, 8}},
      {"age first", 2, 2, {{1}, {2}, {3}}, {1, 1}, {2, 3}},
      {"a push larger than the table", 1, 0, {{1}, {4, 3, 2}}, {3, 3}, {4}},
  };
  for (const auto& c : cases) {
    SparseTable table(
        {.name = "t", .width = 1, .most_rows = c.most_rows, .idle_pushes = c.idle_pushes},
        optim::sgd());
    SparsePush last;
    for (const auto& keys : c.pushes) last = pushed(table, keys);
    EXPECT_EQ(last, c.last) << c.name;
    EXPECT_EQ(keys_of(table), c.left) << c.name;
  }
}

TEST(SparseTable, AnEvictedRowStartsAgain) {
  SparseTable table({.name = "t", .width = 4, .idle_pushes = 1}, optim::adam());
  SparseTable fresh({.name = "t", .width = 4, .idle_pushes = 1}, optim::adam());
  pushed(table, {1});
  pushed(table, {2});
  EXPECT_TRUE(same(pulled<float>(table, {1}), pulled<float>(fresh, {1})));
  pushed(table, {1});
  pushed(fresh, {1});
  EXPECT_TRUE(same(read_all(table.snapshot()), read_all(fresh.snapshot())));
}

TEST(SparseTable, SnapshotIsReadAndDroppedWhileTheTableGoesOn) {
  SparseTable table({.name = "t", .width = 32, .most_rows = 900}, optim::adagrad());
  std::vector<uint64_t> keys(1000);
  for (int round = 0; round < 20; ++round) {
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = i * 3 + static_cast<uint64_t>(round);
    pushed(table, keys);
    const SparseRows now = read_all(table.snapshot());
    bool equal = false;
    std::thread reader([&equal, &now, snapshot = table.snapshot()]() mutable {
      equal = same(read_all(snapshot), now);
      const SparseSnapshot dropped = std::move(snapshot);
    });
    for (int push = 0; push < 3; ++push) pushed(table, keys);
    reader.join();
    ASSERT_TRUE(equal) << round;
  }
}

// Three servers, each with its own part of every push, are saved and restored to two and to one.
TEST(SparseTable, PartsOfThreeServersGoToTwo) {
  const SparseTableSpec spec{.name = "t", .width = 3, .idle_pushes = 12};
  const auto part_of = [](const std::vector<uint64_t>& keys, int part, int parts) {
    std::vector<uint64_t> mine;
    std::ranges::copy_if(keys, std::back_inserter(mine),
                         [&](uint64_t key) { return server_of_key(key, parts) == part; });
    return mine;
  };
  SparseTable whole(spec, optim::adam());
  std::vector<SparseTable> three, two;
  for (int s = 0; s < 3; ++s) three.emplace_back(spec, optim::adam());
  for (int s = 0; s < 2; ++s) two.emplace_back(spec, optim::adam());
  RandomStream random(5);
  const auto push_all = [&](std::vector<SparseTable>& servers) {
    const auto keys = drawn_keys(random, 30, true);
    pushed(whole, keys);
    const int parts = static_cast<int>(servers.size());
    for (int s = 0; s < parts; ++s)
      pushed(servers[static_cast<size_t>(s)], part_of(keys, s, parts));
  };
  for (int push = 0; push < 20; ++push) push_all(three);
  for (SparseTable& from : three) {
    const SparseRows rows = read_all(from.snapshot());
    for (int s = 0; s < 2; ++s)
      two[static_cast<size_t>(s)].load(rows, [&](uint64_t k) { return server_of_key(k, 2) == s; });
  }
  for (int push = 0; push < 20; ++push) push_all(two);
  SparseTable one(spec, optim::adam());
  for (SparseTable& from : two) {
    EXPECT_GT(from.num_rows(), 10);
    one.load(read_all(from.snapshot()));
  }
  EXPECT_TRUE(same(read_all(one.snapshot()), read_all(whole.snapshot())));
}

TEST(SparseTable, LoadRefusesWhatIsNotWhole) {
  SparseTable table({.name = "user", .width = 2}, optim::adam());
  pushed(table, {1, 2, 3});
  const SparseRows good = read_all(table.snapshot());
  const struct {
    std::string words;
    std::function<void(SparseRows&)> spoil;
  } cases[] = {
      {"bytes of rows", [](SparseRows& r) { r.rows.pop_back(); }},
      {"arrays of states", [](SparseRows& r) { r.states.pop_back(); }},
      {"bytes of exp_avg_sq", [](SparseRows& r) { r.states[1].pop_back(); }},
      {"scalars of 3 keys", [](SparseRows& r) { r.scalars.pop_back(); }},
      {"ages of 3 keys", [](SparseRows& r) { r.ages.push_back(0); }},
      {"key 2 has count 0", [](SparseRows& r) { r.scalars[1].count = 0; }},
      {"key 3 has count 1 and beta powers nan",
       [](SparseRows& r) { r.scalars[2].beta1_power = NAN; }},
      {"beta powers 0.9, 1.5", [](SparseRows& r) { r.scalars[0].beta2_power = 1.5; }},
      {"key 1 has age -1", [](SparseRows& r) { r.ages[0] = -1; }},
      {"key 1 comes twice", [](SparseRows& r) { r.keys[2] = 1; }},
  };
  for (const auto& c : cases) {
    SparseTable empty({.name = "user", .width = 2}, optim::adam());
    SparseRows rows = good;
    c.spoil(rows);
    EXPECT_THAT([&] { empty.load(rows); },
                ThrowsMessage<DataError>(AllOf(HasSubstr("\"user\": load: "), HasSubstr(c.words))));
    EXPECT_EQ(empty.num_rows(), 0) << c.words;
  }
  EXPECT_THAT([&] { table.load(good); }, ThrowsMessage<DataError>(HasSubstr("key 1 has a row")));
  EXPECT_TRUE(same(read_all(table.snapshot()), good));
  EXPECT_THROW(SparseReader(table.snapshot()).next(0), UsageError);
}

}  // namespace
}  // namespace tutti::ps::sparse
