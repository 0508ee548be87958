/// What is known of an operator without LibTorch: a part of its row in the one table of operators
/// (operators.h). Not for users. Thread rule: constants; `lower` has that of the program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/json.h"
#include "tutti/nn/detail/node_lowering.h"
#include "tutti/nn/detail/node_to_onnx.h"
#include "tutti/nn/detail/site.h"

namespace tutti::nn::detail {

struct OperatorFacts {
  std::string_view kind;
  Resolved (*infer)(const Op&, const Site&);
  bool takes_channels_last;
  bool of_values;  ///< applied by a function of values, such as add(): by no layer
  hlo::Value (*lower)(const Op&, const NodeLowering&);
  onnx::Value (*to_onnx)(const Op&, const NodeToOnnx&);
  OrderedJson (*to_json)(const Op&);  ///< all its fields
  Op (*from_json)(const Json&);       ///< throws JsonError unless all are there, and no others
};
const OperatorFacts& facts_of(const Op& op) noexcept;
/// Null for a kind that there is not.
const OperatorFacts* facts_of_kind(std::string_view kind) noexcept;
std::vector<std::string> all_kinds();

}  // namespace tutti::nn::detail
