/// The one table of operators: what each alternative of Op is for every part of nn. Not for users.
///
/// An operator is its struct in ops.h, the function in graph.h that makes its layer, and an
/// OperatorOf in one of operators_*.h, where all of this stands together:
///
///   kind      "conv2d": the name of that function
///   infer     sizes filled in, the shape of what it gives, its parameters; or an error
///   state     what it owns, drawn: a torch module, a parameter, or nothing (Stateless)
///   run       by LibTorch, under autograd
///   plan      forward and gradients without autograd; or NotPlanned, and autograd takes the graph
///   lower     as StableHLO
///   to_onnx   as nodes of ONNX, in evaluation
///   fields    what its struct has, by name: in files; or NoFields
///   takes_channels_last   whether `lower` knows both orders of images, or (LibTorchsOrder) one
///
/// operators.cpp makes a row of each, which does not compile where something is missing.
/// Thread rule: constants; functions have that of the module or the program.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "tutti/nn/detail/graph_plan.h"
#include "tutti/nn/detail/graph_state.h"
#include "tutti/nn/detail/graph_step.h"
#include "tutti/nn/detail/operator_facts.h"
#include "tutti/nn/detail/operator_fields.h"

namespace tutti::nn::detail {

/// A layer on its inputs, of which most have one: x.
struct Running {
  const GraphStep& step;
  const GraphStep::Values& all;

  const at::Tensor& x() const { return all[0]; }
  template <class Module>
  at::Tensor by() const {
    return static_cast<Module*>(step.module)->forward(x());
  }
};

/// A row.
struct Operator {
  OperatorFacts facts;
  LayerState (*state)(const Op&, int place);  ///< `place` numbers dropout layers
  at::Tensor (*run)(const Op&, const Running&);
  LayerPlan plan;
};
const Operator& operator_of(const Op& op) noexcept;

/// What is said of an operator, by a specialization for each.
template <class O>
struct OperatorOf;

struct Stateless {
  template <class O>
  static LayerState state(const O&, int) {
    return {};
  }
};
/// Applied by a function of values, without a layer.
struct OfValues {};
struct SameShape {
  template <class O>
  static Resolved infer(const O& op, const Site& site) {
    return {op, site.only_input(), {}};
  }
};
struct NotPlanned {
  static constexpr LayerPlan plan{};
};
struct LibTorchsOrder {
  static constexpr bool takes_channels_last = false;
};
struct BothOrders {
  static constexpr bool takes_channels_last = true;
};

}  // namespace tutti::nn::detail
