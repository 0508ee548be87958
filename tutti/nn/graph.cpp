#include "tutti/nn/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/suggest.h"
#include "tutti/nn/detail/applied.h"
#include "tutti/nn/detail/value_types.h"
#include "tutti/optim/recipe.h"

namespace tutti::nn {

namespace detail {

/// One application of a layer, as it was written. Graph turns the reachable ones into Nodes.
struct Record {
  Resolved resolved;
  DType dtype = DType::float32;
  std::string name;                   ///< empty: the Graph counts
  std::shared_ptr<const void> layer;  ///< identity: equal for applications of one Layer
  std::vector<std::shared_ptr<const Record>> inputs;
  uint64_t serial = 0;  ///< increases with each application, so inputs come first
};

namespace {

std::shared_ptr<Record> make_record(const Op& op, const std::string& name,
                                    std::shared_ptr<const void> layer,
                                    std::vector<std::shared_ptr<const Record>> inputs) {
  static std::atomic<uint64_t> serial{0};
  std::vector<Shape> shapes;
  std::vector<DType> types;
  for (const auto& input : inputs) {
    shapes.push_back(input->resolved.shape);
    types.push_back(input->dtype);
  }
  auto record = std::make_shared<Record>();
  record->resolved = resolve(op, shapes, name);
  record->dtype = value_type(op, types, name);
  record->name = name;
  record->layer = std::move(layer);
  record->inputs = std::move(inputs);
  record->serial = ++serial;
  return record;
}

}  // namespace

Value Applied::value() const {
  std::vector<std::shared_ptr<const Record>> from;
  for (const Value& input : inputs) from.push_back(input.record_);
  const auto record = make_record(op, name, layer, std::move(from));
  for (Parameter& parameter : record->resolved.parameters)
    parameter.frozen = std::ranges::find(frozen, parameter.name) != frozen.end();
  return Value(record);
}

bool is_layer_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.back() != '.' &&
         name.find("..") == std::string_view::npos;
}

}  // namespace detail

using detail::Record;

struct Layer::State {
  Op op;
  std::string name;
  std::shared_ptr<const State> owner{};  ///< of the parameters, where that is another layer
};

const Shape& Value::shape() const noexcept { return record_->resolved.shape; }

Layer::Layer(Op op) : Layer(std::make_shared<State>(State{std::move(op), ""})) {}

Layer Layer::named(std::string name) const {
  if (!detail::is_layer_name(name)) {
    throw UsageError(fmt::format(
        "nn layer {}: \"{}\" is no name; expected words joined by dots, as \"layer1.0.conv1\"",
        kind_of(state_->op), name));
  }
  return Layer(std::make_shared<State>(State{state_->op, std::move(name), state_->owner}));
}

Value Layer::operator()(const Value& x) const {
  const auto& owner = state_->owner ? state_->owner : state_;
  return Value(detail::make_record(state_->op, owner->name, owner, {x.record_}));
}

Value Layer::operator()(const Value& x, const Value& second) const {
  const auto& owner = state_->owner ? state_->owner : state_;
  return Value(detail::make_record(state_->op, owner->name, owner, {x.record_, second.record_}));
}

Value input(Shape shape, DType dtype) {
  return Value(detail::make_record(op::Input{std::move(shape), dtype}, "", nullptr, {}));
}

Value add(const Value& a, const Value& b) {
  return Value(detail::make_record(op::Add{}, "", nullptr, {a.record_, b.record_}));
}

Value concat(const std::vector<Value>& values) {
  std::vector<std::shared_ptr<const Record>> inputs;
  for (const Value& value : values) inputs.push_back(value.record_);
  return Value(detail::make_record(op::Concat{}, "", nullptr, std::move(inputs)));
}

