#include "tutti/data/detail/order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/random.h"

namespace tutti::data::detail {
namespace {

// 16 GiB, at 8 bytes a sample.
constexpr int64_t kMostSamples = int64_t{1} << 31;

struct AllRows final : View {
  AllRows(int64_t num_rows, int shuffles_inside, bool each_once)
      : View(num_rows), shuffles(shuffles_inside), once(each_once) {}
  Order order(Pass pass) const override {
    Order all{.ids = std::vector<int64_t>(static_cast<size_t>(num_samples)),
              .epochs = {},
              .epoch = pass.epoch};
    std::iota(all.ids.begin(), all.ids.end(), 0);
    return all;
  }
  int num_shuffles() const override { return shuffles; }
  ViewHandle below() const override { return nullptr; }
  ViewHandle over(const ViewHandle& other) const override { return other; }
  bool keeps_order() const override { return once; }
  bool same_order() const override { return true; }
  bool same_samples() const override { return true; }
  const int shuffles;
  const bool once;
};

struct Derived : View {
  Derived(ViewHandle from, int64_t samples) : View(samples), before(std::move(from)) {}
  int num_shuffles() const override { return before->num_shuffles(); }
  ViewHandle below() const override { return before; }
  bool keeps_order() const override { return true; }
  bool same_order() const override { return before->same_order(); }
  bool same_samples() const override { return before->same_order(); }
  const ViewHandle before;
};

// Place by place what tf.data's shuffle gives with a buffer of `window`.
std::vector<int64_t> windowed_permutation(int64_t n, int64_t window, uint64_t key) {
  RandomStream random(key);
  std::vector<int64_t> buffer(static_cast<size_t>(std::min(n, window)));
  std::iota(buffer.begin(), buffer.end(), int64_t{0});
  std::vector<int64_t> places;
  places.reserve(static_cast<size_t>(n));
  for (int64_t next = std::ssize(buffer); !buffer.empty(); ++next) {
    int64_t& drawn = buffer[random.below(buffer.size())];
    places.push_back(drawn);
    drawn = next < n ? next : buffer.back();
    if (next >= n) buffer.pop_back();
  }
  return places;
}

struct Shuffled final : Derived {
  Shuffled(const ViewHandle& from, ShuffleOptions shuffle)
      : Derived(from, from->num_samples), options(shuffle) {}
  Order order(Pass pass) const override {
    const auto epoch = static_cast<uint64_t>(options.each_epoch ? pass.epoch : 0);
    const auto which = static_cast<uint64_t>(before->num_shuffles());
    const uint64_t key =
        random_key(options.seed.value_or(pass.seed), RandomPurpose::shuffle, {epoch, which});
    const bool whole = options.window == 0 || options.window >= num_samples;
    return before->order(pass).picked(whole
                                          ? random_permutation(num_samples, key)
                                          : windowed_permutation(num_samples, options.window, key));
  }
  int num_shuffles() const override { return before->num_shuffles() + 1; }
  ViewHandle over(const ViewHandle& other) const override { return shuffled(other, options); }
  bool keeps_order() const override { return false; }
  bool same_order() const override { return false; }
  bool same_samples() const override { return before->same_samples(); }
  const ShuffleOptions options;
};

struct Repeated final : Derived {
  Repeated(const ViewHandle& from, int64_t times)
      : Derived(from, from->num_samples * times), count(times) {}
  Order order(Pass pass) const override {
    Order all{.ids = {}, .epochs = {}, .epoch = pass.epoch * count};
    all.ids.reserve(static_cast<size_t>(num_samples));
    for (int64_t k = 0; k < count; ++k)
      all.append(before->order({pass.epoch * count + k, pass.seed}));
    return all;
  }
  ViewHandle over(const ViewHandle& other) const override { return repeated(other, count); }
  bool keeps_order() const override { return false; }
  bool same_samples() const override { return before->same_samples(); }
  const int64_t count;
};

struct Sharded final : Derived {
  Sharded(const ViewHandle& from, int64_t shard_index, int64_t shards)
      : Derived(from, (from->num_samples - shard_index + shards - 1) / shards),
        index(shard_index),
        count(shards) {}
  Order order(Pass pass) const override {
    std::vector<int64_t> places(static_cast<size_t>(num_samples));
    for (size_t i = 0; i < places.size(); ++i) places[i] = index + static_cast<int64_t>(i) * count;
    return before->order(pass).picked(places);
  }
  ViewHandle over(const ViewHandle& other) const override { return sharded(other, index, count); }
  bool same_samples() const override {
    return before->same_order() || (count == 1 && before->same_samples());
  }
  const int64_t index;
  const int64_t count;
};

/// Samples [begin, end) of the order before.
struct Range final : Derived {
  Range(const ViewHandle& from, int64_t range_begin, int64_t range_end)
      : Derived(from, range_end - range_begin), begin(range_begin) {}
  Order order(Pass pass) const override {
    const auto cut = [&](const std::vector<int64_t>& all) {
      return all.empty()
                 ? all
                 : std::vector<int64_t>{all.begin() + begin, all.begin() + begin + num_samples};
    };
    const Order all = before->order(pass);
    return {.ids = cut(all.ids), .epochs = cut(all.epochs), .epoch = all.epoch};
  }
  ViewHandle over(const ViewHandle& other) const override {
    const int64_t end = std::min(begin + num_samples, other->num_samples);
    return std::make_shared<Range>(other, std::min(begin, end), end);
  }
  bool same_samples() const override {
    return before->same_order() || (num_samples == before->num_samples && before->same_samples());
  }
  const int64_t begin;
};

struct Hinted final : Derived {
  explicit Hinted(const ViewHandle& from) : Derived(from, from->num_samples) {}
  Order order(Pass pass) const override { return before->order(pass); }
  ViewHandle over(const ViewHandle& other) const override { return hinted(other); }
  // As the shard() that takes its place.
  bool same_samples() const override { return before->same_order(); }
};

// From the source up.
std::vector<ViewHandle> chain_of(const ViewHandle& view) {
  std::vector<ViewHandle> chain;
  for (ViewHandle next = view; next; next = next->below()) chain.insert(chain.begin(), next);
  return chain;
}

using Flags = std::shared_ptr<const std::vector<uint8_t>>;

int64_t count_kept(const ViewHandle& view, const std::vector<uint8_t>& flags) {
  return std::ranges::count_if(view->order({}).ids,
                               [&](int64_t id) { return flags[static_cast<size_t>(id)] != 0; });
}

struct Kept final : Derived {
  Kept(const ViewHandle& from, Flags kept_flags)
      : Derived(from, count_kept(from, *kept_flags)), flags(std::move(kept_flags)) {}
  Order order(Pass pass) const override {
    const Order all = before->order(pass);
    std::vector<int64_t> places;
    places.reserve(static_cast<size_t>(num_samples));
    for (size_t i = 0; i < all.ids.size(); ++i)
      if ((*flags)[static_cast<size_t>(all.ids[i])] != 0) places.push_back(static_cast<int64_t>(i));
    return all.picked(places);
  }
  ViewHandle over(const ViewHandle& other) const override { return kept(other, flags); }
  bool same_samples() const override { return before->same_samples(); }
  bool by_sample() const override { return true; }
  const Flags flags;
};

using Firsts = std::shared_ptr<const std::vector<int64_t>>;

int64_t count_of(const std::vector<int64_t>& first, int64_t id) {
  return first[static_cast<size_t>(id) + 1] - first[static_cast<size_t>(id)];
}

// Where all have as many parts it does not matter which samples an epoch has.
int64_t count_unfolded(const ViewHandle& view, const std::vector<int64_t>& first) {
  int64_t samples = 0;
  for (int64_t id : view->order({}).ids) samples += count_of(first, id);
  require_list(samples, "flat_map() or unbatch()");
  return samples;
}

struct Unfolded final : Derived {
  Unfolded(const ViewHandle& from, Firsts firsts)
      : Derived(from, count_unfolded(from, *firsts)), first(std::move(firsts)) {}
  Order order(Pass pass) const override {
    const Order all = before->order(pass);
    Order out{.ids = {}, .epochs = {}, .epoch = all.epoch};
    out.ids.reserve(static_cast<size_t>(num_samples));
    for (size_t i = 0; i < all.ids.size(); ++i) {
      const int64_t begin = (*first)[static_cast<size_t>(all.ids[i])];
      const int64_t count = count_of(*first, all.ids[i]);
      for (int64_t k = 0; k < count; ++k) {
        out.ids.push_back(begin + k);
        if (!all.epochs.empty()) out.epochs.push_back(all.epochs[i]);
      }
    }
    return out;
  }
  ViewHandle over(const ViewHandle& other) const override { return unfolded(other, first); }
  bool same_samples() const override { return before->same_samples(); }
  bool by_sample() const override { return true; }
  const Firsts first;
};

}  // namespace

Order Order::picked(const std::vector<int64_t>& places) const {
  const auto pick = [&](const std::vector<int64_t>& all) {
    std::vector<int64_t> some;
    if (all.empty()) return some;
    some.reserve(places.size());
    for (int64_t place : places) some.push_back(all[static_cast<size_t>(place)]);
    return some;
  };
  return {.ids = pick(ids), .epochs = pick(epochs), .epoch = epoch};
}

void Order::append(const Order& other, int64_t offset) {
  const bool alike = epochs.empty() && other.epochs.empty() &&
                     (ids.empty() || other.ids.empty() || other.epoch == epoch);
  if (alike && ids.empty()) epoch = other.epoch;
  if (!alike && epochs.empty()) epochs.assign(ids.size(), epoch);
  for (size_t i = 0; i < other.ids.size(); ++i) {
    ids.push_back(other.ids[i] + offset);
    if (!alike) epochs.push_back(other.epoch_at(i));
  }
}

void require_list(int64_t samples, const std::string& words) {
  if (samples < 0 || samples > kMostSamples)
    throw UsageError(fmt::format("{}: an epoch may hold at most {} samples", words, kMostSamples));
}

void require_same_samples(const View& view, const std::string& who) {
  if (!view.same_samples())
    throw UsageError(fmt::format(
        "{} behind a take(), skip() or shard() of shuffled samples, or behind weighted(): how many "
        "come out would differ from epoch to epoch; put it before",
        who));
}

bool keeps_each_once(const View& view) {
  const ViewHandle below = view.below();
  return view.keeps_order() && (!below || keeps_each_once(*below));
}

ViewHandle all_rows(int64_t num_rows, int shuffles, bool each_once) {
  return std::make_shared<AllRows>(num_rows, shuffles, each_once);
}

ViewHandle shuffled(const ViewHandle& before, ShuffleOptions options) {
  if (options.window < 0)
    throw UsageError(fmt::format("shuffle(window {}): expected 0 (all) or more", options.window));
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

ViewHandle skipped(const ViewHandle& before, int64_t count) {
  if (count < 0) throw UsageError(fmt::format("skip({}): expected 0 or more", count));
  return std::make_shared<Range>(before, std::min(count, before->num_samples), before->num_samples);
}

ViewHandle kept(const ViewHandle& before, Flags flags) {
  return std::make_shared<Kept>(before, std::move(flags));
}

ViewHandle unfolded(const ViewHandle& before, Firsts first) {
  require_list(first->back(), "flat_map()");
  return std::make_shared<Unfolded>(before, std::move(first));
}

ViewHandle hinted(const ViewHandle& before) { return std::make_shared<Hinted>(before); }

ViewHandle with_hints(const ViewHandle& view, int64_t index, int64_t count) {
  const std::vector<ViewHandle> chain = chain_of(view);
  ViewHandle made = chain[0];
  bool found = false;
  for (size_t i = 1; i < chain.size(); ++i) {
    const bool is_hint = dynamic_cast<const Hinted*>(chain[i].get()) != nullptr;
    found = found || is_hint;
    made = is_hint ? sharded(made, index, count) : chain[i]->over(made);
  }
  return found ? made : nullptr;
}

ViewHandle restricted(const ViewHandle& view, Flags flags) {
  const std::vector<ViewHandle> chain = chain_of(view);
  ViewHandle made = kept(chain[0], std::move(flags));
  for (size_t i = 1; i < chain.size(); ++i) made = chain[i]->over(made);
  return made;
}

std::pair<ViewHandle, ViewHandle> split(const ViewHandle& view, double last_share) {
  const std::vector<ViewHandle> chain = chain_of(view);
  const auto first_mix = std::find_if(chain.begin(), chain.end(),
                                      [](const ViewHandle& each) { return !each->keeps_order(); });
  if (first_mix == chain.begin())
    throw UsageError(
        "split of samples that were put together (concatenate, zip, window, ...) after a shuffle "
        "or repeat: one could be in both parts; split before");
  const ViewHandle& whole = *(first_mix - 1);
  const auto cut = static_cast<int64_t>(
      std::floor(static_cast<double>(whole->num_samples) * (1.0 - last_share)));
  ViewHandle rest = std::make_shared<Range>(whole, 0, cut);
  ViewHandle last = std::make_shared<Range>(whole, cut, whole->num_samples);
  for (auto each = first_mix; each != chain.end(); ++each) {
    rest = (*each)->over(rest);
    if ((*each)->by_sample()) last = (*each)->over(last);
  }
  return {rest, last};
}

}  // namespace tutti::data::detail
