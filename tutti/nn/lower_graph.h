/// A Graph as StableHLO: what a compiler for an accelerator takes in the place of a torch module.
///
/// Each operator of ops.h is written with the operators of hlo/ops.h, which know their gradients.
/// docs/design/pjrt.md. Thread rule: pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/hlo/ops.h"
#include "tutti/nn/graph.h"

namespace tutti::nn {

/// What a lowered graph reads.
struct LoweringInputs {
  std::vector<hlo::Value> inputs;           ///< of graph.inputs(): [batch, shape...]
  std::map<std::string, hlo::Value> state;  ///< parameters and buffers, by full name
  bool training = false;
  /// Of what products are computed, convolutions' too; their sums are float32's, and so is all
  /// else.
  DType product = DType::float32;
  /// In training, where the graph has dropouts: the key of each of dropouts_of(graph), uint32
  /// [dropouts, 2], low half first; and the number of the first row in the global batch, uint32
  /// [2], low half first.
  std::optional<hlo::Value> dropout_keys{}, first_row{};
  /// In training, of a batch with rows that only fill it up: float32 [batch], 0 for those, else 1.
  /// Batch norms leave them out of their statistics.
  std::optional<hlo::Value> row_weights{};
};

struct LoweredGraph {
  std::vector<hlo::Value> outputs;            ///< of graph.outputs(): [batch, shape...]
  std::map<std::string, hlo::Value> buffers;  ///< in training: what buffers become, by full name
};

/// Adds what the graph computes to the program of its inputs, with a comment a layer.
LoweredGraph lower(const Graph& graph, const LoweringInputs& from);

/// Nodes that draw masks in training, each layer once, in the order of
/// LoweringInputs::dropout_keys. The key of such a node is random_key(seed, RandomPurpose::dropout,
/// {step, node, 1}), the one that nn::Dropout takes: masks are the same.
std::vector<int> dropouts_of(const Graph& graph);

}  // namespace tutti::nn
