// What a pipeline has to give: lists of samples, stage by stage, in the most obvious way.

#include <algorithm>
#include <cmath>
#include <map>

#include "tutti/base/error.h"
#include "tutti/base/random.h"

#include "tests/support/random_pipeline.h"

namespace tutti::test {

using data::Draw;
using data::kAnySize;

namespace {

using Items = std::vector<Item>;

uint64_t u(int64_t number) { return static_cast<uint64_t>(number); }

// Stages from the source, or the last combination, up to this one that `counts`.
template <class Counts>
int64_t number_below(const Stage& stage, Counts counts) {
  if (stage.inputs.empty() || combines(stage.op)) return 0;
  return number_below(*stage.inputs[0], counts) + (counts(stage.op) ? 1 : 0);
}

int64_t maps_up_to(const Stage& stage) {
  return number_below(stage, [](Op op) {
    return op == Op::times || op == Op::times_lambda || op == Op::jitter ||
           op == Op::jitter_lambda || op == Op::flat_map || op == Op::unbatch || op == Op::window;
  });
}

int64_t shuffles_up_to(const Stage& stage) {
  return number_below(stage, [](Op op) { return op == Op::shuffle; });
}

Items source(const Stage& stage, uint64_t seed, int64_t epoch) {
  Items items;
  for (int64_t i = 0; i < stage.n; ++i) {
    Cells cells;
    if (stage.op == Op::numbers || stage.op == Op::records) cells = number(i, stage.a);
    if (stage.op == Op::texts) cells = text(i, stage.a);
    if (stage.op == Op::groups) cells = group(i, stage.a);
    if (stage.op == Op::ticks) cells = tick(i, stage.a, {.seed = seed, .epoch = epoch});
    items.push_back({.cells = cells, .id = i, .epoch = epoch});
  }
  return items;
}

void append(Items& items, const Items& more) {
  items.insert(items.end(), more.begin(), more.end());
}

// The input's samples, with ids behind those of the inputs before it.
Items input(const Stage& stage, size_t which, uint64_t seed, int64_t epoch) {
  Items items =
      items_of(*stage.inputs[which], random_key(seed, RandomPurpose::mix, {which}), epoch);
  for (size_t before = 0; before < which; ++before)
    for (Item& item : items) item.id += num_ids(*stage.inputs[before]);
  return items;
}

Items concatenate(const Stage& stage, uint64_t seed, int64_t epoch) {
  Items all;
  for (size_t k = 0; k < stage.inputs.size(); ++k) append(all, input(stage, k, seed, epoch));
  return all;
}

Items interleave(const Stage& stage, uint64_t seed, int64_t epoch) {
  std::vector<Items> waiting;
  for (size_t k = 0; k < stage.inputs.size(); ++k) waiting.push_back(input(stage, k, seed, epoch));
  std::vector<Items> cycle(stage.a == 0 ? waiting.size() : u(stage.a));
  Items all;
  for (bool any = true; any;) {
    any = false;
    for (Items& turn : cycle) {
      while (turn.empty() && !waiting.empty()) {
        turn = waiting.front();
        waiting.erase(waiting.begin());
      }
      for (int64_t i = 0; i < stage.b && !turn.empty(); ++i) {
        all.push_back(turn.front());
        turn.erase(turn.begin());
        any = true;
      }
    }
  }
  return all;
}

// In whole numbers: how often each comes, of `samples`.
std::vector<int64_t> counts_by_weight(const Stage& stage) {
  int64_t total = 0;
  for (int64_t weight : stage.weights) total += weight;
  int64_t samples = stage.n;
  if (samples == 0) {
    samples = INT64_MAX;
    for (size_t k = 0; k < stage.inputs.size(); ++k) {
      const int64_t length = std::ssize(items_of(*stage.inputs[k], 0, 0));
      samples = std::min(samples, length * total / stage.weights[k]);
    }
    samples = std::max<int64_t>(samples, 1);
  }
  std::vector<int64_t> counts;
  int64_t left = samples;
  for (int64_t weight : stage.weights) {
    counts.push_back(samples * weight / total);
    left -= counts.back();
  }
  for (; left > 0; --left) {
    size_t most = 0;  // the largest remainder that has got none yet, the first of equals
    const auto missing = [&](size_t k) { return samples * stage.weights[k] - counts[k] * total; };
    for (size_t k = 1; k < counts.size(); ++k)
      if (missing(k) > missing(most)) most = k;
    ++counts[most];
  }
  return counts;
}

Items weighted(const Stage& stage, uint64_t seed, int64_t epoch) {
  const std::vector<int64_t> counts = counts_by_weight(stage);
  std::vector<size_t> turns;
  std::vector<Items> parts;
  for (size_t k = 0; k < counts.size(); ++k) {
    Items passes;
    for (int64_t pass = 0; std::ssize(passes) < (epoch + 1) * counts[k]; ++pass)
      append(passes, input(stage, k, seed, pass));
    const auto begin = passes.begin() + epoch * counts[k];
    parts.emplace_back(begin, begin + counts[k]);
    turns.insert(turns.end(), u(counts[k]), k);
  }
  Items all;
  const uint64_t key = random_key(seed, RandomPurpose::mix, {u(epoch), counts.size()});
  for (int64_t turn : random_permutation(std::ssize(turns), key)) {
    Items& part = parts[turns[u(turn)]];
    all.push_back(part.front());
    part.erase(part.begin());
  }
  return all;
}

Items zip(const Stage& stage, uint64_t seed, int64_t epoch) {
  std::vector<Items> inputs;
  for (size_t k = 0; k < stage.inputs.size(); ++k) inputs.push_back(input(stage, k, seed, epoch));
  Items all;
  for (size_t i = 0;; ++i) {
    Item item{.cells = {}, .id = static_cast<int64_t>(i), .epoch = epoch};
    for (const Items& one : inputs) {
      if (i >= one.size()) return all;
      item.cells.insert(item.cells.end(), one[i].cells.begin(), one[i].cells.end());
    }
    all.push_back(item);
  }
}

std::vector<Cells> rows_of(const Cells& cells) {
  std::vector<Cells> rows(u(cells[0].shape[0]));
  for (size_t row = 0; row < rows.size(); ++row)
    for (const Cell& cell : cells) {
      const size_t elements = cell.values.size() / rows.size();
      const auto begin = cell.values.begin() + static_cast<int64_t>(row * elements);
      rows[row].push_back({.dtype = cell.dtype,
                           .shape = {cell.shape.begin() + 1, cell.shape.end()},
                           .values = {begin, begin + static_cast<int64_t>(elements)}});
    }
  return rows;
}

std::vector<Cells> parts_of(const Stage& stage, const Cells& cells) {
  return stage.op == Op::unbatch ? rows_of(cells) : copies_of(cells, stage.a);
}

// The id of the first part of each sample: parts are numbered through in the order of ids. Where
// all have as many, samples that are not there have them too.
std::map<int64_t, int64_t> first_parts(const Stage& stage) {
  std::map<int64_t, int64_t> first;
  for (const Item& item : items_of(*stage.inputs[0], 0, 0))
    first[item.id] = std::ssize(parts_of(stage, item.cells));
  int64_t next = 0;
  for (auto& [id, number] : first) {
    const int64_t count = number;
    number = next;
    next += count;
  }
  return first;
}

// Of unbatch(), where the columns tell; else 0.
int64_t fixed_rows(const Stage& stage) {
  if (stage.op != Op::unbatch) return 0;
  const std::vector<std::vector<int64_t>> shapes = shapes_of(*stage.inputs[0]);
  for (const auto& shape : shapes)
    if (shape[0] == kAnySize || shape[0] != shapes[0][0]) return 0;
  return shapes[0][0];
}

Items unfold(const Stage& stage, const Items& items) {
  const int64_t fixed = fixed_rows(stage);
  const auto first = fixed > 0 ? std::map<int64_t, int64_t>{} : first_parts(stage);
  Items out;
  for (const Item& item : items) {
    int64_t id = fixed > 0 ? item.id * fixed : first.at(item.id);
    for (const Cells& part : parts_of(stage, item.cells)) out.push_back({part, id++, item.epoch});
  }
  return out;
}

Items windows(const Stage& stage, const Items& items, int64_t epoch) {
  const int64_t shift = stage.a == 0 ? stage.n : stage.a;
  Items out;
  for (int64_t begin = 0; begin + (stage.n - 1) * stage.b < std::ssize(items); begin += shift) {
    Item window{.cells = items[u(begin)].cells, .id = std::ssize(out), .epoch = epoch};
    for (Cell& cell : window.cells) {
      cell.shape.insert(cell.shape.begin(), stage.n);
      cell.values.clear();
    }
    for (int64_t i = 0; i < stage.n; ++i) {
      const Cells& one = items[u(begin + i * stage.b)].cells;
      for (size_t c = 0; c < one.size(); ++c)
        window.cells[c].values.insert(window.cells[c].values.end(), one[c].values.begin(),
                                      one[c].values.end());
    }
    out.push_back(window);
  }
  return out;
}

Items shuffled(const Stage& stage, const Items& items, uint64_t seed, int64_t epoch) {
  const uint64_t key = random_key(stage.seed.value_or(seed), RandomPurpose::shuffle,
                                  {u(stage.flag ? epoch : 0), u(shuffles_up_to(*stage.inputs[0]))});
  const int64_t size = std::ssize(items);
  Items out;
  if (stage.a == 0 || stage.a >= size) {
    for (int64_t place : random_permutation(size, key)) out.push_back(items[u(place)]);
    return out;
  }
  RandomStream random(key);
  Items buffer(items.begin(), items.begin() + stage.a);
  for (int64_t next = stage.a; !buffer.empty(); ++next) {
    Item& drawn = buffer[random.below(buffer.size())];
    out.push_back(drawn);
    if (next < size) {
      drawn = items[u(next)];
    } else {
      drawn = buffer.back();
      buffer.pop_back();
    }
  }
  return out;
}

Items changed(const Stage& stage, Items items, uint64_t seed) {
  for (Item& item : items) {
    if (stage.op == Op::times || stage.op == Op::times_lambda) multiply(item.cells, stage.a);
    if (stage.op == Op::jitter || stage.op == Op::jitter_lambda) {
      Draw draw(random_key(seed, RandomPurpose::augment,
                           {u(item.epoch), u(item.id), u(maps_up_to(*stage.inputs[0]))}));
      shake(item.cells, stage.a, draw);
    }
  }
  return items;
}

Items picked(const Items& items, auto takes) {
  Items out;
  for (int64_t i = 0; i < std::ssize(items); ++i)
    if (takes(i, items[u(i)])) out.push_back(items[u(i)]);
  return out;
}

Items over_one(const Stage& stage, const Items& items, uint64_t seed, int64_t epoch) {
  const int64_t n = stage.n;
  switch (stage.op) {
    case Op::filter:
      return picked(items, [&](int64_t, const Item& item) { return keeps(item.cells, stage.a); });
    case Op::take: return picked(items, [&](int64_t i, const Item&) { return i < n; });
    case Op::skip: return picked(items, [&](int64_t i, const Item&) { return i >= n; });
    case Op::shard: return picked(items, [&](int64_t i, const Item&) { return i % n == stage.a; });
    case Op::regroup:
      return picked(items, [&](int64_t i, const Item&) {
        return !stage.flag || i < std::ssize(items) / n * n;
      });
    case Op::flat_map:
    case Op::unbatch: return unfold(stage, items);
    case Op::window: return windows(stage, items, epoch);
    case Op::shuffle: return shuffled(stage, items, seed, epoch);
    default: return changed(stage, items, seed);
  }
}

}  // namespace

std::vector<std::vector<int64_t>> shapes_of(const Stage& stage) {
  switch (stage.op) {
    case Op::numbers:
    case Op::records: return {{2}, {}};
    case Op::texts: return {{kAnySize}, {}};
    case Op::groups: return {{kAnySize, 2}, {kAnySize}};
    case Op::ticks: return {{}, {2}};
    default: break;
  }
  auto shapes = shapes_of(*stage.inputs[0]);
  for (auto& shape : shapes) {
    if (stage.op == Op::window) shape.insert(shape.begin(), stage.n);
    if (stage.op == Op::unbatch && !shape.empty()) shape.erase(shape.begin());
  }
  for (size_t k = 1; k < stage.inputs.size(); ++k) {
    const auto more = shapes_of(*stage.inputs[k]);
    if (stage.op == Op::zip) shapes.insert(shapes.end(), more.begin(), more.end());
    for (size_t c = 0; stage.op != Op::zip && c < std::min(shapes.size(), more.size()); ++c)
      for (size_t d = 0; d < std::min(shapes[c].size(), more[c].size()); ++d)
        if (more[c][d] != shapes[c][d]) shapes[c][d] = kAnySize;
  }
  return shapes;
}

std::vector<Item> items_of(const Stage& stage, uint64_t seed, int64_t epoch) {
  if (stage.inputs.empty()) return source(stage, seed, epoch);
  switch (stage.op) {
    case Op::concatenate: return concatenate(stage, seed, epoch);
    case Op::interleave: return interleave(stage, seed, epoch);
    case Op::weighted: return weighted(stage, seed, epoch);
    case Op::zip: return zip(stage, seed, epoch);
    case Op::repeat: {
      Items all;
      for (int64_t k = 0; k < stage.n; ++k)
        append(all, items_of(*stage.inputs[0], seed, epoch * stage.n + k));
      return all;
    }
    default: return over_one(stage, items_of(*stage.inputs[0], seed, epoch), seed, epoch);
  }
}

int64_t num_ids(const Stage& stage) {
  if (stage.inputs.empty()) return stage.n;
  int64_t ids = 0;
  if (stage.op == Op::zip || stage.op == Op::window) return std::ssize(items_of(stage, 0, 0));
  if (combines(stage.op)) {
    for (const StageHandle& each : stage.inputs) ids += num_ids(*each);
    return ids;
  }
  if (stage.op != Op::flat_map && stage.op != Op::unbatch) return num_ids(*stage.inputs[0]);
  if (const int64_t fixed = fixed_rows(stage)) return num_ids(*stage.inputs[0]) * fixed;
  std::map<int64_t, int64_t> parts;
  for (const Item& item : items_of(*stage.inputs[0], 0, 0))
    parts[item.id] = std::ssize(parts_of(stage, item.cells));
  for (const auto& [id, count] : parts) ids += count;
  return ids;
}

namespace {

// One value into the corner of a row of padding.
void put(const Cell& from, Cell& to, size_t row, const std::vector<int64_t>& sizes) {
  size_t elements = 1;
  for (int64_t size : sizes) elements *= u(size);
  for (size_t i = 0; i < from.values.size(); ++i) {
    size_t rest = i, place = 0, step = 1;  // the same coordinates in larger sizes
    for (size_t d = sizes.size(); d-- > 0;) {
      place += rest % u(from.shape[d]) * step;
      rest /= u(from.shape[d]);
      step *= u(sizes[d]);
    }
    to.values[row * elements + place] = from.values[i];
  }
}

PlainBatch stacked(const Pipeline& pipeline, const Items& items) {
  const Batches& how = pipeline.batches;
  PlainBatch batch{.size = std::ssize(items), .columns = {}};
  auto given = how.pad_sizes.begin();
  const auto shapes = shapes_of(*pipeline.stages);
  for (size_t c = 0; c < shapes.size(); ++c) {
    std::vector<int64_t> sizes = shapes[c];
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] != kAnySize) continue;
      sizes[d] = 0;
      for (const Item& item : items) sizes[d] = std::max(sizes[d], item.cells[c].shape[d]);
      if (given != how.pad_sizes.end()) sizes[d] = *given++;
    }
    Cell column{.dtype = items[0].cells[c].dtype, .shape = sizes, .values = {}};
    column.shape.insert(column.shape.begin(), batch.size);
    size_t elements = items.size();
    for (int64_t size : sizes) elements *= u(size);
    column.values.assign(elements, how.pad_value);
    for (size_t row = 0; row < items.size(); ++row) put(items[row].cells[c], column, row, sizes);
    batch.columns.push_back(column);
  }
  return batch;
}

