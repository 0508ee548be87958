#include "tutti/nn/lower_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tutti/base/error.h"
#include "tutti/nn/detail/layouts.h"
#include "tutti/nn/detail/lowering.h"

// B batch, C channels, H height, W width, L places of a sequence, F features.

namespace tutti::nn {
namespace {

/// Writes one node; x is its first input. All of them have one order, and what it gives too.
struct Lowering {
  const Graph& graph;
  const Node& node;
  const LoweringInputs& from;
  const std::vector<hlo::Value>& all;
  hlo::ImageOrder order;
  std::map<std::string, hlo::Value>& buffers;

  const hlo::Value& x() const { return all.front(); }
  int64_t size(size_t dimension) const { return x().shape()[dimension]; }
  hlo::ImageAxes axes() const { return hlo::axes_of(order); }
  /// Of x, an image.
  int64_t height() const { return size(static_cast<size_t>(axes().height)); }
  int64_t width() const { return size(static_cast<size_t>(axes().width)); }
  hlo::Value state(std::string_view name) const {
    return from.state.at(full_name(node, {.name = std::string(name), .shape = {}}));
  }
  bool has(std::string_view name) const {
    return std::ranges::any_of(node.parameters, [&](const Parameter& p) { return p.name == name; });
  }
  /// [C] for each of C channels, or [F] of F features: `dimension` of x.
  hlo::Value along(hlo::Value vector, int64_t dimension) const {
    return hlo::broadcast(vector, x().shape(), {dimension});
  }
  hlo::Value product_type(hlo::Value a) const { return hlo::convert(a, from.product); }

  /// x W' + b over the last dimension.
  hlo::Value dense(hlo::Value a, hlo::Value weight, std::optional<hlo::Value> bias) const {
    const auto last = static_cast<int64_t>(a.shape().size()) - 1;
    const hlo::Value y =
        hlo::dot(product_type(a), product_type(weight),
                 {.batch_a = {}, .batch_b = {}, .contract_a = {last}, .contract_b = {1}});
    return bias ? y + hlo::broadcast(*bias, y.shape(), {last}) : y;
  }

  hlo::Value attend(hlo::Value a, int64_t heads, bool causal) const;
  hlo::Value normalised(const op::BatchNorm2d& op, hlo::Value mean, hlo::Value variance) const;

