/// The layer that is a function of the program's own. Not for users: operators.h says how they are
/// read.
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <string>

#include "tutti/base/error.h"
#include "tutti/nn/detail/operators.h"
#include "tutti/nn/lambda.h"
#include "tutti/sync/tensors.h"

namespace tutti::nn::detail {

/// Whether a gradient of y would come to a leaf behind none of `inputs`, which are no leaves.
bool has_parameters_beside(const at::Tensor& y, const GraphStep::Values& inputs);

template <>
struct OperatorOf<op::Lambda> : Stateless, NotPlanned, LibTorchsOrder {
  static constexpr std::string_view kind = "lambda";
  static constexpr std::tuple fields{Field{"what", &op::Lambda::what},
                                     Field{"shape", &op::Lambda::shape},
                                     Field{"function", &op::Lambda::function}};
  static Resolved infer(const op::Lambda& op, const Site& site) {
    if (op.what.empty()) site.fail("got no word for what it computes");
    if (op.shape.empty()) site.fail("got an empty shape, expected that of one sample");
    for (const int64_t side : op.shape) site.at_least("each dimension", side, 1);
    return {op, op.shape, {}};
  }
  static at::Tensor run(const op::Lambda& op, const Running& in) {
    GraphStep::Values given;
    for (const at::Tensor& x : in.all) given.push_back(with_contiguous_gradient(x));
    const at::Tensor y = op.function->call(at::TensorList(given.data(), given.size()));
    Shape expected = op.shape;
    expected.insert(expected.begin(), in.x().size(0));
    if (!y.defined() || y.sizes() != at::IntArrayRef(expected))
      refuse_given(op, in, y.defined() ? to_string(y.sizes().vec()) : "no tensor",
                   "shape " + to_string(expected));
    const at::ScalarType dtype = scalar_type_of(op.function->dtype);
    if (y.scalar_type() != dtype && !(y.is_floating_point() && at::isFloatingType(dtype)))
      refuse_given(op, in, c10::str(y.scalar_type()),
                   fmt::format("{}, which the last argument of lambda() is to say",
                               name_of(op.function->dtype)));
    if (has_parameters_beside(y, given))
      refuse_given(op, in, "what depends on parameters of its own, which nobody trains",
                   "a function of its inputs alone; detach() what is not to be trained");
    return y.contiguous();
  }
  static onnx::Value to_onnx(const op::Lambda& op, const NodeToOnnx& to) {
    refuse("onnx", op, to.node);
  }
  static hlo::Value lower(const op::Lambda& op, const NodeLowering& to) {
    refuse("stablehlo", op, to.node);
  }

 private:
  [[noreturn]] static void refuse_given(const op::Lambda& op, const Running& in,
                                        const std::string& gave, const std::string& expected) {
    throw UsageError(fmt::format("nn layer lambda \"{}\" ({}): gave {}, expected {}", in.step.name,
                                 op.what, gave, expected));
  }
  [[noreturn]] static void refuse(const char* form, const op::Lambda& op, const nn::Node& node) {
    throw UsageError(fmt::format(
        "{}: layer \"{}\" is a function of the program's own ({}), of which there is no other "
        "form; expected layers of nn alone",
        form, node.name, op.what));
  }
};

}  // namespace tutti::nn::detail