std::vector<Items> groups_of(const Batches& how, const Items& items) {
  std::vector<Items> groups;
  std::vector<Items> open(how.boundaries.size() + 1);
  for (const Item& item : items) {
    size_t bucket = 0;
    if (how.kind == Batches::Kind::buckets)
      while (bucket < how.boundaries.size() && item.cells[0].shape[0] >= how.boundaries[bucket])
        ++bucket;
    open[bucket].push_back(item);
    const int64_t full = how.kind == Batches::Kind::buckets ? how.sizes[bucket] : how.size;
    if (std::ssize(open[bucket]) < full) continue;
    groups.push_back(open[bucket]);
    open[bucket].clear();
  }
  for (const Items& rest : open)
    if (!rest.empty() && !how.drop_remainder) groups.push_back(rest);
  return groups;
}

}  // namespace

std::vector<PlainBatch> interpret(const Pipeline& pipeline, uint64_t seed, int64_t epoch) {
  std::vector<PlainBatch> batches;
  for (Items group : groups_of(pipeline.batches, items_of(*pipeline.stages, seed, epoch))) {
    for (int64_t k = 0; k < pipeline.batches.blends; ++k) {
      const Items before = group;
      for (size_t row = 0; row < group.size(); ++row) {
        const bool alone = (row ^ 1) >= group.size();
        Draw draw(random_key(seed, RandomPurpose::mix, {u(epoch), batches.size(), u(k)}));
        group[row].cells =
            blended(before[row].cells, before[alone ? row : row ^ 1].cells, alone, draw);
      }
    }
    batches.push_back(stacked(pipeline, group));
  }
  return batches;
}

}  // namespace tutti::test
