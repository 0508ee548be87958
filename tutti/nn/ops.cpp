#include "tutti/nn/ops.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "tutti/base/error.h"

namespace tutti::nn {

namespace {

/// Context of one resolve(): the inputs, and the words for errors.
struct Site {
  const Op& op;
  const std::vector<Shape>& inputs;
  std::string_view name;

  [[noreturn]] void fail(const std::string& what) const {
    const std::string who =
        name.empty() ? std::string(kind_of(op)) : fmt::format("{} \"{}\"", kind_of(op), name);
    throw UsageError(fmt::format("nn layer {}: {}", who, what));
  }

  void at_least(std::string_view what, int64_t value, int64_t least) const {
    if (value < least) fail(fmt::format("{} is {}, must be {} or more", what, value, least));
  }

  void not_negative(std::string_view what, double value) const {
    if (!(value >= 0 && value <= std::numeric_limits<float>::max()))
      fail(fmt::format("{} is {}, must be finite and 0 or more", what, value));
  }

  void heads_of(int64_t features, int64_t heads) const {
    at_least("heads", heads, 1);
    if (features % heads != 0)
      fail(fmt::format("heads is {}, must divide {} features", heads, features));
  }

  const Shape& only_input() const {
    if (inputs.size() != 1) fail(fmt::format("got {} inputs, expected one", inputs.size()));
    return inputs[0];
  }

  /// The input as {channels, height, width}.
  const Shape& image() const {
    const Shape& in = only_input();
    if (in.size() != 3) {
      fail(fmt::format("got an input of shape {}, expected [channels, height, width]",
                       to_string(in)));
    }
    return in;
  }

  /// The input as {length, features}.
  const Shape& sequence() const {
    const Shape& in = only_input();
    if (in.size() != 2) {
      fail(fmt::format("got an input of shape {}, expected [length, features]", to_string(in)));
    }
    return in;
  }

