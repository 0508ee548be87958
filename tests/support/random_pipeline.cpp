// Pipelines drawn by number; as code, and as a Dataset.

#include "tests/support/random_pipeline.h"

#include <algorithm>
#include <random>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::test {

using data::Dataset;
using data::kAnySize;

namespace {

constexpr int64_t kMostSamples = 250;

/// What decides which operators may follow.
struct Traits {
  std::vector<std::pair<DType, std::vector<int64_t>>> columns{};
  bool draws = false;        ///< a sample differs by the epoch
  bool sequential = false;   ///< from a generator
  bool named = true;         ///< sources and stages have names and fingerprints
  bool same_order = true;    ///< in every epoch
  bool same_samples = true;  ///< in every epoch
  int64_t samples = 0;

  bool fixed() const {
    return std::ranges::all_of(columns, [](const auto& column) {
      return std::ranges::find(column.second, kAnySize) == column.second.end();
    });
  }
  bool looked_at_once() const { return !draws && !sequential; }
};

std::vector<DType> dtypes_of(const Stage& stage) {
  if (stage.op == Op::texts || stage.op == Op::groups) return {DType::uint8, DType::int64};
  if (stage.op == Op::ticks) return {DType::int64, DType::float32};
  if (stage.inputs.empty()) return {DType::float32, DType::int64};
  std::vector<DType> dtypes = dtypes_of(*stage.inputs[0]);
  for (size_t k = 1; stage.op == Op::zip && k < stage.inputs.size(); ++k)
    for (DType more : dtypes_of(*stage.inputs[k])) dtypes.push_back(more);
  return dtypes;
}

/// Of a stage that is allowed.
Traits traits_of(const Stage& stage) {
  Traits traits;
  const bool source = stage.inputs.empty();
  traits.named = stage.op != Op::numbers && stage.op != Op::ticks;
  traits.draws = traits.sequential = stage.op == Op::ticks;
  int64_t before = 0;
  for (const StageHandle& input : stage.inputs) {
    const Traits of = traits_of(*input);
    before = of.samples;
    traits.sequential |= of.sequential;
    traits.named &= of.named;
    const bool inside = stage.op == Op::zip || stage.op == Op::window;
    traits.draws |= of.draws || (inside && !of.same_order);
    traits.same_order &= inside || of.same_order;
    traits.same_samples &= inside || of.same_samples;
  }
  const auto shapes = shapes_of(stage);
  const auto dtypes = dtypes_of(stage);
  for (size_t c = 0; c < shapes.size(); ++c) traits.columns.emplace_back(dtypes[c], shapes[c]);
  traits.samples = source ? stage.n : std::ssize(items_of(stage, 0, 0));
  switch (stage.op) {
    case Op::jitter:
    case Op::jitter_lambda:
      traits.draws = true;
      traits.named &= stage.op == Op::jitter;
      break;
    case Op::times_lambda:
    case Op::flat_map:
    case Op::unbatch:
    case Op::window:
    case Op::zip: traits.named = false; break;
    case Op::weighted: traits.same_order = traits.same_samples = false; break;
    case Op::shuffle: traits.same_order = false; break;
    case Op::shard:
      if (stage.n != 1) traits.same_samples = traits.same_order;
      break;
    case Op::take:
    case Op::skip:
    case Op::regroup:
      if (traits.samples != before) traits.same_samples = traits.same_order;
      break;
    default: break;
  }
  return traits;
}

/// Why the stage is not allowed; empty: it is.
std::string refusal(const Stage& stage) {
  std::vector<Traits> inputs;
  for (const StageHandle& input : stage.inputs) inputs.push_back(traits_of(*input));
  if (inputs.empty()) return {};
  const Traits& of = inputs[0];
  const char* const looks = "it looks at each sample once, but they draw or come from a generator";
  if (combines(stage.op)) {
    for (const Traits& each : inputs) {
      if (each.sequential) return "a generator cannot be combined";
      if (stage.op == Op::weighted && each.samples == 0) return "a dataset without samples";
      const bool alike = std::ranges::equal(of.columns, each.columns, [](auto& a, auto& b) {
        return a.first == b.first && a.second.size() == b.second.size();
      });
      if (stage.op != Op::zip && !alike) return "columns differ";
    }
    return {};
  }
  const bool scalars =
      std::ranges::any_of(of.columns, [](auto& column) { return column.second.empty(); });
  switch (stage.op) {
    case Op::filter:
    case Op::flat_map:
      if (!of.looked_at_once()) return looks;
      return of.same_samples ? "" : "how many there are would differ by the epoch";
    case Op::unbatch: {
      if (scalars) return "a column without rows";
      const auto varies = [&](auto& column) {
        return column.second[0] == kAnySize || column.second[0] != of.columns[0].second[0];
      };
      if (std::ranges::none_of(of.columns, varies)) return {};
      if (!of.looked_at_once()) return looks;
      return of.same_samples ? "" : "how many there are would differ by the epoch";
    }
    case Op::window:
      if (of.sequential) return "a generator has no windows";
      return of.fixed() ? "" : "shapes differ";
    case Op::shuffle:
      return of.sequential && stage.a == 0 ? "a generator is shuffled by windows" : "";
    case Op::cache: return of.looked_at_once() ? "" : looks;
    case Op::cache_files:
      if (!of.looked_at_once()) return looks;
      return of.named ? "" : "what has no name is not kept in files";
    case Op::regroup: return of.fixed() ? "" : "shapes differ";
    default: return {};
  }
}

std::string refusal(const Batches& batches, const Traits& of) {
  const bool looks =
      batches.kind == Batches::Kind::buckets ||
      (batches.kind == Batches::Kind::padded && batches.pad_sizes.empty() && !of.fixed());
  if (looks && !of.looked_at_once()) return "lengths of what draws or comes from a generator";
  if (batches.kind == Batches::Kind::plain && !of.fixed()) return "shapes differ";
  if (batches.kind == Batches::Kind::buckets && !of.same_samples)
    return "how many batches there are would differ by the epoch";
  if (batches.kind == Batches::Kind::buckets && of.columns[0].second.empty()) return "no length";
  if (batches.blends > 0 && !of.fixed()) return "partners differ in shape";
  return {};
}

class Drawing {
 public:
  explicit Drawing(uint64_t seed) : random_(seed) {}

