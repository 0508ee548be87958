/// What operators refuse, each in the same words. Not for users.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "tutti/hlo/program.h"

namespace tutti::hlo {

/// Throws UsageError: "hlo::dot: got tensor<2x3xf32>, expected ...".
[[noreturn]] void refuse(std::string_view operation, std::string_view got,
                         std::string_view expected);

/// "[2, 3]".
std::string words_of(std::span<const int64_t> numbers);
/// "tensor<2x3xf32> and tensor<f32>".
std::string words_of(std::initializer_list<Value> values);

/// One that stands in Type's list, with no dimension below 0.
void require_type(std::string_view operation, const Type& type);
void require_same_program(std::string_view operation, Value a, Value b);
void require_floating(std::string_view operation, Value a);
/// No booleans.
void require_numbers(std::string_view operation, Value a);
void require_rank(std::string_view operation, Value a, size_t rank);
/// Each of them once, from 0 to below `rank`.
void require_dimensions(std::string_view operation, std::span<const int64_t> dimensions,
                        size_t rank);

}  // namespace tutti::hlo
