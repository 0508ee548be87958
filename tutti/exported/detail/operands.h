/// An argument of a file as the schema of its operator wants it. Thread rule: pure functions.
#pragma once

#include <ATen/core/function_schema.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/exported/detail/call_plan.h"

namespace tutti::exported::detail {

using SlotOf = std::function<int(const std::string& name)>;

/// DataError for one that the schema does not allow.
Operand operand_of(const pt2::Argument& given, const c10::Argument& argument, const SlotOf& slot);

/// The same without a schema: of Python's operators on numbers, regions and outputs.
Operand operand_of(const pt2::Argument& given, const SlotOf& slot);

/// What a call gives the argument of this name, where that is no value of the graph.
std::optional<c10::IValue> constant_of(const Call& call, std::string_view name);

/// Whether an operator takes numbers from a generator, as it is called here.
bool draws(const Call& call);

/// Whether what it gives may be what it was given, or a view of that, without a word of it in its
/// schema.
bool may_give_back(const c10::OperatorHandle& op);

/// A number as a tensor of no dimensions that counts as a number where types are promoted.
at::Tensor wrapped_number(const c10::IValue& number);

}  // namespace tutti::exported::detail
