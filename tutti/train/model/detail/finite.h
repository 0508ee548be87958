/// Values that are not finite, in words. Thread rule: pure functions.
#pragma once

#include <torch/types.h>

#include <string>

namespace tutti::detail {

/// Also where a tensor is not defined, or not of floating-point numbers.
bool all_finite(const at::Tensor& tensor);

/// "nan at element 3", of a tensor in which one is not finite.
std::string bad_element(const at::Tensor& tensor);

}  // namespace tutti::detail
