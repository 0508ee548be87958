// The oracle is a std::map of rows, each updated by Rule::update alone, that looks at all of them
// to evict. Everything is compared by bits.
#include "tutti/ps/sparse_table.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/base/random.h"

namespace tutti::ps {
namespace {

using optim::Rule;
using optim::StepScalars;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kRate = 0.1;

template <class T>
MemorySpan memory(const std::vector<T>& elements) {
  return {const_cast<T*>(elements.data()), std::ssize(elements), dtype_of<T>()};
}

template <class T>
std::vector<T> pulled(const SparseTable& table, const std::vector<uint64_t>& keys) {
  std::vector<T> out(keys.size() * static_cast<size_t>(table.spec().width));
  table.pull(keys, memory(out));
  return out;
}

SparsePush pushed(SparseTable& table, const std::vector<uint64_t>& keys) {
  const std::vector<float> ones(keys.size() * static_cast<size_t>(table.spec().width), 1.0F);
  return table.push(keys, memory(ones), kRate);
}

bool same(const void* a, const void* b, size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && same(a.data(), b.data(), a.size() * sizeof(T));
}

bool same(const SparseRows& a, const SparseRows& b) {
  const auto fields = [](const SparseRows& rows) {
    std::vector<std::tuple<double, double, double, int64_t>> all;
    for (const auto& [rate, beta1, beta2, count] : rows.scalars)
      all.emplace_back(rate, beta1, beta2, count);
    return all;
  };
  return a.keys == b.keys && a.rows == b.rows && a.states == b.states && fields(a) == fields(b) &&
         a.ages == b.ages;
}

SparseRows read_all(const SparseSnapshot& snapshot) {
  return SparseReader(snapshot).next(std::max<int64_t>(1, snapshot.num_rows()));
}

std::vector<uint64_t> keys_of(SparseTable& table) { return read_all(table.snapshot()).keys; }

// Element `i` of an initial row, from the definition.
template <class T>
T initial_element(const SparseTableSpec& spec, uint64_t key, uint32_t i) {
  uint64_t table = random_key(spec.seed, RandomPurpose::init, {spec.name.size()});
  for (size_t begin = 0; begin < spec.name.size(); begin += 8) {
    uint64_t letters = 0;
    for (char c : spec.name.substr(begin, 8)) letters = letters * 256 + static_cast<uint8_t>(c);
    table = random_key(table, RandomPurpose::init, {letters});
  }
  const auto words = [&](uint32_t number) {
    return philox(
        table, {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), number, 0x726F'7700});
  };
  const auto half = [&](uint32_t number, size_t which) {
    const RandomBlock block = words(number);
    return block[2 * which] | uint64_t{block[2 * which + 1]} << 32;
  };
  if (const auto* uniform = std::get_if<UniformRows>(&spec.initializer)) {
    const double unit =
        sizeof(T) == 4 ? uniform_float(words(i / 4)[i % 4]) : uniform_double(half(i / 2, i % 2));
    const double low = static_cast<T>(uniform->low), high = static_cast<T>(uniform->high);
    const T drawn = static_cast<T>(low + (high - low) * unit);
    return drawn < high ? drawn : static_cast<T>(low);
  }
  if (const auto* normal = std::get_if<NormalRows>(&spec.initializer)) {
    double sum = -6;
    for (uint32_t part = 0; part < 12; ++part) {
      const uint64_t bits = half(2 * i + part / 6, part % 6 / 3) >> (21 * (part % 3));
      sum += (static_cast<double>(bits % (1 << 21)) + 0.5) / (1 << 21);
    }
    return static_cast<T>(normal->mean + normal->std * sum);
  }
  return T{0};
}

template <class T>
struct Oracle {
  struct Row {
    std::vector<T> elements;
    std::vector<std::vector<T>> states;
    StepScalars scalars;
    int64_t last_push = 0;
  };

  SparseTableSpec spec;
  Rule rule;
  std::map<uint64_t, Row> rows;
  int64_t pushes = 0;

  std::vector<T> initial(uint64_t key) const {
    std::vector<T> row;
    for (uint32_t i = 0; i < spec.width; ++i) row.push_back(initial_element<T>(spec, key, i));
    return row;
  }

  std::vector<T> pull(const std::vector<uint64_t>& keys) const {
    std::vector<T> all;
    for (uint64_t key : keys) {
      const auto found = rows.find(key);
      const auto row = found == rows.end() ? initial(key) : found->second.elements;
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  SparsePush push(const std::vector<uint64_t>& keys, const std::vector<T>& gradients, double rate) {
    SparsePush counts;
    ++pushes;
    const auto width = static_cast<size_t>(spec.width);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!rows.contains(keys[i])) {
        Row& made = rows[keys[i]];
        made.elements = initial(keys[i]);
        for (int k = 0; k < rule.num_states(); ++k)
          made.states.emplace_back(width, static_cast<T>(rule.state_start(k)));
        ++counts.made;
      }
      Row& row = rows[keys[i]];
      std::vector<void*> states;
      for (auto& state : row.states) states.push_back(state.data());
      row.scalars = rule.next(row.scalars, rate);
      row.last_push = pushes;
      rule.update(dtype_of<T>(), row.elements.data(), &gradients[i * width], states, spec.width,
                  row.scalars);
    }
    const auto before = rows.size();
    if (spec.idle_pushes > 0)
      std::erase_if(
          rows, [&](const auto& row) { return pushes - row.second.last_push >= spec.idle_pushes; });
    while (spec.most_rows > 0 && std::ssize(rows) > spec.most_rows)
      rows.erase(std::ranges::min_element(
          rows, {}, [](const auto& row) { return std::pair(row.second.last_push, row.first); }));
    counts.evicted = static_cast<int64_t>(before - rows.size());
    return counts;
  }

  SparseRows read() const {
    SparseRows all;
    all.states.resize(static_cast<size_t>(rule.num_states()));
    const auto append = [](std::vector<std::byte>& to, const std::vector<T>& from) {
      const auto bytes = std::as_bytes(std::span(from));
      to.insert(to.end(), bytes.begin(), bytes.end());
    };
    for (const auto& [key, row] : rows) {
      all.keys.push_back(key);
      append(all.rows, row.elements);
      for (size_t k = 0; k < all.states.size(); ++k) append(all.states[k], row.states[k]);
      all.scalars.push_back(row.scalars);
      all.ages.push_back(pushes - row.last_push);
    }
    return all;
  }
};

std::vector<uint64_t> drawn_keys(RandomStream& random, size_t most, bool unique) {
  // Few keys, so that rows come again: the ends, neighbours, multiples of a large power of two.
  static const std::vector<uint64_t> pool = [] {
    std::vector<uint64_t> keys = {0, ~uint64_t{0}, ~uint64_t{0} - 1, uint64_t{1} << 63};
    for (uint64_t i = 1; i < 50; ++i) keys.insert(keys.end(), {i, i << 40, i * 0x9E3779B97F4A7C15});
    return keys;
  }();
  std::vector<uint64_t> keys;
  std::set<uint64_t> seen;
  for (uint64_t i = random.below(most + 1); i > 0; --i) {
    const uint64_t key = pool[random.below(pool.size())];
    if (seen.insert(key).second || !unique) keys.push_back(key);
  }
  return keys;
}

// Reads `snapshot` in chunks, each loaded by the parts of its keys, last part first.
SparseTable restored(const SparseTable& like, const SparseSnapshot& snapshot, int64_t chunk) {
  SparseTable table(like.spec(), like.rule());
  SparseReader reader(snapshot);
  for (SparseRows rows = reader.next(chunk); !rows.keys.empty(); rows = reader.next(chunk))
    for (int part = 2; part >= 0; --part)
      table.load(rows, [&](uint64_t key) { return server_of_key(key, 3) == part; });
  return table;
}

template <class T>
void compare_with_oracle(const Rule& rule, SparseTableSpec spec, uint64_t seed) {
  spec.dtype = dtype_of<T>();
  SparseTable table(spec, rule);
  Oracle<T> oracle{.spec = spec, .rule = rule};
  std::vector<std::pair<SparseSnapshot, SparseRows>> kept;
  RandomStream random(seed);
  for (int move = 0; move < 100; ++move) {
    const uint64_t what = random.below(10);
    if (what < 6) {
      const auto keys = drawn_keys(random, 40, true);
      std::vector<T> gradients;
      for (size_t i = 0; i < keys.size() * static_cast<size_t>(spec.width); ++i)
        gradients.push_back(static_cast<T>(random.uniform()) - T{0.5});
      const double rate = 0.01 * (1 + static_cast<double>(random.below(3)));
      ASSERT_EQ(table.push(keys, memory(gradients), rate), oracle.push(keys, gradients, rate));
    } else if (what == 6) {
      kept.emplace_back(table.snapshot(), oracle.read());
    } else if (what == 7 && !kept.empty()) {
      const auto gone = kept.begin() + static_cast<int64_t>(random.below(kept.size()));
      ASSERT_TRUE(same(read_all(gone->first), gone->second)) << "move " << move;
      kept.erase(gone);
    } else if (what == 8) {
      table = restored(table, table.snapshot(), 1 + static_cast<int64_t>(random.below(50)));
    }
    const auto keys = drawn_keys(random, 40, false);
    ASSERT_TRUE(same(pulled<T>(table, keys), oracle.pull(keys))) << "move " << move;
    ASSERT_EQ(table.num_rows(), std::ssize(oracle.rows));
  }
  for (const auto& [snapshot, then] : kept) EXPECT_TRUE(same(read_all(snapshot), then));
  EXPECT_TRUE(same(read_all(table.snapshot()), oracle.read()));
}

TEST(SparseTable, HasTheBitsOfTheOracle) {
  const Rule rules[] = {optim::sgd(),
                        optim::sgd({.momentum = 0.9, .nesterov = true, .weight_decay = 0.01}),
                        optim::adam(),
                        optim::adamw(),
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

TEST(SparseTable, InitialRowsArePureAndAsDrawn) {
  const auto row = [](SparseTableSpec spec, uint64_t key) {
    spec.width = 64;
    return pulled<float>(SparseTable(spec, optim::sgd()), {key});
  };
  const auto first = row({.name = "user", .seed = 1}, 42);
  EXPECT_TRUE(same(row({.name = "user", .seed = 1, .most_rows = 5}, 42), first));
  EXPECT_FALSE(same(row({.name = "user", .seed = 2}, 42), first));
  EXPECT_FALSE(same(row({.name = "users", .seed = 1}, 42), first));
  EXPECT_FALSE(same(row({.name = "user", .seed = 1}, 42 + (uint64_t{1} << 32)), first));
  // What a seed means never changes.
  EXPECT_THAT(std::vector<float>(first.begin(), first.begin() + 3),
              testing::ElementsAre(0x1.2e893ap-5F, -0x1.d7098p-7F, -0x1.48d426p-5F));
  const auto normal = row({.name = "user", .initializer = NormalRows{}, .seed = 1}, 42);
  EXPECT_THAT(std::vector<float>(normal.begin(), normal.begin() + 3),
              testing::ElementsAre(0x1.b8561ap-6F, -0x1.85e4d4p-4F, -0x1.06fdccp-4F));
  // The upper end is not reached where float32 has two values only.
  const auto narrow = row({.name = "t", .initializer = UniformRows{1.0, 1.0 + 0x1p-23}}, 0);
  EXPECT_THAT(narrow, testing::Each(1.0F));
}

TEST(SparseTable, InitialRowsHaveTheirMoments) {
  const auto drawn = [](SparseTableSpec::Initializer initializer) {
    const SparseTable table(
        {.name = "t", .width = 100, .dtype = DType::float64, .initializer = initializer},
        optim::sgd());
    std::vector<uint64_t> keys(2000);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
    return pulled<double>(table, keys);
  };
  // Of 200000 samples: the mean is off by 0.0022 std, the variance by 0.3 %, once in three tables.
  const auto expect_moments = [](const std::vector<double>& samples, double mean, double std) {
    double sum = 0, squares = 0, fourth = 0;
    for (double x : samples) {
      const double z = (x - mean) / std;
      sum += z, squares += z * z, fourth += z * z * z * z;
    }
    const auto count = static_cast<double>(samples.size());
    EXPECT_NEAR(sum / count, 0, 0.01);
    EXPECT_NEAR(squares / count, 1, 0.015);
    return fourth / count;
  };
  const auto normal = drawn(NormalRows{.mean = 3, .std = 2});
  EXPECT_NEAR(expect_moments(normal, 3, 2), 2.9, 0.1) << "3 - 6/60 of twelve uniform numbers";
  const auto uniform = drawn(UniformRows{-1, 2});
  EXPECT_NEAR(expect_moments(uniform, 0.5, std::sqrt(0.75)), 1.8, 0.05);
  const auto [least, most] = std::ranges::minmax(uniform);
  EXPECT_GE(least, -1);
  EXPECT_LT(most, 2);
}

TEST(SparseTableSpec, RefusesWhatIsOutOfRange) {
  const SparseTableSpec good{.name = "user", .width = 8};
  EXPECT_NO_THROW(good.validate());
  const struct {
    std::string words;
    std::function<void(SparseTableSpec&)> spoil;
  } cases[] = {
      {"name is \"\"; expected a name", [](auto& s) { s.name = ""; }},
      {"\"user\": width is 0; expected 1 to 1048576", [](auto& s) { s.width = 0; }},
      {"width is 1048577", [](auto& s) { s.width = (1 << 20) + 1; }},
      {"dtype is int64; expected float32 or float64", [](auto& s) { s.dtype = DType::int64; }},
      {"uniform low is nan", [](auto& s) { s.initializer = UniformRows{NAN, 1}; }},
      {"uniform high is 1e+39", [](auto& s) { s.initializer = UniformRows{0, 1e39}; }},
      {"high - low", [](auto& s) { s.initializer = UniformRows{-3e38, 3e38}; }},
      {"uniform high is 1; expected more than low, 1",
       [](auto& s) { s.initializer = UniformRows{1, 1}; }},
      {"as float32", [](auto& s) { s.initializer = UniformRows{1, 1 + 1e-12}; }},
      {"normal mean is inf", [](auto& s) { s.initializer = NormalRows{INFINITY, 1}; }},
      {"normal std is -1", [](auto& s) { s.initializer = NormalRows{0, -1}; }},
      {"normal std is nan", [](auto& s) { s.initializer = NormalRows{0, NAN}; }},
      {"6 std", [](auto& s) { s.initializer = NormalRows{0, 1e38}; }},
      {"most_rows is -1", [](auto& s) { s.most_rows = -1; }},
      {"most_rows is 2147483649", [](auto& s) { s.most_rows = (int64_t{1} << 31) + 1; }},
      {"idle_pushes is -1", [](auto& s) { s.idle_pushes = -1; }},
  };
  for (const auto& c : cases) {
    SparseTableSpec spec = good;
    c.spoil(spec);
    EXPECT_THAT([&] { SparseTable(spec, optim::sgd()); },
                ThrowsMessage<UsageError>(HasSubstr(c.words)));
    EXPECT_TRUE(spec != good || c.words.ends_with("nan")) << c.words;
  }
  SparseTableSpec fine = good;
  fine.dtype = DType::float64;
  fine.initializer = UniformRows{1, 1 + 1e-12};
  EXPECT_NO_THROW(fine.validate()) << "float64 tells them apart";
}

TEST(SparseTableSpec, WordsTellAll) {
  EXPECT_EQ(
      (SparseTableSpec{.name = "user", .width = 64, .seed = 7, .most_rows = 10, .idle_pushes = 50}
           .words()),
      "embedding table \"user\": 64 float32 a row, uniform in [-0.05, 0.05), seed 7, at most "
      "10 rows, evicted after 50 idle pushes");
  EXPECT_EQ((SparseTableSpec{.name = "u", .width = 1, .initializer = NormalRows{0, 2}}.words()),
            "embedding table \"u\": 1 float32 a row, normal with mean 0 and std 2, seed 0");
}

TEST(ServerOfKey, SpreadsEvenlyAlsoWhatFollowsAPattern) {
  for (int shift : {0, 1, 12, 32, 44})
    for (int parts : {1, 2, 3, 7}) {
      std::vector<int> keys(static_cast<size_t>(parts));
      for (uint64_t i = 0; i < 10'000; ++i)
        ++keys.at(static_cast<size_t>(server_of_key(i << shift, parts)));
      // A binomial count is further than five deviations off once in a million.
      const double share = 10'000.0 / parts;
      for (int count : keys) EXPECT_NEAR(count, share, 5 * std::sqrt(share)) << shift << parts;
    }
  std::vector<int> some;
  for (uint64_t key : {uint64_t{0}, uint64_t{1}, uint64_t{2}, ~uint64_t{0}})
    some.push_back(server_of_key(key, 1000));
  EXPECT_THAT(some, testing::ElementsAre(883, 566, 591, 893)) << "a checkpoint depends on them";
  EXPECT_THAT([] { server_of_key(1, 0); }, ThrowsMessage<UsageError>(HasSubstr("num_parts is 0")));
}

}  // namespace
}  // namespace tutti::ps
