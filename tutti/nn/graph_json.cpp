#include "tutti/nn/graph_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/json.h"
#include "tutti/base/suggest.h"
#include "tutti/nn/detail/applied.h"
#include "tutti/nn/detail/operator_facts.h"
#include "tutti/nn/detail/operator_json.h"

namespace tutti::nn {
namespace {

constexpr std::string_view kFormat = "tutti graph 1";
constexpr std::string_view kBegin = "{\"format\": \"tutti graph ";
constexpr size_t kMostBytes = size_t{64} << 20;
constexpr size_t kMostNodes = 16'384;
constexpr int64_t kMostElements = int64_t{1} << 48;
constexpr int kMostDepth = 8;

OrderedJson json_of(const Node& node) {
  OrderedJson json{{"op", std::string(kind_of(node.op))}, {"name", node.name}};
  json["of"] = OrderedJson::array();
  for (const int input : node.inputs) json["of"].push_back(input);
  json["with"] = detail::facts_of(node.op).to_json(node.op);
  json["shape"] = detail::field_json(node.shape);
  for (const Parameter& parameter : node.parameters)
    if (parameter.frozen) json["frozen"].push_back(parameter.name);
  return json;
}

std::string lines_of(const std::vector<Port>& ports) {
  std::vector<std::string> lines;
  for (const Port& port : ports)
    lines.push_back(OrderedJson{{"name", port.name}, {"node", port.node}}.dump());
  return fmt::format("{}", fmt::join(lines, ", "));
}

/// Elements of this shape; none above kMostElements.
std::optional<int64_t> elements_of(const Shape& shape) {
  int64_t total = 1;
  for (const int64_t side : shape) {
    if (side < 0 || (side > 0 && total > kMostElements / side)) return std::nullopt;
    total *= side;
  }
  return total;
}

/// One text.
class GraphReader {
 public:
  explicit GraphReader(std::string where) : where_(std::move(where)) {}

  Graph read(std::string_view text) {
    if (text.size() > kMostBytes)
      fail("", fmt::format("got {} bytes, expected at most {}", text.size(), kMostBytes));
    return at("", [&] {
      const Json json = parse_json_once(text, kMostDepth);
      require_format(json);
      detail::refuse_others(json, {"format", "inputs", "outputs", "nodes"});
      const Json& nodes = list(json, "nodes");
      if (nodes.empty() || nodes.size() > kMostNodes)
        fail("", fmt::format("got {} nodes, expected 1 to {}", nodes.size(), kMostNodes));
      for (const Json& node : nodes) add(node);
      const auto inputs = ports(json, "inputs"), outputs = ports(json, "outputs");
      Graph graph(inputs, outputs);
      require_all_used(graph);
      return graph;
    });
  }

 private:
  struct Read {
    Value value;
    Op op;
    std::string name;
    std::vector<Shape> shapes_in;
  };
  /// Of the layer with this name.
  struct Layer {
    std::shared_ptr<const void> identity;
    std::vector<size_t> nodes;
  };

  [[noreturn]] void fail(const std::string& place, const std::string& what) const {
    throw DataError(fmt::format("{}{}{}: {}", where_, place.empty() ? "" : ": ", place, what));
  }

  /// What `work` throws comes with the place.
  template <class Work>
  std::invoke_result_t<Work> at(const std::string& place, Work work) const {
    try {
      return work();
    } catch (const DataError&) {
      throw;
    } catch (const JsonError& error) {
      fail(place, error.what());
    } catch (const Error& error) {
      fail(place, error.what());
    }
  }

  void require_format(const Json& json) const {
    const std::string format = json.is_object() ? json.value("format", "") : "";
    if (format == kFormat) return;
    if (format.starts_with("tutti graph "))
      fail("", fmt::format("is \"{}\", expected \"{}\": another version has written it", format,
                           kFormat));
    fail("", fmt::format("is no graph: expected {{\"format\": \"{}\", ...}}", kFormat));
  }

  static const Json& list(const Json& json, const char* key) {
    const Json& found = json.at(key);
    if (!found.is_array()) throw JsonError(fmt::format("\"{}\" is no list", key));
    return found;
  }

