/// Which operators of LibTorch a file may name. A graph is a program that somebody else wrote: what
/// reaches files, storages, memory by address or another process is not called for it
/// (docs/design/exported.md). Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::exported::detail {

/// "torch.ops.aten.conv2d.default" in parts. Empty name: it is no operator of the dispatcher.
struct OperatorWords {
  std::string space;     ///< "aten", "higher_order"
  std::string name;      ///< "conv2d"
  std::string overload;  ///< "" for "default"
  /// "aten::conv2d", "aten::add.Tensor"; "higher_order.cond".
  std::string text() const;
};
OperatorWords operator_words(std::string_view target);

/// Why an operator is not served, whatever its arguments; empty: it is.
std::string why_refused(const OperatorWords& words);

/// Those of aten that are called, in order (served_names.cpp); and whether a name is one of them,
/// or one in place (relu_).
const std::vector<std::string_view>& served_names();
bool is_served_name(std::string_view name);

/// A higher-order operator that the runner has: cond, wrap_with_set_grad_enabled,
/// wrap_with_autocast.
bool is_region(const OperatorWords& words);

}  // namespace tutti::exported::detail