  Pipeline pipeline() {
    Pipeline pipeline;
    StageHandle stages = chain(2);
    pipeline.refused = refused_;
    if (refused_.empty()) {
      const Traits of = traits_of(*stages);
      do {
        pipeline.batches = batches(of);
        pipeline.refused = refusal(pipeline.batches, of);
      } while (!pipeline.refused.empty() && !chance(4));
    }
    pipeline.stages = std::move(stages);
    return pipeline;
  }

 private:
  int64_t draw(int64_t from, int64_t to) {
    return from + static_cast<int64_t>(random_() % static_cast<uint64_t>(to - from + 1));
  }
  bool chance(int64_t percent) { return draw(0, 99) < percent; }

  StageHandle source() {
    const int64_t n = chance(10) ? draw(120, 160) : draw(0, 30);
    const auto op = static_cast<Op>(draw(0, static_cast<int64_t>(Op::ticks)));
    return std::make_shared<Stage>(Stage{.op = op, .n = n, .a = draw(0, 200)});
  }

  /// A source or combination, and stages over it; ends at the first that is refused.
  StageHandle chain(int64_t depth) {
    StageHandle last = depth > 0 && chance(40) ? combination(depth - 1) : source();
    for (int64_t stages = draw(0, 5); stages > 0 && refused_.empty(); --stages) {
      const Stage next = stage(last);
      const std::string why = refusal(next);
      if (!why.empty() && !chance(3)) continue;
      refused_ = why;
      const bool small = !why.empty() || std::ssize(items_of(next, 0, 0)) <= kMostSamples;
      if (small) last = std::make_shared<Stage>(next);
    }
    return last;
  }

  StageHandle combination(int64_t depth) {
    Stage stage{.op = static_cast<Op>(
                    draw(static_cast<int64_t>(Op::concatenate), static_cast<int64_t>(Op::zip)))};
    for (int64_t inputs = draw(1, 3); inputs > 0; --inputs) {
      // Often the same twice: inputs are told apart by their seeds alone.
      StageHandle input = !stage.inputs.empty() && chance(40) ? stage.inputs[0] : chain(depth);
      if (!refused_.empty()) return input;
      stage.inputs.push_back(std::move(input));
      stage.weights.push_back(draw(1, 6));
      if (!refusal(stage).empty() && !chance(3)) {
        stage.inputs.pop_back();
        stage.weights.pop_back();
      }
    }
    if (stage.inputs.empty()) return source();
    if (stage.op == Op::weighted && chance(50)) stage.n = draw(1, 60);
    if (stage.op == Op::interleave) {
      stage.a = draw(0, 3);
      stage.b = draw(1, 4);
    }
    refused_ = refusal(stage);
    return std::make_shared<Stage>(stage);
  }

