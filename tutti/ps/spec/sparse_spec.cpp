#include "tutti/ps/spec/sparse_spec.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tutti/base/error.h"
#include "tutti/ps/spec/detail/mixed_key.h"

namespace tutti::ps {

int server_of_key(uint64_t key, int num_parts) {
  if (num_parts < 1)
    throw UsageError(fmt::format("server_of_key: num_parts is {}; expected 1 or more", num_parts));
  return static_cast<int>((detail::mixed(key) >> 32) * static_cast<uint64_t>(num_parts) >> 32);
}

void SparseTableSpec::validate() const {
  const auto require = [&](bool good, std::string_view field, const auto& got,
                           const std::string& expected) {
    if (!good)
      throw UsageError(
          fmt::format("embedding table \"{}\": {} is {}; expected {}", name, field, got, expected));
  };
  const bool is_float = dtype == DType::float32;
  const double largest =
      is_float ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
  const auto require_value = [&](double value, std::string_view field) {
    require(std::abs(value) <= largest, field, value,
            fmt::format("a finite {}", tutti::name_of(dtype)));
  };
  const auto require_count = [&](int64_t count, int64_t least, int64_t most,
                                 std::string_view field) {
    require(count >= least && count <= most, field, count, fmt::format("{} to {}", least, most));
  };
  require(!name.empty(), "name", "\"\"", "a name");
  require_count(width, 1, kMostWidth, "width");
  require(is_float || dtype == DType::float64, "dtype", tutti::name_of(dtype),
          "float32 or float64");
  if (const auto* uniform = std::get_if<UniformRows>(&initializer)) {
    require_value(uniform->low, "uniform low");
    require_value(uniform->high, "uniform high");
    require_value(uniform->high - uniform->low, "uniform high - low");
    const bool apart = is_float
                           ? static_cast<float>(uniform->low) < static_cast<float>(uniform->high)
                           : uniform->low < uniform->high;
    require(apart, "uniform high", uniform->high,
            fmt::format("more than low, {}, as {}", uniform->low, tutti::name_of(dtype)));
  }
  if (const auto* normal = std::get_if<NormalRows>(&initializer)) {
    require_value(normal->mean, "normal mean");
    require(normal->std >= 0, "normal std", normal->std, "a finite number >= 0");
    require_value(std::abs(normal->mean) + 6 * normal->std, "|normal mean| + 6 std");
  }
  require_count(most_rows, 0, kMostRows, "most_rows");
  require_count(idle_pushes, 0, kMostPushes, "idle_pushes");
}

std::string SparseTableSpec::words() const {
  std::string initial = "zeros";
  if (const auto* uniform = std::get_if<UniformRows>(&initializer))
    initial = fmt::format("uniform in [{}, {})", uniform->low, uniform->high);
  if (const auto* normal = std::get_if<NormalRows>(&initializer))
    initial = fmt::format("normal with mean {} and std {}", normal->mean, normal->std);
  std::string words = fmt::format("embedding table \"{}\": {} {} a row, {}, seed {}", name, width,
                                  tutti::name_of(dtype), initial, seed);
  if (most_rows > 0) words += fmt::format(", at most {} rows", most_rows);
  if (idle_pushes > 0) words += fmt::format(", evicted after {} idle pushes", idle_pushes);
  return words;
}

}  // namespace tutti::ps
