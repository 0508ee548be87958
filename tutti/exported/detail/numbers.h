/// Python's arithmetic on sizes, which a graph has between its operators. Thread rule: pure
/// functions.
#pragma once

#include <ATen/core/ivalue.h>

#include <span>
#include <string_view>

namespace tutti::exported::detail {

using NumberFunction = c10::IValue (*)(std::span<const c10::IValue> numbers);

struct NumberOperator {
  std::string_view target;  ///< "_operator.mul"
  size_t arity = 2;
  NumberFunction compute = nullptr;  ///< UsageError where Python divides by zero or int64 is full
};

/// Null for a target that is none of them.
const NumberOperator* number_operator(std::string_view target);

}  // namespace tutti::exported::detail
