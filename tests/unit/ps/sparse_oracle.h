/// The oracle of embedding tables is a std::map of rows, each updated by Rule::update alone, that
/// looks at all of them to evict. Everything is compared by bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tutti/base/random.h"
#include "tutti/ps/values/sparse_table.h"

namespace tutti::ps::sparse {

using optim::Rule;
using optim::StepScalars;

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

inline SparsePush pushed(SparseTable& table, const std::vector<uint64_t>& keys) {
  const std::vector<float> ones(keys.size() * static_cast<size_t>(table.spec().width), 1.0F);
  return table.push(keys, memory(ones), kRate);
}

inline bool same(const void* a, const void* b, size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && same(a.data(), b.data(), a.size() * sizeof(T));
}

inline bool same(const SparseRows& a, const SparseRows& b) {
  const auto fields = [](const SparseRows& rows) {
    std::vector<std::tuple<double, double, double, double, int64_t>> all;
    for (const auto& [rate, beta1, beta2, decay, count] : rows.scalars)
      all.emplace_back(rate, beta1, beta2, decay, count);
    return all;
  };
  return a.keys == b.keys && a.rows == b.rows && a.states == b.states && fields(a) == fields(b) &&
         a.ages == b.ages;
}

inline SparseRows read_all(const SparseSnapshot& snapshot) {
  return SparseReader(snapshot).next(std::max<int64_t>(1, snapshot.num_rows()));
}

inline std::vector<uint64_t> keys_of(SparseTable& table) { return read_all(table.snapshot()).keys; }

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

inline std::vector<uint64_t> drawn_keys(RandomStream& random, size_t most, bool unique) {
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
inline SparseTable restored(const SparseTable& like, const SparseSnapshot& snapshot,
                            int64_t chunk) {
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

}  // namespace tutti::ps::sparse