Layer conv2d(int64_t out_channels, Size2d kernel, Conv2dOptions options) {
  return Layer(op::Conv2d{.out_channels = out_channels,
                          .kernel = kernel,
                          .stride = options.stride,
                          .padding = options.padding,
                          .groups = options.groups,
                          .bias = options.bias});
}
Layer linear(int64_t units, LinearOptions options) {
  return Layer(op::Linear{
      .units = units, .bias = options.bias, .initial_deviation = options.initial_deviation});
}
Layer embedding(int64_t vocabulary, int64_t features, EmbeddingOptions options) {
  return Layer(op::Embedding{vocabulary, features, options.initial_deviation});
}
Layer tied_linear(const Layer& embedding) {
  const auto* op = std::get_if<op::Embedding>(&embedding.state_->op);
  if (op == nullptr) {
    throw UsageError(fmt::format("nn layer tied_linear: got {}, expected an embedding",
                                 kind_of(embedding.state_->op)));
  }
  return Layer(std::make_shared<Layer::State>(Layer::State{
      op::TiedLinear{op->vocabulary, op->features, op->initial_deviation}, "", embedding.state_}));
}
Layer max_pool2d(int64_t kernel, PoolOptions options) {
  const int64_t stride = options.stride == 0 ? kernel : options.stride;
  return Layer(op::MaxPool2d{.kernel = kernel, .stride = stride, .padding = options.padding});
}
Layer avg_pool2d(int64_t kernel, PoolOptions options) {
  const int64_t stride = options.stride == 0 ? kernel : options.stride;
  return Layer(op::AvgPool2d{.kernel = kernel, .stride = stride, .padding = options.padding});
}
Layer adaptive_avg_pool2d(Size2d size) { return Layer(op::AdaptiveAvgPool2d{size}); }
Layer upsample2d(int64_t times) { return Layer(op::Upsample2d{times}); }
Layer batch_norm2d(BatchNormOptions options) {
  return Layer(op::BatchNorm2d{.epsilon = options.epsilon,
                               .momentum = options.momentum,
                               .synchronized = options.synchronized});
}
Layer layer_norm(LayerNormOptions options) {
  return Layer(op::LayerNorm{.epsilon = options.epsilon});
}
Layer self_attention(int64_t heads) { return Layer(op::SelfAttention{.heads = heads}); }
Layer attention(int64_t heads, AttentionOptions options) {
  return Layer(op::Attention{.heads = heads, .causal = options.causal});
}
Layer prepend_token() { return Layer(op::PrependToken{}); }
Layer add_position() { return Layer(op::AddPosition{}); }
Layer to_sequence() { return Layer(op::ToSequence{}); }
Layer first_of_sequence() { return Layer(op::FirstOfSequence{}); }
Layer dropout(double probability) { return Layer(op::Dropout{probability}); }
Layer repeat_channels(int64_t times) { return Layer(op::RepeatChannels{times}); }
Layer global_avg_pool2d() { return Layer(op::GlobalAvgPool2d{}); }
Layer gelu(GeluOptions options) { return Layer(op::Gelu{options.by_tanh}); }
Layer tanh() { return Layer(op::Tanh{}); }
Layer relu() { return Layer(op::Relu{}); }
Layer softmax() { return Layer(op::Softmax{}); }
Layer flatten() { return Layer(op::Flatten{}); }

namespace {

/// All records from which `outputs` are computed, in the order in which they were made.
std::vector<const Record*> reachable(const std::vector<const Record*>& outputs) {
  std::set<const Record*> seen(outputs.begin(), outputs.end());
  std::vector<const Record*> order(seen.begin(), seen.end());
  for (size_t i = 0; i < order.size(); ++i) {
    for (const auto& input : order[i]->inputs) {
      if (seen.insert(input.get()).second) order.push_back(input.get());
    }
  }
  std::sort(order.begin(), order.end(),
            [](const Record* a, const Record* b) { return a->serial < b->serial; });
  return order;
}

/// Gives every layer its name: the input's, the user's, or kind and number in order of first use.
class Names {
 public:
  explicit Names(std::map<const Record*, std::string> inputs) : inputs_(std::move(inputs)) {}

  std::string of(const Record& record) {
    if (record.layer) {
      if (auto known = by_layer_.find(record.layer.get()); known != by_layer_.end()) {
        return known->second;
      }
    }
    const auto input = inputs_.find(&record);
    std::string name = input != inputs_.end() ? input->second
                       : record.name.empty()  ? counted(record)
                                              : record.name;
    if (!taken_.insert(name).second) {
      throw UsageError(fmt::format(
          "nn::Graph: two layers are named \"{}\"; give each layer with parameters its own name",
          name));
    }
    if (record.layer) by_layer_.emplace(record.layer.get(), name);
    return name;
  }