  Stage stage(const StageHandle& input) {
    Stage stage{.op = static_cast<Op>(
                    draw(static_cast<int64_t>(Op::times), static_cast<int64_t>(Op::regroup))),
                .n = draw(1, 4),
                .a = draw(0, 2),
                .inputs = {input}};
    switch (stage.op) {
      case Op::times:
      case Op::times_lambda:
      case Op::jitter:
      case Op::jitter_lambda: stage.a = draw(2, 100); break;
      case Op::window: stage.b = draw(1, 3); break;
      case Op::shuffle:
        stage.a = chance(50) ? 0 : draw(1, 40);
        stage.flag = chance(80);
        if (chance(30)) stage.seed = static_cast<uint64_t>(draw(0, 9));
        break;
      case Op::repeat: stage.n = draw(1, 3); break;
      case Op::shard: stage.a = draw(0, stage.n - 1); break;
      case Op::take: stage.n = chance(10) ? 0 : draw(5, 60); break;
      case Op::skip: stage.n = draw(0, 6); break;
      case Op::cache: stage.n = chance(50) ? 1 << 20 : draw(1, 4000); break;
      case Op::regroup: stage.flag = chance(50); break;
      default: break;
    }
    return stage;
  }

  Batches batches(const Traits& of) {
    Batches batches{.kind = static_cast<Batches::Kind>(draw(0, 2)),
                    .size = draw(1, 17),
                    .drop_remainder = chance(30)};
    if (batches.kind == Batches::Kind::plain || of.fixed()) batches.blends = draw(0, 2);
    if (batches.kind == Batches::Kind::plain) return batches;
    batches.pad_value = chance(50) ? 0 : draw(1, 255);
    for (const auto& column : of.columns)
      for (int64_t size : column.second)
        if (size == kAnySize) batches.pad_sizes.push_back(draw(6, 8));
    if (chance(50)) batches.pad_sizes.clear();
    if (batches.kind == Batches::Kind::padded) return batches;
    for (int64_t length = draw(0, 4); length < 7; length += draw(1, 4))
      batches.boundaries.push_back(length);
    for (size_t i = 0; i <= batches.boundaries.size(); ++i) batches.sizes.push_back(draw(1, 9));
    return batches;
  }

  std::mt19937_64 random_;
  std::string refused_;
};

std::string words_of(const Stage& stage);

std::string inputs_in_words(const Stage& stage) {
  std::vector<std::string> all;
  for (size_t k = 0; k < stage.inputs.size(); ++k) {
    const std::string one = words_of(*stage.inputs[k]);
    all.push_back(stage.op == Op::weighted ? fmt::format("{{{}, {}}}", one, stage.weights[k])
                                           : one);
  }
  return fmt::format("{{{}}}", fmt::join(all, ", "));
}

std::string words_of(const Stage& stage) {
  const auto [op, n, a, b, flag, seed, inputs, weights] = stage;
  switch (op) {
    case Op::numbers: return fmt::format("numbers({}, {})", n, a);
    case Op::records: return fmt::format("records({}, {})", n, a);
    case Op::texts: return fmt::format("texts({}, {})", n, a);
    case Op::groups: return fmt::format("groups({}, {})", n, a);
    case Op::ticks: return fmt::format("ticks({}, {})", n, a);
    case Op::concatenate: return fmt::format("concatenate({})", inputs_in_words(stage));
    case Op::zip: return fmt::format("zip({})", inputs_in_words(stage));
    case Op::interleave:
      return fmt::format("interleave({}, {{.cycle = {}, .block = {}}})", inputs_in_words(stage), a,
                         b);
    case Op::weighted:
      return fmt::format("weighted({}, {{.num_samples = {}}})", inputs_in_words(stage), n);
    default: break;
  }
  const auto over = [&](const std::string& call) { return words_of(*inputs[0]) + call; };
  const std::string columns = ", {.columns = columns}";
  switch (op) {
    case Op::times: return over(fmt::format(".map(times({}))", a));
    case Op::times_lambda: return over(fmt::format(".map(times_by_lambda({}){})", a, columns));
    case Op::jitter: return over(fmt::format(".map(jitter({}))", a));
    case Op::jitter_lambda: return over(fmt::format(".map(jitter_by_lambda({}){})", a, columns));
    case Op::filter: return over(fmt::format(".filter(keep({}))", a));
    case Op::flat_map: return over(fmt::format(".flat_map(copies({}){})", a, columns));
    case Op::unbatch: return over(".unbatch()");
    case Op::window:
      return over(fmt::format(".window({}, {{.shift = {}, .stride = {}}})", n, a, b));
    case Op::shuffle:
      return over(fmt::format(".shuffle({{{}.each_epoch = {}, .window = {}}})",
                              seed ? fmt::format(".seed = {}, ", *seed) : "", flag, a));
    case Op::repeat: return over(fmt::format(".repeat({})", n));
    case Op::shard: return over(fmt::format(".shard({}, {})", a, n));
    case Op::take: return over(fmt::format(".take({})", n));
    case Op::skip: return over(fmt::format(".skip({})", n));
    case Op::cache: return over(fmt::format(".cache({})", n));
    case Op::cache_files: return over(".cache(folder)");
    default: return over(fmt::format(".batch({}, {}).unbatch()", n, flag));
  }
}

Dataset dataset_of(const Stage& stage, const std::filesystem::path& folder) {
  const auto [op, n, a, b, flag, seed, inputs, weights] = stage;
  std::vector<Dataset> all;
  for (const StageHandle& input : inputs)  // the same stage gives the same handle
    all.push_back(input == inputs[0] && !all.empty() ? all[0] : dataset_of(*input, folder));
  std::vector<data::WeightedDataset> mix;
  for (size_t k = 0; k < weights.size(); ++k)
    mix.push_back({all[k], static_cast<double>(weights[k])});
  switch (op) {
    case Op::numbers: return numbers(n, a);
    case Op::records: return records(n, a);
    case Op::texts: return texts(n, a);
    case Op::groups: return groups(n, a);
    case Op::ticks: return ticks(n, a);
    case Op::concatenate: return data::concatenate(all);
    case Op::zip: return data::zip(all);
    case Op::interleave: return data::interleave(all, {.cycle = a, .block = b});
    case Op::weighted: return data::weighted(mix, {.num_samples = n});
    case Op::times: return all[0].map(times(a));
    case Op::times_lambda: return all[0].map(times_by_lambda(a), {.columns = all[0].columns()});
    case Op::jitter: return all[0].map(jitter(a));
    case Op::jitter_lambda: return all[0].map(jitter_by_lambda(a), {.columns = all[0].columns()});
    case Op::filter: return all[0].filter(keep(a));
    case Op::flat_map: return all[0].flat_map(copies(a), {.columns = all[0].columns()});
    case Op::unbatch: return all[0].unbatch();
    case Op::window: return all[0].window(n, {.shift = a, .stride = b});
    case Op::shuffle: return all[0].shuffle({.seed = seed, .each_epoch = flag, .window = a});
    case Op::repeat: return all[0].repeat(n);
    case Op::shard: return all[0].shard(a, n);
    case Op::take: return all[0].take(n);
    case Op::skip: return all[0].skip(n);
    case Op::cache: return all[0].cache(n);
    case Op::cache_files: return all[0].cache(folder);
    case Op::regroup: return all[0].batch(n, flag).unbatch();
  }
  throw Error("a stage that is none");
}

}  // namespace

