/// Whether every replica gets batches that a batch norm can take. Thread rule: a pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tutti/nn/graph.h"

namespace tutti {

/// The batches of a training, and who shares them.
struct SharedBatches {
  int64_t samples = 0;       ///< of an epoch
  int64_t global_batch = 0;  ///< >= 1
  int64_t steps = 0;         ///< over all epochs
  int replicas = 1;
  std::span<const double> shares{};  ///< relative, one a replica; empty: equal
};

/// Why the graph cannot train on these batches: a replica would get one sample of one; "": it can.
/// The sentence is that of require_batch_norm_input.
std::string objection_of_batch_norms_to(const nn::Graph& graph, const SharedBatches& batches);

/// Throws UsageError when a replica would get one sample and the graph has a batch norm over one
/// pixel: one value has no variance, and LibTorch refuses it in the middle of the training. Names
/// the layer, the share, and a batch size that works.
void require_batch_norm_input(std::string_view operation, const nn::Graph& graph,
                              const SharedBatches& batches);

}  // namespace tutti