  /// A name cannot be a layer and a group of layers at once ("a" beside "a.b").
  void check_nesting() const {
    for (const auto& name : taken_) {
      for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
        const std::string group = name.substr(0, dot);
        if (taken_.contains(group)) {
          throw UsageError(fmt::format(
              "nn::Graph: \"{}\" is a layer, so no layer can be named \"{}\"", group, name));
        }
      }
    }
  }

 private:
  std::string counted(const Record& record) {
    const std::string kind(kind_of(record.resolved.op));
    return fmt::format("{}_{}", kind, ++counts_[kind]);
  }

  std::map<const Record*, std::string> inputs_;
  std::map<std::string, int> counts_;
  std::map<const void*, std::string> by_layer_;
  std::set<std::string> taken_;
};

bool same_parameters(const std::vector<Parameter>& a, const std::vector<Parameter>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Parameter& x, const Parameter& y) {
                      return x.name == y.name && x.shape == y.shape;
                    });
}

/// A layer applied twice must need the same parameters both times.
void check_shared(const std::vector<Node>& nodes) {
  std::map<std::string, const Node*> first;
  for (const Node& node : nodes) {
    const auto [known, fresh] = first.emplace(node.name, &node);
    if (!fresh && !same_parameters(known->second->parameters, node.parameters)) {
      throw UsageError(fmt::format(
          "nn::Graph: layer \"{}\" is applied to inputs that need parameters of other shapes; its "
          "outputs are {} and {}",
          node.name, to_string(known->second->shape), to_string(node.shape)));
    }
  }
}

/// Refuses what cannot be told apart.
void check_ports(std::string_view kind, const std::vector<NamedValue>& ports) {
  if (ports.empty()) throw UsageError(fmt::format("nn::Graph: got no {}s, expected one", kind));
  std::set<std::string> seen;
  for (const auto& [name, value] : ports) {
    if (name.empty()) throw UsageError(fmt::format("nn::Graph: an {} has no name", kind));
    if (!seen.insert(name).second) {
      throw UsageError(fmt::format("nn::Graph: two {}s are named \"{}\"", kind, name));
    }
  }
}

std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (int place = static_cast<int>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<size_t>(place), 1, ',');
  }
  return digits;
}

using Which = bool (*)(const Parameter&);
bool is_parameter(const Parameter& one) { return one.trainable; }
bool is_buffer(const Parameter& one) { return !one.trainable; }
bool is_frozen(const Parameter& one) { return one.frozen; }

int64_t elements(const std::vector<Parameter>& parameters, Which which) {
  int64_t total = 0;
  for (const Parameter& parameter : parameters) {
    if (!which(parameter)) continue;
    int64_t count = 1;
    for (int64_t side : parameter.shape) count *= side;
    total += count;
  }
  return total;
}

int64_t total_elements(const std::vector<Node>& nodes, Which which) {
  std::set<std::string> seen;
  int64_t total = 0;
  for (const Node& node : nodes) {
    if (seen.insert(node.name).second) total += elements(node.parameters, which);
  }
  return total;
}

/// Behind a layer's number of parameters.
std::string frozen_mark(const Node& node) {
  const int64_t frozen = elements(node.parameters, is_frozen);
  if (frozen == 0) return "";
  return frozen == elements(node.parameters, is_parameter) ? "  frozen" : "  frozen in part";
}

[[noreturn]] void throw_fits_none(const std::vector<Node>& nodes, const std::string& pattern) {
  constexpr size_t kMost = 12;
  std::vector<std::string> layers;
  for (const Node& node : nodes)
    if (elements(node.parameters, is_parameter) > 0) layers.push_back(node.name);
  const std::string near = nearest(pattern, layers);
  const auto first = std::span(layers).first(std::min(layers.size(), kMost));
  throw UsageError(fmt::format(
      "no parameter to freeze fits \"{}\"; {}", pattern,
      near.empty() ? fmt::format("layers that have some are {}{}", fmt::join(first, ", "),
                                 layers.size() > kMost ? ", ..." : "")
                   : fmt::format("did you mean \"{}\"?", near)));
}

}  // namespace

Graph::Graph(const Value& input, const Value& output)
    : Graph(std::vector<NamedValue>{{"input", input}}, {{"output", output}}) {}

