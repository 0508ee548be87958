#include "tutti/sync/sparse_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/ps/client/client.h"
#include "tutti/ps/values/sparse_batch.h"
#include "tutti/ps/values/sparse_table.h"
#include "tutti/sync/detail/gradients.h"
#include "tutti/sync/updater.h"

namespace tutti {
namespace {

using ps::SparseTableSpec;

// Keys and a row for each, one after another.
struct KeyedRows {
  std::vector<uint64_t> keys;
  std::vector<std::byte> rows;

  void append(std::span<const uint64_t> more, const void* data, const SparseTableSpec& spec) {
    if (more.empty()) return;
    const auto* const begin = static_cast<const std::byte*>(data);
    const auto bytes = more.size() * static_cast<size_t>(spec.width * size_of(spec.dtype));
    keys.insert(keys.end(), more.begin(), more.end());
    rows.insert(rows.end(), begin, begin + bytes);
  }
  // Only to be read.
  MemorySpan span(const SparseTableSpec& spec) const {
    return {const_cast<std::byte*>(rows.data()), std::ssize(keys) * spec.width, spec.dtype};
  }
};

// Each key once, in the order in which they first come, with the sum of its rows in theirs.
KeyedRows summed(std::span<const uint64_t> keys, const void* rows, const SparseTableSpec& spec) {
  const ps::SparseBatch batch(keys, spec, 1);
  std::vector<std::byte> payload(static_cast<size_t>(batch.payload_bytes(0)));
  batch.gather(0, static_cast<const std::byte*>(rows), payload.data());
  KeyedRows sums;
  sums.append(batch.keys(0), payload.data() + batch.keys(0).size() * sizeof(uint64_t), spec);
  return sums;
}

class RowsHere final : public SparseTables::Rows {
 public:
  RowsHere(const std::vector<SparseTableSpec>& specs, const optim::Rule& rule) {
    for (const SparseTableSpec& spec : specs) tables_.emplace_back(spec, rule);
  }

  Array pull(int table, std::span<const uint64_t> keys) override {
    const SparseTableSpec& spec = tables_.at(table).spec();
    Array rows = Array::zeros(spec.dtype, {std::ssize(keys), spec.width});
    tables_[table].pull(keys, {rows.data(), std::ssize(keys) * spec.width, spec.dtype});
    return rows;
  }

  void push(int table, std::span<const uint64_t> keys, MemorySpan gradients,
            double learning_rate) override {
    const SparseTableSpec& spec = tables_.at(table).spec();
    const KeyedRows sums = summed(keys, gradients.data, spec);
    tables_[table].push(sums.keys, sums.span(spec), learning_rate);
  }

  ps::SparseTable& own(int table) override { return tables_.at(table); }

 private:
  std::vector<ps::SparseTable> tables_;
};

class RowsOnServers final : public SparseTables::Rows {
 public:
  RowsOnServers(std::shared_ptr<Updater> updater, Millis limit)
      : updater_(std::move(updater)), limit_(limit) {}

  Array pull(int table, std::span<const uint64_t> keys) override {
    ps::Client& client = *updater_->parts().client;
    return client.sparse_fetch(client.sparse_pull(table, keys, updater_->version()),
                               Deadline(limit_));
  }

  void push(int table, std::span<const uint64_t> keys, MemorySpan gradients,
            double learning_rate) override {
    updater_->parts().client->sparse_push(table, keys, gradients, updater_->version(),
                                          learning_rate);
  }

  ps::SparseTable& own(int) override {
    throw UsageError("rows of embedding tables are on servers, which keep snapshots of them");
  }

