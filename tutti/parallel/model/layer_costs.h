/// Cuts: where a graph can be cut into stages, and where it is best.
///
/// Thread rule: const functions from any thread but for balanced(), which computes.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "tutti/nn/graph.h"
#include "tutti/parallel/stages/balance.h"
#include "tutti/parallel/stages/stage.h"
#include "tutti/parallel/tensor/plan.h"

namespace tutti::parallel {

class Cuts {
 public:
  /// `roles` as roles_of() gives them.
  Cuts(const nn::Graph& graph, const std::vector<NodeRole>& roles);

  /// Nodes that a stage may begin with, ascending; the first is 0. Each owns parameters, so that
  /// every stage has something to train.
  const std::vector<size_t>& begins() const noexcept { return begins_; }
  /// Throws UsageError where there are fewer than `stages`.
  void require_stages(int stages) const;

  /// What the layers between two of begins() take, one after another: forward and backward of so
  /// many samples, the median of five; what goes over a cut behind them, there and back; parameters
  /// with gradients and two states. Draws from LibTorch's default generator, and puts it back.
  std::vector<LayerCost> measured(int64_t samples = 2) const;

  /// Nodes that stages begin with, so that the slowest takes least (balance.h), as measured.
  std::vector<size_t> balanced(int stages) const;

 private:
  nn::Graph graph_;
  std::vector<size_t> begins_;
};

/// The same of a Sequential's children, as sequential_stages() takes them: with 0 and their number.
/// UsageError for fewer children with parameters than stages.
std::vector<size_t> balanced_cuts(torch::nn::Sequential whole, const Border& input, int stages);

}  // namespace tutti::parallel
