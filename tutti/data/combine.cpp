// Datasets made of several: contents that know the parts, and the orders over them.

#include "tutti/data/combine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tutti/base/error.h"
#include "tutti/base/random.h"
#include "tutti/data/detail/content.h"
#include "tutti/data/detail/epoch_state.h"

namespace tutti::data {
namespace detail {

/// What a combination has of each of its inputs.
struct Input {
  ContentHandle content;
  ViewHandle view;
};

namespace {

Input input_of(const Dataset& dataset) {
  Combining::require_no_batch(dataset);
  if (dataset.sequential())
    throw UsageError(
        "what comes from a generator cannot be combined with others: let the generator do it");
  return {Combining::content(dataset), Combining::view(dataset)};
}

std::vector<Input> inputs_of(const std::vector<Dataset>& datasets, const char* who) {
  if (datasets.empty()) throw UsageError(fmt::format("{}: got no datasets", who));
  std::vector<Input> all;
  for (const Dataset& dataset : datasets) all.push_back(input_of(dataset));
  return all;
}

uint64_t seed_of_input(uint64_t seed, size_t input) {
  return random_key(seed, RandomPurpose::mix, {input});
}

/// Reads of an input, with its seed in place of the combination's.
class WithSeed {
 public:
  WithSeed(Reading& reading, uint64_t seed) : reading_(reading), before_(reading.seed) {
    reading_.seed = seed;
  }
  ~WithSeed() { reading_.seed = before_; }
  WithSeed(const WithSeed&) = delete;
  WithSeed& operator=(const WithSeed&) = delete;

 private:
  Reading& reading_;
  uint64_t before_;
};

std::string who_draws_of(const std::vector<Input>& inputs) {
  for (const Input& input : inputs)
    if (input.content->draws()) return input.content->who_draws();
  return "a shuffle";
}

/// Samples of all inputs, numbered through.
class Union final : public Content {
 public:
  Union(std::vector<Input> inputs, const char* who) : inputs_(std::move(inputs)), begins_{0} {
    columns_ = inputs_[0].content->columns();
    for (const Input& input : inputs_) {
      begins_.push_back(begins_.back() + input.content->size());
      merge(input.content->columns(), who);
      if (input.content->classes() != inputs_[0].content->classes())
        throw UsageError(
            fmt::format("{}: the classes of dataset {} are others than those of the "
                        "first: labels would mean different things",
                        who, begins_.size() - 1));
    }
  }

  const std::vector<Column>& columns() const override { return columns_; }
  int64_t size() const override { return begins_.back(); }
  Sample read(Ref ref, Reading& reading) const override {
    const size_t input = input_of(ref.id);
    const WithSeed own(reading, seed_of_input(reading.seed, input));
    return inputs_[input].content->read({ref.id - begins_[input], ref.epoch}, reading);
  }
  bool draws() const override {
    return std::ranges::any_of(inputs_, [](const Input& each) { return each.content->draws(); });
  }
  std::string who_draws() const override { return who_draws_of(inputs_); }
  const std::vector<std::string>& classes() const override { return inputs_[0].content->classes(); }
  std::string where(int64_t id) const override {
    const size_t input = input_of(id);
    return inputs_[input].content->where(id - begins_[input]);
  }
  void visit(const std::function<void(const Content&)>& visitor) const override {
    for (const Input& input : inputs_) input.content->visit(visitor);
  }
  std::string fingerprint() const override {
    std::string all;
    for (const Input& input : inputs_) {
      const std::string one = input.content->fingerprint();
      if (one.empty()) return {};
      all += fmt::format("{}\n{}\n", one.size(), one);
    }
    return all;
  }

 private:
  size_t input_of(int64_t id) const {
    return static_cast<size_t>(std::ranges::upper_bound(begins_, id) - begins_.begin() - 1);
  }
  void merge(const std::vector<Column>& other, const char* who) {
    bool fits = other.size() == columns_.size();
    for (size_t c = 0; fits && c < other.size(); ++c) {
      fits =
          other[c].dtype == columns_[c].dtype && other[c].shape.size() == columns_[c].shape.size();
      for (size_t d = 0; fits && d < other[c].shape.size(); ++d)
        if (other[c].shape[d] != columns_[c].shape[d]) columns_[c].shape[d] = kAnySize;
    }
    if (fits) return;
    const auto words = [](const std::vector<Column>& columns) {
      std::vector<std::string> all;
      for (const Column& column : columns) all.push_back(column.to_string());
      return fmt::format("{}", fmt::join(all, ", "));
    };
    throw UsageError(fmt::format("{}: dataset {} has columns {}; expected those of the first: {}",
                                 who, begins_.size() - 1, words(other), words(columns_)));
  }

