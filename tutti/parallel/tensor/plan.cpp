#include "tutti/parallel/tensor/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/optim/recipe.h"
#include "tutti/parallel/tensor/detail/cut.h"
#include "tutti/parallel/tensor/detail/patterns.h"

namespace tutti::parallel {
namespace {

using nn::Node;
namespace op = nn::op;

constexpr std::string_view kRoleNames[] = {"whole", "columns", "rows", "heads"};
std::string_view role_name(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

template <class... Kinds>
bool is(const Node& node) {
  return (std::holds_alternative<Kinds>(node.op) || ...);
}
bool is_elementwise(const Node& node) {
  return is<op::Relu, op::Gelu, op::Tanh, op::Sigmoid, op::LeakyRelu, op::Elu, op::Selu, op::Silu,
            op::HardSigmoid, op::HardSwish, op::Softplus, op::Mish, op::Relu6>(node);
}
std::string words_for(const Node& node) {
  return fmt::format("layer {} ({})", node.name, nn::kind_of(node.op));
}
const Node& input_of(const nn::Graph& graph, const Node& node) {
  return graph.nodes()[static_cast<size_t>(node.inputs[0])];
}

// ---- patterns ----

Role role_by_name(const Plan& plan, const std::string& name) {
  const auto entry =
      std::ranges::find_if(plan, [&](const auto& one) { return optim::fits(one.first, name); });
  return entry == plan.end() ? Role::whole : entry->second;
}

void require_matches(const nn::Graph& graph, const Plan& plan) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes())
    if (!is<op::Input>(node)) names.push_back(node.name);
  for (const auto& [pattern, role] : plan) detail::require_match("plan", pattern, names);
}

// ---- what a layer can be ----

/// Of this node alone; UsageError for a role that it cannot have.
Role possible_role(const Node& node, Role role, int blocks) {
  if (role == Role::whole || is<op::Input>(node)) return Role::whole;
  if (const auto* head = std::get_if<op::TiedLinear>(&node.op); head && role != Role::heads) {
    detail::require_elements(node.name, head->vocabulary, blocks);
    return Role::columns;
  }
  if (const auto* linear = std::get_if<op::Linear>(&node.op); linear && role != Role::heads) {
    detail::require_elements(node.name, role == Role::columns ? linear->units : linear->in_features,
                             blocks);
    return role;
  }
  if (const auto* words = std::get_if<op::Embedding>(&node.op); words && role == Role::rows) {
    detail::require_elements(node.name, words->vocabulary, blocks);
    return role;
  }
  if (const auto* attention = std::get_if<op::Attention>(&node.op);
      attention && role == Role::heads) {
    detail::require_heads(node.name, attention->heads, blocks);
    return role;
  }
  throw UsageError(fmt::format(
      "plan: {} cannot be cut into {}; columns are of linear and tied_linear, rows of linear and "
      "embedding, heads of attention",
      words_for(node), role_name(role)));
}

/// The linear layers, by name, the columns of which attention reads.
std::vector<std::string> layers_before_heads(const nn::Graph& graph,
                                             const std::vector<NodeRole>& roles) {
  std::vector<std::string> names;
  for (size_t i = 0; i < roles.size(); ++i) {
    if (roles[i].role != Role::heads) continue;
    const Node* from = &input_of(graph, graph.nodes()[i]);
    while (is_elementwise(*from)) from = &input_of(graph, *from);
    names.push_back(from->name);
  }
  return names;
}

// ---- how blocks flow ----

/// Goes over the nodes in their order: what each reads has been settled.
class Flow {
 public:
  Flow(const nn::Graph& graph, std::vector<NodeRole>& roles) : graph_(graph), roles_(roles) {}

  void settle(size_t place) {
    const Node& node = graph_.nodes()[place];
    NodeRole& own = roles_[place];
    for (const int input : node.inputs) {
      const NodeRole& from = roles_[static_cast<size_t>(input)];
      if (own.role == Role::heads) {
        require_stacked(node, from, input);
      } else if (!from.blocks_of.empty()) {
        require_reads_blocks(node, own, from);
        if (is_elementwise(node)) {
          own.blocks_of = from.blocks_of;
          own.stacked = from.stacked;
        }
      }
    }
    if (own.role == Role::columns || own.role == Role::heads) own.blocks_of = node.name;
  }

  void require_output(const nn::Port& port) const {
    const NodeRole& role = roles_[static_cast<size_t>(port.node)];
    if (role.stacked > 1)
      throw UsageError(fmt::format(
          "plan: output \"{}\" is the columns of layer {}, of which blocks have queries, keys and "
          "values; leave that layer whole",
          port.name, role.blocks_of));
  }

 private:
  void require_stacked(const Node& node, const NodeRole& from, int input) const {
    if (from.stacked > 1) return;
    const std::string& name = graph_.nodes()[static_cast<size_t>(input)].name;
    throw UsageError(
        from.blocks_of.empty()
            ? fmt::format("plan: {} is cut into heads, layer {} before it is whole; add "
                          "{{\"{}\", columns()}} where it is linear, or leave both whole",
                          words_for(node), name, name)
            : fmt::format("plan: {} is cut into heads, which read columns of a linear layer; "
                          "layer {} gives blocks of another kind",
                          words_for(node), name));
  }

