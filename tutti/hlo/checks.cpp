#include "tutti/hlo/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "tutti/base/error.h"

namespace tutti::hlo {

void refuse(std::string_view operation, std::string_view got, std::string_view expected) {
  throw UsageError(fmt::format("hlo::{}: got {}, expected {}", operation, got, expected));
}

std::string words_of(std::span<const int64_t> numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

std::string words_of(std::initializer_list<Value> values) {
  std::vector<std::string> types;
  for (const Value value : values) types.push_back(to_string(value.type()));
  return fmt::format("{}", fmt::join(types, " and "));
}

void require_same_program(std::string_view operation, Value a, Value b) {
  if (&a.program() != &b.program())
    refuse(operation,
           fmt::format("values of programs {} and {}", a.program().name(), b.program().name()),
           "those of one program");
}

void require_floating(std::string_view operation, Value a) {
  if (!is_floating(a.dtype())) refuse(operation, words_of({a}), "float32 or bfloat16");
}

void require_numbers(std::string_view operation, Value a) {
  if (a.dtype() == DType::boolean) refuse(operation, words_of({a}), "numbers, not booleans");
}

void require_rank(std::string_view operation, Value a, size_t rank) {
  if (a.shape().size() != rank)
    refuse(operation, words_of({a}), fmt::format("{} dimensions", rank));
}

void require_dimensions(std::string_view operation, std::span<const int64_t> dimensions,
                        size_t rank) {
  std::vector<bool> seen(rank);
  for (const int64_t dimension : dimensions) {
    if (dimension < 0 || dimension >= int64_t(rank) || seen[size_t(dimension)])
      refuse(operation, fmt::format("dimensions {}", words_of(dimensions)),
             rank == 0 ? "none of a scalar" : fmt::format("each once, from 0 to {}", rank - 1));
    seen[size_t(dimension)] = true;
  }
}

}  // namespace tutti::hlo