  static size_t place_in(const Json& json, size_t end) {
    int64_t place = 0;
    detail::read_field(json, place);
    if (std::cmp_greater_equal(place, end))
      throw JsonError(fmt::format("got node {}, expected one of the {} before", place, end));
    return static_cast<size_t>(place);
  }

  void add(const Json& json) {
    const size_t number = nodes_.size();
    std::string place = fmt::format("node {}", number);
    at(place, [&] {
      detail::refuse_others(json, {"op", "name", "of", "with", "shape", "frozen"});
      const std::string name = json.at("name").get<std::string>();
      place += fmt::format(" (\"{}\")", name);
    });
    at(place, [&] { add_named(json, json.at("name").get<std::string>()); });
  }

  void add_named(const Json& json, const std::string& name) {
    const std::string kind = json.at("op").get<std::string>();
    const detail::OperatorFacts* const facts = detail::facts_of_kind(kind);
    if (facts == nullptr) throw JsonError(unknown_message("operator", kind, detail::all_kinds()));
    detail::Applied applied{.op = facts->from_json(json.at("with")),
                            .name = name,
                            .layer = nullptr,
                            .inputs = {},
                            .frozen = {}};
    std::vector<Shape> shapes;
    for (const Json& from : list(json, "of")) {
      const Read& read = nodes_[place_in(from, nodes_.size())];
      applied.inputs.push_back(read.value);
      shapes.push_back(read.value.shape());
    }
    const bool is_input = std::holds_alternative<op::Input>(applied.op);
    if (is_input != shapes.empty())
      throw JsonError(fmt::format("got {} inputs for {}", shapes.size(), kind));
    if (!is_input && !detail::is_layer_name(name))
      throw JsonError(fmt::format("\"{}\" is no name of a layer", name));
    const Resolved resolved = resolve(applied.op, shapes, name);
    require_follows(json, applied.op, resolved);
    count(resolved);
    if (json.contains("frozen")) applied.frozen = frozen(json, resolved);
    if (!is_input) applied.layer = layer_of(name, applied.op, shapes);
    nodes_.push_back({applied.value(), applied.op, name, std::move(shapes)});
  }

  /// What is said of sizes is what follows from the inputs.
  static void require_follows(const Json& json, const Op& op, const Resolved& resolved) {
    const auto& facts = detail::facts_of(op);
    const OrderedJson said = facts.to_json(op), follows = facts.to_json(resolved.op);
    if (said != follows)
      throw JsonError(
          fmt::format("got {}, expected {} by its inputs", said.dump(), follows.dump()));
    Shape shape;
    detail::read_field(json.at("shape"), shape);
    if (shape != resolved.shape)
      throw JsonError(fmt::format("got shape {}, expected {} by its inputs", to_string(shape),
                                  to_string(resolved.shape)));
  }

  /// Nothing that is made of it later overflows.
  void count(const Resolved& resolved) {
    const auto values = elements_of(resolved.shape);
    if (!values || *values > detail::kMostOfGraph)
      throw JsonError(fmt::format("a sample of {} has more than {} elements",
                                  to_string(resolved.shape), detail::kMostOfGraph));
    for (const Parameter& parameter : resolved.parameters) {
      const auto elements = elements_of(parameter.shape);
      if (!elements || (elements_ += *elements) > kMostElements)
        throw JsonError(
            fmt::format("with \"{}\" of {} there are more than {} elements of parameters",
                        parameter.name, to_string(parameter.shape), kMostElements));
    }
  }

  static std::vector<std::string> frozen(const Json& json, const Resolved& resolved) {
    std::vector<std::string> names, known;
    for (const Parameter& parameter : resolved.parameters)
      if (parameter.trainable) known.push_back(parameter.name);
    for (const Json& name : list(json, "frozen")) {
      names.push_back(name.get<std::string>());
      if (std::ranges::find(known, names.back()) == known.end())
        throw JsonError(unknown_message("parameter to freeze", names.back(), known));
    }
    return names;
  }

  /// Nodes of one name are one layer, which has been told one thing. None of what owns nothing and
  /// stands alone: the graph refuses two of these.
  std::shared_ptr<const void> layer_of(const std::string& name, const Op& op,
                                       const std::vector<Shape>& shapes) {
    if (detail::facts_of(op).of_values) return nullptr;
    auto& layer = layers_[name];
    if (!layer.identity) layer.identity = std::make_shared<int>(0);
    if (!layer.nodes.empty()) require_one_layer(nodes_[layer.nodes.front()], op, shapes);
    layer.nodes.push_back(nodes_.size());
    return layer.identity;
  }

