// Key: what a row is called. Slot: where it lies; a row keeps its slot until it is evicted. Slab: a
// few slots that are copied together. Push p: the p-th of this table; a load may place rows at
// pushes before the first.
#include "tutti/ps/sparse_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>

#include "tutti/base/array.h"
#include "tutti/base/error.h"
#include "tutti/base/random.h"

namespace tutti::ps {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
static_assert(SparseTableSpec::kMostRows < kNone);

// How many keys ahead a row is asked for, and again as many its place in the index. 16 rows of a
// kilobyte still leave half of a small first-level cache.
constexpr size_t kAhead = 16;

// SplitMix64's step and finalizer, a bijection: Steele, Lea & Flood 2014,
// doi:10.1145/2660193.2660195. Servers are chosen by its high half, places in the index by its low
// half, so that the keys of one server fill its index evenly.
uint64_t mixed(uint64_t key) noexcept {
  uint64_t bits = key + 0x9E3779B97F4A7C15;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
  return bits ^ (bits >> 31);
}

// ---- Initial rows

// Keys the counters of a table: those that differ in any letter of the name share nothing.
uint64_t table_key(uint64_t seed, std::string_view name) {
  uint64_t key = random_key(seed, RandomPurpose::init, {name.size()});
  for (size_t begin = 0; begin < name.size(); begin += 8) {
    uint64_t letters = 0;
    for (const char letter : name.substr(begin, 8))
      letters = letters << 8 | static_cast<unsigned char>(letter);
    key = random_key(key, RandomPurpose::init, {letters});
  }
  return key;
}

struct InitialBits {
  uint64_t table = 0;
  uint64_t key = 0;

  std::array<uint64_t, 2> block(uint32_t number) const {
    constexpr uint32_t kRow = 0x726F'7700;  // apart from the counters of streams
    const RandomBlock words =
        philox(table, {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), number, kRow});
    return {words[0] | uint64_t{words[1]} << 32, words[2] | uint64_t{words[3]} << 32};
  }
};

template <class T>
void put(std::byte* row, int64_t element, T value) {
  std::memcpy(row + element * int64_t{sizeof(T)}, &value, sizeof(T));
}

template <class T>
void fill(const ZeroRows&, InitialBits, int64_t width, std::byte* row) {
  std::memset(row, 0, static_cast<size_t>(width) * sizeof(T));
}

template <class T>
void fill(const UniformRows& uniform, InitialBits bits, int64_t width, std::byte* row) {
  const auto low = static_cast<T>(uniform.low), high = static_cast<T>(uniform.high);
  const double range = double{high} - double{low};
  constexpr int64_t kEach = 16 / sizeof(T);  // elements a block
  std::array<uint64_t, 2> block{};
  for (int64_t i = 0; i < width; ++i) {
    const int64_t in_block = i % kEach;
    if (in_block == 0) block = bits.block(static_cast<uint32_t>(i / kEach));
    double unit = 0;
    if constexpr (sizeof(T) == 8)
      unit = uniform_double(block[static_cast<size_t>(in_block)]);
    else
      unit = uniform_float(
          static_cast<uint32_t>(block[static_cast<size_t>(in_block / 2)] >> (32 * (in_block % 2))));
    const T drawn = static_cast<T>(low + range * unit);
    put(row, i, drawn < high ? drawn : low);  // rounding may reach `high`
  }
}

template <class T>
void fill(const NormalRows& normal, InitialBits bits, int64_t width, std::byte* row) {
  // Twelve integers of 21 bits, six of a block; their sum has variance 2^42 (to 12 digits) and
  // is taken to be symmetric about 0. Exact in a double.
  constexpr int kBits = 21;
  constexpr int64_t kCentre = 12 * ((int64_t{1} << kBits) - 1);
  for (int64_t i = 0; i < width; ++i) {
    int64_t sum = 0;
    for (int half = 0; half < 2; ++half)
      for (const uint64_t word : bits.block(static_cast<uint32_t>(2 * i + half)))
        for (int shift = 0; shift < 3 * kBits; shift += kBits)
          sum += static_cast<int64_t>(word >> shift & ((1 << kBits) - 1));
    const double unit = static_cast<double>(2 * sum - kCentre) * 0x1p-22;
    put(row, i, static_cast<T>(normal.mean + normal.std * unit));
  }
}

