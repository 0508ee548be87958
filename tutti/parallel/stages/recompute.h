/// Recompute: which layers keep what they take alone, and are computed again in backward, so that a
/// training needs less memory and more time (Chen et al. 2016, arXiv 1604.06174). No bit depends on
/// it. Layers are those of an nn::Graph, or the children of a Sequential, which has no blocks.
///
///   tutti::Model model(strategy, make_graph, {.recompute = parallel::Recompute::blocks()});
///
/// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tutti::parallel {

struct Recompute {
  enum class Of : uint8_t { nothing, stages, blocks, runs, layers };

  Of of = Of::nothing;
  int every = 1;                     ///< of runs: layers with parameters in one
  std::vector<std::string> names{};  ///< of layers: patterns, in which * stands for any characters

  bool in_stages() const noexcept { return of != Of::nothing; }
  /// Whether a stage's layers are told apart.
  bool in_layers() const noexcept { return of > Of::stages; }

  static Recompute none() { return {}; }
  /// Of each stage its inputs are kept alone.
  static Recompute full() { return {.of = Of::stages}; }
  /// Of each block, which are the layers whose names begin alike up to a number
  /// ("transformer.h.3.mlp.c_fc"). What is in none is not computed again.
  static Recompute blocks() { return {.of = Of::blocks}; }
  /// Of each run of `layers` layers with parameters, counted from the beginning of a stage; >= 1.
  static Recompute every_layers(int layers) { return {.of = Of::runs, .every = layers}; }
  /// Of each run of layers that match the same pattern. What matches none is not computed again.
  static Recompute layers(std::vector<std::string> patterns) {
    return {.of = Of::layers, .names = std::move(patterns)};
  }
};

/// "none", "full", "blocks", "every:K", or patterns with commas between. UsageError for a K that is
/// no number from 1, and for nothing.
Recompute recompute_choice(const std::string& word);

}  // namespace tutti::parallel