  /// What a side of -1 has become differs with the input: one side of a reshape.
  static bool differ_in_a_side(const Shape& a, const Shape& b) {
    int unlike = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) unlike += a[i] != b[i] ? 1 : 0;
    return a.size() == b.size() && unlike <= 1;
  }

  static void require_one_layer(const Read& first, const Op& op, const std::vector<Shape>& shapes) {
    const auto said = [](const Op& one, const std::vector<Shape>& of) {
      return detail::facts_of(one).to_json(resolve(one, of, "").op);
    };
    const bool tied = is_embedding(first.op) && is_embedding(op);
    const auto* const one = std::get_if<op::Reshape>(&first.op);
    const auto* const other = std::get_if<op::Reshape>(&op);
    const bool reshapes = one != nullptr && other != nullptr;
    if (reshapes && differ_in_a_side(one->shape, other->shape)) return;
    const OrderedJson here =
        tied || reshapes ? detail::facts_of(op).to_json(op) : said(op, first.shapes_in);
    const OrderedJson there = detail::facts_of(first.op).to_json(first.op);
    if ((tied || first.op.index() == op.index()) && here == there) return;
    throw JsonError(fmt::format("got {} {} of {}, expected {} {}, as the layer of this name before",
                                kind_of(op), here.dump(), fmt::join(shapes, ", "),
                                kind_of(first.op), there.dump()));
  }

  static bool is_embedding(const Op& op) {
    return std::holds_alternative<op::Embedding>(op) || std::holds_alternative<op::TiedLinear>(op);
  }

  std::vector<NamedValue> ports(const Json& json, const char* key) const {
    std::vector<NamedValue> found;
    const bool in = std::string_view(key) == "inputs";
    for (const Json& port : list(json, key)) {
      at(fmt::format("{} {}", key, found.size()), [&] {
        detail::refuse_others(port, {"name", "node"});
        const Read& node = nodes_[place_in(port.at("node"), nodes_.size())];
        const auto name = port.at("name").get<std::string>();
        if (in && (name != node.name || !std::holds_alternative<op::Input>(node.op)))
          throw JsonError(fmt::format("got node {} \"{}\", expected an input of this name: \"{}\"",
                                      kind_of(node.op), node.name, name));
        found.push_back({name, node.value});
      });
    }
    return found;
  }

  void require_all_used(const Graph& graph) const {
    if (graph.nodes().size() == nodes_.size()) return;
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (i == graph.nodes().size() || graph.nodes()[i].name != nodes_[i].name)
        fail(fmt::format("node {} (\"{}\")", i, nodes_[i].name), "no output comes from it");
  }

  const std::string where_;
  std::vector<Read> nodes_;
  std::map<std::string, Layer> layers_;
  int64_t elements_ = 0;
};

}  // namespace

std::string why_no_json(const Graph& graph) {
  for (const Node& node : graph.nodes())
    if (const auto* lambda = std::get_if<op::Lambda>(&node.op))
      return fmt::format("layer \"{}\" is a function of the program's own ({})", node.name,
                         lambda->what);
  return "";
}

std::string graph_to_json(const Graph& graph) {
  if (const std::string why = why_no_json(graph); !why.empty())
    throw UsageError(
        fmt::format("the graph as JSON: {}, which no file has; expected layers of nn alone", why));
  try {
    std::vector<std::string> lines;
    for (const Node& node : graph.nodes()) lines.push_back(json_of(node).dump());
    return fmt::format(
        "{{\"format\": \"{}\",\n\"inputs\": [{}],\n\"outputs\": [{}],\n\"nodes\": [\n{}\n]}}\n",
        kFormat, lines_of(graph.inputs()), lines_of(graph.outputs()), fmt::join(lines, ",\n"));
  } catch (const JsonError& error) {
    throw DataError(fmt::format("the graph as JSON: a name is no UTF-8: {}", error.what()));
  }
}

Graph graph_from_json(std::string_view text, const std::string& where) {
  return GraphReader(where).read(text);
}

bool is_graph_json(std::string_view text) { return text.starts_with(kBegin); }

}  // namespace tutti::nn