  const std::vector<Input> inputs_;
  std::vector<int64_t> begins_;
  std::vector<Column> columns_;
};

/// The lowest view over several datasets.
struct Over : View {
  Over(std::vector<Input> of, int64_t samples) : View(samples), inputs(std::move(of)) {
    int64_t offset = 0;
    for (const Input& input : inputs) {
      begins.push_back(offset);
      offset += input.content->size();
    }
  }
  int num_shuffles() const override { return 0; }  // inputs have seeds of their own
  ViewHandle below() const override { return nullptr; }
  ViewHandle over(const ViewHandle& other) const override { return other; }
  bool keeps_order() const override {
    return std::ranges::all_of(inputs,
                               [](const Input& each) { return keeps_each_once(*each.view); });
  }
  bool same_order() const override {
    return std::ranges::all_of(inputs, [](const Input& each) { return each.view->same_order(); });
  }
  bool same_samples() const override {
    return std::ranges::all_of(inputs, [](const Input& each) { return each.view->same_samples(); });
  }
  Order order_of(size_t input, Pass pass) const {
    return inputs[input].view->order({pass.epoch, seed_of_input(pass.seed, input)});
  }
  const std::vector<Input> inputs;
  std::vector<int64_t> begins;  // of the inputs' ids
};

int64_t samples_in(const std::vector<Input>& inputs) {
  int64_t samples = 0;
  for (const Input& input : inputs) samples += input.view->num_samples;
  require_list(samples, fmt::format("{} datasets together", inputs.size()));
  return samples;
}

/// Blocks of the inputs in turn; one whole input at a time is what concatenate() wants.
struct InTurns final : Over {
  InTurns(const std::vector<Input>& of, InterleaveOptions how)
      : Over(of, samples_in(of)), options(how) {}
  Order order(Pass pass) const override {
    Order joined;
    std::vector<int64_t> begin;  // of the inputs' places in `joined`
    for (size_t input = 0; input < inputs.size(); ++input) {
      begin.push_back(joined.size());
      joined.append(order_of(input, pass), begins[input]);
    }
    return joined.picked(places(begin));
  }

 private:
  std::vector<int64_t> places(const std::vector<int64_t>& begin) const {
    struct Open {
      int64_t next = 0, end = 0;
    };
    std::vector<Open> open(static_cast<size_t>(options.cycle));
    size_t unopened = 0;
    std::vector<int64_t> places;
    places.reserve(static_cast<size_t>(num_samples));
    while (std::ssize(places) < num_samples) {
      for (Open& one : open) {
        while (one.next == one.end && unopened < inputs.size()) {
          one = {begin[unopened], begin[unopened] + inputs[unopened].view->num_samples};
          ++unopened;
        }
        for (int64_t i = 0; i < options.block && one.next < one.end; ++i)
          places.push_back(one.next++);
      }
    }
    return places;
  }

  const InterleaveOptions options;
};

/// Largest remainder, the first of equals: exact where the weights are whole numbers.
std::vector<int64_t> counts_by_weight(std::vector<double> weights, int64_t samples) {
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const int scale = -std::ilogb(total);  // a power of two changes no digit, and spares overflow
  total = std::ldexp(total, scale);
  std::vector<int64_t> counts;
  std::vector<std::pair<double, size_t>> rest;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double times_total = static_cast<double>(samples) * std::ldexp(weights[i], scale);
    const double remainder = std::fmod(times_total, total);
    counts.push_back(std::llround((times_total - remainder) / total));
    rest.emplace_back(-remainder, i);
  }
  std::ranges::stable_sort(rest, {}, &std::pair<double, size_t>::first);
  int64_t left = samples - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % rest.size(), --left) ++counts[rest[i].second];
  return counts;
}

struct Mixed final : Over {
  Mixed(std::vector<Input> of, std::vector<int64_t> counts_of_inputs)
      : Over(std::move(of),
             std::accumulate(counts_of_inputs.begin(), counts_of_inputs.end(), int64_t{0})),
        counts(std::move(counts_of_inputs)) {}

  Order order(Pass pass) const override {
    Order joined;
    for (size_t input = 0; input < inputs.size(); ++input)
      joined.append(part(input, pass), begins[input]);
    const uint64_t key = random_key(pass.seed, RandomPurpose::mix,
                                    {static_cast<uint64_t>(pass.epoch), inputs.size()});
    // Samples of one input stay in order: the permutation says whose turn it is.
    std::vector<size_t> turns;
    for (size_t input = 0; input < inputs.size(); ++input)
      turns.insert(turns.end(), static_cast<size_t>(counts[input]), input);
    std::vector<int64_t> next{0};
    for (int64_t count : counts) next.push_back(next.back() + count);
    std::vector<int64_t> places;
    for (int64_t turn : random_permutation(num_samples, key))
      places.push_back(next[turns[static_cast<size_t>(turn)]]++);
    return joined.picked(places);
  }
  bool keeps_order() const override { return false; }
  bool same_order() const override { return false; }
  bool same_samples() const override { return false; }

