#include "tutti/train/metrics/better.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "tutti/base/suggest.h"

namespace tutti {

namespace {

/// Whether it stands there by itself: "auc" in "weighted_auc_of_2", and not in "auction".
bool has_word(std::string_view name, std::string_view word) {
  const auto goes_on = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !goes_on(name[at - 1])) && (end == name.size() || !goes_on(name[end])))
      return true;
  }
  return false;
}

}  // namespace

bool higher_is_better(Better better, std::string_view name) {
  if (better != Better::by_name) return better == Better::higher;
  // Of an output "score", and of a class "recall", too.
  if (name.ends_with("loss") || name.ends_with("error") || has_word(name, "false")) return false;
  static constexpr std::array<std::string_view, 11> kHigher = {
      "accuracy", "auc", "precision",      "recall",        "f1", "score", "map_at",
      "f_beta",   "iou", "true_positives", "true_negatives"};
  return std::ranges::any_of(kHigher, [&](std::string_view word) { return has_word(name, word); });
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
