/// The dtype of what an operator gives. Not for users. Thread rule: pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "tutti/nn/ops.h"

namespace tutti::nn::detail {

/// Of inputs of these dtypes; of the resolved shapes nothing is asked. UsageError that says the
/// layer (`name` may be empty) for those that it does not compute with.
DType value_type(const Op& op, const std::vector<DType>& inputs, std::string_view name);

DType dtype_of(const LambdaFunction& function) noexcept;

}  // namespace tutti::nn::detail