 private:
  std::shared_ptr<Updater> updater_;
  Millis limit_;
};

}  // namespace

std::vector<SparseTableSpec> tables_of(const std::vector<std::shared_ptr<TableLayer>>& layers) {
  std::vector<SparseTableSpec> specs;
  for (const auto& layer : layers) {
    const SparseTableSpec& spec = layer->table();
    const auto known = std::ranges::find(specs, spec.name, &SparseTableSpec::name);
    if (known == specs.end())
      specs.push_back(spec);
    else if (!(*known == spec))
      throw UsageError(fmt::format("two layers of a model share a table and differ in it: {}; {}",
                                   known->words(), spec.words()));
  }
  return specs;
}

SparseTables::SparseTables(std::vector<SparseTableSpec> specs, std::unique_ptr<Rows> rows)
    : specs_(std::move(specs)), rows_(std::move(rows)) {}

void SparseTables::bind(const World& world, TableLayers layers) {
  world_ = world;
  handed_in_ = 0;
  lanes_ = std::vector<Lane>(layers.size());
  for (size_t local = 0; local < layers.size(); ++local) {
    lanes_[local].layers = std::move(layers[local]);
    lanes_[local].gradients.resize(specs_.size());
    for (const auto& layer : lanes_[local].layers)
      layer->connect(shared_from_this(), number_of(layer->table()));
  }
}

int SparseTables::number_of(const SparseTableSpec& spec) const {
  return static_cast<int>(std::ranges::find(specs_, spec) - specs_.begin());
}

Array SparseTables::rows(int table, std::span<const uint64_t> keys) {
  if (on_look_up_) on_look_up_(specs_.at(static_cast<size_t>(table)));
  return rows_->pull(table, keys);
}

void SparseTables::on_look_up(std::function<void(const SparseTableSpec&)> called) {
  on_look_up_ = std::move(called);
}

void SparseTables::forget_step() {
  handed_in_ = 0;
  left_out_ = false;
  for (Lane& lane : lanes_) lane.handed_in = -1;
}

bool SparseTables::hand_in(int replica, PartInStep part, int64_t version, double learning_rate) {
  Lane& lane = lanes_.at(replica);
  if (lane.handed_in == version) detail::throw_took_part_twice(world_.first_rank + replica);
  lane.handed_in = version;
  for (auto& gradients : lane.gradients) gradients.clear();
  for (const auto& layer : lane.layers) {
    auto taken = layer->take_gradients();
    if (part == kAbstains) continue;
    auto& gradients = lane.gradients[number_of(layer->table())];
    std::ranges::move(taken, std::back_inserter(gradients));
  }
  const bool some = !std::ranges::all_of(lane.gradients, &std::vector<RowGradients>::empty);
  const std::lock_guard lock(mutex_);
  left_out_ |= part == kLeavesOut;
  if (++handed_in_ < world_.local) return some;
  handed_in_ = 0;
  if (std::exchange(left_out_, false)) {
    for (Lane& any : lanes_) any.handed_in = -1;  // another step comes at this version
    return some;
  }
  update(learning_rate);
  return some;
}

void SparseTables::forget() {
  for (const Lane& lane : lanes_)
    for (const auto& layer : lane.layers) layer->take_gradients();
}

void SparseTables::zero_gradients(int replica) {
  for (const auto& layer : lanes_.at(replica).layers) layer->zero_gradients();
}

void SparseTables::update(double learning_rate) {
  for (size_t table = 0; table < specs_.size(); ++table) {
    KeyedRows all;
    for (const Lane& lane : lanes_) {
      KeyedRows own;
      for (const RowGradients& part : lane.gradients[table])
        own.append(part.keys, part.gradients.data, specs_[table]);
      const KeyedRows sums = summed(own.keys, own.rows.data(), specs_[table]);
      all.append(sums.keys, sums.rows.data(), specs_[table]);
    }
    rows_->push(static_cast<int>(table), all.keys, all.span(specs_[table]), learning_rate);
  }
}

std::unique_ptr<SparseTables::Rows> rows_here(const std::vector<SparseTableSpec>& specs,
                                              const optim::Rule& rule) {
  return std::make_unique<RowsHere>(specs, rule);
}

std::unique_ptr<SparseTables::Rows> rows_on_servers(std::shared_ptr<Updater> updater,
                                                    Millis time_limit) {
  return std::make_unique<RowsOnServers>(std::move(updater), time_limit);
}

}  // namespace tutti
