/// Better: which of two values of a quantity is the better one, for all that watch quantities.
/// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

enum class Better : uint8_t {
  /// Lower where it ends in loss or error; higher where it has accuracy, auc, precision, recall,
  /// f1, f_beta, iou, score, map_at, true_positives or true_negatives in it; else lower.
  by_name,
  lower,
  higher,
};

/// Of the quantity of that name.
bool higher_is_better(Better better, std::string_view name);

/// `unknown quantity "val_acc"; did you mean ...`, and where there are none, what "val_..." needs.
std::string unknown_quantity(std::string_view name, std::span<const std::string> known);

}  // namespace tutti
