#include "tutti/comm/engine/engine_counts.h"

#include <algorithm>
#include <mutex>
#include <tuple>

namespace tutti {

/// Of the counters that live, and the sums of those that are gone.
struct detail::KnownCounters {
  std::mutex mutex;
  std::vector<const EngineCounter*> living;
  std::vector<EngineCount> gone;
};

namespace {

constexpr auto kCollectives = static_cast<size_t>(Collective::send);  // messages come behind them

// Counters that outlive it keep it.
std::shared_ptr<detail::KnownCounters> known() {
  static const auto all = std::make_shared<detail::KnownCounters>();
  return all;
}

void add(std::vector<EngineCount>& all, const EngineCount& one) {
  const auto key = [](const EngineCount& count) {
    return std::tie(count.engine, count.collective, count.algorithm);
  };
  const auto place = std::ranges::lower_bound(all, key(one), {}, key);
  if (place != all.end() && key(*place) == key(one)) {
    place->calls += one.calls;
    place->bytes += one.bytes;
  } else {
    all.insert(place, one);
  }
}

}  // namespace

EngineCounter::EngineCounter(std::string_view engine, std::span<const std::string_view> algorithms)
    : known_(known()),
      engine_(engine),
      algorithms_(algorithms),
      cells_(kCollectives * std::max<size_t>(1, algorithms.size())) {
  const std::lock_guard lock(known_->mutex);
  known_->living.push_back(this);
}

EngineCounter::~EngineCounter() {
  const std::lock_guard lock(known_->mutex);
  std::erase(known_->living, this);
  add_to(known_->gone);
}

// One thread at a time counts: a load and a store, and no lock on the bus.
void EngineCounter::count(const Operation& operation, size_t algorithm) noexcept {
  const auto collective = static_cast<size_t>(operation.collective);
  if (collective >= kCollectives) return;
  Cell& cell = cells_[collective * std::max<size_t>(1, algorithms_.size()) + algorithm];
  const auto more = [](std::atomic<int64_t>& number, int64_t by) {
    number.store(number.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  };
  more(cell.calls, 1);
  more(cell.bytes, std::max(operation.input.num_bytes(), operation.output.num_bytes()));
}

void EngineCounter::add_to(std::vector<EngineCount>& all) const {
  const size_t each = std::max<size_t>(1, algorithms_.size());
  for (size_t i = 0; i < cells_.size(); ++i) {
    const int64_t calls = cells_[i].calls.load(std::memory_order_relaxed);
    if (calls == 0) continue;
    add(all, {.engine = std::string(engine_),
              .collective = static_cast<Collective>(i / each),
              .algorithm = algorithms_.empty() ? "" : std::string(algorithms_[i % each]),
              .calls = calls,
              .bytes = cells_[i].bytes.load(std::memory_order_relaxed)});
  }
}

std::vector<EngineCount> engine_counts() {
  const auto all_counters = known();
  const std::lock_guard lock(all_counters->mutex);
  std::vector<EngineCount> all = all_counters->gone;
  for (const EngineCounter* const counter : all_counters->living) counter->add_to(all);
  return all;
}

}  // namespace tutti
