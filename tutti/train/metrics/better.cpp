#include "tutti/train/metrics/better.h"

#include <algorithm>
#include <array>

#include "tutti/base/suggest.h"

namespace tutti {

bool higher_is_better(Better better, std::string_view name) {
  if (better != Better::by_name) return better == Better::higher;
  if (name.ends_with("loss") || name.ends_with("error")) return false;  // of an output "score" too
  static constexpr std::array<std::string_view, 7> kHigher = {
      "accuracy", "auc", "precision", "recall", "f1", "score", "map_at"};
  return std::ranges::any_of(
      kHigher, [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

std::string unknown_quantity(std::string_view name, std::span<const std::string> known) {
  constexpr std::string_view kValidation = "val_";
  const auto of_validation = [&](std::string_view one) { return one.starts_with(kValidation); };
  const bool missing = of_validation(name) && std::ranges::none_of(known, of_validation);
  return unknown_message("quantity", name, known) +
         (missing ? "\n  val_... needs `validation` (--validation) or `validation_split` "
                    "(--validation-split)"
                  : "");
}

}  // namespace tutti
