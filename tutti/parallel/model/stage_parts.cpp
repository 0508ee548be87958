#include "tutti/parallel/model/detail/stage_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/nn/value_types.h"

namespace tutti::parallel {
namespace {

bool is_layer(const nn::Node& node) { return !std::holds_alternative<nn::op::Input>(node.op); }

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 20;
  const auto first = std::span(names).first(std::min(names.size(), kMost));
  return fmt::format("{}{}", fmt::join(first, ", "), names.size() > kMost ? ", ..." : "");
}

/// Where a layer is first applied.
size_t place_of_layer(const nn::Graph& graph, const std::string& name) {
  const auto& nodes = graph.nodes();
  const auto found = std::ranges::find_if(
      nodes, [&](const nn::Node& node) { return is_layer(node) && node.name == name; });
  if (found != nodes.end()) return static_cast<size_t>(found - nodes.begin());
  std::vector<std::string> known;
  for (const nn::Node& node : nodes)
    if (is_layer(node)) known.push_back(node.name);
  const std::string near = nearest(name, known);
  throw UsageError(fmt::format("stages: the graph has no layer \"{}\" to be cut before{}", name,
                               near.empty() ? "; its layers are " + some_of(known)
                                            : fmt::format("; did you mean \"{}\"?", near)));
}

}  // namespace

std::vector<StageRange> ranges_by_names(const nn::Graph& graph,
                                        const std::vector<std::string>& names) {
  std::vector<StageRange> stages{{0, graph.nodes().size()}};
  const auto layers = std::ranges::count_if(graph.nodes(), is_layer);
  if (static_cast<ptrdiff_t>(names.size()) + 1 > layers)
    throw UsageError(fmt::format("stages: {} cuts make {} stages, the graph has {} layers",
                                 names.size(), names.size() + 1, layers));
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t place = place_of_layer(graph, names[i]);
    if (i > 0 && place == stages.back().begin)
      throw UsageError(fmt::format("stages: two cuts are before layer \"{}\"", names[i]));
    if (i > 0 && place < stages.back().begin)
      throw UsageError(
          fmt::format("stages: a cut is before layer \"{}\", the next one before \"{}\", which "
                      "comes earlier in the graph; name them in its order",
                      names[i - 1], names[i]));
    stages.back().end = place;
    stages.push_back({place, graph.nodes().size()});
  }
  detail::require_ranges(graph, stages);
  return stages;
}

namespace detail {

void require_ranges(const nn::Graph& graph, const std::vector<StageRange>& stages) {
  const auto& nodes = graph.nodes();
  size_t next = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto [begin, end] = stages[i];
    if (begin != next || end < begin || end > nodes.size())
      throw UsageError(fmt::format(
          "stages: stage {} of {} is nodes {} to before {} of {}; expected it to begin at {}", i,
          stages.size(), begin, end, nodes.size(), next));
    if (std::none_of(nodes.begin() + static_cast<ptrdiff_t>(begin),
                     nodes.begin() + static_cast<ptrdiff_t>(end), is_layer))
      throw UsageError(fmt::format("stages: stage {} of {} has no layer (nodes {} to before {})", i,
                                   stages.size(), begin, end));
    next = end;
  }
  if (next != nodes.size())
    throw UsageError(fmt::format("stages: they end before node {} of {}; expected the whole graph",
                                 next, nodes.size()));
}

std::vector<nn::Port> values_across(const nn::Graph& graph, size_t place) {
  const auto& nodes = graph.nodes();
  if (place == 0) return graph.inputs();
  if (place == nodes.size()) return graph.outputs();
  std::vector<bool> read(nodes.size(), false);
  for (size_t i = place; i < nodes.size(); ++i)
    for (const int input : nodes[i].inputs) read[static_cast<size_t>(input)] = true;
  for (const nn::Port& output : graph.outputs()) read[static_cast<size_t>(output.node)] = true;
  std::vector<nn::Port> ports;
  for (size_t i = 0; i < nodes.size(); ++i)
    if (read[i] && (i < place || !is_layer(nodes[i])))
      ports.push_back({nodes[i].name, static_cast<int>(i)});
  return ports;
}

std::vector<Border> borders_of(const nn::Graph& graph, const std::vector<nn::Port>& ports) {
  const std::vector<DType> types = nn::value_types(graph);
  std::vector<Border> borders;
  for (const nn::Port& port : ports)
    borders.push_back({graph.shape_of(port), types[static_cast<size_t>(port.node)]});
  return borders;
}

std::map<std::string, std::vector<int>> stages_by_layer(const nn::Graph& graph,
                                                        const std::vector<StageRange>& stages) {
  std::map<std::string, std::vector<int>> by_layer;
  for (size_t stage = 0; stage < stages.size(); ++stage)
    for (size_t i = stages[stage].begin; i < stages[stage].end; ++i) {
      const nn::Node& node = graph.nodes()[i];
      auto& own = by_layer[node.name];
      if (!own.empty() && own.back() == static_cast<int>(stage)) continue;
      own.push_back(static_cast<int>(stage));
      const bool buffers = std::ranges::any_of(
          node.parameters, [](const nn::Parameter& parameter) { return !parameter.trainable; });
      if (own.size() > 1 && buffers)
        throw UsageError(fmt::format(
            "stages: layer {} is applied in stages {}, and has running statistics, which are kept "
            "in one; cut elsewhere",
            node.name, fmt::join(own, ", ")));
      if (own.size() > 2 && !node.parameters.empty())
        throw UsageError(fmt::format(
            "stages: layer {} is applied in stages {}; its parameters can be in two at most; cut "
            "elsewhere",
            node.name, fmt::join(own, ", ")));
    }
  return by_layer;
}

}  // namespace detail
}  // namespace tutti::parallel
