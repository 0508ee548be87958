/// LSTM and GRU. Not for users: operators.h says how they are read.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/nn/detail/lower_recurrent.h"
#include "tutti/nn/detail/operators.h"
#include "tutti/nn/detail/recurrent_stack.h"
#include "tutti/nn/recurrent.h"

namespace tutti::nn::detail {

/// What both have; `kCell` and `kGates` are said by each.
template <class O, RecurrentCell kCell>
struct RecurrentOperator {
  static constexpr int64_t kGates = kCell == RecurrentCell::lstm ? 4 : 3;
  static constexpr std::tuple fields{
      Field{"features", &O::features}, Field{"units", &O::units}, Field{"layers", &O::layers},
      Field{"bidirectional", &O::bidirectional}, Field{"sequences", &O::sequences}};

  static Resolved infer(O op, const Site& site) {
    if (site.inputs.empty() || site.inputs.size() > 2)
      site.fail(fmt::format("got {} inputs, expected one, or two: the steps that there are",
                            site.inputs.size()));
    const Shape& in = site.inputs[0];
    if (in.size() != 2)
      site.fail(
          fmt::format("got an input of shape {}, expected [length, features]", to_string(in)));
    site.at_least("units", op.units, 1);
    site.at_least("layers", op.layers, 1);
    constexpr int64_t kMostLayers = 1024;  // each has parameters by name
    if (op.layers > kMostLayers)
      site.fail(fmt::format("layers is {}, must be at most {}", op.layers, kMostLayers));
    if (site.inputs.size() == 2 && site.inputs[1] != Shape{in[0]} && site.inputs[1] != Shape{1})
      site.fail(
          fmt::format("got a mask of shape {} for an input of shape {}, expected [{}], 1 for "
                      "each step that there is, or [1], how many there are",
                      to_string(site.inputs[1]), to_string(in), in[0]));
    op.features = in[1];
    const int64_t given = directions(op) * op.units;
    return {op, op.sequences ? Shape{in[0], given} : Shape{given}, parameters(op)};
  }
  static LayerState state(const O& op, int) {
    return {.module = std::make_shared<RecurrentImpl>(options_of(op))};
  }
  static at::Tensor run(const O& op, const Running& in) {
    return static_cast<RecurrentImpl*>(in.step.module)
        ->forward(in.x(), steps_given(op, in.step, in.all));
  }
  static at::Tensor forward(const PlannedLayer& layer, GraphStep::Values& values,
                            KeptOfLayer& kept) {
    const auto& own = *static_cast<RecurrentImpl*>(layer.step->module);
    const at::Tensor steps = steps_given(std::get<O>(layer.op), *layer.step, values);
    std::vector<at::Tensor> others;
    at::Tensor y = recurrent_forward(own.options(), values[0], steps, own.weights(),
                                     kept.needs_any() ? &others : nullptr);
    kept.others.append(others.begin(), others.end());
    kept.read.append(own.weights().begin(), own.weights().end());
    return y;
  }
  static LayerGradients backward(const PlannedLayer& layer, const KeptOfLayer& kept,
                                 const at::Tensor& gradient, bool) {
    const auto& op = std::get<O>(layer.op);
    RecurrentNeeds needs{.x = kept.needs_input(0), .weights = {}};
    needs.weights.assign(kept.needs_parameters.begin(), kept.needs_parameters.end());
    auto of = recurrent_backward(options_of(op), at::TensorList(kept.parameters),
                                 at::TensorList(kept.others), gradient, needs);
    return {.inputs = {std::move(of.x), at::Tensor()},
            .parameters = Tensors(of.weights.begin(), of.weights.end())};
  }
  static Tensors weights_of(const GraphStep& step) {
    const auto& all = static_cast<const RecurrentImpl*>(step.module)->weights();
    return Tensors(all.begin(), all.end());
  }
  static constexpr LayerPlan plan{
      .forward = forward, .backward = backward, .parameters = weights_of};
  static onnx::Value to_onnx(const O& op, const NodeToOnnx& to);
  static hlo::Value lower(const O& op, const NodeLowering& to);

