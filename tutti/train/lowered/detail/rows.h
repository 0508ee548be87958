/// Arrays as programs take them; not for users. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/base/array.h"
#include "tutti/hlo/program.h"

namespace tutti::detail {

template <class T>
Array array_with(std::vector<int64_t> shape, std::span<const T> values) {
  Array array = Array::zeros(dtype_of<T>(), std::move(shape));
  std::ranges::copy(values, array.as<T>().begin());
  return array;
}

/// `rows` rows, those of `array` first, then the first of `like`: one that the model can take.
Array filled_up(const Array& array, int64_t rows, const Array& like);

/// UsageError that begins "compiled step: WHAT is ...": for another type or shape; with `any_rows`
/// the first dimension may be any.
void require_fits(std::string_view what, const Array& array, const hlo::Type& type, bool any_rows);

/// Of each number the rows of all parts, one behind the other; parts without arrays have none.
std::vector<Array> joined(const std::vector<std::vector<Array>>& parts);

/// Whether a program of more rows is to serve: for what comes once, as the last batch of an epoch,
/// nothing is compiled; for what comes twice in a row, and is half of it at most, it is.
class LargerProgram {
 public:
  bool serve(int64_t rows, int64_t program_rows) {
    const bool again = rows == last_;
    last_ = rows;
    return rows == program_rows || !again || 2 * rows > program_rows;
  }

 private:
  int64_t last_ = 0;
};

/// The number of rows of the first of them; 0 without any.
inline int64_t rows_of(const std::vector<Array>& arrays) {
  return arrays.empty() ? 0 : arrays[0].shape().at(0);
}

}  // namespace tutti::detail