  static void require_reads_blocks(const Node& node, const NodeRole& own, const NodeRole& from) {
    const bool reads = is_elementwise(node) || (own.role == Role::rows && is<op::Linear>(node));
    if (!reads)
      throw UsageError(fmt::format(
          "plan: {} reads blocks of layer {}, which it cannot: {}; put rows() on a linear layer "
          "between them, or leave {} whole",
          words_for(node), from.blocks_of,
          is<op::Dropout>(node)     ? "dropout between columns and rows is not cut"
          : is<op::Attention>(node) ? "attention does when it is cut into heads()"
                                    : "only relu, gelu, tanh, heads and rows do",
          from.blocks_of));
    if (own.role == Role::rows && from.stacked > 1)
      throw UsageError(fmt::format(
          "plan: {} reads columns of layer {}, of which attention has queries, keys and values in "
          "each block; leave {} whole",
          words_for(node), from.blocks_of, from.blocks_of));
  }

  const nn::Graph& graph_;
  std::vector<NodeRole>& roles_;
};

// ---- plans by a graph's form ----

/// Finds chains of layers, each of which is read by the next alone.
class Finder {
 public:
  Finder(const nn::Graph& graph, int blocks)
      : graph_(graph), blocks_(blocks), readers_(graph.nodes().size()) {
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      for (const int input : graph.nodes()[i].inputs)
        readers_[static_cast<size_t>(input)].push_back(i);
      ++applied_[graph.nodes()[i].name];
    }
    for (const nn::Port& port : graph.outputs())
      readers_[static_cast<size_t>(port.node)].push_back(graph.nodes().size());
  }

  Plan plan() {
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      const Node& node = graph_.nodes()[i];
      if (is<op::Embedding>(node)) add_table(node);
      if (is<op::Linear>(node) && is_free(node)) add_linear(i);
    }
    return std::move(plan_);
  }

 private:
  bool is_free(const Node& node) const {
    return applied_.at(node.name) == 1 &&
           std::ranges::none_of(plan_, [&](const auto& one) { return one.first == node.name; });
  }
  /// The node that alone reads what this one gives, and is no output.
  const Node* only_reader(size_t& place) const {
    if (readers_[place].size() != 1 || readers_[place][0] == graph_.nodes().size()) return nullptr;
    place = readers_[place][0];
    return &graph_.nodes()[place];
  }
  bool is_output_alone(size_t place) const {
    return std::ranges::all_of(readers_[place],
                               [&](size_t reader) { return reader == graph_.nodes().size(); });
  }

  void add_table(const Node& table) {
    if (std::get<op::Embedding>(table.op).vocabulary < blocks_ ||
        std::ranges::any_of(plan_, [&](const auto& one) { return one.first == table.name; }))
      return;
    for (size_t i = 0; i < graph_.nodes().size(); ++i)
      if (graph_.nodes()[i].name == table.name && is<op::TiedLinear>(graph_.nodes()[i]) &&
          !is_output_alone(i))
        return;
    plan_.emplace_back(table.name, Role::rows);
  }

  void add_linear(size_t place) {
    const Node& first = graph_.nodes()[place];
    const auto& linear = std::get<op::Linear>(first.op);
    if (linear.units < blocks_) return;
    if (is_output_alone(place)) {
      if (linear.units > linear.in_features) plan_.emplace_back(first.name, Role::columns);
      return;
    }
    const Node* next = only_reader(place);
    const auto* attention = next ? std::get_if<op::Attention>(&next->op) : nullptr;
    const Node* heads = attention ? next : nullptr;
    if (heads && (attention->heads % blocks_ != 0 || !is_free(*heads))) return;
    if (heads) next = only_reader(place);
    while (!heads && next && is_elementwise(*next)) next = only_reader(place);
    if (!next || !is<op::Linear>(*next) || !is_free(*next)) return;
    plan_.emplace_back(first.name, Role::columns);
    if (heads) plan_.emplace_back(heads->name, Role::heads);
    plan_.emplace_back(next->name, Role::rows);
  }

  const nn::Graph& graph_;
  int blocks_;
  std::vector<std::vector<size_t>> readers_;
  std::map<std::string, int> applied_;
  Plan plan_;
};

}  // namespace

std::vector<NodeRole> roles_of(const nn::Graph& graph, const Plan& plan, int blocks) {
  require_matches(graph, plan);
  const auto& nodes = graph.nodes();
  std::vector<NodeRole> roles(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i)
    roles[i].role = possible_role(nodes[i], role_by_name(plan, nodes[i].name), blocks);
  const auto stacked = layers_before_heads(graph, roles);
  Flow flow(graph, roles);
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (is<op::Linear>(nodes[i]) && roles[i].role == Role::columns &&
        std::ranges::count(stacked, nodes[i].name) > 0)
      roles[i].stacked = 3;
    flow.settle(i);
  }
  for (const nn::Port& port : graph.outputs()) flow.require_output(port);
  return blocks == 1 ? std::vector<NodeRole>(nodes.size()) : roles;
}

Plan default_plan(const nn::Graph& graph, int blocks) { return Finder(graph, blocks).plan(); }

std::string why_no_cut(const nn::Graph& graph, const std::vector<NodeRole>& roles, size_t place) {
  for (size_t i = place; i < roles.size(); ++i)
    for (const int input : graph.nodes()[i].inputs) {
      const auto from = static_cast<size_t>(input);
      if (from < place && !roles[from].blocks_of.empty())
        return fmt::format(
            "a cut before layer {} lies between layer {}, cut into blocks, and layer {}, which "
            "reads them; cut before {} or after {}",
            graph.nodes()[place].name, roles[from].blocks_of, graph.nodes()[i].name,
            roles[from].blocks_of, graph.nodes()[i].name);
    }
  return "";
}

}  // namespace tutti::parallel