void fill_initial(const SparseTableSpec& spec, InitialBits bits, std::byte* row) {
  std::visit(
      [&](const auto& initializer) {
        if (spec.dtype == DType::float64)
          fill<double>(initializer, bits, spec.width, row);
        else
          fill<float>(initializer, bits, spec.width, row);
      },
      spec.initializer);
}

// ---- Where rows lie

// What stands behind a row's elements and states. A slot is empty when its count is 0.
struct RowFacts {
  uint64_t key = 0;
  int64_t last_push = 0;
  optim::StepScalars scalars;
};
static_assert(std::is_trivially_copyable_v<RowFacts>);

// Of a slot: its *parts*, which are elements and states, and its facts. Parts of whole cache lines
// begin on one: a vector that is stored across two waits for both. Copying a slab for one row costs
// 16 KiB at most, or that row; 64 rows at most, so that narrow ones are not copied by the hundred.
struct Layout {
  Layout(const SparseTableSpec& spec, int states)
      : part_bytes(spec.width * size_of(spec.dtype)), num_parts(1 + states) {
    constexpr int64_t kSlabBytes = 16 << 10;
    facts_offset = round_up(part_bytes * num_parts, alignof(RowFacts));
    slot_bytes = round_up(facts_offset + int64_t{sizeof(RowFacts)},
                          part_bytes < 64 ? int64_t{alignof(RowFacts)} : 64);
    const auto slots = static_cast<uint64_t>(std::clamp<int64_t>(kSlabBytes / slot_bytes, 1, 64));
    shift = std::bit_width(slots) - 1;
  }

  static int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }
  int64_t slab_bytes() const { return slot_bytes << shift; }
  RowFacts& facts(std::byte* row) const { return *reinterpret_cast<RowFacts*>(row + facts_offset); }
  const RowFacts& facts(const std::byte* row) const {
    return *reinterpret_cast<const RowFacts*>(row + facts_offset);
  }

  int64_t part_bytes;
  int num_parts;
  int64_t facts_offset = 0;
  int64_t slot_bytes = 0;
  int shift = 0;  // a slab has 2^shift slots
};

// A snapshot's sign of life. Snapshots of a table are numbered from 1.
struct Holder {
  int64_t number = 0;
  std::atomic<bool> gone = false;
};

// Invariant: living snapshots that hold the slab are those with a number above `made`, the number
// of snapshots that had been taken when it was allocated.
struct Slab {
  std::shared_ptr<const void> owner;
  std::byte* data = nullptr;
  int64_t made = 0;
};

const std::byte* at_slot(const std::vector<Slab>& slabs, const Layout& layout, uint32_t slot) {
  const uint32_t in_slab = slot & ((1U << layout.shift) - 1);
  return slabs[slot >> layout.shift].data + int64_t{in_slab} * layout.slot_bytes;
}

}  // namespace

struct detail::SparseCut {
  SparseCut(Layout where, std::vector<Slab> slabs_now, std::shared_ptr<Holder> sign)
      : layout(where), slabs(std::move(slabs_now)), holder(std::move(sign)) {}
  SparseCut(const SparseCut&) = delete;
  SparseCut& operator=(const SparseCut&) = delete;
  // After the last read: whoever sees it may write where this cut has read.
  ~SparseCut() { holder->gone.store(true, std::memory_order_release); }

  Layout layout;
  std::vector<Slab> slabs;
  int64_t num_rows = 0;
  int64_t pushes = 0;
  std::shared_ptr<Holder> holder;
};

namespace {

// The slots of a table, and who holds them.
class RowStore {
 public:
  explicit RowStore(const Layout& layout) : layout_(layout) {}

  const Layout& layout() const { return layout_; }
  const std::byte* row(uint32_t slot) const { return at_slot(slabs_, layout_, slot); }

  const RowFacts& facts(uint32_t slot) const { return layout_.facts(row(slot)); }

