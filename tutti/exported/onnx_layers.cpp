// Layers of aten as nodes of ONNX, in evaluation.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/exported/detail/onnx_call.h"

namespace tutti::exported::detail {
namespace {

using onnx::Attribute;
using onnx::Value;
using Wholes = std::vector<int64_t>;

Wholes both_sides(const Wholes& padding) {
  Wholes pads = padding;
  pads.insert(pads.end(), padding.begin(), padding.end());
  return pads;
}

Wholes for_each_axis(Wholes numbers, size_t axes) {
  if (numbers.size() == 1) numbers.resize(axes, numbers[0]);
  if (numbers.size() != axes) throw CannotSay{"it has another number of axes than its image"};
  return numbers;
}

void convolution(const OnnxCall& call, bool transposed) {
  if (call.rank("input") < 3) throw CannotSay{"its image has no axes"};
  const auto axes = static_cast<size_t>(call.rank("input") - 2);
  const auto numbers = [&](const char* name, int64_t otherwise) {
    const auto* given = call.find(name);
    if (given != nullptr && std::holds_alternative<std::string>(given->value))
      throw CannotSay{"its padding is a word"};
    return for_each_axis(call.wholes(name, Wholes{otherwise}), axes);
  };
  std::vector<Value> inputs{call.tensor("input"), call.tensor("weight")};
  if (call.has("bias")) inputs.push_back(call.tensor("bias"));
  std::vector<Attribute> attributes{{"strides", numbers("stride", 1)},
                                    {"pads", both_sides(numbers("padding", 0))},
                                    {"dilations", numbers("dilation", 1)},
                                    {"group", call.whole("groups", 1)}};
  if (transposed) attributes.push_back({"output_padding", numbers("output_padding", 0)});
  call.give(call.add(transposed ? "ConvTranspose" : "Conv", inputs, std::move(attributes)));
}

Value filled(const OnnxCall& call, int64_t count, float with) {
  const Array array = Array::zeros(DType::float32, {count});
  std::ranges::fill(array.as<float>(), with);
  return call.program().constant(array);
}

// A parameter of a norm, or what is as if there was none.
Value or_filled(const OnnxCall& call, const char* name, int64_t count, float with) {
  return call.has(name) ? call.tensor(name) : filled(call, count, with);
}

void batch_norm(const OnnxCall& call) {
  if (call.truth("training", true))
    throw CannotSay{"it is that of training: export the module after eval()"};
  const int64_t channels = call.side(1, "input");
  call.give(call.add("BatchNormalization",
                     {call.tensor("input"), or_filled(call, "weight", channels, 1),
                      or_filled(call, "bias", channels, 0), call.tensor("running_mean"),
                      call.tensor("running_var")},
                     {{"epsilon", static_cast<float>(call.real("eps"))}}));
}

void layer_norm(const OnnxCall& call) {
  const Wholes shape = call.wholes("normalized_shape");
  const auto of = [&](const char* name, float with) {
    if (call.has(name)) return call.tensor(name);
    constexpr int64_t kMost = int64_t{1} << 31;
    int64_t count = 1;
    for (const int64_t side : shape) {
      if (side < 1 || side > kMost / count) throw CannotSay{"its shape is too large"};
      count *= side;
    }
    return call.add("Reshape", {filled(call, count, with), call.constant(shape)});
  };
  call.give(call.add("LayerNormalization", {call.tensor("input"), of("weight", 1), of("bias", 0)},
                     {{"axis", -static_cast<int64_t>(shape.size())},
                      {"epsilon", static_cast<float>(call.real("eps", 1e-5))}}));
}

void group_norm(const OnnxCall& call) {
  const int64_t groups = call.whole("num_groups"), channels = call.side(1, "input");
  const Value x = call.tensor("input");
  const Value grouped = call.add("Reshape", {x, call.constant({0, groups, -1})});
  const Value normal =
      call.add("InstanceNormalization", {grouped, filled(call, groups, 1), filled(call, groups, 0)},
               {{"epsilon", static_cast<float>(call.real("eps", 1e-5))}});
  const Value back = call.add("Reshape", {normal, call.add("Shape", {x})});
  Wholes sides(static_cast<size_t>(call.rank("input") - 1), 1);
  sides[0] = channels;
  const auto along = [&](const char* name, float with) {
    return call.add("Reshape", {or_filled(call, name, channels, with), call.constant(sides)});
  };
  call.give(call.add("Add", {call.add("Mul", {back, along("weight", 1)}), along("bias", 0)}));
}

void pool(const OnnxCall& call, bool largest) {
  if (call.truth("ceil_mode", false) || call.has("divisor_override"))
    throw CannotSay{"its sizes are rounded up, or it has a divisor of its own"};
  const Wholes kernel = call.pair("kernel_size", {});
  std::vector<Attribute> attributes{{"kernel_shape", kernel},
                                    {"strides", call.pair("stride", kernel)},
                                    {"pads", both_sides(call.pair("padding", {0, 0}))}};
  if (largest)
    attributes.push_back({"dilations", call.pair("dilation", {1, 1})});
  else
    attributes.push_back({"count_include_pad", int64_t{call.truth("count_include_pad", true)}});
  call.give(call.add(largest ? "MaxPool" : "AveragePool", {call.tensor()}, std::move(attributes)));
}

void adaptive_pool(const OnnxCall& call) {
  const Wholes cells = call.pair("output_size", {});
  if (cells == Wholes{1, 1}) return call.give(call.add("GlobalAveragePool", {call.tensor()}));
  if (cells.size() != 2 || cells[0] < 1 || cells[1] < 1) throw CannotSay{"it has no cells"};
  const Wholes image{call.side(2), call.side(3)};
  if (image[0] % cells[0] != 0 || image[1] % cells[1] != 0)
    throw CannotSay{"its cells do not divide the image"};
  const Wholes tile{image[0] / cells[0], image[1] / cells[1]};
  call.give(call.add("AveragePool", {call.tensor()}, {{"kernel_shape", tile}, {"strides", tile}}));
}

void linear(const OnnxCall& call) {
  const Value turned = call.add("Transpose", {call.tensor("weight")}, {{"perm", Wholes{1, 0}}});
  const Value y = call.add("MatMul", {call.tensor("input"), turned});
  call.give(call.has("bias") ? call.add("Add", {y, call.tensor("bias")}) : y);
}

void addmm(const OnnxCall& call) {
  if (call.real("alpha", 1) != 1 || call.real("beta", 1) != 1) throw CannotSay{"it is weighted"};
  call.give(call.add(
      "Add", {call.add("MatMul", {call.tensor("mat1"), call.tensor("mat2")}), call.tensor()}));
}

void embedding(const OnnxCall& call) {
  call.give(
      call.add("Gather", {call.tensor("weight"), call.tensor("indices")}, {{"axis", int64_t{0}}}));
}

// Bags of one size, as rows of indices are.
void embedding_bag(const OnnxCall& call) {
  const auto stride = call.walk().strides.find(call.name_of("offsets"));
  if (stride == call.walk().strides.end() || call.rank("indices") != 1)
    throw CannotSay{"its bags are not of one size"};
  const int64_t mode = call.whole("mode", 0);
  if (mode > 1 || call.has("per_sample_weights"))
    throw CannotSay{"its bags are weighted, or maxima"};
  if (call.whole("padding_idx", -1) >= 0) throw CannotSay{"it leaves an index out"};
  const Value rows =
      call.add("Gather", {call.tensor("weight"), call.tensor("indices")}, {{"axis", int64_t{0}}});
  const Value bags =
      call.add("Reshape", {rows, call.constant({-1, stride->second, call.side(1, "weight")})});
  call.give(call.add(mode == 0 ? "ReduceSum" : "ReduceMean", {bags, call.constant({1})},
                     {{"keepdims", int64_t{0}}}));
}

// [length, length]: 0, and minus infinity for places that come later.
Value later_unseen(const OnnxCall& call, const Value& queries, const Value& keys) {
  const Value sides = call.add(
      "Concat",
      {call.size_of(queries, call.rank("query") - 2), call.size_of(keys, call.rank("key") - 2)},
      {{"axis", int64_t{0}}});
  const Value all = call.add(
      "Expand",
      {call.scalar(-std::numeric_limits<double>::infinity(), call.result_element()), sides});
  const Array one = Array::zeros(DType::int64, {});
  one.as<int64_t>()[0] = 1;
  return call.add("Trilu", {all, call.program().constant(one)}, {{"upper", int64_t{1}}});
}

void attention(const OnnxCall& call) {
  if (call.truth("enable_gqa", false)) throw CannotSay{"its heads share keys"};
  if (call.rank("query") < 2) throw CannotSay{"its queries are no rows"};
  const int64_t rank = call.rank("query"), width = call.side(rank - 1, "query");
  const Value q = call.tensor("query"), k = call.tensor("key"), v = call.tensor("value");
  Wholes order(static_cast<size_t>(rank));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  const Value products = call.add("MatMul", {q, call.add("Transpose", {k}, {{"perm", order}})});
  const double scale = call.real("scale", 1 / std::sqrt(static_cast<double>(width)));
  Value scores = call.add("Mul", {products, call.scalar(scale, call.result_element())});
  if (call.truth("is_causal", false)) scores = call.add("Add", {scores, later_unseen(call, q, k)});
  if (call.has("attn_mask")) {
    const Value mask = call.tensor("attn_mask");
    if (call.meta("attn_mask").element == pt2::Element::boolean)
      scores = call.add(
          "Where", {mask, scores,
                    call.scalar(-std::numeric_limits<double>::infinity(), call.result_element())});
    else
      scores = call.add("Add", {scores, mask});
  }
  call.give(call.add("MatMul", {call.add("Softmax", {scores}, {{"axis", int64_t{-1}}}), v}));
}

// Gates stand as input, forget, cell, output in PyTorch, and as input, output, forget, cell here.
Value gates(const OnnxCall& call, const Value& stacked) {
  const auto part = call.program().nodes("Split", {stacked}, 4,
                                         {{"axis", int64_t{0}}, {"num_outputs", int64_t{4}}});
  return call.add("Concat", {part[0], part[3], part[1], part[2]}, {{"axis", int64_t{0}}});
}

// [directions, ...] of one tensor a direction.
Value of_directions(const OnnxCall& call, const std::vector<Value>& each) {
  std::vector<Value> rows;
  for (const Value& one : each) rows.push_back(call.add("Unsqueeze", {one, call.constant({0})}));
  return rows.size() == 1 ? rows[0] : call.add("Concat", rows, {{"axis", int64_t{0}}});
}

void lstm(const OnnxCall& call) {
  const int64_t layers = call.whole("num_layers");
  const bool two = call.truth("bidirectional", false), first = call.truth("batch_first", false);
  const size_t directions = two ? 2 : 1;
  const auto params = call.tensors("params"), start = call.tensors("hx");
  if (!call.truth("has_biases", true) ||
      params.size() != 4 * static_cast<size_t>(layers) * directions)
    throw CannotSay{"it has no biases, or projections"};
  const auto layer_of = [&](const Value& all, int64_t layer) {
    const auto count = static_cast<int64_t>(directions);
    return call.add("Slice", {all, call.constant({layer * count}),
                              call.constant({(layer + 1) * count}), call.constant({0})});
  };
  Value x = call.tensor("input");
  if (first) x = call.add("Transpose", {x}, {{"perm", Wholes{1, 0, 2}}});
  std::vector<Value> hidden, cells;
  int64_t units = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<Value> in, again, biases;
    for (size_t direction = 0; direction < directions; ++direction) {
      const size_t at = 4 * (static_cast<size_t>(layer) * directions + direction);
      in.push_back(gates(call, params[at]));
      again.push_back(gates(call, params[at + 1]));
      biases.push_back(call.add("Concat",
                                {gates(call, params[at + 2]), gates(call, params[at + 3])},
                                {{"axis", int64_t{0}}}));
    }
    // Of h0: [layers * directions, batch, units].
    const auto& list = std::get<pt2::List>(call.find("hx")->value);
    const auto& name = std::get<pt2::ValueName>(list.at(0).value).name;
    units = call.walk().graph.tensors.at(name).sizes.back().value;
    const auto made = call.program().nodes(
        "LSTM",
        {x,
         of_directions(call, in),
         of_directions(call, again),
         of_directions(call, biases),
         {""},
         layer_of(start[0], layer),
         layer_of(start[1], layer)},
        3, {{"hidden_size", units}, {"direction", two ? "bidirectional" : "forward"}});
    x = call.add("Reshape", {call.add("Transpose", {made[0]}, {{"perm", Wholes{0, 2, 1, 3}}}),
                             call.constant({0, 0, units * static_cast<int64_t>(directions)})});
    hidden.push_back(made[1]);
    cells.push_back(made[2]);
  }
  if (first) x = call.add("Transpose", {x}, {{"perm", Wholes{1, 0, 2}}});
  call.give_list({x, call.add("Concat", hidden, {{"axis", int64_t{0}}}),
                  call.add("Concat", cells, {{"axis", int64_t{0}}})});
}

void dropout(const OnnxCall& call) {
  if (call.truth("train", true))
    throw CannotSay{"it is that of training: export the module after eval()"};
  call.give(call.tensor(call.has("input") ? "input" : "self"));
}

// Of queries, keys and values that one layer has made.
void unflatten(const OnnxCall& call) {
  const int64_t axis = call.axis("dim");
  const Value x = call.tensor();
  std::vector<Value> sides;
  for (int64_t i = 0; i < call.rank(); ++i)
    sides.push_back(i == axis ? call.sizes("sizes") : call.size_of(x, i));
  call.give(call.add("Reshape", {x, call.add("Concat", sides, {{"axis", int64_t{0}}})}));
}

constexpr OnnxOperator kOnnxLayers[] = {
    {"conv1d", [](const OnnxCall& call) { convolution(call, false); }},
    {"conv2d", [](const OnnxCall& call) { convolution(call, false); }},
    {"conv3d", [](const OnnxCall& call) { convolution(call, false); }},
    {"conv_transpose2d", [](const OnnxCall& call) { convolution(call, true); }},
    {"batch_norm", batch_norm},
    {"layer_norm", layer_norm},
    {"group_norm", group_norm},
    {"max_pool2d", [](const OnnxCall& call) { pool(call, true); }},
    {"avg_pool2d", [](const OnnxCall& call) { pool(call, false); }},
    {"adaptive_avg_pool2d", adaptive_pool},
    {"linear", linear},
    {"addmm", addmm},
    {"embedding", embedding},
    {"embedding_bag", embedding_bag},
    {"scaled_dot_product_attention", attention},
    {"lstm", lstm},
    {"unflatten", unflatten, true},
    {"dropout", dropout, true},
    {"feature_dropout", dropout, true},
};

}  // namespace

std::span<const OnnxOperator> onnx_layers() { return kOnnxLayers; }

}  // namespace tutti::exported::detail
