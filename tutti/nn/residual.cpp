#include "tutti/nn/residual.h"

#include <algorithm>
#include <map>

namespace tutti::nn {
namespace {

// How many nodes or outputs take each node's value.
std::vector<int> takers_of(const Graph& graph) {
  std::vector<int> takers(graph.nodes().size(), 0);
  for (const Node& node : graph.nodes())
    for (const int input : node.inputs) ++takers[static_cast<size_t>(input)];
  for (const Port& port : graph.outputs()) ++takers[static_cast<size_t>(port.node)];
  return takers;
}

// Nodes on the longest way to each.
std::vector<int> depths_of(const Graph& graph) {
  std::vector<int> depths;
  for (const Node& node : graph.nodes()) {
    int depth = 0;
    for (const int input : node.inputs)
      depth = std::max(depth, depths[static_cast<size_t>(input)] + 1);
    depths.push_back(depth);
  }
  return depths;
}

bool is_norm(const Node& node) { return std::holds_alternative<op::BatchNorm2d>(node.op); }

}  // namespace

std::vector<int> last_batch_norms(const Graph& graph) {
  const auto& nodes = graph.nodes();
  const auto takers = takers_of(graph);
  const auto depths = depths_of(graph);
  std::vector<int> last;
  for (const Node& node : nodes) {
    if (!std::holds_alternative<op::Add>(node.op)) continue;
    const auto depth_of = [&](int place) { return depths[static_cast<size_t>(place)]; };
    const int deepest = std::ranges::max(node.inputs, {}, depth_of);
    const bool alone = std::ranges::count(node.inputs, depth_of(deepest), depth_of) == 1;
    const auto place = static_cast<size_t>(deepest);
    if (alone && is_norm(nodes[place]) && takers[place] == 1) last.push_back(deepest);
  }
  std::ranges::sort(last);
  std::map<std::string, int> applied;
  for (const Node& node : nodes) ++applied[node.name];
  for (const int place : last) --applied[nodes[static_cast<size_t>(place)].name];
  std::erase_if(last,
                [&](int place) { return applied[nodes[static_cast<size_t>(place)].name] > 0; });
  return last;
}

}  // namespace tutti::nn