 private:
  // Samples [epoch * count, (epoch + 1) * count) of the input's passes, one behind another.
  Order part(size_t input, Pass pass) const {
    const int64_t length = inputs[input].view->num_samples;
    int64_t begin = pass.epoch * counts[input];
    const int64_t end = begin + counts[input];
    Order all;
    while (begin < end) {
      const int64_t first = begin % length;
      const int64_t count = std::min(length - first, end - begin);
      std::vector<int64_t> places(static_cast<size_t>(count));
      std::iota(places.begin(), places.end(), first);
      all.append(order_of(input, {begin / length, pass.seed}).picked(places));
      begin += count;
    }
    return all;
  }

  const std::vector<int64_t> counts;
};

/// Sample i of all inputs, as their orders of that pass have it.
class Zipped final : public Content {
 public:
  explicit Zipped(std::vector<Input> inputs) : inputs_(std::move(inputs)) {
    size_ = inputs_[0].view->num_samples;
    for (const Input& input : inputs_) {
      size_ = std::min(size_, input.view->num_samples);
      for (const Column& column : input.content->columns()) add(column);
    }
  }

  const std::vector<Column>& columns() const override { return columns_; }
  int64_t size() const override { return size_; }
  Sample read(Ref ref, Reading& reading) const override {
    Sample sample;
    for (size_t input = 0; input < inputs_.size(); ++input) {
      const uint64_t seed = seed_of_input(reading.seed, input);
      const auto order = reading.session.order(inputs_[input].view, {ref.epoch, seed});
      const WithSeed own(reading, seed);
      Sample part = inputs_[input].content->read(order->at(static_cast<size_t>(ref.id)), reading);
      for (Array& value : part.columns) sample.columns.push_back(std::move(value));
    }
    return sample;
  }
  bool draws() const override {
    return std::ranges::any_of(inputs_, [](const Input& each) {
      return each.content->draws() || !each.view->same_order();
    });
  }
  std::string who_draws() const override { return who_draws_of(inputs_); }
  const std::vector<std::string>& classes() const override {
    const auto named = std::ranges::find_if(
        inputs_, [](const Input& each) { return !each.content->classes().empty(); });
    return (named == inputs_.end() ? inputs_.front() : *named).content->classes();
  }
  std::string where(int64_t id) const override { return fmt::format("sample {} of zip()", id); }
  void visit(const std::function<void(const Content&)>& visitor) const override {
    for (const Input& input : inputs_) input.content->visit(visitor);
  }
  std::string fingerprint() const override { return {}; }

 private:
  void add(Column column) {
    const std::string name = column.name;
    const auto taken = [&] {
      return std::ranges::any_of(columns_, [&](const Column& c) { return c.name == column.name; });
    };
    for (int number = 2; taken(); ++number) column.name = fmt::format("{}{}", name, number);
    columns_.push_back(std::move(column));
  }

  const std::vector<Input> inputs_;
  std::vector<Column> columns_;
  int64_t size_ = 0;
};

/// `size` samples of an order as one.
class Windows final : public Content {
 public:
  Windows(Input input, int64_t size, WindowOptions options)
      : input_(std::move(input)), length_(size), options_(options) {
    const int64_t samples = input_.view->num_samples;
    int64_t last = 0;  // of a window, counted from its first
    const bool fits = !__builtin_mul_overflow(size - 1, options_.stride, &last) && last < samples;
    size_ = fits ? (samples - last - 1) / options_.shift + 1 : 0;
    for (Column column : input_.content->columns()) {
      column.shape.insert(column.shape.begin(), size);
      columns_.push_back(std::move(column));
    }
  }

  const std::vector<Column>& columns() const override { return columns_; }
  int64_t size() const override { return size_; }
  Sample read(Ref ref, Reading& reading) const override {
    const auto order = reading.session.order(input_.view, {ref.epoch, reading.seed});
    Sample window;
    for (const Column& column : columns_)
      window.columns.push_back(make_array(column.dtype, column.shape));
    for (int64_t i = 0; i < length_; ++i) {
      const auto place = static_cast<size_t>(ref.id * options_.shift + i * options_.stride);
      const Sample one = input_.content->read(order->at(place), reading);
      for (size_t c = 0; c < columns_.size(); ++c) {
        const auto bytes = static_cast<size_t>(one.columns[c].num_bytes());
        if (bytes != 0)
          std::memcpy(
              static_cast<std::byte*>(window.columns[c].data()) + static_cast<size_t>(i) * bytes,
              one.columns[c].data(), bytes);
      }
    }
    return window;
  }
  bool draws() const override { return input_.content->draws() || !input_.view->same_order(); }
  std::string who_draws() const override { return who_draws_of({input_}); }
  int num_maps() const override { return input_.content->num_maps() + 1; }
  const std::vector<std::string>& classes() const override { return input_.content->classes(); }
  std::string where(int64_t id) const override { return fmt::format("window {}", id); }
  void visit(const std::function<void(const Content&)>& visitor) const override {
    input_.content->visit(visitor);
  }
  std::string fingerprint() const override { return {}; }