Graph::Graph(const std::vector<NamedValue>& inputs, const std::vector<NamedValue>& outputs) {
  check_ports("input", inputs);
  check_ports("output", outputs);
  std::vector<const Record*> ends;
  for (const auto& output : outputs) ends.push_back(output.value.record_.get());
  std::map<const Record*, std::string> entries;
  for (const auto& [name, value] : inputs) {
    const auto [known, fresh] = entries.emplace(value.record_.get(), name);
    if (!fresh) {
      throw UsageError(fmt::format("nn::Graph: inputs \"{}\" and \"{}\" are one nn::input()",
                                   known->second, name));
    }
  }

  auto parts = std::make_shared<Parts>();
  Names names(entries);
  std::map<const Record*, int> places;
  for (const Record* record : reachable(ends)) {
    if (record->inputs.empty() && !entries.contains(record)) {
      throw UsageError(
          "nn::Graph: an output comes from an nn::input() that is not among the inputs; give the "
          "value that nn::input() returned");
    }
    Node node{record->resolved.op,
              names.of(*record),
              {},
              record->resolved.shape,
              record->resolved.parameters};
    for (const auto& from : record->inputs) node.inputs.push_back(places.at(from.get()));
    places.emplace(record, static_cast<int>(parts->nodes.size()));
    parts->nodes.push_back(std::move(node));
  }
  for (const auto& [name, value] : inputs) {
    const auto place = places.find(value.record_.get());
    if (place == places.end()) {
      throw UsageError(fmt::format(
          "nn::Graph: no output comes from input \"{}\"; leave it out, or use it", name));
    }
    parts->inputs.push_back({name, place->second});
  }
  for (const auto& [name, value] : outputs) {
    parts->outputs.push_back({name, places.at(value.record_.get())});
  }
  names.check_nesting();
  check_shared(parts->nodes);
  parts_ = std::move(parts);
}

std::string full_name(const Node& node, const Parameter& parameter) {
  return parameter.name.empty() ? node.name : node.name + "." + parameter.name;
}

Graph with_synchronized_batch_norm(const Graph& graph) {
  auto parts = std::make_shared<Graph::Parts>(*graph.parts_);
  for (Node& node : parts->nodes)
    if (auto* norm = std::get_if<op::BatchNorm2d>(&node.op)) norm->synchronized = true;
  Graph made;
  made.parts_ = std::move(parts);
  return made;
}

Graph with_frozen(const Graph& graph, const std::vector<std::string>& patterns) {
  auto parts = std::make_shared<Graph::Parts>(*graph.parts_);
  for (const std::string& pattern : patterns) {
    bool fits_any = false;
    for (Node& node : parts->nodes)
      for (Parameter& parameter : node.parameters) {
        const std::string name = full_name(node, parameter);
        if (!parameter.trainable ||
            !(optim::fits(pattern, name) || optim::fits(pattern + ".*", name)))
          continue;
        fits_any = parameter.frozen = true;
      }
    if (!fits_any) throw_fits_none(parts->nodes, pattern);
  }
  Graph made;
  made.parts_ = std::move(parts);
  return made;
}

int64_t Graph::num_parameters() const { return total_elements(nodes(), is_parameter); }

int64_t Graph::num_frozen() const { return total_elements(nodes(), is_frozen); }

std::string Graph::summary() const {
  size_t name_width = 5;
  size_t shape_width = 12;
  for (const Node& node : nodes()) {
    name_width = std::max(name_width, node.name.size());
    shape_width = std::max(shape_width, to_string(node.shape).size());
  }
  std::string out = fmt::format("{:<{}}  {:<{}}  {:>12}\n", "layer", name_width, "output shape",
                                shape_width, "parameters");
  std::set<std::string> seen;
  for (const Node& node : nodes()) {
    const bool fresh = seen.insert(node.name).second;
    const std::string count = fresh ? grouped(elements(node.parameters, is_parameter)) : "shared";
    out += fmt::format("{:<{}}  {:<{}}  {:>12}{}\n", node.name, name_width, to_string(node.shape),
                       shape_width, count, frozen_mark(node));
  }
  const int64_t buffers = total_elements(nodes(), is_buffer);
  out += fmt::format("{} parameters", grouped(num_parameters()));
  if (num_frozen() > 0) out += fmt::format(", {} of them frozen", grouped(num_frozen()));
  if (buffers > 0) out += fmt::format(", {} elements in buffers", grouped(buffers));
  return out + "\n";
}

}  // namespace tutti::nn
