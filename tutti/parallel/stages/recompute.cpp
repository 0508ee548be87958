#include "tutti/parallel/stages/recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"
#include "tutti/optim/recipe.h"
#include "tutti/parallel/stages/detail/layer_spans.h"
#include "tutti/parallel/tensor/detail/patterns.h"

namespace tutti::parallel {

Recompute recompute_choice(const std::string& word) {
  if (word == "none") return Recompute::none();
  if (word == "full") return Recompute::full();
  if (word == "blocks") return Recompute::blocks();
  if (const std::string every = "every:"; word.starts_with(every)) {
    const auto layers = number_in<int>(std::string_view(word).substr(every.size()));
    if (!layers || *layers < 1)
      throw UsageError(fmt::format("recompute {}: expected every:K, with K layers from 1", word));
    return Recompute::every_layers(*layers);
  }
  std::vector<std::string> patterns;
  for (const std::string_view part : parts_of(word, ','))
    if (!part.empty()) patterns.emplace_back(part);
  if (patterns.empty())
    throw UsageError(
        "recompute: got nothing, expected none, full, blocks, every:K or layers' names");
  return Recompute::layers(std::move(patterns));
}

namespace detail {
namespace {

/// "transformer.h.3" of "transformer.h.3.mlp.c_fc"; "": of none.
std::string block_of(const std::string& name) {
  size_t end = 0;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const size_t begin = name.rfind('.', dot - 1) + 1;  // npos + 1 is 0
    if (number_in<unsigned>(std::string_view(name).substr(begin, dot - begin))) end = dot;
  }
  return name.substr(0, end);
}

/// What a layer is computed again with; "": it is not.
using Label = std::string;

/// A layer without parameters and name of its own (an addition) goes with the block before it.
std::vector<Label> labels_by_block(const std::vector<LayerUnit>& units) {
  std::vector<Label> labels;
  for (const LayerUnit& unit : units) {
    Label own = block_of(unit.name);
    if (own.empty() && unit.parameters == nullptr && !labels.empty()) own = labels.back();
    labels.push_back(std::move(own));
  }
  return labels;
}

std::vector<Label> labels_by_pattern(const std::vector<LayerUnit>& units,
                                     const std::vector<std::string>& patterns) {
  std::vector<Label> labels;
  for (const LayerUnit& unit : units) {
    const auto found = std::ranges::find_if(
        patterns, [&](const std::string& pattern) { return optim::fits(pattern, unit.name); });
    labels.push_back(found == patterns.end() ? Label() : *found);
  }
  return labels;
}

std::vector<LayerSpan> spans_of_labels(const std::vector<LayerUnit>& units,
                                       const std::vector<Label>& labels) {
  std::vector<LayerSpan> spans;
  for (size_t i = 0; i < units.size(); ++i) {
    if (i > 0 && labels[i] == labels[i - 1]) {
      spans.back().end = i + 1;
      continue;
    }
    if (i > 0 && !units[i].no_cut.empty())
      throw UsageError(fmt::format("recompute: {} cannot be computed again apart from {}: {}",
                                   units[i].name, units[i - 1].name, units[i].no_cut));
    spans.push_back({i, i + 1, !labels[i].empty()});
  }
  return spans;
}

std::vector<LayerSpan> spans_of_runs(const std::vector<LayerUnit>& units, int every) {
  if (every < 1)
    throw UsageError(fmt::format("recompute: every {} layers, expected 1 or more", every));
  std::vector<LayerSpan> spans{{0, units.size(), true}};
  int layers = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i].parameters == nullptr) continue;
    if (layers >= every && units[i].no_cut.empty()) {
      spans.back().end = i;
      spans.push_back({i, units.size(), true});
      layers = 0;
    }
    ++layers;
  }
  return spans;
}

// ((c + b) + a) is what autograd adds of three reads: a span may not have added b and a before.
void require_order_of_sums(const std::vector<LayerUnit>& units,
                           const std::vector<LayerSpan>& spans) {
  std::set<const void*> read_twice;
  for (const LayerSpan& span : spans) {
    std::map<const void*, int> reads;
    for (size_t i = span.begin; i < span.end; ++i) {
      if (units[i].parameters == nullptr) continue;
      if (read_twice.contains(units[i].parameters))
        throw UsageError(fmt::format(
            "recompute: layer {} is applied twice in what is computed together, and again behind "
            "it, so that its gradients would be added in another order; take full",
            units[i].name));
      ++reads[units[i].parameters];
    }
    for (const auto& [parameters, times] : reads)
      if (times > 1) read_twice.insert(parameters);
  }
}

}  // namespace

std::vector<LayerSpan> layer_spans(const std::vector<LayerUnit>& units,
                                   const Recompute& recompute) {
  std::vector<LayerSpan> spans;
  switch (recompute.of) {
    case Recompute::Of::nothing:
    case Recompute::Of::stages: return {{0, units.size(), recompute.of == Recompute::Of::stages}};
    case Recompute::Of::blocks: spans = spans_of_labels(units, labels_by_block(units)); break;
    case Recompute::Of::runs: spans = spans_of_runs(units, recompute.every); break;
    case Recompute::Of::layers:
      spans = spans_of_labels(units, labels_by_pattern(units, recompute.names));
      break;
  }
  require_order_of_sums(units, spans);
  return spans;
}

void require_layers(const std::vector<std::string>& names, const Recompute& recompute) {
  for (const std::string& pattern : recompute.names) require_match("recompute", pattern, names);
  if (recompute.of == Recompute::Of::blocks &&
      std::ranges::all_of(names, [](const auto& name) { return block_of(name).empty(); }))
    throw UsageError(
        "recompute: the model has no blocks, whose layers' names begin alike up to a number "
        "(h.3.mlp); take full, every:K or layers' names");
}

}  // namespace detail
}  // namespace tutti::parallel
