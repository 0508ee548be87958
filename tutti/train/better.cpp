#include "tutti/train/better.h"

#include <algorithm>
#include <array>

namespace tutti {

bool higher_is_better(Better better, std::string_view name) {
  if (better != Better::by_name) return better == Better::higher;
  if (name.ends_with("loss") || name.ends_with("error")) return false;  // of an output "score" too
  static constexpr std::array<std::string_view, 7> kHigher = {
      "accuracy", "auc", "precision", "recall", "f1", "score", "map_at"};
  return std::ranges::any_of(
      kHigher, [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

}  // namespace tutti