  // The first `bytes` of a row, as far as the processor would not see by itself where it goes.
  void prefetch(uint32_t slot, int64_t bytes) const {
    const std::byte* const begin = row(slot);
    for (int64_t at = 0; at < std::min<int64_t>(bytes, 1024); at += 64)
      __builtin_prefetch(begin + at);
  }

  // To be called before the first writable() after a snapshot may have come or gone.
  void look_for_snapshots() {
    while (!holders_.empty() && holders_.back()->gone.load(std::memory_order_acquire))
      holders_.pop_back();
    newest_held_ = holders_.empty() ? 0 : holders_.back()->number;
  }

  std::byte* writable(uint32_t slot) {
    Slab& slab = slabs_[slot >> layout_.shift];
    if (newest_held_ > slab.made) [[unlikely]] {
      const Slab held = std::exchange(slab, new_slab());
      std::memcpy(slab.data, held.data, static_cast<size_t>(layout_.slab_bytes()));
    }
    return const_cast<std::byte*>(row(slot));
  }

  uint32_t take() {
    if (free_.empty()) {
      const auto first = static_cast<uint32_t>(slabs_.size() << layout_.shift);
      slabs_.push_back(new_slab());
      for (uint32_t next = 1U << layout_.shift; next > 0; --next) free_.push_back(first + next - 1);
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void give_back(uint32_t slot) {
    layout_.facts(writable(slot)) = {};
    free_.push_back(slot);
  }

  std::shared_ptr<detail::SparseCut> cut() {
    std::erase_if(holders_, [](const auto& h) { return h->gone.load(std::memory_order_acquire); });
    auto holder = std::make_shared<Holder>();
    holder->number = ++snapshots_;
    holders_.push_back(holder);
    return std::make_shared<detail::SparseCut>(layout_, slabs_, std::move(holder));
  }

  int64_t num_bytes() const {
    return std::ssize(slabs_) * layout_.slab_bytes() +
           static_cast<int64_t>(slabs_.capacity() * sizeof(Slab) + free_.capacity() * 4);
  }

 private:
  Slab new_slab() const {
    const Array memory = Array::zeros(DType::uint8, {layout_.slab_bytes()});
    return {memory.owner(), static_cast<std::byte*>(memory.data()), snapshots_};
  }

  Layout layout_;
  std::vector<Slab> slabs_;
  std::vector<uint32_t> free_;
  std::vector<std::shared_ptr<Holder>> holders_;  // ascending; the last may be gone
  int64_t snapshots_ = 0;
  int64_t newest_held_ = 0;
};

// Key to slot: open addressing with linear probing, Knuth, The Art of Computer Programming 3, 6.4.
class Index {
 public:
  int64_t size() const { return size_; }
  int64_t num_bytes() const { return static_cast<int64_t>(entries_.size() * sizeof(Entry)); }
  void prefetch(uint64_t key) const { __builtin_prefetch(&entries_[home(key)]); }

  uint32_t find(uint64_t key) const {
    size_t at = home(key);
    while (entries_[at].slot != kNone && entries_[at].key != key) at = after(at);
    return entries_[at].slot;
  }

  // `key` is not there.
  void insert(uint64_t key, uint32_t slot) {
    // At most 5/8 full: a search that fails looks at four entries, one that finds at two.
    if (static_cast<size_t>(++size_) * 8 > entries_.size() * 5) {
      const std::vector<Entry> old = std::exchange(entries_, std::vector<Entry>(2 * capacity()));
      for (const Entry& entry : old)
        if (entry.slot != kNone) place(entry);
    }
    place({key, slot});
  }

  // Algorithm R there: those behind move up until one is at home or a place is empty.
  void erase(uint64_t key) {
    size_t hole = home(key);
    while (entries_[hole].key != key) hole = after(hole);
    for (size_t at = after(hole); entries_[at].slot != kNone; at = after(at)) {
      const size_t mask = capacity() - 1;
      const size_t from_home = (at - home(entries_[at].key)) & mask;
      if (from_home < ((at - hole) & mask)) continue;
      entries_[hole] = entries_[at];
      hole = at;
    }
    entries_[hole] = {};
    --size_;
  }

  std::vector<uint32_t> slots() const {
    std::vector<uint32_t> found;
    for (const Entry& entry : entries_)
      if (entry.slot != kNone) found.push_back(entry.slot);
    return found;
  }

 private:
  struct Entry {
    uint64_t key = 0;
    uint32_t slot = kNone;
  };

  size_t capacity() const { return entries_.size(); }
  size_t home(uint64_t key) const { return mixed(key) & (capacity() - 1); }
  size_t after(size_t at) const { return (at + 1) & (capacity() - 1); }
  void place(const Entry& entry) {
    size_t at = home(entry.key);
    while (entries_[at].slot != kNone) at = after(at);
    entries_[at] = entry;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(16);  // a power of two
  int64_t size_ = 0;
};

// Slots in the order of their last push, linked by number.
class PushOrder {
 public:
  uint32_t front() const { return front_; }
  uint32_t after(uint32_t slot) const { return links_[slot].after; }
  void prefetch(uint32_t slot) const {
    if (slot < links_.size()) __builtin_prefetch(&links_[slot]);
  }

  void append(uint32_t slot) {
    if (slot >= links_.size()) links_.resize(slot + 1);
    links_[slot] = {.before = back_, .after = kNone};
    (back_ == kNone ? front_ : links_[back_].after) = slot;
    back_ = slot;
  }

  void prepend(uint32_t slot) {
    links_[slot] = {.before = kNone, .after = front_};
    (front_ == kNone ? back_ : links_[front_].before) = slot;
    front_ = slot;
  }

  void remove(uint32_t slot) {
    const auto [before, after] = links_[slot];
    (before == kNone ? front_ : links_[before].after) = after;
    (after == kNone ? back_ : links_[after].before) = before;
  }

  void clear() { front_ = back_ = kNone; }
  int64_t num_bytes() const { return static_cast<int64_t>(links_.capacity() * sizeof(Links)); }

 private:
  struct Links {
    uint32_t before = kNone;
    uint32_t after = kNone;
  };

  std::vector<Links> links_;  // of slot
  uint32_t front_ = kNone;
  uint32_t back_ = kNone;
};

}  // namespace

// ---- What a table is

int server_of_key(uint64_t key, int num_parts) {
  if (num_parts < 1)
    throw UsageError(fmt::format("server_of_key: num_parts is {}; expected 1 or more", num_parts));
  return static_cast<int>((mixed(key) >> 32) * static_cast<uint64_t>(num_parts) >> 32);
}

void SparseTableSpec::validate() const {
  const auto require = [&](bool good, std::string_view field, const auto& got,
                           const std::string& expected) {
    if (!good)
      throw UsageError(
          fmt::format("embedding table \"{}\": {} is {}; expected {}", name, field, got, expected));
  };
  const bool is_float = dtype == DType::float32;
  const double largest =
      is_float ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
  const auto require_value = [&](double value, std::string_view field) {
    require(std::abs(value) <= largest, field, value,
            fmt::format("a finite {}", tutti::name_of(dtype)));
  };
  const auto require_count = [&](int64_t count, int64_t least, int64_t most,
                                 std::string_view field) {
    require(count >= least && count <= most, field, count, fmt::format("{} to {}", least, most));
  };
  require(!name.empty(), "name", "\"\"", "a name");
  require_count(width, 1, kMostWidth, "width");
  require(is_float || dtype == DType::float64, "dtype", tutti::name_of(dtype),
          "float32 or float64");
  if (const auto* uniform = std::get_if<UniformRows>(&initializer)) {
    require_value(uniform->low, "uniform low");
    require_value(uniform->high, "uniform high");
    require_value(uniform->high - uniform->low, "uniform high - low");
    const bool apart = is_float
                           ? static_cast<float>(uniform->low) < static_cast<float>(uniform->high)
                           : uniform->low < uniform->high;
    require(apart, "uniform high", uniform->high,
            fmt::format("more than low, {}, as {}", uniform->low, tutti::name_of(dtype)));
  }
  if (const auto* normal = std::get_if<NormalRows>(&initializer)) {
    require_value(normal->mean, "normal mean");
    require(normal->std >= 0, "normal std", normal->std, "a finite number >= 0");
    require_value(std::abs(normal->mean) + 6 * normal->std, "|normal mean| + 6 std");
  }
  require_count(most_rows, 0, kMostRows, "most_rows");
  require_count(idle_pushes, 0, kMostPushes, "idle_pushes");
}

std::string SparseTableSpec::words() const {
  std::string initial = "zeros";
  if (const auto* uniform = std::get_if<UniformRows>(&initializer))
    initial = fmt::format("uniform in [{}, {})", uniform->low, uniform->high);
  if (const auto* normal = std::get_if<NormalRows>(&initializer))
    initial = fmt::format("normal with mean {} and std {}", normal->mean, normal->std);
  std::string words = fmt::format("embedding table \"{}\": {} {} a row, {}, seed {}", name, width,
                                  tutti::name_of(dtype), initial, seed);
  if (most_rows > 0) words += fmt::format(", at most {} rows", most_rows);
  if (idle_pushes > 0) words += fmt::format(", evicted after {} idle pushes", idle_pushes);
  return words;
}

// ---- The table

struct SparseTable::Impl {
  Impl(SparseTableSpec table_spec, optim::Rule table_rule)
      : spec(std::move(table_spec)),
        rule(table_rule),
        initial_key(table_key(spec.seed, spec.name)),
        rows(Layout(spec, rule.num_states())) {}

  bool evicts() const { return spec.most_rows > 0 || spec.idle_pushes > 0; }
  void require_span(std::string_view what, size_t num_keys, const MemorySpan& span) const;
  template <class Failure>
  void require_unique(std::string_view what, std::span<const uint64_t> keys);
  void require_room(std::string_view what, size_t num_keys) const;
  void require_loadable(const SparseRows& from, std::span<const uint64_t> kept) const;

  template <class Work>
  void in_turn(std::span<const uint64_t> keys, int64_t row_bytes, Work work) const;
  uint32_t make(uint64_t key);
  void update(uint32_t slot, const std::byte* gradient, double learning_rate);
  void put_back(const SparseRows& from, size_t number);

  int64_t evict();
  void evict_front();
  void sort_front();
  void sort_all();

  SparseTableSpec spec;
  optim::Rule rule;
  uint64_t initial_key;
  RowStore rows;
  Index index;
  int64_t pushes = 0;
  std::vector<uint32_t> marks;  // scratch of require_unique

  // Only of a table that evicts. Rows of one push are put in order of key when it is their turn.
  PushOrder order;
  bool order_known = true;     // false after a load: `order` lacks rows
  int64_t sorted_through = 0;  // rows of this push and those before it are in order of key
};

void SparseTable::Impl::require_span(std::string_view what, size_t num_keys,
                                     const MemorySpan& span) const {
  const int64_t expected = static_cast<int64_t>(num_keys) * spec.width;
  if (span.dtype != spec.dtype || span.num_elements != expected ||
      span.place.kind != Place::Kind::host)
    throw UsageError(fmt::format(
        "embedding table \"{}\": {} of {} keys: got {} {}; expected {} {} in host memory",
        spec.name, what, num_keys, span.num_elements, tutti::name_of(span.dtype), expected,
        tutti::name_of(spec.dtype)));
}

template <class Failure>
void SparseTable::Impl::require_unique(std::string_view what, std::span<const uint64_t> keys) {
  marks.assign(std::bit_ceil(2 * keys.size() + 1), kNone);
  for (size_t i = 0; i < keys.size(); ++i) {
    size_t at = mixed(keys[i]) & (marks.size() - 1);
    for (; marks[at] != kNone; at = (at + 1) & (marks.size() - 1))
      if (keys[marks[at]] == keys[i])
        throw Failure(fmt::format("embedding table \"{}\": {}: key {} comes twice among {} keys",
                                  spec.name, what, keys[i], keys.size()));
    marks[at] = static_cast<uint32_t>(i);
  }
}

void SparseTable::Impl::require_room(std::string_view what, size_t num_keys) const {
  const auto most = static_cast<uint64_t>(SparseTableSpec::kMostRows - index.size());
  if (num_keys > most)
    throw Error(fmt::format("embedding table \"{}\": {} of {} keys into {} rows; at most {} in all",
                            spec.name, what, num_keys, index.size(), SparseTableSpec::kMostRows));
}

// Calls work(number, slot) for one key after another, the first `row_bytes` of rows being on their
// way to the cache by then. `work` may make the row of its own key.
template <class Work>
void SparseTable::Impl::in_turn(std::span<const uint64_t> keys, int64_t row_bytes,
                                Work work) const {
  std::array<uint32_t, kAhead> slots;
  for (size_t i = 0; i < keys.size() + kAhead; ++i) {
    uint32_t& slot = slots[i % kAhead];
    if (i >= kAhead) work(i - kAhead, slot);
    if (i + kAhead < keys.size()) index.prefetch(keys[i + kAhead]);
    if (i >= keys.size()) continue;
    slot = index.find(keys[i]);
    if (slot != kNone) rows.prefetch(slot, row_bytes);
  }
}

uint32_t SparseTable::Impl::make(uint64_t key) {
  const Layout& layout = rows.layout();
  const uint32_t slot = rows.take();
  std::byte* const row = rows.writable(slot);
  layout.facts(row) = {.key = key};
  fill_initial(spec, {initial_key, key}, row);
  for (int k = 1; k < layout.num_parts; ++k) {
    const double start = rule.state_start(k - 1);
    std::byte* const state = row + k * layout.part_bytes;
    for (int64_t i = 0; i < spec.width; ++i) {
      if (spec.dtype == DType::float64)
        put(state, i, start);
      else
        put(state, i, static_cast<float>(start));
    }
  }
  index.insert(key, slot);
  return slot;
}

void SparseTable::Impl::update(uint32_t slot, const std::byte* gradient, double learning_rate) {
  const Layout& layout = rows.layout();
  std::byte* const row = rows.writable(slot);
  RowFacts& facts = layout.facts(row);
  facts.scalars = rule.next(facts.scalars, learning_rate);
  facts.last_push = pushes;
  void* const parts[] = {row, row + layout.part_bytes, row + 2 * layout.part_bytes};
  rule.update(spec.dtype, row, gradient,
              std::span(parts).subspan(1, static_cast<size_t>(layout.num_parts - 1)), spec.width,
              facts.scalars);
}

// ---- Eviction

int64_t SparseTable::Impl::evict() {
  const int64_t before = index.size();
  if (spec.idle_pushes > 0)
    while (order.front() != kNone &&
           pushes - rows.facts(order.front()).last_push >= spec.idle_pushes)
      evict_front();
  if (spec.most_rows > 0)
    while (index.size() > spec.most_rows) {
      sort_front();
      evict_front();
    }
  return before - index.size();
}

void SparseTable::Impl::evict_front() {
  const uint32_t slot = order.front();
  order.remove(slot);
  index.erase(rows.facts(slot).key);
  rows.give_back(slot);
}

// Once a push at most: what is touched later leaves the others in order.
void SparseTable::Impl::sort_front() {
  const int64_t push = rows.facts(order.front()).last_push;
  if (push <= sorted_through) return;
  std::vector<std::pair<uint64_t, uint32_t>> group;
  for (uint32_t slot = order.front(); slot != kNone; slot = order.after(slot)) {
    const RowFacts& facts = rows.facts(slot);
    if (facts.last_push != push) break;
    group.emplace_back(facts.key, slot);
  }
  std::ranges::sort(group, std::greater<>());
  for (const auto& [key, slot] : group) order.remove(slot);
  for (const auto& [key, slot] : group) order.prepend(slot);
  sorted_through = push;
}

void SparseTable::Impl::sort_all() {
  std::vector<std::tuple<int64_t, uint64_t, uint32_t>> all;
  for (const uint32_t slot : index.slots()) {
    const RowFacts& facts = rows.facts(slot);
    all.emplace_back(facts.last_push, facts.key, slot);
  }
  std::ranges::sort(all);
  order.clear();
  for (const auto& [push, key, slot] : all) order.append(slot);
  order_known = true;
  sorted_through = pushes;
}

SparseTable::SparseTable(SparseTableSpec spec, optim::Rule rule) {
  spec.validate();
  impl_ = std::make_unique<Impl>(std::move(spec), rule);
}

SparseTable::~SparseTable() = default;
SparseTable::SparseTable(SparseTable&&) noexcept = default;
SparseTable& SparseTable::operator=(SparseTable&&) noexcept = default;

const SparseTableSpec& SparseTable::spec() const noexcept { return impl_->spec; }
const optim::Rule& SparseTable::rule() const noexcept { return impl_->rule; }
int64_t SparseTable::num_rows() const noexcept { return impl_->index.size(); }

int64_t SparseTable::num_bytes() const noexcept {
  return impl_->rows.num_bytes() + impl_->index.num_bytes() + impl_->order.num_bytes() +
         static_cast<int64_t>(impl_->marks.capacity() * sizeof(uint32_t));
}

void SparseTable::pull(std::span<const uint64_t> keys, MemorySpan out) const {
  const Impl& table = *impl_;
  table.require_span("pull", keys.size(), out);
  const Layout& layout = table.rows.layout();
  auto* to = static_cast<std::byte*>(out.data);
  table.in_turn(keys, layout.part_bytes, [&](size_t number, uint32_t slot) {
    if (slot == kNone)
      fill_initial(table.spec, {table.initial_key, keys[number]}, to);
    else
      std::memcpy(to, table.rows.row(slot), static_cast<size_t>(layout.part_bytes));
    to += layout.part_bytes;
  });
}

SparsePush SparseTable::push(std::span<const uint64_t> keys, MemorySpan gradients,
                             double learning_rate) {
  Impl& table = *impl_;
  table.require_span("push", keys.size(), gradients);
  table.rule.next({}, learning_rate);
  table.require_room("push", keys.size());
  table.require_unique<Error>("push", keys);
  if (!table.order_known) table.sort_all();
  ++table.pushes;
  table.rows.look_for_snapshots();

  SparsePush counts;
  const auto* gradient = static_cast<const std::byte*>(gradients.data);
  table.in_turn(keys, table.rows.layout().slot_bytes, [&](size_t number, uint32_t slot) {
    const bool is_new = slot == kNone;
    if (is_new) slot = table.make(keys[number]);
    table.update(slot, gradient, learning_rate);
    gradient += table.rows.layout().part_bytes;
    counts.made += is_new ? 1 : 0;
    if (!table.evicts()) return;
    if (!is_new) table.order.remove(slot);
    table.order.append(slot);
  });
  counts.evicted = table.evict();
  return counts;
}

// ---- Snapshots

SparseSnapshot SparseTable::snapshot() {
  auto cut = impl_->rows.cut();
  cut->num_rows = impl_->index.size();
  cut->pushes = impl_->pushes;
  return SparseSnapshot(std::move(cut));
}

int64_t SparseSnapshot::num_rows() const noexcept { return cut_->num_rows; }

SparseReader::SparseReader(SparseSnapshot snapshot) : snapshot_(std::move(snapshot)) {
  const detail::SparseCut& cut = *snapshot_.cut_;
  order_.reserve(static_cast<size_t>(cut.num_rows));
  const auto slots = static_cast<uint32_t>(cut.slabs.size() << cut.layout.shift);
  for (uint32_t slot = 0; slot < slots; ++slot) {
    const RowFacts& facts = cut.layout.facts(at_slot(cut.slabs, cut.layout, slot));
    if (facts.scalars.count > 0) order_.emplace_back(facts.key, slot);
  }
  std::ranges::sort(order_);
}

SparseRows SparseReader::next(int64_t most) {
  if (most < 1)
    throw UsageError(fmt::format("reading {} rows at a time; expected 1 or more", most));
  const detail::SparseCut& cut = *snapshot_.cut_;
  const Layout& layout = cut.layout;
  const size_t count = std::min(static_cast<size_t>(most), order_.size() - at_);
  const auto bytes = static_cast<size_t>(layout.part_bytes);
  SparseRows read;
  read.rows.reserve(count * bytes);
  read.states.resize(static_cast<size_t>(layout.num_parts - 1));
  for (auto& state : read.states) state.reserve(count * bytes);
  for (const auto& [key, slot] : std::span(order_).subspan(at_, count)) {
    const std::byte* const row = at_slot(cut.slabs, layout, slot);
    const auto append = [&](std::vector<std::byte>& to, size_t part) {
      to.insert(to.end(), row + part * bytes, row + (part + 1) * bytes);
    };
    append(read.rows, 0);
    for (size_t k = 0; k < read.states.size(); ++k) append(read.states[k], k + 1);
    const RowFacts& facts = layout.facts(row);
    read.keys.push_back(key);
    read.scalars.push_back(facts.scalars);
    read.ages.push_back(cut.pushes - facts.last_push);
  }
  at_ += count;
  return read;
}

// Throws DataError unless all arrays are whole and in range, and no row is there already.
void SparseTable::Impl::require_loadable(const SparseRows& from,
                                         std::span<const uint64_t> kept) const {
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("embedding table \"{}\": load: {}", spec.name, what));
  };
  const size_t count = from.keys.size();
  const auto require_length = [&](const std::string& array, size_t got, size_t expected) {
    if (got != expected)
      fail(fmt::format("{} of {} keys: got {}; expected {}", array, count, got, expected));
  };
  const size_t bytes = count * static_cast<size_t>(rows.layout().part_bytes);
  require_length("bytes of rows", from.rows.size(), bytes);
  require_length("arrays of states", from.states.size(), static_cast<size_t>(rule.num_states()));
  for (size_t k = 0; k < from.states.size(); ++k)
    require_length(fmt::format("bytes of {}", rule.state_name(static_cast<int>(k))),
                   from.states[k].size(), bytes);
  require_length("scalars", from.scalars.size(), count);
  require_length("ages", from.ages.size(), count);
  for (size_t i = 0; i < count; ++i) {
    const auto& [rate, beta1_power, beta2_power, updates] = from.scalars[i];
    const auto is_power = [](double value) { return value >= 0 && value <= 1; };
    if (updates < 1 || !is_power(beta1_power) || !is_power(beta2_power))
      fail(fmt::format("key {} has count {} and beta powers {}, {}; expected 1 or more, 0 to 1",
                       from.keys[i], updates, beta1_power, beta2_power));
    if (from.ages[i] < 0 || from.ages[i] > SparseTableSpec::kMostPushes)
      fail(fmt::format("key {} has age {}; expected 0 to {}", from.keys[i], from.ages[i],
                       SparseTableSpec::kMostPushes));
  }
  for (const uint64_t key : kept)
    if (index.find(key) != kNone) fail(fmt::format("key {} has a row already", key));
}

void SparseTable::Impl::put_back(const SparseRows& from, size_t number) {
  const Layout& layout = rows.layout();
  const auto bytes = static_cast<size_t>(layout.part_bytes);
  const uint32_t slot = rows.take();
  std::byte* const row = rows.writable(slot);
  layout.facts(row) = {from.keys[number], pushes - from.ages[number], from.scalars[number]};
  std::memcpy(row, from.rows.data() + number * bytes, bytes);
  for (size_t k = 0; k < from.states.size(); ++k)
    std::memcpy(row + (k + 1) * bytes, from.states[k].data() + number * bytes, bytes);
  index.insert(from.keys[number], slot);
}

void SparseTable::load(const SparseRows& rows, const std::function<bool(uint64_t)>& keep) {
  Impl& table = *impl_;
  std::vector<size_t> numbers;
  std::vector<uint64_t> kept;
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    if (keep && !keep(rows.keys[i])) continue;
    numbers.push_back(i);
    kept.push_back(rows.keys[i]);
  }
  table.require_loadable(rows, kept);
  table.require_room("load", kept.size());
  table.require_unique<DataError>("load", kept);
  table.rows.look_for_snapshots();
  table.order_known = !table.evicts();
  for (const size_t number : numbers) table.put_back(rows, number);
}

}  // namespace tutti::ps