Pipeline random_pipeline(uint64_t seed) { return Drawing(seed).pipeline(); }

std::string to_string(const Pipeline& pipeline) {
  const Batches& how = pipeline.batches;
  const std::string pad =
      fmt::format("{{.value = {}, .sizes = {{{}}}, .drop_remainder = {}}}", how.pad_value,
                  fmt::join(how.pad_sizes, ", "), how.drop_remainder);
  std::string words = words_of(*pipeline.stages);
  if (how.kind == Batches::Kind::plain)
    words += fmt::format(".batch({}, {})", how.size, how.drop_remainder);
  if (how.kind == Batches::Kind::padded)
    words += fmt::format(".padded_batch({}, {})", how.size, pad);
  if (how.kind == Batches::Kind::buckets)
    words +=
        fmt::format(".bucket_by_length({{.boundaries = {{{}}}, .batches = {{{}}}, .pad = {}}})",
                    fmt::join(how.boundaries, ", "), fmt::join(how.sizes, ", "), pad);
  for (int64_t k = 0; k < how.blends; ++k) words += ".map(blend())";
  return words + (pipeline.refused.empty() ? "" : "  // refused: " + pipeline.refused);
}

Dataset dataset_of(const Pipeline& pipeline, const std::filesystem::path& folder) {
  const Batches& how = pipeline.batches;
  const Dataset stages = dataset_of(*pipeline.stages, folder);
  const data::PadOptions pad{.value = static_cast<double>(how.pad_value),
                             .sizes = how.pad_sizes,
                             .drop_remainder = how.drop_remainder};
  Dataset dataset = how.kind == Batches::Kind::plain ? stages.batch(how.size, how.drop_remainder)
                    : how.kind == Batches::Kind::padded
                        ? stages.padded_batch(how.size, pad)
                        : stages.bucket_by_length(
                              {.boundaries = how.boundaries, .batches = how.sizes, .pad = pad});
  for (int64_t k = 0; k < how.blends; ++k) dataset = dataset.map(blend());
  return dataset;
}

}  // namespace tutti::test
