// Key: what a row is called. Slot: where it lies; a row keeps its slot until it is evicted. Slab: a
// few slots that are copied together. Push p: the p-th of this table; a load may place rows at
// pushes before the first.
#include "tutti/ps/values/sparse_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <tuple>

#include "tutti/base/error.h"
#include "tutti/ps/values/detail/sparse_index.h"
#include "tutti/ps/values/detail/sparse_initial.h"
#include "tutti/ps/values/detail/sparse_slabs.h"

namespace tutti::ps {
namespace {

using detail::fill_initial;
using detail::kNone;
using detail::Layout;
using detail::mixed;
using detail::RowFacts;
using detail::table_key;

static_assert(SparseTableSpec::kMostRows < kNone);

// Keys whose rows are read at once, so that their cache misses overlap. 16 rows of a kilobyte still
// leave half of a small first-level cache.
constexpr size_t kTogether = 16;
// What one thread takes: some microseconds' work.
constexpr size_t kBlock = 4 * kTogether;

template <class T>
void put(std::byte* row, int64_t element, T value) {
  std::memcpy(row + element * int64_t{sizeof(T)}, &value, sizeof(T));
}

// Rows of a cut, gathered slot by slot: `most` of them at most, of `left` that there are.
class GatheredRows {
 public:
  GatheredRows(const detail::SparseCut& cut, int64_t most, int64_t left)
      : cut_(cut), most_(static_cast<size_t>(most)) {
    if (most < 1)
      throw UsageError(fmt::format("reading {} rows at a time; expected 1 or more", most));
    const auto bytes =
        static_cast<size_t>(std::min(most, left)) * static_cast<size_t>(cut.layout.part_bytes);
    rows_.rows.reserve(bytes);
    rows_.states.resize(static_cast<size_t>(cut.layout.num_parts - 1));
    for (auto& state : rows_.states) state.reserve(bytes);
  }

  bool has_room() const { return rows_.keys.size() < most_; }

  void add(uint32_t slot) {
    const Layout& layout = cut_.layout;
    const auto bytes = static_cast<size_t>(layout.part_bytes);
    const std::byte* const row = detail::at_slot(cut_.slabs, layout, slot);
    const auto append = [&](std::vector<std::byte>& to, size_t part) {
      to.insert(to.end(), row + part * bytes, row + (part + 1) * bytes);
    };
    append(rows_.rows, 0);
    for (size_t k = 0; k < rows_.states.size(); ++k) append(rows_.states[k], k + 1);
    const RowFacts& facts = layout.facts(row);
    rows_.keys.push_back(facts.key);
    rows_.scalars.push_back(facts.scalars);
    rows_.ages.push_back(cut_.pushes - facts.last_push);
  }

  SparseRows take() { return std::move(rows_); }

 private:
  const detail::SparseCut& cut_;
  const size_t most_;
  SparseRows rows_;
};

}  // namespace

struct SparseTable::Impl {
  Impl(SparseTableSpec table_spec, optim::Rule table_rule, const Compute& compute)
      : spec(std::move(table_spec)),
        rule(table_rule),
        for_each(compute.for_each),
        initial_key(table_key(spec.seed, spec.name)),
        rows(Layout(spec, rule.num_states()), compute.charge) {}
  /// Equal to `other`, whose rows it shares.
  Impl(Impl& other)
      : spec(other.spec),
        rule(other.rule),
        for_each(other.for_each),
        initial_key(other.initial_key),
        rows(other.rows.fork()),
        index(other.index),
        pushes(other.pushes),
        order(other.order),
        order_known(other.order_known),
        sorted_through(other.sorted_through) {}

  bool evicts() const { return spec.most_rows > 0 || spec.idle_pushes > 0; }
  void require_span(std::string_view what, size_t num_keys, const MemorySpan& span) const;
  template <class Failure>
  void require_unique(std::string_view what, std::span<const uint64_t> keys);
  void require_room(std::string_view what, size_t num_keys) const;
  void require_loadable(const SparseRows& from, std::span<const uint64_t> kept) const;

  template <class Work>
  void in_turn(std::span<const uint64_t> keys, int64_t row_bytes, Work work) const;
  template <class Work>
  void at_once(std::span<const uint64_t> keys, int64_t row_bytes, Work work) const;
  void copy_what_snapshots_hold(std::span<const uint64_t> keys);
  uint32_t make(uint64_t key);
  const std::byte* update(uint32_t slot, const std::byte* gradient, double learning_rate);
  template <class Updated>
  SparsePush push(std::span<const uint64_t> keys, const MemorySpan& gradients, double learning_rate,
                  Updated updated);
  void put_back(const SparseRows& from, size_t number);
  void put_in_order(uint32_t slot);

  int64_t evict();
  void evict_front();
  void sort_front();
  void sort_all();

