/// Where a stage's layers are cut for Recompute. Not for users. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tutti/parallel/stages/recompute.h"

namespace tutti::parallel::detail {

/// A layer of a stage, in the order of execution.
struct LayerUnit {
  std::string name{};
  const void* parameters = nullptr;  ///< whose they are: the same for a layer that is applied again
  std::string no_cut{};              ///< why nothing can be cut before it; "": it can
};

/// Of units, [begin, end).
struct LayerSpan {
  size_t begin = 0;
  size_t end = 0;
  bool recompute = false;
  bool operator==(const LayerSpan&) const = default;
};

/// Spans that are all of the units, in order. A run ends later where it cannot be cut.
///
/// Throws UsageError for a block or a pattern whose layers cannot be cut off; for every < 1; and
/// for parameters that a span reads twice and a later one too, since their gradients would be added
/// in another order.
std::vector<LayerSpan> layer_spans(const std::vector<LayerUnit>& units, const Recompute& recompute);

/// UsageError unless the layers of a whole model have blocks, or match each pattern, where those
/// are what is asked for; with the nearest name.
void require_layers(const std::vector<std::string>& names, const Recompute& recompute);

}  // namespace tutti::parallel::detail
