/// nn::lambda(): a layer of nn::Graph that is a function of the program's own.
///
///   auto norm = nn::lambda("unit", {64}, [](at::TensorList in) {
///     return in[0] / in[0].norm(2, {1}, true).clamp_min(1e-6);
///   });
///   auto graph = nn::Graph(input, nn::linear(10)(norm(x)));
///
/// It has no parameters, and is run under autograd. It is in summaries, cuts and checkpoints as any
/// layer. What it computes no file has: such a graph is in no model.json, and its JSON, StableHLO
/// and ONNX are refused with a UsageError that names it.
/// Thread rule: making one is pure; the function is called by every replica on its own thread, and
/// several at once.
#pragma once

#include <torch/types.h>

#include <functional>
#include <string>

#include "tutti/nn/graph.h"

namespace tutti::nn {

/// Of its inputs [batch, ...]; gives [batch, shape...].
struct LambdaFunction {
  std::function<at::Tensor(at::TensorList)> call;
  DType dtype = DType::float32;
};

/// what   for people, and for comparing programs of one job: of another function another word
/// shape  of one sample of what it gives: UsageError, when it runs, for another one
/// dtype  of what it gives: int64, boolean and their like, of which nothing has a gradient, or a
///        floating one, by whose name it may give any of these: UsageError, when it runs, for
///        another one
///
/// Applied to one value or two. UsageError for no word, no shape or no function; when it runs under
/// autograd, for a function that reads parameters of its own, which no optimizer would know. A step
/// that a device makes again by itself (StrategyOptions::step_graph) does not call it: compile()
/// refuses that.
Layer lambda(std::string what, Shape shape, std::function<at::Tensor(at::TensorList)> function,
             DType dtype = DType::float32);

}  // namespace tutti::nn