  /// Length of one side after a window of `kernel` has walked over it.
  int64_t windows(int64_t side, int64_t kernel, int64_t stride, int64_t padding) const {
    at_least("kernel", kernel, 1);
    at_least("stride", stride, 1);
    at_least("padding", padding, 0);
    if (side + 2 * padding < kernel) {
      fail(fmt::format("a kernel of {} does not fit an input of shape {} with padding {}", kernel,
                       to_string(inputs[0]), padding));
    }
    return (side + 2 * padding - kernel) / stride + 1;
  }
};

int64_t product(const Shape& shape) {
  int64_t total = 1;
  for (int64_t side : shape) total *= side;
  return total;
}

Resolved infer(op::Input op, const Site& site) {
  if (op.shape.empty()) site.fail("got an empty shape, expected that of one sample: {1, 28, 28}");
  int64_t total = 1;
  for (int64_t side : op.shape) {
    site.at_least("each dimension", side, 1);
    if (side > std::numeric_limits<int64_t>::max() / total) {
      site.fail(fmt::format("shape {} has too many elements", to_string(op.shape)));
    }
    total *= side;
  }
  return {op, op.shape, {}};
}

Resolved infer(op::Conv2d op, const Site& site) {
  const Shape& in = site.image();
  site.at_least("out_channels", op.out_channels, 1);
  site.at_least("groups", op.groups, 1);
  if (in[0] % op.groups != 0 || op.out_channels % op.groups != 0) {
    site.fail(fmt::format("groups is {}, must divide {} input and {} output channels", op.groups,
                          in[0], op.out_channels));
  }
  op.in_channels = in[0];
  Resolved out{
      op,
      {op.out_channels, site.windows(in[1], op.kernel.height, op.stride, op.padding.height),
       site.windows(in[2], op.kernel.width, op.stride, op.padding.width)},
      {{"weight", {op.out_channels, in[0] / op.groups, op.kernel.height, op.kernel.width}}}};
  if (op.bias) out.parameters.push_back({"bias", {op.out_channels}});
  return out;
}

Resolved infer(op::Linear op, const Site& site) {
  const Shape& in = site.only_input();
  site.at_least("units", op.units, 1);
  site.not_negative("initial_deviation", op.initial_deviation);
  op.in_features = in.back();
  Shape shape = in;
  shape.back() = op.units;
  Resolved out{op, shape, {{"weight", {op.units, op.in_features}}}};
  if (op.bias) out.parameters.push_back({"bias", {op.units}});
  return out;
}

Resolved infer(op::Embedding op, const Site& site) {
  const Shape& in = site.only_input();
  if (in.size() != 1) {
    site.fail(fmt::format("got an input of shape {}, expected [length]", to_string(in)));
  }
  site.at_least("vocabulary", op.vocabulary, 1);
  site.at_least("features", op.features, 1);
  site.not_negative("initial_deviation", op.initial_deviation);
  return {op, {in[0], op.features}, {{"weight", {op.vocabulary, op.features}}}};
}

Resolved infer(op::TiedLinear op, const Site& site) {
  Shape shape = site.only_input();
  if (shape.back() != op.features) {
    site.fail(fmt::format("got an input of shape {}, expected the {} features of the embedding",
                          to_string(shape), op.features));
  }
  shape.back() = op.vocabulary;
  return {op, shape, {{"weight", {op.vocabulary, op.features}}}};
}

/// Of a max-pool or an average pool.
template <class Pool>
Resolved infer_pool(const Pool& op, const Site& site) {
  const Shape& in = site.image();
  if (2 * op.padding > op.kernel) {
    site.fail(
        fmt::format("padding is {}, must be at most half the kernel of {}", op.padding, op.kernel));
  }
  return {op,
          {in[0], site.windows(in[1], op.kernel, op.stride, op.padding),
           site.windows(in[2], op.kernel, op.stride, op.padding)},
          {}};
}

Resolved infer(op::MaxPool2d op, const Site& site) { return infer_pool(op, site); }
Resolved infer(op::AvgPool2d op, const Site& site) { return infer_pool(op, site); }

Resolved infer(op::AdaptiveAvgPool2d op, const Site& site) {
  site.at_least("height", op.size.height, 1);
  site.at_least("width", op.size.width, 1);
  return {op, {site.image()[0], op.size.height, op.size.width}, {}};
}

Resolved infer(op::Upsample2d op, const Site& site) {
  const Shape& in = site.image();
  site.at_least("times", op.times, 1);
  return {op, {in[0], in[1] * op.times, in[2] * op.times}, {}};
}

Resolved infer(op::BatchNorm2d op, const Site& site) {
  const Shape& in = site.image();
  if (!(op.epsilon > 0)) site.fail(fmt::format("epsilon is {}, must be above 0", op.epsilon));
  if (!(op.momentum >= 0 && op.momentum <= 1)) {
    site.fail(fmt::format("momentum is {}, must be from 0 to 1", op.momentum));
  }
  op.channels = in[0];
  return {op,
          in,
          {{"weight", {in[0]}},
           {"bias", {in[0]}},
           {"running_mean", {in[0]}, false},
           {"running_var", {in[0]}, false},
           {"num_batches_tracked", {}, false}}};
}

Resolved infer(op::LayerNorm op, const Site& site) {
  const Shape& in = site.only_input();
  if (!(op.epsilon > 0)) site.fail(fmt::format("epsilon is {}, must be above 0", op.epsilon));
  op.features = in.back();
  return {op, in, {{"weight", {op.features}}, {"bias", {op.features}}}};
}

Resolved infer(op::SelfAttention op, const Site& site) {
  const Shape& in = site.sequence();
  op.features = in[1];
  site.heads_of(op.features, op.heads);
  return {op,
          in,
          {{"in_proj_weight", {3 * op.features, op.features}},
           {"in_proj_bias", {3 * op.features}},
           {"out_proj.weight", {op.features, op.features}},
           {"out_proj.bias", {op.features}}}};
}

Resolved infer(op::Attention op, const Site& site) {
  const Shape& in = site.sequence();
  if (in[1] % 3 != 0) {
    site.fail(
        fmt::format("got an input of shape {}, expected [length, 3 features]", to_string(in)));
  }
  op.features = in[1] / 3;
  site.heads_of(op.features, op.heads);
  return {op, {in[0], op.features}, {}};
}

Resolved infer(op::PrependToken op, const Site& site) {
  const Shape& in = site.sequence();
  op.features = in[1];
  return {op, {in[0] + 1, in[1]}, {{"", {1, 1, in[1]}}}};
}

Resolved infer(op::AddPosition op, const Site& site) {
  const Shape& in = site.sequence();
  op.length = in[0];
  op.features = in[1];
  return {op, in, {{"", {1, in[0], in[1]}}}};
}

Resolved infer(op::Dropout op, const Site& site) {
  if (!(op.probability >= 0 && op.probability < 1)) {
    site.fail(fmt::format("probability is {}, must be from 0 to below 1", op.probability));
  }
  return {op, site.only_input(), {}};
}

Resolved infer(op::RepeatChannels op, const Site& site) {
  const Shape& in = site.image();
  site.at_least("times", op.times, 1);
  if (in[0] != 1 && in[0] != op.times) {
    site.fail(fmt::format("got an input of shape {}, expected 1 or {} channels", to_string(in),
                          op.times));
  }
  return {op, {op.times, in[1], in[2]}, {}};
}

Resolved infer(op::Relu op, const Site& site) { return {op, site.only_input(), {}}; }
Resolved infer(op::Gelu op, const Site& site) { return {op, site.only_input(), {}}; }
Resolved infer(op::Tanh op, const Site& site) { return {op, site.only_input(), {}}; }
Resolved infer(op::Softmax op, const Site& site) { return {op, site.only_input(), {}}; }
Resolved infer(op::GlobalAvgPool2d op, const Site& site) { return {op, {site.image()[0]}, {}}; }
Resolved infer(op::ToSequence op, const Site& site) {
  const Shape& in = site.image();
  return {op, {in[1] * in[2], in[0]}, {}};
}
Resolved infer(op::FirstOfSequence op, const Site& site) { return {op, {site.sequence()[1]}, {}}; }
Resolved infer(op::Flatten op, const Site& site) { return {op, {product(site.only_input())}, {}}; }

Resolved infer(op::Add op, const Site& site) {
  if (site.inputs.size() != 2) {
    site.fail(fmt::format("got {} inputs, expected two", site.inputs.size()));
  }
  if (site.inputs[0] != site.inputs[1]) {
    site.fail(fmt::format("got shapes {} and {}, expected equal ones", to_string(site.inputs[0]),
                          to_string(site.inputs[1])));
  }
  return {op, site.inputs[0], {}};
}

Resolved infer(op::Concat op, const Site& site) {
  if (site.inputs.empty()) site.fail("got no inputs, expected one or more");
  Shape shape = site.inputs[0];
  for (size_t i = 1; i < site.inputs.size(); ++i) {
    const Shape& next = site.inputs[i];
    const bool fits =
        next.size() == shape.size() && std::equal(next.begin() + 1, next.end(), shape.begin() + 1);
    if (!fits) {
      site.fail(fmt::format("got shapes {} and {}, expected equal ones but for the first dimension",
                            to_string(site.inputs[0]), to_string(next)));
    }
    shape[0] += next[0];
  }
  return {op, shape, {}};
}

struct KindName {
  std::string_view operator()(const op::Input&) const { return "input"; }
  std::string_view operator()(const op::Conv2d&) const { return "conv2d"; }
  std::string_view operator()(const op::Linear&) const { return "linear"; }
  std::string_view operator()(const op::Embedding&) const { return "embedding"; }
  std::string_view operator()(const op::TiedLinear&) const { return "tied_linear"; }
  std::string_view operator()(const op::MaxPool2d&) const { return "max_pool2d"; }
  std::string_view operator()(const op::AvgPool2d&) const { return "avg_pool2d"; }
  std::string_view operator()(const op::AdaptiveAvgPool2d&) const { return "adaptive_avg_pool2d"; }
  std::string_view operator()(const op::Upsample2d&) const { return "upsample2d"; }
  std::string_view operator()(const op::BatchNorm2d&) const { return "batch_norm2d"; }
  std::string_view operator()(const op::LayerNorm&) const { return "layer_norm"; }
  std::string_view operator()(const op::SelfAttention&) const { return "self_attention"; }
  std::string_view operator()(const op::Attention&) const { return "attention"; }
  std::string_view operator()(const op::PrependToken&) const { return "prepend_token"; }
  std::string_view operator()(const op::AddPosition&) const { return "add_position"; }
  std::string_view operator()(const op::Dropout&) const { return "dropout"; }
  std::string_view operator()(const op::RepeatChannels&) const { return "repeat_channels"; }
  std::string_view operator()(const op::Relu&) const { return "relu"; }
  std::string_view operator()(const op::Gelu&) const { return "gelu"; }
  std::string_view operator()(const op::Tanh&) const { return "tanh"; }
  std::string_view operator()(const op::GlobalAvgPool2d&) const { return "global_avg_pool2d"; }
  std::string_view operator()(const op::ToSequence&) const { return "to_sequence"; }
  std::string_view operator()(const op::FirstOfSequence&) const { return "first_of_sequence"; }
  std::string_view operator()(const op::Flatten&) const { return "flatten"; }
  std::string_view operator()(const op::Softmax&) const { return "softmax"; }
  std::string_view operator()(const op::Add&) const { return "add"; }
  std::string_view operator()(const op::Concat&) const { return "concat"; }
};

}  // namespace

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string_view kind_of(const Op& op) noexcept { return std::visit(KindName{}, op); }

Resolved resolve(const Op& op, const std::vector<Shape>& inputs, std::string_view name) {
  const Site site{op, inputs, name};
  return std::visit([&](const auto& known) { return infer(known, site); }, op);
}

}  // namespace tutti::nn
