#include "tutti/train/lowered/detail/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tutti/base/error.h"

namespace tutti::detail {

Array filled_up(const Array& array, int64_t rows, const Array& like) {
  if (array.shape()[0] == rows) return array;
  std::vector<int64_t> shape = array.shape();
  shape[0] = rows;
  Array whole = Array::zeros(array.dtype(), shape);
  const auto row_bytes = static_cast<size_t>(whole.num_bytes() / rows);
  auto* to = static_cast<std::byte*>(whole.data());
  std::memcpy(to, array.data(), static_cast<size_t>(array.num_bytes()));
  for (int64_t row = array.shape()[0]; row < rows; ++row)
    std::memcpy(to + static_cast<size_t>(row) * row_bytes, like.data(), row_bytes);
  return whole;
}

void require_fits(std::string_view what, const Array& array, const hlo::Type& type, bool any_rows) {
  const auto& got = array.shape();
  const auto from = any_rows && !got.empty() ? 1 : 0;
  const bool shapes = got.size() == type.shape.size() &&
                      std::equal(got.begin() + from, got.end(), type.shape.begin() + from);
  if (array.dtype() != type.dtype || !shapes)
    throw UsageError(fmt::format("compiled step: {} is {}, expected {}", what, array.to_string(),
                                 hlo::to_string(type)));
}

std::vector<Array> joined(const std::vector<std::vector<Array>>& parts) {
  const auto& like =
      *std::ranges::max_element(parts, {}, [](const auto& own) { return rows_of(own); });
  int64_t rows = 0;
  for (const auto& part : parts) rows += rows_of(part);
  std::vector<Array> all;
  for (size_t i = 0; i < like.size(); ++i) {
    std::vector<int64_t> shape = like[i].shape();
    shape[0] = rows;
    auto* to =
        static_cast<std::byte*>(all.emplace_back(Array::zeros(like[i].dtype(), shape)).data());
    for (const auto& part : parts) {
      if (part.empty()) continue;
      std::memcpy(to, part[i].data(), static_cast<size_t>(part[i].num_bytes()));
      to += part[i].num_bytes();
    }
  }
  return all;
}

}  // namespace tutti::detail