  hlo::Value operator()(const op::Input&) const { return x(); }
  hlo::Value operator()(const op::Conv2d& op) const;
  hlo::Value operator()(const op::Linear& op) const {
    return dense(x(), state("weight"), op.bias ? std::optional(state("bias")) : std::nullopt);
  }
  hlo::Value operator()(const op::Embedding&) const { return hlo::take_rows(state("weight"), x()); }
  hlo::Value operator()(const op::TiedLinear&) const { return dense(x(), state("weight"), {}); }
  hlo::Value operator()(const op::MaxPool2d& op) const {
    constexpr int64_t kLargestTile = 3;
    const bool tiles = op.stride == op.kernel && op.padding == 0 && op.kernel <= kLargestTile;
    return tiles ? detail::max_of_tiles(x(), op.kernel, order)
                 : hlo::window_max(x(), detail::window_of(op, order));
  }
  hlo::Value operator()(const op::AvgPool2d& op) const {
    return hlo::window_sum(x(), detail::window_of(op, order)) / double(op.kernel * op.kernel);
  }
  hlo::Value operator()(const op::AdaptiveAvgPool2d& op) const {
    return detail::mean_of_cells(x(), op.size, order);
  }
  hlo::Value operator()(const op::Upsample2d& op) const;
  hlo::Value operator()(const op::BatchNorm2d& op) const;
  hlo::Value operator()(const op::LayerNorm& op) const;
  hlo::Value operator()(const op::SelfAttention& op) const {
    const hlo::Value inside = dense(x(), state("in_proj_weight"), state("in_proj_bias"));
    return dense(attend(inside, op.heads, /*causal=*/false), state("out_proj.weight"),
                 state("out_proj.bias"));
  }
  hlo::Value operator()(const op::Attention& op) const { return attend(x(), op.heads, op.causal); }
  hlo::Value operator()(const op::PrependToken& op) const {
    const hlo::Value token = hlo::broadcast(state(""), {size(0), 1, op.features}, {0, 1, 2});
    return hlo::concatenate(std::vector{token, x()}, 1);
  }
  hlo::Value operator()(const op::AddPosition&) const {
    return x() + hlo::broadcast(state(""), x().shape(), {0, 1, 2});
  }
  hlo::Value operator()(const op::Dropout& op) const;
  hlo::Value operator()(const op::RepeatChannels& op) const {
    hlo::Shape shape = x().shape();
    shape[static_cast<size_t>(axes().channels)] = op.times;
    return hlo::broadcast(x(), shape, {0, 1, 2, 3});
  }
  hlo::Value operator()(const op::Relu&) const { return hlo::maximum(x(), 0); }
  hlo::Value operator()(const op::Gelu& op) const { return detail::gelu(x(), op.by_tanh); }
  hlo::Value operator()(const op::Tanh&) const { return hlo::tanh(x()); }
  hlo::Value operator()(const op::GlobalAvgPool2d&) const {
    return hlo::reduce_sum(x(), {axes().height, axes().width}) / double(height() * width());
  }
  hlo::Value operator()(const op::ToSequence&) const {
    return hlo::transpose(hlo::reshape(x(), {size(0), size(1), size(2) * size(3)}), {0, 2, 1});
  }
  hlo::Value operator()(const op::FirstOfSequence&) const {
    return hlo::reshape(hlo::slice(x(), {0, 0, 0}, {size(0), 1, size(2)}), {size(0), size(2)});
  }
  hlo::Value operator()(const op::Flatten&) const {
    return hlo::reshape(x(), {size(0), node.shape[0]});
  }
  hlo::Value operator()(const op::Softmax&) const { return detail::softmax(x()); }
  hlo::Value operator()(const op::Add&) const { return x() + all[1]; }
  hlo::Value operator()(const op::Concat&) const {
    return hlo::concatenate(all, axes().channels);  // 1 of what is no image
  }
  template <class Other>
  hlo::Value operator()(const Other&) const {
    throw UsageError(fmt::format(
        "layer \"{}\": {} is not written as StableHLO, so no step can be compiled of it", node.name,
        kind_of(node.op)));
  }
};

hlo::Value Lowering::operator()(const op::Conv2d& op) const {
  const hlo::Value y = hlo::conv2d(product_type(x()), product_type(state("weight")),
                                   {.stride_height = op.stride,
                                    .stride_width = op.stride,
                                    .pad_height = op.padding.height,
                                    .pad_width = op.padding.width,
                                    .groups = op.groups,
                                    .order = order});
  return op.bias ? y + hlo::broadcast(state("bias"), y.shape(), {axes().channels}) : y;
}

hlo::Value Lowering::operator()(const op::Upsample2d& op) const {
  hlo::Shape apart, together = x().shape();
  std::vector<int64_t> dimensions;
  for (int64_t d = 0; d < std::ssize(together); ++d) {
    int64_t& side = together[static_cast<size_t>(d)];
    dimensions.push_back(std::ssize(apart));
    apart.push_back(side);
    if (d != axes().height && d != axes().width) continue;
    apart.push_back(op.times);
    side *= op.times;
  }
  return hlo::reshape(hlo::broadcast(x(), apart, dimensions), together);
}

/// By the statistics [C]; the weight and the bias after that.
hlo::Value Lowering::normalised(const op::BatchNorm2d& op, hlo::Value mean,
                                hlo::Value variance) const {
  const hlo::Value scale = hlo::rsqrt(variance + op.epsilon) * state("weight");
  const int64_t channels = axes().channels;
  return (x() - along(mean, channels)) * along(scale, channels) + along(state("bias"), channels);
}

hlo::Value Lowering::operator()(const op::BatchNorm2d& op) const {
  const bool frozen = std::ranges::all_of(
      node.parameters, [](const Parameter& p) { return !p.trainable || p.frozen; });
  if (!from.training || frozen) return normalised(op, state("running_mean"), state("running_var"));
  // Statistics of the rows that count, of all replicas' where they are synchronized.
  const auto sum = [&](hlo::Value a) {
    const hlo::Value own = hlo::reduce_sum(a, {0, axes().height, axes().width});
    return op.synchronized ? hlo::all_reduce(own) : own;
  };
  const hlo::Value counts = from.row_weights ? hlo::broadcast(*from.row_weights, x().shape(), {0})
                                             : hlo::constant(x().program(), x().type(), 1);
  const hlo::Value counted = sum(counts);
  const hlo::Value any = hlo::compare(counted, hlo::Comparison::gt, 0);
  const hlo::Value count = hlo::maximum(counted, 1);  // of a part without rows nothing is kept
  const hlo::Value mean = sum(x() * counts) / count;
  const hlo::Value apart = x() - along(mean, axes().channels);
  const hlo::Value squares = sum(apart * apart * counts);
  // A layer that is applied twice moves them twice.
  const auto now = [&](std::string_view name) {
    const auto moved = buffers.find(full_name(node, {.name = std::string(name), .shape = {}}));
    return moved != buffers.end() ? moved->second : state(name);
  };
  const auto becomes = [&](std::string_view name, hlo::Value value) {
    buffers.insert_or_assign(full_name(node, {.name = std::string(name), .shape = {}}), value);
  };
  const auto move = [&](std::string_view name, hlo::Value towards) {
    const hlo::Value old = now(name);
    becomes(name, hlo::select(any, old * (1 - op.momentum) + towards * op.momentum, old));
  };
  move("running_mean", mean);
  move("running_var", squares / hlo::maximum(count - 1, 1));
  const hlo::Value tracked = now("num_batches_tracked");
  const hlo::Value one = hlo::reshape(hlo::slice(any, {0}, {1}), {});
  becomes("num_batches_tracked", tracked + hlo::convert(one, tracked.dtype()));
  return normalised(op, mean, squares / count);
}

hlo::Value Lowering::operator()(const op::LayerNorm& op) const {
  const auto last = static_cast<int64_t>(x().shape().size()) - 1;
  const auto features = double(op.features);
  std::vector<int64_t> others(static_cast<size_t>(last));
  for (size_t i = 0; i < others.size(); ++i) others[i] = static_cast<int64_t>(i);
  const auto back = [&](hlo::Value rows) { return hlo::broadcast(rows, x().shape(), others); };
  const hlo::Value apart = x() - back(hlo::reduce_sum(x(), {last}) / features);
  const hlo::Value variance = hlo::reduce_sum(apart * apart, {last}) / features;
  return apart * back(hlo::rsqrt(variance + op.epsilon)) * along(state("weight"), last) +
         along(state("bias"), last);
}

/// a: [B, L, 3 F], queries, keys and values side by side, to [B, L, F].
hlo::Value Lowering::attend(hlo::Value a, int64_t heads, bool causal) const {
  const int64_t batch = a.shape()[0], length = a.shape()[1], features = a.shape()[2] / 3;
  const int64_t width = features / heads;
  const auto part = [&](int64_t which) {
    const hlo::Value of =
        hlo::slice(a, {0, 0, which * features}, {batch, length, (which + 1) * features});
    return product_type(
        hlo::transpose(hlo::reshape(of, {batch, length, heads, width}), {0, 2, 1, 3}));
  };
  hlo::Value scores =
      hlo::dot(part(0), part(1),
               {.batch_a = {0, 1}, .batch_b = {0, 1}, .contract_a = {3}, .contract_b = {3}}) *
      (1 / std::sqrt(double(width)));
  if (causal) {
    const hlo::Type places{DType::int32, scores.shape()};
    const hlo::Value sees = hlo::compare(hlo::iota(a.program(), places, 3), hlo::Comparison::le,
                                         hlo::iota(a.program(), places, 2));
    constexpr double kUnseen = -1e30;  // its exponential is 0
    scores = hlo::select(sees, scores, hlo::constant(a.program(), scores.type(), kUnseen));
  }
  const hlo::Value mixed =
      hlo::dot(product_type(detail::softmax(scores)), part(2),
               {.batch_a = {0, 1}, .batch_b = {0, 1}, .contract_a = {3}, .contract_b = {2}});
  return hlo::reshape(hlo::transpose(mixed, {0, 2, 1, 3}), {batch, length, features});
}

hlo::Value Lowering::operator()(const op::Dropout& op) const {
  if (!from.training || op.probability == 0) return x();
  const std::vector<int> all_of_graph = dropouts_of(graph);
  const auto row = std::ranges::find_if(all_of_graph, [&](int place) {
    return graph.nodes()[static_cast<size_t>(place)].name == node.name;
  });
  if (row == all_of_graph.end() || !from.dropout_keys || !from.first_row)
    throw UsageError(fmt::format("dropout \"{}\": no key to draw its mask by", node.name));
  const int64_t number = row - all_of_graph.begin();
  const hlo::Value key = hlo::slice(*from.dropout_keys, {number, 0}, {number + 1, 2});
  // Numbers are drawn in the order of LibTorch's elements.
  hlo::Shape drawn = node.shape;
  drawn.insert(drawn.begin(), size(0));
  const hlo::Value uniform = detail::in_order(
      {detail::uniform_rows(drawn, key, *from.first_row), hlo::ImageOrder::channels_first}, order);
  const hlo::Value kept = hlo::compare(uniform, hlo::Comparison::ge, op.probability);
  return x() * (hlo::convert(kept, DType::float32) * (1 / (1 - op.probability)));
}

}  // namespace

std::vector<int> dropouts_of(const Graph& graph) {
  std::vector<int> found;
  const auto& nodes = graph.nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const bool again = std::ranges::any_of(
        found, [&](int place) { return nodes[static_cast<size_t>(place)].name == nodes[i].name; });
    if (std::holds_alternative<op::Dropout>(nodes[i].op) && !again)
      found.push_back(static_cast<int>(i));
  }
  return found;
}

