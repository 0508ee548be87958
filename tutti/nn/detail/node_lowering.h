/// A node of a graph as StableHLO: what an operator's lowering has at hand. Not for users.
/// Thread rule: that of the program.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/nn/lower_graph.h"

namespace tutti::nn::detail {

/// All inputs have one order, and so does an image that the node gives.
struct NodeLowering {
  const Graph& graph;
  const nn::Node& node;
  const LoweringInputs& from;
  const std::vector<hlo::Value>& all;
  hlo::ImageOrder order;
  std::map<std::string, hlo::Value>& buffers;

  const hlo::Value& x() const { return all.front(); }  ///< the first input
  int64_t size(int64_t dimension) const { return x().shape()[static_cast<size_t>(dimension)]; }
  /// The shape of x, with this size of that dimension.
  hlo::Shape shape_with(int64_t dimension, int64_t size) const;
  /// Of images; channels are 1 for all else.
  hlo::ImageAxes axes() const { return hlo::axes_of(order); }

  std::string full_name_of(std::string_view state) const;
  hlo::Value state(std::string_view name) const { return from.state.at(full_name_of(name)); }
  /// [C] for each of C channels, or [F] of F features: `dimension` of x.
  hlo::Value along(hlo::Value vector, int64_t dimension) const {
    return hlo::broadcast(vector, x().shape(), {dimension});
  }
  hlo::Value product_type(hlo::Value a) const { return hlo::convert(a, from.product); }
  /// a W' + b over the last dimension.
  hlo::Value dense(hlo::Value a, hlo::Value weight, std::optional<hlo::Value> bias = {}) const;
};

/// Of what a dropout layer gives: 0, or 1 / (1 - probability).
hlo::Value drawn_mask(const NodeLowering& to, double probability);

}  // namespace tutti::nn::detail
