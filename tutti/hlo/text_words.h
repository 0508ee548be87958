/// StableHLO's words for attributes and numbers, for text.cpp alone.
#pragma once

#include <string>
#include <string_view>

#include "tutti/hlo/instruction.h"

namespace tutti::hlo {

/// Of those written as `stablehlo.add %a, %b : type`; others have none.
std::string_view elementwise_name(Op op);
/// "LT".
std::string_view comparison_name(Comparison how);
/// "FLOAT", "SIGNED" or "UNSIGNED": how elements are compared.
std::string_view comparison_kind(DType dtype);

/// A number as StableHLO reads it: floating ones have a point, infinities and NaN are bits.
std::string literal(DType dtype, double number);
/// "stablehlo.constant dense<1.0> : tensor<2xf32>".
std::string constant_words(const Type& type, double number);
/// Below every other number: where a maximum starts.
double lowest(DType dtype);

/// On one line.
std::string flat(std::string_view words);
/// In the letters that names may have, and not a number.
std::string identifier(std::string_view words);

/// What an instruction does with two scalars, as the block that it takes: "add", "maximum".
std::string block(std::string_view operation, DType dtype);
/// The block of whether the first of two is the larger one, or as large.
std::string first_is_largest(DType dtype);

std::string convolution_words(const Window& window, DType dtype);
std::string window_words(const Window& window);
std::string dot_words(const DotDimensions& dimensions, DType dtype);
/// Of take_rows and add_rows, by numbers of that many dimensions, of rows of that many features.
std::string taken_rows_words(size_t rank, int64_t features);
std::string added_rows_words(size_t rank);
std::string replicas_words(int replicas);

}  // namespace tutti::hlo