 private:
  const Input input_;
  const int64_t length_;
  const WindowOptions options_;
  std::vector<Column> columns_;
  int64_t size_ = 0;
};

Dataset in_turns(const std::vector<Dataset>& datasets, InterleaveOptions options, const char* who) {
  std::vector<Input> inputs = inputs_of(datasets, who);
  auto content = std::make_shared<Union>(inputs, who);
  return Combining::dataset(std::move(content),
                            std::make_shared<InTurns>(std::move(inputs), options));
}

}  // namespace
}  // namespace detail

Dataset concatenate(const std::vector<Dataset>& datasets) {
  return detail::in_turns(datasets, {.cycle = 1, .block = int64_t{1} << 62}, "concatenate");
}

Dataset interleave(const std::vector<Dataset>& datasets, InterleaveOptions options) {
  if (options.cycle < 0 || options.block < 1)
    throw UsageError(fmt::format(
        "interleave(cycle {}, block {}): expected a cycle of 0 (all) or more, a block of 1 or more",
        options.cycle, options.block));
  const auto count = static_cast<int64_t>(datasets.size());
  options.cycle = options.cycle == 0 ? count : std::min(options.cycle, count);
  return detail::in_turns(datasets, options, "interleave");
}

Dataset weighted(const std::vector<WeightedDataset>& datasets, WeightedOptions options) {
  std::vector<Dataset> plain;
  std::vector<double> weights;
  for (const WeightedDataset& each : datasets) {
    plain.push_back(each.dataset);
    weights.push_back(each.weight);
    if (!(each.weight > 0) || !std::isfinite(each.weight))
      throw UsageError(
          fmt::format("weighted: weight {}: expected a finite number above 0", each.weight));
    if (each.dataset.num_samples() == 0)
      throw UsageError(fmt::format("weighted: dataset {} has no samples", plain.size()));
  }
  std::vector<detail::Input> inputs = detail::inputs_of(plain, "weighted");
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!std::isfinite(total))
    throw UsageError(
        fmt::format("weighted: weights [{}]: expected a finite sum", fmt::join(weights, ", ")));
  int64_t samples = options.num_samples;
  if (samples == 0) {
    double most = INFINITY;
    for (size_t i = 0; i < inputs.size(); ++i)
      most = std::min(most, static_cast<double>(inputs[i].view->num_samples) * total / weights[i]);
    samples = std::max<int64_t>(1, static_cast<int64_t>(most));
  }
  if (samples < 0)
    throw UsageError(fmt::format("weighted: {} samples, expected 1 or more", samples));
  detail::require_list(samples, "weighted()");
  auto content = std::make_shared<detail::Union>(inputs, "weighted");
  return detail::Combining::dataset(
      std::move(content), std::make_shared<detail::Mixed>(
                              std::move(inputs), detail::counts_by_weight(weights, samples)));
}

Dataset zip(const std::vector<Dataset>& datasets) {
  const std::vector<detail::Input> inputs = detail::inputs_of(datasets, "zip");
  auto content = std::make_shared<detail::Zipped>(inputs);
  const int64_t size = content->size();
  const bool each_once = std::ranges::all_of(
      inputs, [](const detail::Input& each) { return detail::keeps_each_once(*each.view); });
  return detail::Combining::dataset(std::move(content), detail::all_rows(size, 0, each_once));
}

Dataset Dataset::window(int64_t size, WindowOptions options) const {
  if (options.shift == 0) options.shift = size;
  if (size < 1 || options.shift < 1 || options.stride < 1)
    throw UsageError(fmt::format("window(size {}, shift {}, stride {}): expected 1 or more", size,
                                 options.shift, options.stride));
  detail::Input input = detail::input_of(*this);
  for (const Column& column : input.content->columns())
    if (!column.fixed())
      throw UsageError(fmt::format("window: column {} differs in shape; give it one before",
                                   column.to_string()));
  // Shuffles from here on go on counting: none is drawn as one inside.
  const int shuffles = input.view->num_shuffles();
  const bool each_once = detail::keeps_each_once(*input.view);
  auto content = std::make_shared<detail::Windows>(std::move(input), size, options);
  const int64_t windows = content->size();
  return {std::move(content), detail::all_rows(windows, shuffles, each_once)};
}

}  // namespace tutti::data