  SparseTableSpec spec;
  optim::Rule rule;
  decltype(Compute::for_each) for_each;
  uint64_t initial_key;
  detail::RowStore rows;
  detail::Index index;
  int64_t pushes = 0;
  std::vector<uint32_t> marks;  // scratch of require_unique
  std::vector<uint32_t> slots;  // scratch of push: of its keys

  // Only of a table that evicts. Rows of one push are put in order of key when it is their turn.
  detail::PushOrder order;
  bool order_known = true;     // false after a load of rows in another one: `order` lacks some
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

// Calls work(number, slot) for one key after another, the first `row_bytes` of rows being in the
// cache by then. `work` may make the row of its own key.
template <class Work>
void SparseTable::Impl::in_turn(std::span<const uint64_t> keys, int64_t row_bytes,
                                Work work) const {
  std::array<uint32_t, kTogether> slots;
  for (size_t begin = 0; begin < keys.size(); begin += kTogether) {
    const auto block = keys.subspan(begin, std::min(kTogether, keys.size() - begin));
    for (const uint64_t key : block) index.touch(key);
    for (size_t i = 0; i < block.size(); ++i) slots[i] = index.find(block[i]);
    for (size_t i = 0; i < block.size(); ++i)
      if (slots[i] != kNone) rows.touch(slots[i], row_bytes);
    for (size_t i = 0; i < block.size(); ++i) work(begin + i, slots[i]);
  }
}

// As in_turn(), but by several threads, each with blocks of keys.
template <class Work>
void SparseTable::Impl::at_once(std::span<const uint64_t> keys, int64_t row_bytes,
                                Work work) const {
  for_each(static_cast<int64_t>((keys.size() + kBlock - 1) / kBlock), [&](int64_t block) {
    const size_t begin = static_cast<size_t>(block) * kBlock;
    in_turn(keys.subspan(begin, std::min(kBlock, keys.size() - begin)), row_bytes,
            [&](size_t number, uint32_t slot) { work(begin + number, slot); });
  });
}

// In one thread: rows of several keys lie in a slab.
void SparseTable::Impl::copy_what_snapshots_hold(std::span<const uint64_t> keys) {
  rows.look_for_snapshots();
  if (!rows.held()) return;
  in_turn(keys, 0, [&](size_t, uint32_t slot) {
    if (slot != kNone) rows.writable(slot);
  });
}

uint32_t SparseTable::Impl::make(uint64_t key) {
  const Layout& layout = rows.layout();
  const uint32_t slot = rows.take();
  std::byte* const row = rows.writable(slot);
  layout.facts(row) = {.key = key};
  fill_initial(spec, initial_key, key, row);
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

// Returns the row.
const std::byte* SparseTable::Impl::update(uint32_t slot, const std::byte* gradient,
                                           double learning_rate) {
  const Layout& layout = rows.layout();
  std::byte* const row = rows.writable(slot);
  RowFacts& facts = layout.facts(row);
  facts.scalars = rule.next(facts.scalars, learning_rate);
  facts.last_push = pushes;
  std::array<void*, optim::kMostStates> states{};
  const auto num_states = static_cast<size_t>(layout.num_parts - 1);
  for (size_t k = 0; k < num_states; ++k)
    states[k] = row + static_cast<int64_t>(k + 1) * layout.part_bytes;
  rule.update(spec.dtype, row, gradient, std::span(states).first(num_states), spec.width,
              facts.scalars);
  return row;
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

SparseTable::SparseTable(SparseTableSpec spec, optim::Rule rule, const Compute& compute) {
  spec.validate();
  impl_ = std::make_unique<Impl>(std::move(spec), rule, compute);
}

SparseTable::SparseTable(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
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
  const auto bytes = static_cast<size_t>(layout.part_bytes);
  table.at_once(keys, layout.part_bytes, [&](size_t number, uint32_t slot) {
    std::byte* const to = static_cast<std::byte*>(out.data) + number * bytes;
    if (slot == kNone)
      fill_initial(table.spec, table.initial_key, keys[number], to);
    else
      std::memcpy(to, table.rows.row(slot), bytes);
  });
}

// `updated(number, row)` is called for each key, by several threads.
template <class Updated>
SparsePush SparseTable::Impl::push(std::span<const uint64_t> keys, const MemorySpan& gradients,
                                   double learning_rate, Updated updated) {
  require_span("push", keys.size(), gradients);
  rule.next({}, learning_rate);
  require_room("push", keys.size());
  require_unique<Error>("push", keys);
  if (!order_known) sort_all();
  ++pushes;
  copy_what_snapshots_hold(keys);

  const auto bytes = static_cast<size_t>(rows.layout().part_bytes);
  const auto step = [&](size_t number, uint32_t slot) {
    const auto* const gradient = static_cast<const std::byte*>(gradients.data) + number * bytes;
    updated(number, update(slot, gradient, learning_rate));
  };
  slots.resize(keys.size());
  at_once(keys, rows.layout().slot_bytes, [&](size_t number, uint32_t slot) {
    slots[number] = slot;
    if (slot != kNone) step(number, slot);
  });

  // What changes more than rows that are there, in one thread.
  SparsePush counts;
  for (size_t number = 0; number < keys.size(); ++number) {
    uint32_t slot = slots[number];
    const bool is_new = slot == kNone;
    if (is_new) {
      slot = make(keys[number]);
      step(number, slot);
      ++counts.made;
    }
    if (!evicts()) continue;
    if (!is_new) order.remove(slot);
    order.append(slot);
  }
  counts.evicted = evict();
  return counts;
}

SparsePush SparseTable::push(std::span<const uint64_t> keys, MemorySpan gradients,
                             double learning_rate) {
  return impl_->push(keys, gradients, learning_rate, [](size_t, const std::byte*) {});
}

SparsePush SparseTable::push_pull(std::span<const uint64_t> keys, MemorySpan gradients,
                                  double learning_rate, MemorySpan out) {
  impl_->require_span("pull", keys.size(), out);
  const auto bytes = static_cast<size_t>(impl_->rows.layout().part_bytes);
  const SparsePush counts =
      impl_->push(keys, gradients, learning_rate, [&](size_t number, const std::byte* row) {
        std::memcpy(static_cast<std::byte*>(out.data) + number * bytes, row, bytes);
      });
  // Only then may rows of this very push be gone again.
  if (const int64_t most = spec().most_rows; most > 0 && std::ssize(keys) > most) pull(keys, out);
  return counts;
}

// ---- Snapshots

SparseSnapshot SparseTable::snapshot() {
  auto cut = impl_->rows.cut();
  cut->num_rows = impl_->index.size();
  cut->pushes = impl_->pushes;
  return SparseSnapshot(std::move(cut));
}

SparseScan SparseTable::scan() {
  const bool in_order = impl_->evicts() && impl_->order_known;
  return {snapshot(), in_order ? std::make_shared<const detail::PushOrder>(impl_->order) : nullptr};
}

SparseTable SparseTable::fork() { return SparseTable(std::make_unique<Impl>(*impl_)); }

int64_t SparseSnapshot::num_rows() const noexcept { return cut_->num_rows; }

SparseReader::SparseReader(SparseSnapshot snapshot) : snapshot_(std::move(snapshot)) {
  const detail::SparseCut& cut = *snapshot_.cut_;
  order_.reserve(static_cast<size_t>(cut.num_rows));
  const auto slots = static_cast<uint32_t>(cut.slabs.size() << cut.layout.shift);
  for (uint32_t slot = 0; slot < slots; ++slot) {
    const RowFacts& facts = cut.layout.facts(detail::at_slot(cut.slabs, cut.layout, slot));
    if (facts.scalars.count > 0) order_.emplace_back(facts.key, slot);
  }
  std::ranges::sort(order_);
}

SparseRows SparseReader::next(int64_t most) {
  GatheredRows rows(*snapshot_.cut_, most, static_cast<int64_t>(order_.size() - at_));
  while (rows.has_room() && at_ < order_.size()) rows.add(order_[at_++].second);
  return rows.take();
}

SparseScan::SparseScan(SparseSnapshot snapshot, std::shared_ptr<const detail::PushOrder> order)
    : snapshot_(std::move(snapshot)), order_(std::move(order)) {
  if (order_) at_ = order_->front();
}

SparseRows SparseScan::next(int64_t most) {
  const detail::SparseCut& cut = *snapshot_.cut_;
  GatheredRows rows(cut, most, cut.num_rows);
  const auto end = static_cast<uint32_t>(cut.slabs.size() << cut.layout.shift);
  while (rows.has_room() && at_ < end) {  // kNone, behind the last in order, is above all slots
    const RowFacts& facts = cut.layout.facts(detail::at_slot(cut.slabs, cut.layout, at_));
    if (facts.scalars.count > 0) rows.add(at_);
    at_ = order_ ? order_->after(at_) : at_ + 1;
  }
  return rows.take();
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
    const optim::StepScalars& scalars = from.scalars[i];
    const auto is_power = [](double value) { return value >= 0 && value <= 1; };
    if (scalars.count < 1 || !is_power(scalars.beta1_power) || !is_power(scalars.beta2_power))
      fail(fmt::format("key {} has count {} and beta powers {}, {}; expected 1 or more, 0 to 1",
                       from.keys[i], scalars.count, scalars.beta1_power, scalars.beta2_power));
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
  if (order_known && evicts()) put_in_order(slot);
}

// Behind the others, as long as none of them was pushed later. Rows of one push need not be in
// order of key.
void SparseTable::Impl::put_in_order(uint32_t slot) {
  const int64_t push = rows.facts(slot).last_push;
  order_known = order.back() == kNone || rows.facts(order.back()).last_push <= push;
  if (!order_known) return;
  order.append(slot);
  sorted_through = std::min(sorted_through, push - 1);
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
  for (const size_t number : numbers) table.put_back(rows, number);
}

}  // namespace tutti::ps
