#include "tutti/nn/ops.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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
  Resolved out{op,
               {op.out_channels, site.windows(in[1], op.kernel, op.stride, op.padding),
                site.windows(in[2], op.kernel, op.stride, op.padding)},
               {{"weight", {op.out_channels, in[0] / op.groups, op.kernel, op.kernel}}}};
  if (op.bias) out.parameters.push_back({"bias", {op.out_channels}});
  return out;
}

Resolved infer(op::Linear op, const Site& site) {
  const Shape& in = site.only_input();
  site.at_least("units", op.units, 1);
  op.in_features = in.back();
  Shape shape = in;
  shape.back() = op.units;
  Resolved out{op, shape, {{"weight", {op.units, op.in_features}}}};
  if (op.bias) out.parameters.push_back({"bias", {op.units}});
  return out;
}

Resolved infer(op::MaxPool2d op, const Site& site) {
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

Resolved infer(op::AvgPool2d op, const Site& site) {
  const Shape& in = site.image();
  return {op,
          {in[0], site.windows(in[1], op.kernel, op.stride, 0),
           site.windows(in[2], op.kernel, op.stride, 0)},
          {}};
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
Resolved infer(op::Softmax op, const Site& site) { return {op, site.only_input(), {}}; }
Resolved infer(op::GlobalAvgPool2d op, const Site& site) { return {op, {site.image()[0]}, {}}; }
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

struct KindName {
  std::string_view operator()(const op::Input&) const { return "input"; }
  std::string_view operator()(const op::Conv2d&) const { return "conv2d"; }
  std::string_view operator()(const op::Linear&) const { return "linear"; }
  std::string_view operator()(const op::MaxPool2d&) const { return "max_pool2d"; }
  std::string_view operator()(const op::AvgPool2d&) const { return "avg_pool2d"; }
  std::string_view operator()(const op::BatchNorm2d&) const { return "batch_norm2d"; }
  std::string_view operator()(const op::Dropout&) const { return "dropout"; }
  std::string_view operator()(const op::RepeatChannels&) const { return "repeat_channels"; }
  std::string_view operator()(const op::Relu&) const { return "relu"; }
  std::string_view operator()(const op::GlobalAvgPool2d&) const { return "global_avg_pool2d"; }
  std::string_view operator()(const op::Flatten&) const { return "flatten"; }
  std::string_view operator()(const op::Softmax&) const { return "softmax"; }
  std::string_view operator()(const op::Add&) const { return "add"; }
};

}  // namespace

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string_view kind_of(const Op& op) noexcept { return std::visit(KindName{}, op); }

Resolved resolve(const Op& op, const std::vector<Shape>& inputs, std::string_view name) {
  const Site site{op, inputs, name};
  return std::visit([&](const auto& known) { return infer(known, site); }, op);
}

}  // namespace tutti::nn