LoweredGraph lower(const Graph& graph, const LoweringInputs& from) {
  using detail::Ordered;
  using enum hlo::ImageOrder;
  std::vector<std::optional<Ordered>> values(graph.nodes().size());
  for (size_t i = 0; i < graph.inputs().size(); ++i)
    values[static_cast<size_t>(graph.inputs()[i].node)] = {from.inputs.at(i), channels_first};
  LoweredGraph lowered;
  for (size_t i = 0; i < values.size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (values[i]) continue;
    std::vector<Ordered> given;
    for (const int input : node.inputs) given.push_back(*values[static_cast<size_t>(input)]);
    given[0].value.program().comment(fmt::format("{}: {}", node.name, kind_of(node.op)));
    const hlo::ImageOrder order = detail::order_of(node.op, given);
    std::vector<hlo::Value> inputs;
    for (const Ordered& input : given) inputs.push_back(detail::in_order(input, order));
    const Lowering lowering{graph, node, from, inputs, order, lowered.buffers};
    constexpr size_t kDimensionsOfImage = 3;
    values[i] = {std::visit(lowering, node.op),
                 node.shape.size() == kDimensionsOfImage ? order : channels_first};
  }
  for (const Port& output : graph.outputs())
    lowered.outputs.push_back(
        detail::in_order(*values[static_cast<size_t>(output.node)], channels_first));
  return lowered;
}

}  // namespace tutti::nn
