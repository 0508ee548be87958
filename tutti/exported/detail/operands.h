/// An argument of a file as the schema of its operator wants it. Thread rule: pure functions.
#pragma once

#include <ATen/core/function_schema.h>

#include <functional>
#include <string>

#include "tutti/exported/detail/call_plan.h"

namespace tutti::exported::detail {

using SlotOf = std::function<int(const std::string& name)>;

/// DataError for one that the schema does not allow.
Operand operand_of(const pt2::Argument& given, const c10::Argument& argument, const SlotOf& slot);

/// The same without a schema: of Python's operators on numbers, regions and outputs.
Operand operand_of(const pt2::Argument& given, const SlotOf& slot);

/// A number as a tensor of no dimensions that counts as a number where types are promoted.
at::Tensor wrapped_number(const c10::IValue& number);

}  // namespace tutti::exported::detail
