// Datasets of single numbers, and what their batches hold.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "tutti/data/combine.h"
#include "tutti/data/dataset.h"

namespace tutti::data {

/// 0 .. n-1 as int64 [].
inline Dataset counting(int64_t n) {
  std::vector<int64_t> x(static_cast<size_t>(n));
  std::iota(x.begin(), x.end(), 0);
  return from_arrays({array_of(std::move(x), {n})});
}

using Lists = std::vector<std::vector<int64_t>>;

/// Row i holds lists[i], as int64 [?]. Counts its reads; can be told to fail.
class ListSource final : public SampleSource {
 public:
  explicit ListSource(Lists lists, std::string name = {})
      : lists_(std::move(lists)), name_(std::move(name)) {}
  int64_t num_rows() const override { return std::ssize(lists_); }
  const std::vector<Column>& columns() const override { return columns_; }
  Sample read_row(int64_t row) const override {
    {
      const std::scoped_lock lock(mutex_);
      ++reads_[row];
    }
    if (on_read) on_read(row);
    const auto& list = lists_.at(static_cast<size_t>(row));
    return {{array_of(std::vector<int64_t>(list), {std::ssize(list)})}};
  }
  std::string where(int64_t row) const override { return "list " + std::to_string(row); }
  std::string fingerprint() const override { return name_; }

  std::map<int64_t, int64_t> reads() const {
    const std::scoped_lock lock(mutex_);
    return reads_;
  }
  int64_t num_reads() const {
    int64_t all = 0;
    for (const auto& [row, count] : reads()) all += count;
    return all;
  }

  std::function<void(int64_t row)> on_read;
  std::vector<Column> columns_{{"x", DType::int64, {kAnySize}}};

 private:
  const Lists lists_;
  const std::string name_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, int64_t> reads_;
};

inline Dataset lists(Lists rows) { return Dataset(std::make_shared<ListSource>(std::move(rows))); }

/// Rows 0 .. n-1, each one number, read one by one; with a fingerprint where it has a name.
inline std::shared_ptr<ListSource> counted_reads(int64_t n, const std::string& name = {}) {
  Lists rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back({i});
  auto source = std::make_shared<ListSource>(std::move(rows), name);
  source->columns_[0].shape = {1};
  return source;
}

inline std::vector<int64_t> numbers_in(const Batch& batch, size_t column = 0) {
  const auto all = Array(batch.columns.at(column)).as<int64_t>();
  return {all.begin(), all.end()};
}

/// The numbers of column 0, batch by batch.
inline Lists batches(const Dataset& dataset, EpochOptions options = {}) {
  Lists all;
  const Epoch epoch = dataset.epoch(options);
  for (int64_t step = 0; step < epoch.num_batches(); ++step)
    all.push_back(numbers_in(epoch.batch(step)));
  return all;
}

/// All in one.
inline std::vector<int64_t> order_of(const Dataset& dataset, EpochOptions options = {}) {
  const Lists all = batches(dataset.batch(1000), options);
  return all.empty() ? std::vector<int64_t>{} : all[0];
}

/// The number of a sample of counting(), or the first of a list.
inline int64_t number_in(const Sample& sample) {
  return *static_cast<const int64_t*>(sample.columns.at(0).data());
}

inline Sample plus(const Sample& sample, int64_t more) {
  Sample out{{make_array(DType::int64, sample.columns[0].shape())}};
  const auto from = Array(sample.columns[0]).as<int64_t>();
  const auto to = out.columns[0].as<int64_t>();
  for (size_t i = 0; i < to.size(); ++i) to[i] = from[i] + more;
  return out;
}

}  // namespace tutti::data
