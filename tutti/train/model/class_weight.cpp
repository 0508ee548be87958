#include "tutti/train/model/class_weight.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <ranges>

#include "tutti/base/error.h"
#include "tutti/base/typed.h"

namespace tutti {

void require_class_weight(std::string_view place, const std::map<int64_t, double>& by_label,
                          int64_t classes) {
  for (const auto& [label, weight] : by_label) {
    if (!(weight >= 0 && std::isfinite(weight)))
      throw UsageError(
          fmt::format("{} of label {} is {}, must be a finite number >= 0", place, label, weight));
    if (!fits_float32(weight))
      throw UsageError(fmt::format("{} of label {} is {}, must be 0 or {}", place, label, weight,
                                   kFloat32Range));
    if (classes > 0 && (label < 0 || label >= classes))
      throw UsageError(fmt::format("{} has label {}, there are {} classes (labels 0 to {})", place,
                                   label, classes, classes - 1));
  }
  // A class that is not named counts 1.
  const auto is_zero = [](double weight) { return weight == 0; };
  if (classes > 0 && std::ssize(by_label) == classes &&
      std::ranges::all_of(by_label | std::views::values, is_zero))
    throw UsageError(
        fmt::format("{} is 0 for all {} classes: nothing would be learnt; give one of "
                    "them a number above 0",
                    place, classes));
}

}  // namespace tutti
