#include "tutti/parallel/stages/tree_accumulator.h"

#include <algorithm>
#include <utility>

#include "tutti/base/detail/check.h"

namespace tutti::parallel {
namespace {

/// Whether nobody else has the memory: a leaf may be that of another parameter, or a view.
bool is_own(const at::Tensor& sum) {
  return sum.layout() == at::kStrided && sum.use_count() == 1 && sum.storage().use_count() == 1 &&
         sum.is_non_overlapping_and_dense();
}

// Zeros are added too, as they turn -0 into 0.
at::Tensor added(const at::Tensor& left, const at::Tensor& right) {
  if (!left.defined() || !right.defined()) {
    const at::Tensor& only = left.defined() ? left : right;
    return only.defined() ? at::add(only, 0) : only;
  }
  return is_own(left) ? left.add_(right) : at::add(left, right);
}

bool has_16_bits(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

}  // namespace

void TreeAccumulator::add(const std::vector<at::Tensor>& leaf) {
  const at::NoGradGuard no_gradient;
  if (subtrees_.empty()) dtypes_.assign(leaf.size(), at::kFloat);
  TUTTI_CHECK(leaf.size() == dtypes_.size(), "{} tensors, the first leaf had {}", leaf.size(),
              dtypes_.size());
  Subtree next{.level = 0, .sums = leaf};
  for (size_t i = 0; i < leaf.size(); ++i) {
    if (!leaf[i].defined()) continue;
    dtypes_[i] = leaf[i].scalar_type();
    if (has_16_bits(dtypes_[i])) next.sums[i] = leaf[i].to(at::kFloat);
  }
  subtrees_.push_back(std::move(next));
  while (subtrees_.size() > 1 && subtrees_.end()[-2].level == subtrees_.back().level)
    join_last_two();
}

void TreeAccumulator::join_last_two() {
  Subtree right = std::move(subtrees_.back());
  subtrees_.pop_back();
  Subtree& left = subtrees_.back();
  for (size_t i = 0; i < left.sums.size(); ++i) left.sums[i] = added(left.sums[i], right.sums[i]);
  left.level = std::max(left.level, right.level) + 1;
}

std::vector<at::Tensor> TreeAccumulator::take() {
  const at::NoGradGuard no_gradient;
  if (subtrees_.empty()) return {};
  while (subtrees_.size() > 1) join_last_two();
  Subtree whole = std::exchange(subtrees_, {}).front();
  for (size_t i = 0; i < whole.sums.size(); ++i) {
    at::Tensor& sum = whole.sums[i];
    if (!sum.defined()) continue;
    sum = whole.level == 0 ? sum.to(dtypes_[i], /*non_blocking=*/false, /*copy=*/true)
                           : sum.to(dtypes_[i]);
  }
  return std::move(whole.sums);
}

}  // namespace tutti::parallel
