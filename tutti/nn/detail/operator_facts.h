/// What is known of an operator without LibTorch: a part of its row in the one table of operators
/// (operators.h). Not for users. Thread rule: constants; `lower` has that of the program.
#pragma once

#include <string_view>

#include "tutti/nn/detail/node_lowering.h"
#include "tutti/nn/detail/site.h"

namespace tutti::nn::detail {

struct OperatorFacts {
  std::string_view kind;
  Resolved (*infer)(const Op&, const Site&);
  bool takes_channels_last;
  hlo::Value (*lower)(const Op&, const NodeLowering&);
};
const OperatorFacts& facts_of(const Op& op) noexcept;

}  // namespace tutti::nn::detail