 private:
  static RecurrentOptions options_of(const O& op) {
    return {.cell = kCell,
            .features = op.features,
            .units = op.units,
            .layers = op.layers,
            .bidirectional = op.bidirectional,
            .sequences = op.sequences};
  }
  /// Undefined where all are there.
  static at::Tensor steps_given(const O& op, const GraphStep& step,
                                const GraphStep::Values& inputs) {
    if (inputs.size() == 1) return {};
    return steps_of_sequences(inputs[1], inputs[0].size(1),
                              fmt::format("{} \"{}\"", kind_of(op), step.name));
  }
  static int64_t directions(const O& op) { return op.bidirectional ? 2 : 1; }
  static std::string suffix(int64_t layer, int64_t direction) {
    return fmt::format("_l{}{}", layer, direction == 1 ? "_reverse" : "");
  }
  static std::vector<Parameter> parameters(const O& op) {
    std::vector<Parameter> all;
    for (int64_t layer = 0; layer < op.layers; ++layer)
      for (int64_t direction = 0; direction < directions(op); ++direction) {
        const std::string end = suffix(layer, direction);
        const int64_t rows = kGates * op.units;
        const int64_t features = layer == 0 ? op.features : directions(op) * op.units;
        all.push_back({"weight_ih" + end, {rows, features}});
        all.push_back({"weight_hh" + end, {rows, op.units}});
        all.push_back({"bias_ih" + end, {rows}});
        all.push_back({"bias_hh" + end, {rows}});
      }
    return all;
  }
  /// Gates of [gates units, ...] as ONNX orders them.
  static onnx::Value ordered(const NodeToOnnx& to, const onnx::Value& gates);
};

using LstmOperator = RecurrentOperator<op::Lstm, RecurrentCell::lstm>;
template <>
struct OperatorOf<op::Lstm> : LstmOperator, LibTorchsOrder {
  static constexpr std::string_view kind = "lstm";
};
using GruOperator = RecurrentOperator<op::Gru, RecurrentCell::gru>;
template <>
struct OperatorOf<op::Gru> : GruOperator, LibTorchsOrder {
  static constexpr std::string_view kind = "gru";
};

template <class O, RecurrentCell kCell>
onnx::Value RecurrentOperator<O, kCell>::ordered(const NodeToOnnx& to, const onnx::Value& gates) {
  const auto of =
      to.program.nodes("Split", {gates}, kGates, {{"axis", int64_t{0}}, {"num_outputs", kGates}});
  const auto parts = kCell == RecurrentCell::lstm ? std::vector{of[0], of[3], of[1], of[2]}
                                                  : std::vector{of[1], of[0], of[2]};
  return to.add("Concat", parts, {{"axis", int64_t{0}}});
}

template <class O, RecurrentCell kCell>
onnx::Value RecurrentOperator<O, kCell>::to_onnx(const O& op, const NodeToOnnx& to) {
  const int64_t length = to.shape()[0];
  onnx::Value counts{""};
  if (to.all.size() == 2) {
    if (to.shapes[1] != Shape{1} || length == 1)
      throw UsageError(fmt::format(
          "onnx: {} \"{}\" has a mask of its {} steps, which ONNX's operators do not take; give it "
          "the number of steps, [1]",
          kind_of(op), to.node.name, length));
    constexpr int64_t kInt32 = 6;
    counts = to.add("Cast", {to.reshape(to.all[1], {-1})}, {{"to", kInt32}});
  }
  onnx::Value x = to.transpose(to.x(), {1, 0, 2});
  onnx::Value last = x;
  for (int64_t layer = 0; layer < op.layers; ++layer) {
    std::vector<onnx::Value> input, hidden, biases;
    const auto one_of = [&](const onnx::Value& a) {
      return to.add("Unsqueeze", {a, to.program.constant(std::vector<int64_t>{0})});
    };
    for (int64_t direction = 0; direction < directions(op); ++direction) {
      const auto own = [&](const char* name) {
        return ordered(to, to.state(name + suffix(layer, direction)));
      };
      input.push_back(one_of(own("weight_ih")));
      hidden.push_back(one_of(own("weight_hh")));
      biases.push_back(
          one_of(to.add("Concat", {own("bias_ih"), own("bias_hh")}, {{"axis", int64_t{0}}})));
    }
    const auto joined = [&](const std::vector<onnx::Value>& all) {
      return all.size() == 1 ? all[0] : to.add("Concat", all, {{"axis", int64_t{0}}});
    };
    std::vector<onnx::Attribute> told{
        {"hidden_size", op.units}, {"direction", op.bidirectional ? "bidirectional" : "forward"}};
    if (kCell == RecurrentCell::gru) told.push_back({"linear_before_reset", int64_t{1}});
    const auto made =
        to.program.nodes(kCell == RecurrentCell::lstm ? "LSTM" : "GRU",
                         {x, joined(input), joined(hidden), joined(biases), counts}, 2, told);
    x = to.reshape(to.transpose(made[0], {0, 2, 1, 3}), {0, 0, directions(op) * op.units});
    last = made[1];
  }
  if (op.sequences) return to.transpose(x, {1, 0, 2});
  return to.reshape(to.transpose(last, {1, 0, 2}), {0, directions(op) * op.units});
}

// Steps are unrolled: a program of as many pieces, whose gradients are those of any other.
template <class O, RecurrentCell kCell>
hlo::Value RecurrentOperator<O, kCell>::lower(const O& op, const NodeLowering& to) {
  constexpr int64_t kMostUnrolled = 8192;
  if (to.size(1) > kMostUnrolled / (op.layers * directions(op)))
    throw UsageError(fmt::format(
        "stablehlo: {} \"{}\" is unrolled, {} steps x {} layers x {} directions, expected at most "
        "{} of them together; give it fewer steps, as a strided conv1d or a pool before it leaves",
        kind_of(op), to.node.name, to.size(1), op.layers, directions(op), kMostUnrolled));
  const RecurrentSteps steps = steps_of(to);
  std::vector<hlo::Value> now = steps.inputs;
  std::vector<hlo::Value> lasts;
  for (int64_t layer = 0; layer < op.layers; ++layer) {
    std::vector<std::vector<hlo::Value>> sides;
    lasts.clear();
    for (int64_t direction = 0; direction < directions(op); ++direction) {
      const auto own = [&](const char* name) { return to.state(name + suffix(layer, direction)); };
      const RecurrentWeights weights{own("weight_ih"), own("weight_hh"), own("bias_ih"),
                                     own("bias_hh")};
      sides.push_back(recurrent_states(to, kCell == RecurrentCell::lstm, now, steps.there, weights,
                                       direction == 1));
      lasts.push_back(direction == 1 ? sides.back().front() : sides.back().back());
    }
    for (size_t t = 0; t < now.size(); ++t) {
      std::vector<hlo::Value> both;
      for (const auto& side : sides) both.push_back(side[t]);
      now[t] = both.size() == 1 ? both[0] : hlo::concatenate(both, 1);
      if (!steps.there.empty()) now[t] = where_there(steps.there[t], now[t]);
    }
  }
  if (!op.sequences) return lasts.size() == 1 ? lasts[0] : hlo::concatenate(lasts, 1);
  for (hlo::Value& step : now) step = hlo::reshape(step, {step.shape()[0], 1, step.shape()[1]});
  return hlo::concatenate(now, 1);
}

}  // namespace tutti::nn::detail
