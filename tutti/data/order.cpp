#include "tutti/data/detail/order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/random.h"

namespace tutti::data::detail {
namespace {

// An order is kept as a list: 16 GiB of it, at 8 bytes a sample, is a slip of the keyboard.
constexpr int64_t kMostSamples = int64_t{1} << 31;

struct AllRows final : View {
  explicit AllRows(int64_t num_rows) : View(num_rows) {}
  std::vector<int64_t> order(Pass) const override {
    std::vector<int64_t> rows(static_cast<size_t>(num_samples));
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
  }
  int num_shuffles() const override { return 0; }
  ViewHandle below() const override { return nullptr; }
  ViewHandle over(const ViewHandle&) const override { return all_rows(num_samples); }
  bool keeps_order() const override { return true; }
};

struct Derived : View {
  Derived(ViewHandle from, int64_t samples) : View(samples), before(std::move(from)) {}
  int num_shuffles() const override { return before->num_shuffles(); }
  ViewHandle below() const override { return before; }
  const ViewHandle before;
};

struct Shuffled final : Derived {
  Shuffled(const ViewHandle& from, ShuffleOptions shuffle)
      : Derived(from, from->num_samples), options(shuffle) {}
  std::vector<int64_t> order(Pass pass) const override {
    const std::vector<int64_t> rows = before->order(pass);
    const auto epoch = static_cast<uint64_t>(options.each_epoch ? pass.epoch : 0);
    const auto which = static_cast<uint64_t>(before->num_shuffles());
    std::vector<int64_t> places = random_permutation(
        num_samples,
        random_key(options.seed.value_or(pass.seed), RandomPurpose::shuffle, {epoch, which}));
    for (int64_t& place : places) place = rows[static_cast<size_t>(place)];
    return places;
  }
  int num_shuffles() const override { return before->num_shuffles() + 1; }
  ViewHandle over(const ViewHandle& other) const override { return shuffled(other, options); }
  bool keeps_order() const override { return false; }
  const ShuffleOptions options;
};

struct Repeated final : Derived {
  Repeated(const ViewHandle& from, int64_t times)
      : Derived(from, from->num_samples * times), count(times) {}
  std::vector<int64_t> order(Pass pass) const override {
    std::vector<int64_t> rows;
    rows.reserve(static_cast<size_t>(num_samples));
    for (int64_t k = 0; k < count; ++k) {
      const auto again = before->order({pass.epoch * count + k, pass.seed});
      rows.insert(rows.end(), again.begin(), again.end());
    }
    return rows;
  }
  ViewHandle over(const ViewHandle& other) const override { return repeated(other, count); }
  bool keeps_order() const override { return false; }
  const int64_t count;
};

struct Sharded final : Derived {
  Sharded(const ViewHandle& from, int64_t shard_index, int64_t shards)
      : Derived(from, (from->num_samples - shard_index + shards - 1) / shards),
        index(shard_index),
        count(shards) {}
  std::vector<int64_t> order(Pass pass) const override {
    std::vector<int64_t> rows = before->order(pass);
    for (int64_t i = 0; i < num_samples; ++i)
      rows[static_cast<size_t>(i)] = rows[static_cast<size_t>(index + i * count)];
    rows.resize(static_cast<size_t>(num_samples));
    return rows;
  }
  ViewHandle over(const ViewHandle& other) const override { return sharded(other, index, count); }
  bool keeps_order() const override { return true; }
  const int64_t index;
  const int64_t count;
};

/// Samples [begin, end) of the order before.
struct Range final : Derived {
  Range(const ViewHandle& from, int64_t range_begin, int64_t range_end)
      : Derived(from, range_end - range_begin), begin(range_begin) {}
  std::vector<int64_t> order(Pass pass) const override {
    const std::vector<int64_t> rows = before->order(pass);
    return {rows.begin() + begin, rows.begin() + begin + num_samples};
  }
  ViewHandle over(const ViewHandle& other) const override {
    const int64_t end = std::min(begin + num_samples, other->num_samples);
    return std::make_shared<Range>(other, std::min(begin, end), end);
  }
  bool keeps_order() const override { return true; }
  const int64_t begin;
};

}  // namespace

ViewHandle all_rows(int64_t num_rows) { return std::make_shared<AllRows>(num_rows); }

ViewHandle shuffled(const ViewHandle& before, ShuffleOptions options) {
  return std::make_shared<Shuffled>(before, options);
}

ViewHandle repeated(const ViewHandle& before, int64_t count) {
  if (count < 1) throw UsageError(fmt::format("repeat({}): expected 1 or more", count));
  int64_t samples = 0;
  if (__builtin_mul_overflow(before->num_samples, count, &samples) || samples > kMostSamples)
    throw UsageError(fmt::format(
        "repeat({}) of {} samples: an epoch may hold at most {}; train more epochs instead", count,
        before->num_samples, kMostSamples));
  return std::make_shared<Repeated>(before, count);
}

ViewHandle sharded(const ViewHandle& before, int64_t index, int64_t count) {
  if (count < 1 || index < 0 || index >= count)
    throw UsageError(fmt::format(
        "shard(index {}, count {}): expected 1 shard or more and an index below the count", index,
        count));
  return std::make_shared<Sharded>(before, index, count);
}

ViewHandle taken(const ViewHandle& before, int64_t count) {
  if (count < 0) throw UsageError(fmt::format("take({}): expected 0 or more", count));
  return std::make_shared<Range>(before, 0, std::min(count, before->num_samples));
}

std::pair<ViewHandle, ViewHandle> split(const ViewHandle& view, double last_share) {
  std::vector<ViewHandle> chain;  // from the source up
  for (ViewHandle next = view; next; next = next->below()) chain.insert(chain.begin(), next);
  const auto first_mix = std::find_if(chain.begin(), chain.end(),
                                      [](const ViewHandle& each) { return !each->keeps_order(); });
  const ViewHandle& whole = *(first_mix - 1);
  const auto cut = static_cast<int64_t>(
      std::floor(static_cast<double>(whole->num_samples) * (1.0 - last_share)));
  ViewHandle rest = std::make_shared<Range>(whole, 0, cut);
  for (auto each = first_mix; each != chain.end(); ++each) rest = (*each)->over(rest);
  return {rest, std::make_shared<Range>(whole, cut, whole->num_samples)};
}

}  // namespace tutti::data::detail
